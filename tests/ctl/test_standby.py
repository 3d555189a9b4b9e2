"""Rolls over the workers of a router: one that serves the same model is always left, if it can."""

import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtreectl.apply.deploy import Outcome
from ddtreectl.apply.roll import Result, Roll, Rules, Target
from ddtreectl.apply.standby import Standby
from ddtreectl.errors import StepError
from ddtreectl.facts.router import RouterFacts, RouterWorker, State
from ddtreectl.plan.standby import Room, alone, limits, room
from ddtreectl.plan.step import Plan


def worker(name: str, model: str = "m", status: str = "ready") -> RouterWorker:
    return RouterWorker(name, frozenset(), f"http://{name}", status, 0, frozenset({model}))


def router(*workers: RouterWorker, state: State = "up") -> RouterFacts:
    return RouterFacts(state, workers=workers)


A, B, C = worker("a"), worker("b"), worker("c")


@pytest.mark.parametrize(
    ("facts", "busy", "ended", "is_alone", "expected"),
    [
        pytest.param(router(A, B), (), (), False, Room.FREE, id="another one serves"),
        pytest.param(router(A, B), ("b",), (), False, Room.WAIT, id="the other one is out"),
        pytest.param(router(A, B, C), ("b",), (), False, Room.FREE, id="a third one serves"),
        pytest.param(router(A, worker("b", "n")), ("b",), (), False, Room.WAIT, id="not its model"),
        pytest.param(
            router(A, worker("b", "n")), ("b",), (), True, Room.FREE, id="the only one at first"
        ),
        pytest.param(
            router(A, worker("b", status="not_ready")), (), ("b",), False, Room.NONE, id="b failed"
        ),
        pytest.param(
            router(A, worker("b", "n")), (), ("b",), False, Room.FREE, id="b has the new model"
        ),
        pytest.param(router(B), ("b",), (), False, Room.FREE, id="it serves nobody"),
        pytest.param(router(state="absent"), ("b",), (), True, Room.FREE, id="no router"),
        pytest.param(router(state="down"), ("b",), (), True, Room.FREE, id="no clients either"),
        pytest.param(router(state="unreachable"), ("b",), (), True, Room.WAIT, id="nobody knows"),
        pytest.param(router(state="unreachable"), (), ("b",), True, Room.FREE, id="one at a time"),
    ],
)
def test_room(
    facts: RouterFacts,
    busy: tuple[str, ...],
    ended: tuple[str, ...],
    is_alone: bool,
    expected: Room,
) -> None:
    assert room(facts, "a", busy, ended, alone=is_alone) is expected


def test_a_plan_says_what_is_not_done_at_the_same_time() -> None:
    facts = router(A, B, worker("x", "other"), worker("y", "other", status="draining"))
    (found,) = limits(facts, ["a", "b", "x"], 4)
    assert str(found) == (
        "of a, b at most 1 at a time is out of the router, so that `m` is served meanwhile"
    )
    assert limits(facts, ["a", "x"], 4) == ()
    assert limits(facts, ["a", "b"], 1) == ()
    assert alone(facts, "x")
    assert not alone(facts, "a")


@dataclass
class Router:
    """A router, and deploys that take workers out of it and put them in again."""

    models: dict[str, str]
    failing: frozenset[str] = frozenset()
    out: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    left_without: list[str] = field(default_factory=list)
    most_out: int = 0

    def facts(self) -> RouterFacts:
        with self.lock:
            return router(
                *(
                    worker(name, model, "not_ready" if name in self.out else "ready")
                    for name, model in self.models.items()
                )
            )

    def work(self, host: str) -> Outcome:
        with self.lock:
            self.out.add(host)
            self.most_out = max(self.most_out, len(self.out))
            same = [name for name, model in self.models.items() if model == self.models[host]]
            if len(same) > 1 and self.out.issuperset(same):
                self.left_without.append(host)
        if host in self.failing:
            raise StepError("the slot is empty")
        with self.lock:
            self.out.remove(host)
        return Outcome(Plan(host, "gpu0", (), None), applied=True)

    def roll(self, rules: Rules) -> Roll:
        standby = Standby({name: name for name in self.models}, self.facts)
        roll = Roll(
            [Target(host, "gpu0") for host in self.models],
            rules,
            work=self.work,
            stop=lambda *_: None,
            record=lambda _: None,
            gate=standby.room,
        )
        roll.run()
        return roll


HOSTS = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["m", "n"]), min_size=1)


@given(HOSTS, st.frozensets(st.sampled_from("abcdefgh"), max_size=3), st.integers(0, 3))
def test_one_worker_of_each_model_is_always_left(
    models: dict[str, str], failing: frozenset[str], canary: int
) -> None:
    found = Router(models, failing)
    roll = found.roll(Rules(canary=canary, parallel=8, max_failures=8))
    assert found.left_without == []
    left = [t for t in roll.targets.values() if t.result is Result.WAITING]
    assert not left or roll.halted
    if not failing & models.keys():
        assert not left


def test_many_workers_are_still_swapped_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=30)

    class Meeting(Router):
        def work(self, host: str) -> Outcome:
            if host in "abc":
                together.wait()
            return super().work(host)

    roll = Meeting(dict.fromkeys("abcd", "m")).roll(Rules(canary=0, parallel=4))
    assert all(target.result.good for target in roll.targets.values())


def test_a_worker_that_gets_no_requests_ends_the_roll_before_the_last_one() -> None:
    found = Router({"a": "m", "b": "m"}, frozenset("a"))
    roll = found.roll(Rules(canary=0, parallel=2, max_failures=1))
    assert roll.targets["b"].result is Result.WAITING
    assert roll.halted.startswith("b is the last one that the router has ready")
