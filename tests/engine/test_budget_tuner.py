"""`--budget auto`: nested trees, the choice by costs and acceptance, and text as without it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddtree_engine.budget_tuner import (
    CANDIDATES,
    DECIDE_EVERY,
    EXPLORE_EVERY,
    FIRST,
    MARGIN,
    BudgetTuner,
    RoundCosts,
)
from ddtree_engine.comparison import label, parse_mode
from ddtree_engine.decoder import Decoder
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.engine import Engine, load_engine
from ddtree_engine.errors import CapacityError
from ddtree_engine.ops.draft_trees import naive, vectorized
from ddtree_engine.round_costs import RUNS, WARM_UPS, measure_costs
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import Mode, Sequence, Speculation
from ddtree_engine.target import TargetModel
from ddtree_engine.tree import best_first, walk
from tests.engine.test_decoder import FILTERED, GREEDY, SAMPLED, prompt, run

CASES = json.loads((Path(__file__).parent / "data" / "budget_cases.json").read_text())
AUTO = Speculation(Mode.TREE, budget=127, topk=4, auto=True)


def costs(values: dict[str, float]) -> RoundCosts:
    return RoundCosts({int(budget): seconds for budget, seconds in values.items()})


@st.composite
def candidates(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """Scores and ids of a few depths, with ties."""
    depths, width = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rows = st.lists(st.integers(-9, 0), min_size=width, max_size=width)
    scores = [sorted(draw(rows), reverse=True) for _ in range(depths)]
    return scores, [list(range(width)) for _ in range(depths)]


class TestNestedTrees:
    @given(candidates(), st.integers(0, 40), st.integers(0, 40))
    def test_a_smaller_tree_is_the_beginning_of_a_larger(
        self, drafted: tuple[list[list[int]], list[list[int]]], small: int, large: int
    ) -> None:
        small, large = sorted((small, large))
        scores, ids = drafted
        assert best_first(7, scores, ids, small) == best_first(7, scores, ids, large).prefix(small)

    @given(candidates(), st.integers(0, 30), st.integers(0, 30))
    def test_so_it_is_on_the_device(
        self, drafted: tuple[list[list[int]], list[list[int]]], small: int, large: int
    ) -> None:
        small, large = sorted((small, large))
        scores, ids = drafted
        arguments: dict[str, Any] = {
            "anchors": torch.tensor([7]),
            "log_probs": torch.tensor([scores], dtype=torch.float32) / 4,
            "ids": torch.tensor([ids]),
            "widths": torch.tensor([len(ids[0])]),
            "budget": large,
            "conv_kernel": 4,
        }
        for form in (naive, vectorized):
            less, more = (
                form.draft_trees(**arguments, budgets=torch.tensor([one])) for one in (small, large)
            )
            size = int(less.sizes)
            assert size == min(small + 1, int(more.sizes))
            for name in ("tokens", "parents", "depths"):
                one, other = (getattr(trees, name)[0, :size] for trees in (less, more))
                assert torch.equal(one, other)

    @given(candidates(), st.lists(st.integers(0, 3), min_size=41, max_size=41))
    def test_one_round_tells_the_acceptance_of_every_smaller_budget(
        self, drafted: tuple[list[list[int]], list[list[int]]], choices: list[int]
    ) -> None:
        """What the target chooses is a function of the path alone, so of the node."""
        scores, ids = drafted
        largest = best_first(7, scores, ids, 40)
        path, _ = walk(largest, choices.__getitem__)
        tuner = BudgetTuner(RoundCosts(dict.fromkeys((1, 2, 5, 11, 40), 1.0)))
        tuner.observe(40, path)
        for budget in tuner.candidates:
            shorter, _ = walk(largest.prefix(budget), choices.__getitem__)
            assert tuner.tokens_a_round(budget) == len(shorter)


class TestChoice:
    @pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
    def test_cases(self, case: dict[str, Any]) -> None:
        tuner = BudgetTuner(costs(case["costs"]))
        rows = case.get("rows", 1)
        for _ in range(FIRST):
            assert tuner.next(rows) == tuner.candidates[-1]
            for one in case["seen"]:
                tuner.observe(one["budget"], one["path"])
        assert tuner.next(rows) == case["chosen"]

    def test_a_change_of_traffic_is_followed(self) -> None:
        tuner = BudgetTuner(costs({"15": 1.0, "63": 1.2}))
        chosen = []
        for path in ([0, 2], [0, 2, 20, 50]):
            for _ in range(1500):
                # Nodes past the budget of a round are not seen.
                budget = tuner.next()
                tuner.observe(budget, [node for node in path if node <= budget])
            chosen.append(tuner.in_use)
        assert chosen == [15, 63]

    def test_exploring_takes_a_hundredth_of_the_time_at_most(self) -> None:
        for dear in (1.1, 2.0, 9.0):
            tuner = BudgetTuner(costs({"15": 1.0, "63": dear}))
            spent, alone = 0.0, 0.0
            for count in range(20_000):
                budget = tuner.next()
                tuner.observe(budget, [0, 1])
                if count >= FIRST:
                    spent += tuner.costs.of(budget)
                    alone += 1.0
            assert tuner.in_use == 15
            assert alone < spent < 1.0101 * alone

    def test_it_does_not_go_to_and_fro(self) -> None:
        """Two budgets that promise the same, give or take: one of them stays."""
        tuner = BudgetTuner(costs({"15": 1.0, "63": 1.25}))
        generator = torch.Generator().manual_seed(0)
        chosen = []
        for _ in range(4000):
            budget = tuner.next()
            far = bool(torch.rand((), generator=generator) < 0.5)
            tuner.observe(budget, [n for n in ([0, 1, 20] if far else [0, 1]) if n <= budget])
            chosen.append(tuner.in_use)
        changes = sum(a != b for a, b in pairwise(chosen))
        assert changes <= 4

    def test_decisions_come_at_their_time(self) -> None:
        tuner = BudgetTuner(costs({"15": 1.0, "63": 1.5}))
        seen = []
        for _ in range(FIRST + DECIDE_EVERY):
            seen.append(tuner.next())
            tuner.observe(63, [0, 1])
        assert seen == [63] * FIRST + [15] * DECIDE_EVERY
        assert EXPLORE_EVERY > DECIDE_EVERY

    @given(
        st.dictionaries(st.sampled_from(CANDIDATES), st.floats(0.1, 10.0), min_size=1),
        st.lists(st.lists(st.integers(1, 127), max_size=15, unique=True), min_size=1, max_size=30),
        st.integers(1, 8),
    )
    def test_none_of_the_others_promises_more_than_the_margin(
        self, seconds: dict[int, float], paths: list[list[int]], rows: int
    ) -> None:
        tuner = BudgetTuner(RoundCosts(seconds))
        for path in paths:
            tuner.observe(127, [0, *sorted(path)])
        for _ in range(FIRST + 1):
            tuner.next(rows)
        ours = tuner.tokens_per_second(tuner.in_use)
        assert ours is not None
        for one in tuner.candidates:
            other = tuner.tokens_per_second(one)
            assert other is not None
            assert other <= MARGIN * ours + 1e-9 or ours <= 0

    @pytest.mark.parametrize("seconds", [{}, {15: 0.0}, {15: -1.0, 31: 1.0}])
    def test_costs_that_cannot_be(self, seconds: dict[int, float]) -> None:
        with pytest.raises(ValueError, match="costs are above 0"):
            RoundCosts(seconds)

    def test_costs_of_batches(self) -> None:
        known = costs({"15": 1.0, "31": 1.2, "63": 2.0})
        assert [known.of(budget) for budget in (3, 15, 31, 63)] == [1.0, 1.0, 1.2, 2.0]
        assert known.of(15, rows=2) == known.of(31)
        assert known.of(15, rows=3) == pytest.approx(1.6)
        assert known.of(63, rows=2) == pytest.approx(3.6)

    @given(
        st.dictionaries(st.sampled_from(CANDIDATES), st.floats(0.01, 10.0), min_size=1),
        st.integers(1, 1024),
    )
    def test_more_nodes_never_cost_less(self, seconds: dict[int, float], rows: int) -> None:
        """Also where a measurement was disturbed, and far beyond what was measured."""
        known = RoundCosts(seconds)
        found = [known.of(budget, rows) for budget in CANDIDATES]
        assert found == sorted(found)
        assert min(found) >= min(seconds.values())
        assert known.of(CANDIDATES[0], rows) <= known.of(CANDIDATES[0], rows + 1)

    @pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
    def test_batches_choose_the_best_of_what_they_cost(self, share: float) -> None:
        """Costs that grow with nodes past 64 of them; a share of drafts is accepted."""
        tuner = BudgetTuner(RoundCosts({one: max(1.0, (one + 1) / 64) for one in CANDIDATES}))
        generator = torch.Generator().manual_seed(1)
        for rows in (1, 2, 8, 64, 1):
            for _ in range(200):
                budget = tuner.next(rows)
                deep = bool(torch.rand((), generator=generator) < share)
                path = [0, *(range(1, 16) if deep else ())]
                tuner.observe(budget, [node for node in path if node <= budget])
            promised = {one: tuner.tokens_per_second(one, rows) or 0.0 for one in CANDIDATES}
            assert promised[tuner.in_use] * MARGIN >= max(promised.values())
            if rows == 64 and share == 0.0:
                assert tuner.in_use == CANDIDATES[0], "what is never accepted is not worth its time"
            if rows == 1 and share == 1.0:
                assert tuner.in_use >= 15


class TestDecoding:
    @pytest.mark.parametrize("device_rounds", [False, True], ids=["host", "device"])
    @pytest.mark.parametrize(
        "sampling", [GREEDY, SAMPLED, FILTERED], ids=["greedy", "t0.8", "filtered"]
    )
    def test_text_does_not_depend_on_the_budget(
        self,
        target: TargetModel,
        drafter: DrafterModel,
        sampling: SamplingParams,
        device_rounds: bool,
    ) -> None:
        def requests(speculation: Speculation) -> list[Sequence]:
            return [
                Sequence(prompt(3 + 30 * i, i), 60 + 9 * i, sampling, speculation) for i in range(4)
            ]

        (alone,) = (
            [run(Decoder(target, drafter, max_length=200), one)[0] for one in requests(ar)]
            for ar in (Speculation(Mode.AR),)
        )
        decoder = Decoder(target, drafter, rows=3, max_length=200, device_rounds=device_rounds)
        # Costs that make it change its mind between rounds of one and of three.
        decoder.tuner = BudgetTuner(costs({"1": 1.0, "4": 1.01, "12": 1.6, "40": 9.0}))
        mixed = [*requests(AUTO)[:3], *requests(Speculation(Mode.TREE, 5, 3))[3:]]
        assert run(decoder, *mixed) == alone
        assert decoder.tuner.tokens_a_round(40) is not None

    @pytest.mark.parametrize("device_rounds", [False, True], ids=["host", "device"])
    def test_what_was_accepted_is_learned(
        self, target: TargetModel, drafter: DrafterModel, device_rounds: bool
    ) -> None:
        """While the largest budget is explored, expectations are those of fixed budgets."""
        decoder = Decoder(target, drafter, max_length=200, device_rounds=device_rounds)
        decoder.tuner = BudgetTuner(costs({"3": 1.0, "40": 1.0}))
        tuned = Sequence(prompt(20), 9, GREEDY, Speculation(Mode.TREE, 40, 4, auto=True))
        run(decoder, tuned)
        fixed = Sequence(prompt(20), 9, GREEDY, Speculation(Mode.TREE, 40, 4))
        run(Decoder(target, drafter, max_length=200), fixed)
        assert tuned.accepted == fixed.accepted
        # The last round may have accepted more than was still to be emitted.
        expected = decoder.tuner.tokens_a_round(40)
        assert expected is not None
        assert expected * tuned.rounds >= sum(fixed.accepted)
        assert expected * tuned.rounds < sum(fixed.accepted) + drafter.config.block_size

    def test_without_a_tuner_they_have_their_most(
        self, target: TargetModel, drafter: DrafterModel
    ) -> None:
        decoder = Decoder(target, drafter, max_length=200)
        one, other = (
            Sequence(prompt(20), 30, GREEDY, Speculation(Mode.TREE, 12, 4, auto))
            for auto in (True, False)
        )
        run(decoder, one)
        run(decoder, other)
        assert one.accepted == other.accepted


class TestCosts:
    def test_are_medians_of_rounds(self, target: TargetModel, drafter: DrafterModel) -> None:
        decoder = Decoder(target, drafter, max_length=800)
        block = drafter.config.block_size
        assert (WARM_UPS + RUNS + 1) * block < 800
        # A clock that a round of the third budget moves by 3, the first rounds more.
        reads = 0

        def clock() -> float:
            nonlocal reads
            reads += 1
            index, ends = divmod(reads - 1, 2)
            which, number = divmod(index, WARM_UPS + RUNS)
            return ends * (which + 1.0 + (50.0 if number < WARM_UPS else 0.0))

        steps: list[int] = []
        found = measure_costs(
            decoder, (1, 3, 7), topk=2, on_step=lambda: steps.append(1), clock=clock
        )
        assert found.seconds == {1: 1.0, 3: 2.0, 7: 3.0}
        assert len(steps) == 3 * (WARM_UPS + RUNS)
        assert not decoder.sequences

    def test_a_context_without_room_is_refused(
        self, target: TargetModel, drafter: DrafterModel
    ) -> None:
        with pytest.raises(CapacityError, match="no room to measure rounds in"):
            measure_costs(Decoder(target, drafter, max_length=20), (1,), topk=2)


def test_its_name() -> None:
    auto = parse_mode("tree:auto", 8)
    assert auto == parse_mode("tree", 8, "auto")
    assert (auto.auto, auto.budget, label(auto)) == (True, CANDIDATES[-1], "tree:auto")
    assert parse_mode("linear", 8, "auto") == Speculation(Mode.LINEAR, topk=8)
    assert parse_mode("tree:16", 8, "auto") == Speculation(Mode.TREE, 16, 8)


@pytest.fixture(scope="module")
def demo() -> Engine:
    return load_engine(device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param({3: 1.0, 15: 1.4, 31: 2.1}, id="dear as on a CPU"),
        pytest.param({3: 1.0, 15: 1.01, 31: 1.03}, id="cheap as on a GPU"),
    ],
)
def test_the_demo_settles_near_the_best_fixed_budget(
    demo: Engine, seconds: dict[int, float]
) -> None:
    """By costs that are given, so that what the machine does meanwhile is no part of it."""
    known = RoundCosts(seconds)
    text = "class Reader:\n    def __init__(self, path):\n        self.path = path\n\n    def read("
    tokens = demo.tokenizer.encode(text)

    def speed(speculation: Speculation, tuner: BudgetTuner | None) -> float:
        decoder = demo.decoder(max_length=len(tokens) + 160)
        decoder.tuner = tuner
        emitted = 0
        spent = 0.0
        for seed in range(2):
            one = Sequence(tokens, 160, SamplingParams(0.6, seed=seed), speculation)
            run(decoder, one)
            emitted += len(one.emitted)
            spent += one.rounds * known.of(speculation.budget if tuner is None else tuner.in_use)
        return emitted / spent

    fixed = {one: speed(Speculation(Mode.TREE, one, 8), None) for one in seconds}
    tuner = BudgetTuner(known)
    speed(Speculation(Mode.TREE, max(seconds), 8, auto=True), tuner)
    assert fixed[tuner.in_use] >= 0.95 * max(fixed.values())
