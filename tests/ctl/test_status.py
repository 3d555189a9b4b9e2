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
from ddtreectl.cli.status import Rate
from ddtreectl.errors import DdtreectlError, ExitCode, StepError, UnreachableError
from ddtreectl.facts import told
from ddtreectl.facts.gpu import Gpu, Gpus, Node
from ddtreectl.facts.http import Answer
from ddtreectl.facts.metrics import parse
from ddtreectl.plan.skew import skew
from ddtreectl.plan.status import HostStatus, ServiceStatus, exit_code, gpu_remarks

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


def test_exit_codes_of_a_fleet() -> None:
    fine = host("a", service("a"))
    gone: dict[str, DdtreectlError] = {"b": UnreachableError("no")}
    assert exit_code([fine], {}) is ExitCode.DONE
    assert exit_code([host("a", service("a", health="failed"))], {}) is ExitCode.FAILED
    assert exit_code([host("a", service("a", drift="differs"))], {}) is ExitCode.FAILED
    assert exit_code([replace(fine, interrupted=("a swap",))], {}) is ExitCode.FAILED
    assert exit_code([fine], gone) is ExitCode.PARTIAL
    assert exit_code([], gone) is ExitCode.UNREACHABLE


CARD = Gpu(1, "GPU-1", "RTX", (12, 0), 1000, 4, recovery="None", remap_pending=False)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (Gpus("absent"), []),
        (Gpus("ok", gpus=(CARD,)), []),
        (Gpus("hung"), ["the GPU driver does not answer"]),
        (Gpus("failed", said="no devices"), ["the GPU driver fails: no devices"]),
        (Gpus("ok", gpus=(replace(CARD, fault="lost"),)), ["GPU 1 (GPU-1) answers `lost`"]),
        (
            Gpus("ok", gpus=(replace(CARD, uncorrected_ecc=2, recovery="Reset"),)),
            ["GPU 1 (GPU-1) has 2 uncorrected memory errors, wants `Reset`"],
        ),
        (
            Gpus("ok", gpus=(CARD,), unlisted=(Node("0000:3b:00"),)),
            ["the GPU at 0000:3b:00 is not listed by the driver"],
        ),
    ],
)
def test_facts_about_gpus_are_said_and_not_judged(gpus: Gpus, said: list[str]) -> None:
    assert list(gpu_remarks(gpus)) == said


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


def test_a_mistake_ends_a_watch() -> None:
    def wrong() -> Iterator[int]:
        raise KeyError("mistake")

    with pytest.raises(KeyError):
        next(watched({"a": wrong}))
