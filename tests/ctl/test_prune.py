"""What is pruned, and what never is."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ddtreectl.facts import record_files
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.output import Output
from ddtreectl.facts.records import STATUSES, Provisioned, Records, Status, Swap
from ddtreectl.hosts.local import LocalHost
from ddtreectl.inventory.layout import Layout
from ddtreectl.plan.prune import Superfluous, superfluous
from tests.ctl.test_plan import PLACE, SERVING, TREE, generation, unit_text


def pruned(facts: HostFacts, keep: int = 1) -> Superfluous:
    return superfluous(PLACE.host_name, PLACE.host, facts, keep)


def with_generations(*statuses: Status, serving: int = 1) -> HostFacts:
    generations = tuple(
        replace(generation(number, status), environment=f"e{number}")
        for number, status in enumerate(statuses, 1)
    )
    records = Records(
        generations=generations,
        environments=frozenset({*(f"e{number}" for number in range(1, len(statuses) + 1)), "old"}),
    )
    return replace(SERVING, records=records, unit_files={TREE: unit_text(serving, "tree")})


def test_what_serves_and_what_is_good_stays() -> None:
    facts = with_generations("good", "failed", "good", "failed", "failed", serving=1)
    found = pruned(facts)
    assert found.generations == {"gpu1": (2, 4)}
    assert found.kept["gpu1"] == {1: "serves", 3: "the last good one", 5: "the newest"}
    assert found.environments == ("e2", "e4", "old")
    assert found.units == ()


def test_what_was_provisioned_for_the_next_deploy_stays() -> None:
    facts = with_generations("good", "failed", "good")
    record = Provisioned("engine", "old", "2.13.0", "cpu")
    facts = replace(facts, records=replace(facts.records, provisioned={"engine": record}))
    assert pruned(facts).environments == ("e2",)


def test_what_no_build_has_finished_goes_unless_a_generation_runs_from_it() -> None:
    facts = with_generations("good")
    begun = frozenset({"engine-cpu-0123456789ab", "e1"})
    changed = replace(facts.records, environments=frozenset(), unfinished=begun)
    assert pruned(replace(facts, records=changed)).environments == ("engine-cpu-0123456789ab",)


def test_what_another_root_uses_stays() -> None:
    facts = with_generations("good", "failed", "good", serving=3)
    changed = replace(facts.records, claimed=frozenset({"e1", "old", "elsewhere"}))
    found = pruned(replace(facts, records=changed))
    assert found.environments == ("e2",)
    assert (found.used, found.others) == (("e3",), ("e1", "old"))


def test_claims_of_roots_that_are_there_count(tmp_path: Path) -> None:
    """Another root's; this root's own, and that of one that is gone, keep nothing."""
    layout = Layout(str(tmp_path / "r"), str(tmp_path / "e"), "/etc/systemd/system")
    other = Layout(str(tmp_path / "other"), layout.environments, layout.unit_dir)
    gone = Layout(str(tmp_path / "gone"), layout.environments, layout.unit_dir)
    for name, owner in (("a", layout), ("b", other), ("c", gone)):
        Path(layout.claims(name)).mkdir(parents=True)
        Path(layout.claims(name), owner.claimant).symlink_to(owner.root)
    for root in (layout.root, other.root):
        Path(root).mkdir()
    done = LocalHost("here").run(["sh", "-c", record_files.command(layout)], deadline=30.0)
    found = record_files.parse(Output(done.returncode, done.stdout, done.stderr), layout)
    assert found.claimed == {"b"}


def test_what_is_not_an_environment_of_ours_is_not_seen(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "root"), str(tmp_path / "e"), "/u")
    for name in ("engine-cpu-0123456789ab", "engine-cpu-ba9876543210", "mine", ".wheels"):
        (tmp_path / "e" / name).mkdir(parents=True)
    finished, damaged = (tmp_path / "e/engine-cpu-ba9876543210", tmp_path / "e/mine")
    (finished / "environment.json").write_text('{"name": "engine-cpu-ba9876543210"}')
    (damaged / "environment.json").touch()
    done = LocalHost("here").run(["sh", "-c", record_files.command(layout)], deadline=30.0)
    found = record_files.parse(Output(done.returncode, done.stdout, done.stderr), layout)
    assert found.environments == {"engine-cpu-ba9876543210"}
    assert found.unfinished == {"engine-cpu-0123456789ab"}
    (finished / "environment.json").write_text("")
    done = LocalHost("here").run(["sh", "-c", record_files.command(layout)], deadline=30.0)
    found = record_files.parse(Output(done.returncode, done.stdout, done.stderr), layout)
    assert found.unfinished == {"engine-cpu-0123456789ab", "engine-cpu-ba9876543210"}


def test_more_good_ones_are_kept_where_that_is_asked_for() -> None:
    facts = with_generations("good", "good", "good", "good", serving=4)
    assert pruned(facts, keep=2).generations == {"gpu1": (1, 2)}
    assert pruned(facts, keep=9).generations == {"gpu1": ()}


def test_an_unfinished_swap_keeps_both_of_its_ends() -> None:
    facts = with_generations("good", "pending", "good", "failed", serving=3)
    swap = Swap("gpu1", to=2, back=1, owner="ada@ops", since="t")
    facts = replace(facts, records=replace(facts.records, swaps=(swap,)))
    assert pruned(facts).generations == {"gpu1": ()}


def test_the_unit_file_of_a_generation_goes_with_it() -> None:
    facts = with_generations("good", "failed", "good", serving=2)
    stopped = {TREE: replace(facts.unit(TREE), active="failed", main_pid=None)}
    facts = replace(facts, units=stopped, listeners=(), processes={})
    found = pruned(facts)
    assert (found.generations, found.units) == ({"gpu1": (1, 2)}, (TREE,))


@given(
    statuses=st.lists(st.sampled_from(STATUSES), min_size=1, max_size=9),
    data=st.data(),
    keep=st.integers(1, 4),
)
def test_the_way_back_is_never_pruned(
    statuses: list[Status], data: st.DataObject, keep: int
) -> None:
    serving = data.draw(st.integers(1, len(statuses)))
    facts = with_generations(*statuses, serving=serving)
    found = pruned(facts, keep)
    gone = set(found.generations["gpu1"])
    good = [number for number, status in enumerate(statuses, 1) if status == "good"]
    assert serving not in gone
    assert len(statuses) not in gone  # its number must not be given again
    assert not gone & set(good[-keep:])
    kept = set(range(1, len(statuses) + 1)) - gone
    assert not {f"e{number}" for number in kept} & set(found.environments)
