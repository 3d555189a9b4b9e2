"""Plans: pure functions of a wish and of facts."""

from dataclasses import replace
from typing import Any

import pytest

from ddtreectl.facts.disk import Disk
from ddtreectl.facts.gpu import ComputeProcess, Gpu, Gpus
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.http import Answer
from ddtreectl.facts.ports import Listener
from ddtreectl.facts.processes import Process
from ddtreectl.facts.python import Python
from ddtreectl.facts.records import Generation, Records, Status, Swap
from ddtreectl.facts.systemd import Unit
from ddtreectl.inventory.loader import parse
from ddtreectl.inventory.select import Place, find_place, service_for
from ddtreectl.inventory.service import Mode, ServiceSpec
from ddtreectl.plan.refusals import refusals
from ddtreectl.plan.status import host_status
from ddtreectl.plan.step import Action, Candidate, Phase
from ddtreectl.plan.swap import plan_stop, plan_swap
from ddtreectl.plan.wish import Wish, last_good, next_number, serving

UUID = "GPU-11111111-1111-1111-1111-111111111111"
INVENTORY = parse(
    "hosts:\n  gpuhost:\n    address: 10.1.2.200\n    slots: {gpu1: {gpus: [1], port: 30001}}\n",
    "fleet.yaml",
)
PLACE: Place = find_place(INVENTORY, "gpuhost")
TREE, LINEAR = "ddtree-gpu1-tree.service", "ddtree-gpu1-linear.service"


def spec(mode: Mode = Mode.TREE, **options: Any) -> ServiceSpec:
    return service_for(INVENTORY, PLACE, mode, **options)


def wish(mode: Mode = Mode.LINEAR, *, number: int = 2, **options: Any) -> Wish:
    service = spec(mode, **options)
    unit = f"ddtree-gpu1-{mode}.service"
    text = unit_text(number, mode.value)
    return Wish(PLACE, Candidate(number, service, "engine-a", unit, text, "", staged=False))


def unit_text(number: int, mode: str) -> str:
    return f"[Service]\nExecStart=/bin/{mode}\n\n[X-DDTree]\nGeneration={number}\n"


def generation(
    number: int, status: Status = "good", mode: Mode = Mode.TREE, at: str = ""
) -> Generation:
    return Generation(
        slot="gpu1",
        number=number,
        status=status,
        service=spec(mode),
        environment="engine-a",
        unit=f"ddtree-gpu1-{mode}.service",
        unit_sha256="",
        environment_file_sha256="",
        created_by="ada@ops",
        created_at="t",
        changed_at=at or f"t{number}",
    )


def process(pid: int, **fields: Any) -> Process:
    known = {"ppid": 1, "state": "S", "ticks": 5, "started": 100.0, "user": "root"}
    named = {"unit": None, "generation": None, "command": f"program-{pid}"}
    return Process(pid=pid, **{**known, **named, **fields})


ROOM = {
    path: Disk(path, 1 << 40, 10**7)
    for path in ("/var/lib/ddtree", "/var/lib/ddtree/environments", "/etc/systemd/system")
}
CARDS = (
    Gpu(0, "GPU-00000000-0000-0000-0000-000000000000", "RTX PRO 6000", (12, 0), 97887, 4, minor=0),
    Gpu(1, UUID, "RTX PRO 6000", (12, 0), 97887, 4, minor=1),
)
BARE = HostFacts(
    systemd=True,
    systemd_run=True,
    python=Python((3, 11, 2), "cpython-311 linux-x86_64 glibc 2.36", True),
    disk=ROOM,
    gpus=Gpus("ok", "580", CARDS),
    records=Records(environments=frozenset({"engine-a"})),
)
READY = {
    f"http://127.0.0.1:30001{path}": Answer(f"http://127.0.0.1:30001{path}", 200, body)
    for path, body in {
        "/ready": "{}",
        "/health": "{}",
        "/server_info": '{"mode": "tree", "budget": 16, "topk": 8, "totals": '
        '{"acceptance_length": 4.5, "decode_tokens_per_second": 120.0}}',
    }.items()
}
SERVING = replace(
    BARE,
    units={TREE: Unit(TREE, "loaded", "active", "running", main_pid=900, invocation="i")},
    unit_files={TREE: unit_text(1, "tree")},
    listeners=(Listener(30001, (900,)),),
    processes={900: process(900, unit=TREE)},
    records=replace(BARE.records, generations=(generation(1),)),
    answers=READY,
)


def actions(plan_steps: Any) -> list[Action]:
    return [step.action for step in plan_steps.steps]


def test_everything_that_can_fail_comes_before_the_stop() -> None:
    plan = plan_swap(wish(), SERVING)
    assert plan.refusals == ()
    assert actions(plan) == [
        Action.STAGE_GENERATION,
        Action.CHECK_UNIT,
        Action.CHECK_MODEL,
        Action.BEGIN_SWAP,
        Action.ARM_REVERT,
        Action.STOP,
        Action.AWAIT_RELEASE,
        Action.INSTALL_UNIT,
        Action.START,
        Action.HEALTH_UNIT,
        Action.HEALTH_HTTP,
        Action.HEALTH_MODEL,
        Action.DISARM_REVERT,
        Action.MARK_GOOD,
    ]
    phases = [step.phase for step in plan.steps]
    assert phases == sorted(phases, key=list(Phase).index)
    assert plan.back == 1
    assert next(s.units for s in plan.steps if s.action is Action.STOP) == (TREE,)
    assert "-ExecStart=/bin/tree\n+ExecStart=/bin/linear" in plan.unit_diff


def test_a_missing_environment_is_built_first() -> None:
    facts = replace(BARE, records=Records())
    assert actions(plan_swap(wish(number=1), facts))[0] is Action.BUILD_ENVIRONMENT


def test_no_revert_is_armed_without_systemd_and_the_plan_says_so() -> None:
    facts = replace(SERVING, systemd=False, systemd_run=False, without_systemd=True)
    plan = plan_swap(wish(), facts)
    assert Action.ARM_REVERT not in actions(plan)
    assert any("no dead-man revert can be armed" in note for note in plan.notes)
    assert any("restarts" in note for note in plan.notes)


def test_the_same_service_again_is_nothing_to_do() -> None:
    assert plan_swap(wish(Mode.TREE), SERVING).empty
    assert not plan_swap(wish(Mode.TREE, budget=32), SERVING).empty
    assert not plan_swap(replace(wish(Mode.TREE), force=True), SERVING).empty


@pytest.mark.parametrize(
    "change",
    [
        {"answers": {}},
        {"units": {TREE: Unit(TREE, "loaded", "activating", "start", main_pid=900)}},
        {"records": replace(BARE.records, generations=(generation(1, "pending"),))},
    ],
    ids=["not-ready", "starting", "not-good"],
)
def test_what_only_looks_the_same_is_deployed_again(change: dict[str, Any]) -> None:
    assert not plan_swap(wish(Mode.TREE), replace(SERVING, **change)).empty


REFUSALS: dict[str, tuple[HostFacts, str]] = {
    "probe": (
        replace(BARE, missing=("gpus",)),
        "did not tell in time, as if it were overloaded: gpus",
    ),
    "no-systemd": (replace(BARE, systemd=False), "no systemd runs"),
    "disk": (
        replace(BARE, disk={"/var/lib/ddtree": Disk("/var/lib/ddtree", 1 << 20, None)}),
        "the disk of /var/lib/ddtree has 1 MiB free and 64 MiB are needed",
    ),
    "inodes": (
        replace(BARE, disk={"/var/lib/ddtree": Disk("/var/lib/ddtree", 1 << 40, 3)}),
        "has 3 inodes free",
    ),
    "environment-disk": (
        replace(
            BARE,
            records=Records(),
            disk=ROOM
            | {"/var/lib/ddtree/environments": Disk("/var/lib/ddtree/environments", 1 << 30, None)},
        ),
        "12288 MiB are needed",
    ),
    "port": (
        replace(BARE, listeners=(Listener(30001, (7,)),), processes={7: process(7, user="bob")}),
        "port 30001 is taken by pid 7 (user bob): program-7, which is not ours to stop",
    ),
    "port-of-a-unit": (
        replace(
            BARE,
            listeners=(Listener(30001, (7,)),),
            processes={7: process(7, unit="sglang-ddtree-smoke.service")},
        ),
        "unit sglang-ddtree-smoke.service",
    ),
    "port-of-nobody": (
        replace(BARE, listeners=(Listener(30001, ()),)),
        "that the kernel does not name",
    ),
    "no-nvidia-smi": (replace(BARE, gpus=Gpus("absent")), "nvidia-smi is not installed"),
    "driver-hangs": (replace(BARE, gpus=Gpus("hung")), "the GPU driver hangs"),
    "driver-fails": (replace(BARE, gpus=Gpus("failed", said="GPU is lost")), "fails: GPU is lost"),
    "gpu-gone": (replace(BARE, gpus=Gpus("ok", "580", ())), "GPU 1 is not there"),
    "gpu-used": (
        replace(
            BARE,
            gpus=Gpus("ok", "580", CARDS, (ComputeProcess(UUID, 47028, 60190),)),
            processes={47028: process(47028)},
        ),
        "GPU 1 is used (60190 MiB) by pid 47028 (user root): program-47028",
    ),
    "drop-in": (
        replace(BARE, units={LINEAR: Unit(LINEAR, drop_ins=("/etc/x.service.d/override.conf",))}),
        "/etc/x.service.d/override.conf changes the unit behind ddtreectl's back",
    ),
    "unit-file": (
        replace(BARE, unit_files={LINEAR: "[Service]\nExecStart=/bin/true\n"}),
        "/etc/systemd/system/ddtree-gpu1-linear.service was not written by ddtreectl",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_names_what_is_in_the_way(name: str) -> None:
    facts, said = REFUSALS[name]
    found = refusals(wish(number=1), facts)
    assert len(found) == 1, found
    assert said in found[0]


def test_nothing_speaks_against_a_host_in_order() -> None:
    assert refusals(wish(number=1), BARE) == []
    assert refusals(wish(), SERVING) == []


def test_a_model_folder_must_be_there() -> None:
    asked = wish(model="/srv/m", drafter="/srv/d")
    assert refusals(asked, replace(BARE, folders=frozenset({"/srv/m", "/srv/d"}))) == []
    assert "drafter `/srv/d`" in refusals(asked, replace(BARE, folders=frozenset({"/srv/m"})))[0]


def test_our_own_processes_are_never_foreign() -> None:
    mark = "/var/lib/ddtree/slots/gpu1/generations/000001"
    facts = replace(
        BARE,
        listeners=(Listener(30001, (900, 901)),),
        gpus=Gpus("ok", "580", CARDS, (ComputeProcess(UUID, 901, 5),)),
        processes={900: process(900, generation=mark), 901: process(901, unit=TREE)},
    )
    assert refusals(wish(), facts) == []
    other = "/var/lib/ddtree/slots/gpu2/generations/000001"
    stolen = replace(facts, processes={900: process(900, generation=other), 901: process(901)})
    assert len(refusals(wish(), stolen)) == 3


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("/srv/$HOME", "would expand the `$` in `/srv/$HOME`"),
        ("/srv/a\x7fb", r"would change a character of '/srv/a\x7fb'"),
        ("/srv/a\u2028b", r"would change a character of '/srv/a\u2028b'"),
    ],
)
def test_a_word_is_refused_where_it_would_be_changed(word: str, said: str) -> None:
    facts = replace(BARE, systemd=False, without_systemd=True)
    asked = replace(wish(number=1), argv=("/bin/engine", "--model", word))
    assert said in refusals(asked, facts)[0]
    assert refusals(asked, BARE) == []


def test_which_generation_serves_and_which_was_good_last() -> None:
    entries = (generation(1, at="t9"), generation(2, "failed"), generation(3, at="t5"))
    facts = replace(SERVING, records=Records(generations=entries))
    assert serving(PLACE, facts) == entries[0]
    assert last_good(PLACE, facts) == entries[0]
    assert next_number(PLACE, facts) == 4
    stopped = replace(facts, units={})
    assert serving(PLACE, stopped) is None
    assert next_number(PLACE, replace(facts, records=Records())) == 1


def test_a_slot_that_was_stopped_on_purpose_is_not_brought_back() -> None:
    records = Records(generations=(generation(1),), stopped=frozenset({"gpu1"}))
    plan = plan_swap(wish(), replace(BARE, records=records))
    assert plan.back is None
    assert any("the slot is left empty" in note for note in plan.notes)


def test_stopping_an_empty_slot_is_nothing_to_do() -> None:
    assert plan_stop(PLACE, BARE).empty
    assert actions(plan_stop(PLACE, SERVING)) == [
        Action.STOP,
        Action.AWAIT_RELEASE,
        Action.MARK_STOPPED,
    ]


def test_stopping_gives_up_what_should_run_and_does_not() -> None:
    known = Records(generations=(generation(1),))
    fallen = replace(BARE, records=known)
    assert actions(plan_stop(PLACE, fallen)) == [Action.MARK_STOPPED]
    stopped = replace(known, stopped=frozenset({"gpu1"}))
    assert plan_stop(PLACE, replace(BARE, records=stopped)).empty
    swapping = replace(stopped, swaps=(Swap("gpu1", 2, None, "ada@ops", "t"),))
    assert actions(plan_stop(PLACE, replace(BARE, records=swapping))) == [Action.MARK_STOPPED]


def status_of(facts: HostFacts) -> Any:
    found = host_status("gpuhost", PLACE.host, facts, now=160.0, locked=False)
    return found.services[0] if found.services else found


def test_status_of_a_healthy_service() -> None:
    service = status_of(SERVING)
    assert (service.health, service.mode, service.budget) == ("healthy", "tree", 16)
    assert (service.acceptance_length, service.tokens_per_second) == (4.5, 120.0)
    assert service.uptime_seconds == 60.0
    assert "differs from the one of generation 1" in service.problem


@pytest.mark.parametrize(
    ("change", "health"),
    [
        ({"answers": {}}, "unhealthy"),
        ({"answers": {}, "listeners": ()}, "starting"),
        ({"listeners": (Listener(30001, (7,)),)}, "unhealthy"),
        ({"units": {}, "listeners": ()}, "failed"),
        (
            {
                "units": {},
                "records": Records(generations=(generation(1),), stopped=frozenset({"gpu1"})),
            },
            "stopped",
        ),
        (
            {
                "answers": {
                    "http://127.0.0.1:30001/ready": Answer(
                        "http://127.0.0.1:30001/ready", 503, '{"status": "draining"}'
                    )
                }
            },
            "draining",
        ),
    ],
)
def test_status_of_a_service_in_trouble(change: dict[str, Any], health: str) -> None:
    assert status_of(replace(SERVING, **change)).health == health


def test_status_of_a_slot_that_never_served_and_of_a_swap_that_was_left() -> None:
    assert status_of(BARE).empty_slots == ("gpu1",)
    left = replace(
        SERVING, records=replace(SERVING.records, swaps=(Swap("gpu1", 2, 1, "ada@ops", "t"),))
    )
    found = host_status("gpuhost", PLACE.host, left, now=0.0, locked=False)
    assert found.interrupted == ("the swap of `gpu1` to generation 2, begun by ada@ops at t",)
    assert found.rollbacks == ("ddtreectl rollback gpuhost",)
    slots = {"gpu1": PLACE.slot, "gpu2": PLACE.slot.model_copy(update={"port": 30002})}
    several = PLACE.host.model_copy(update={"slots": slots})
    assert replace(PLACE, host=several).words == "gpuhost --slot gpu1"
    found = host_status("gpuhost", several, left, now=0.0, locked=False)
    assert found.rollbacks == ("ddtreectl rollback gpuhost --slot gpu1",)
    assert host_status("gpuhost", PLACE.host, left, now=0.0, locked=True).interrupted == ()


def test_a_slot_that_an_operator_swaps_is_swapping_and_not_failed() -> None:
    swap = Swap("gpu1", to=2, back=1, owner="ada@ops", since="2026-01-02T03:04:05.000000+00:00")
    between = replace(
        SERVING,
        units={},
        listeners=(),
        processes={},
        records=replace(SERVING.records, swaps=(swap,)),
    )
    (service,) = host_status("gpuhost", PLACE.host, between, now=200.0, locked=True).services
    assert service.health == "swapping"
    assert "ada@ops is bringing generation 2 in, since 2026-01-02T03:04:05" in service.problem
    abandoned = host_status("gpuhost", PLACE.host, between, now=200.0, locked=False)
    assert abandoned.services[0].health == "failed"
    assert "begun by ada@ops" in abandoned.interrupted[0]
