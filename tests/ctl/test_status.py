"""Status of a fleet: what services tell, what differs between hosts, rounds of a watch."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from ruamel.yaml import YAML

from ddtreectl.apply.watch import Watch
from ddtreectl.cli import output, status_table
from ddtreectl.cli.status import Rate
from ddtreectl.errors import DdtreectlError, ExitCode, StepError, UnreachableError
from ddtreectl.facts import told
from ddtreectl.facts.cordons import Cordon
from ddtreectl.facts.gpu import Gpu, Gpus
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.http import Answer
from ddtreectl.facts.metrics import parse
from ddtreectl.facts.records import Records
from ddtreectl.inventory.model import HostEntry
from ddtreectl.plan.skew import skew
from ddtreectl.plan.status import HostStatus, ServiceStatus, exit_code, host_status

CASES = sorted((Path(__file__).parent / "services").glob("*.yaml"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_a_service_tells(path: Path) -> None:
    case = YAML(typ="safe").load(path.read_text())
    answers = {name: Answer(name, status, body) for name, (status, body) in case["answers"].items()}
    found = told.read(answers, case["backend"], case["mode"])
    assert {key: getattr(found, key) for key in case["value"]} == case["value"]


@pytest.mark.parametrize(
    "text",
    ["", "ddtree_tokens_total", "ddtree_tokens_total nan", 'ddtree_rounds_total{mode="tree"} 0.0'],
)
def test_metrics_that_tell_nothing(text: str) -> None:
    assert parse(text, "tree").acceptance_length is None


def service(host: str, **changes: Any) -> ServiceStatus:
    plain: dict[str, Any] = dict.fromkeys(ServiceStatus.__dataclass_fields__)
    known = {"slot": "gpu0", "mode": "tree", "backend": "engine", "version": "1", "budget": 16}
    return ServiceStatus(
        **{
            **plain,
            **known,
            "host": host,
            "health": "healthy",
            "model": "/m",
            "drift": "",
            **changes,
        }
    )


def host(name: str, *services: ServiceStatus, **changes: Any) -> HostStatus:
    whole = HostStatus(name, "systemd", True, None, (), (), Gpus("absent"), services)
    return replace(whole, **changes)


def test_skew_names_who_differs() -> None:
    alike = [host(name, service(name)) for name in ("a", "b", "c")]
    assert skew(alike) == ()
    old = host("d", service("d", version="0"))
    other = host("e", service("e", mode="linear"))
    assert skew([*alike, old, other]) == (
        "engine: 1 on a, b, c, e; 0 on d",
        "slot gpu0: engine tree budget 16 of /m on a, b, c, d; engine linear of /m on e",
    )
    gone = host("e", service("e", mode="linear", version="0", health="moved"))
    assert skew([*alike, gone]) == ()


def test_exit_codes_of_a_fleet() -> None:
    fine = host("a", service("a"))
    gone: dict[str, DdtreectlError] = {"b": UnreachableError("no")}
    assert exit_code([fine], {}) is ExitCode.DONE
    assert exit_code([host("a", service("a", health="failed"))], {}) is ExitCode.FAILED
    assert exit_code([host("a", service("a", drift="differs"))], {}) is ExitCode.FAILED
    assert (
        exit_code([replace(fine, interrupted=("a swap",), rollbacks=("ddtreectl rollback a",))], {})
        is ExitCode.FAILED
    )
    assert exit_code([fine], gone) is ExitCode.PARTIAL
    assert exit_code([], gone) is ExitCode.UNREACHABLE


CARD = Gpu(0, "GPU-1", "RTX", (12, 0), 1000, 4, recovery="None", remap_pending=False)
ENTRY = HostEntry.model_validate({"address": "10.0.0.1", "slots": {"a": {"gpus": [0], "port": 1}}})


@pytest.mark.parametrize(
    ("gpus", "said", "wrong"),
    [
        (Gpus("ok", gpus=(CARD,)), [], False),
        (
            Gpus("hung"),
            ["cordon-host: the driver hangs: nvidia-smi does not answer in time"],
            True,
        ),
        (
            Gpus("ok", gpus=(replace(CARD, fault="lost"),)),
            ["cordon-host: GPU 0: the GPU is lost"],
            True,
        ),
        (
            Gpus("ok", gpus=(replace(CARD, remap_pending=True),)),
            ["degraded: GPU 0: rows of memory are replaced at the next reset"],
            False,
        ),
    ],
)
def test_verdicts_are_part_of_the_status(gpus: Gpus, said: list[str], wrong: bool) -> None:
    found = host_status("h1", ENTRY, HostFacts(gpus=gpus), now=0.0, locked=False)
    assert [str(remark) for remark in found.health.remarks] == said
    assert (exit_code([found], {}) is ExitCode.FAILED) == wrong


def test_cordons_are_shown_with_the_gpus_that_they_cover(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cordon = Cordon(0, "GPU-1", "smoke", "ada@ops", "2026-01-02T03:04:05")
    facts = HostFacts(gpus=Gpus("ok", gpus=(CARD,)), records=Records(cordons=(cordon,)))
    found = host_status("h1", ENTRY, facts, now=0.0, locked=False)
    assert [gpu.cordoned for gpu in found.health.gpus] == [True]
    output.stdout().print(status_table.table([found], {}))
    assert "GPU 0 is cordoned: smoke (ada@ops, 2026-01-02T03:04)" in capsys.readouterr().out
    gone: dict[str, DdtreectlError] = {"h2": UnreachableError("`h2` does not answer")}
    kept = {"h2": (replace(cordon, kept="operator"),)}
    output.stdout().print(status_table.table([], gone, kept))
    assert "h2: GPU 0 is cordoned: smoke" in capsys.readouterr().out
    (entry,) = status_table.document([], gone, kept)["hosts"]  # type: ignore[misc]
    assert entry["cordons"][0]["kept"] == "operator"


def test_the_speed_in_a_watch_is_that_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0, 104.0])
    monkeypatch.setattr("ddtreectl.cli.status.time.monotonic", lambda: next(clock))
    rate = Rate()

    def speed(tokens: float | None, pid: int = 5) -> float | None:
        told = service("a", tokens=tokens, tokens_per_second=7.0, pid=pid)
        return rate.applied(host("a", told)).services[0].tokens_per_second

    assert speed(1000.0) == 7.0  # nothing to compare it with
    assert speed(1300.0) == 150.0
    assert speed(10.0, pid=6) == 7.0  # another process, which counts from 0


def watched(
    looks: dict[str, Callable[[], Iterator[int]]], patience: float = 30.0
) -> Iterator[dict[str, int | DdtreectlError]]:
    return Watch(list(looks), lambda name: looks[name](), patience).rounds()


def test_a_round_has_something_new_of_each_host() -> None:
    rounds = watched({"a": lambda: iter(range(3)), "b": count})
    first, second = next(rounds), next(rounds)
    assert set(first) == {"a", "b"}
    assert isinstance(second["b"], int)
    assert isinstance(first["b"], int)
    assert second["b"] > first["b"]


def test_a_host_that_fails_or_falls_silent_holds_up_no_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ddtreectl.apply.watch.AGAIN_AFTER", 3600.0)
    released = Event()

    def silent() -> Iterator[int]:
        yield 1
        released.wait(60)

    def failing() -> Iterator[int]:
        yield 1
        raise StepError("no longer")

    rounds = watched({"a": silent, "b": failing, "c": count}, patience=0.3)
    seen = [next(rounds) for _ in range(4)]
    released.set()
    assert isinstance(seen[-1]["a"], UnreachableError)
    assert isinstance(seen[-1]["b"], StepError)
    assert isinstance(seen[-1]["c"], int)


def test_so_many_hosts_are_connected_to_at_a_time() -> None:
    connecting: list[str] = []
    most = 0

    def look(name: str) -> Iterator[int]:
        nonlocal most
        connecting.append(name)
        most = max(most, len(connecting))
        Event().wait(0.05)
        connecting.remove(name)
        yield from count()

    names = [f"h{number}" for number in range(6)]
    rounds = Watch(names, look, 30.0, at_once=2).rounds()
    assert set(next(rounds)) == set(names)
    assert most <= 2


def test_a_mistake_ends_a_watch() -> None:
    def wrong() -> Iterator[int]:
        raise KeyError("mistake")

    with pytest.raises(KeyError):
        next(watched({"a": wrong}))
