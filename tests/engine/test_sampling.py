"""Sampling: the noise's bits and law, the filters, and losslessness on trees."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddtree_engine.errors import RequestError
from ddtree_engine.ops.choose_nodes import choose_nodes
from ddtree_engine.sampling import (
    SamplingParams,
    SamplingTensors,
    choose,
    filter_logits,
    gumbel_from_words,
    gumbel_noise,
    masses,
    philox4x32,
)
from ddtree_engine.tree import DraftTree, chain, walk

DATA = Path(__file__).parent / "data"
KNOWN_ANSWERS = [
    [int(word, 16) for word in line.split()]
    for line in (DATA / "philox4x32_10.txt").read_text().splitlines()
    if not line.startswith("#")
]
FILTER_CASES = json.loads((DATA / "filter_cases.json").read_text())


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def normal_logits(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def chi_square(observed: list[int], expected: list[float]) -> float:
    return sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))


def chi_square_limit(freedom: int) -> float:
    """Five standard deviations above the mean: the seeds are fixed, so this never flickers."""
    return freedom + 5 * math.sqrt(2 * freedom)


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox-4x32-10 on Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


class TestPhilox:
    @pytest.mark.parametrize("words", KNOWN_ANSWERS)
    def test_known_answers(self, words: list[int]) -> None:
        c0, c1, c2, c3 = (torch.tensor([word]) for word in words[:4])
        out = philox4x32((c0, c1, c2, c3), (words[4], words[5]))
        assert [int(word) for word in out] == words[6:]
        assert plain_philox(words[:4], words[4:6]) == words[6:]

    def test_broadcasts(self) -> None:
        blocks, positions = torch.arange(5)[None, :], torch.arange(3)[:, None]
        zero = torch.zeros(1, 1, dtype=torch.int64)
        out = torch.stack(philox4x32((blocks, positions, zero, zero), (1, 2)), dim=-1)
        for p, b in product(range(3), range(5)):
            assert out[p, b].tolist() == plain_philox([b, p, 0, 0], [1, 2])


class TestNoise:
    @pytest.mark.parametrize("seed", [0, 1, 2**32, 0x0123456789ABCDEF, 2**64 - 1, -1, -(2**63)])
    def test_layout(self, seed: int) -> None:
        positions = [0, 5, 262143, 2**32 - 1]
        noise = gumbel_noise(seed, torch.tensor(positions), 11)
        assert noise.dtype == torch.float32
        assert noise.shape == (4, 11)
        key = list(divmod(seed % 2**64, 2**32)[::-1])
        for (row, position), token in product(enumerate(positions), range(11)):
            word = plain_philox([token // 4, position, 0, 0], key)[token % 4]
            expected = -math.log(-math.log((word + 0.5) / 2**32))
            assert noise[row, token].item() == pytest.approx(expected, rel=1e-6, abs=1e-7)

    def test_depends_on_seed_position_and_token_alone(self) -> None:
        whole = gumbel_noise(9, torch.arange(40), 64)
        assert torch.equal(gumbel_noise(9, torch.tensor([17, 3, 17]), 64), whole[[17, 3, 17]])
        assert torch.equal(gumbel_noise(9, torch.arange(40), 33), whole[:, :33])
        assert not torch.equal(gumbel_noise(10, torch.arange(40), 64), whole)

    @pytest.mark.parametrize(
        ("word", "noise"),
        [(0, -math.log(33 * math.log(2))), (2**31, 0.366512920), (2**32 - 1, 33 * math.log(2))],
    )
    def test_range(self, word: int, noise: float) -> None:
        """Finite at both ends; -log(-log(1/2)) in the middle."""
        assert gumbel_from_words(torch.tensor(word)).item() == pytest.approx(noise, rel=1e-6)

    def test_seeds_of_the_same_bits(self) -> None:
        positions = torch.arange(3)
        assert torch.equal(gumbel_noise(-1, positions, 8), gumbel_noise(2**64 - 1, positions, 8))

    def test_uniform(self) -> None:
        uniform = (-(-gumbel_noise(3, torch.arange(64), 4096).double()).exp()).exp()
        counts = torch.histc(uniform, bins=64, min=0.0, max=1.0).int().tolist()
        assert chi_square(counts, [4096.0] * 64) < chi_square_limit(63)

    @pytest.mark.parametrize("neighbour", ["token", "lane", "position", "seed"])
    def test_neighbours_are_independent(self, neighbour: str) -> None:
        uniform = [
            (-(-gumbel_noise(seed, torch.arange(65), 1024).double()).exp()).exp() for seed in (3, 4)
        ]
        one, other = {
            "token": (uniform[0][:64, :-1], uniform[0][:64, 1:]),
            "lane": (uniform[0][:64, :-4], uniform[0][:64, 4:]),
            "position": (uniform[0][:-1], uniform[0][1:]),
            "seed": (uniform[0], uniform[1]),
        }[neighbour]
        cells = (one * 8).long() * 8 + (other * 8).long()
        counts = cells.flatten().bincount(minlength=64).tolist()
        assert chi_square(counts, [cells.numel() / 64] * 64) < chi_square_limit(63)


class TestFilter:
    @pytest.mark.parametrize("case", FILTER_CASES, ids=[case["name"] for case in FILTER_CASES])
    def test_cases(self, case: dict[str, Any]) -> None:
        if "probabilities" in case:
            logits = torch.tensor(case["probabilities"]).log()
        else:
            logits = torch.tensor([-math.inf if x is None else float(x) for x in case["logits"]])
        params = SamplingParams(
            temperature=case.get("temperature", 1.0),
            top_k=case.get("top_k", 0),
            top_p=case.get("top_p", 1.0),
        )
        scores = filter_logits(logits, params)
        assert scores.dtype == torch.float32
        assert scores.isfinite().nonzero().flatten().tolist() == case["kept"]
        assert torch.equal(scores[case["kept"]], logits[case["kept"]] / params.temperature)

    @given(
        st.lists(st.integers(-4, 4), min_size=1, max_size=12),
        st.integers(0, 14),
        st.floats(1e-6, 1.0),
        st.sampled_from([0.5, 1.0, 2.0]),
    )
    def test_definition(
        self, logits: list[int], top_k: int, top_p: float, temperature: float
    ) -> None:
        params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
        scores = filter_logits(torch.tensor(logits, dtype=torch.float32), params)
        kept = set(scores.isfinite().nonzero().flatten().tolist())

        ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
        ranked = ranked[: top_k or None]
        weights = [math.exp(logits[token] / temperature) for token in ranked]
        mass = [sum(weights[:n]) / sum(weights) for n in range(len(ranked) + 1)]
        count = len(kept)
        assert kept == set(ranked[:count])
        slack = 1e-5  # masses are made of float32 scores
        assert mass[count - 1] < top_p + slack
        assert mass[count] >= top_p - slack

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_any_float_type(self, dtype: torch.dtype) -> None:
        logits = normal_logits(3, 50).to(dtype)
        scores = filter_logits(logits, SamplingParams(temperature=0.7))
        assert torch.equal(scores, logits.float() / 0.7)

    @pytest.mark.parametrize("top_k", [0, 7])
    @pytest.mark.parametrize("top_p", [1.0, 0.8])
    def test_rows_are_filtered_alone(self, top_k: int, top_p: float) -> None:
        logits = normal_logits(3, 5, 40)
        params = SamplingParams(temperature=0.9, top_k=top_k, top_p=top_p)
        together = filter_logits(logits, params)
        for b, n in product(range(3), range(5)):
            assert torch.equal(together[b, n], filter_logits(logits[b, n], params))

    def test_greedy_has_no_scores(self) -> None:
        with pytest.raises(ValueError, match="argmax"):
            filter_logits(torch.zeros(3), SamplingParams())


class TestMasses:
    @given(st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=20))
    def test_are_probabilities_in_units(self, scores: list[float]) -> None:
        found = masses(torch.tensor(scores, dtype=torch.float32)).tolist()
        for score, mass in zip(scores, found, strict=True):
            expected = math.exp(score - max(scores)) * 2.0**40
            assert mass == pytest.approx(expected, rel=1e-5, abs=1.0)
        assert max(found) == 2**40

    def test_what_cannot_come_has_none(self) -> None:
        assert masses(torch.tensor([0.0, -math.inf, -28.0, -29.0])).tolist()[1::2] == [0, 0]

    def test_never_rise_along_a_ranking(self) -> None:
        scores = torch.linspace(0, -30, 100_001)
        assert (masses(scores).diff() <= 0).all()


class TestParams:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"temperature": -0.1}, "temperature"),
            ({"temperature": math.nan}, "temperature"),
            ({"temperature": math.inf}, "temperature"),
            ({"temperature": 1e-9}, "temperature"),
            ({"temperature": 1.01e4}, "temperature"),
            ({"temperature": 1e39}, "temperature"),
            ({"top_k": -1}, "top_k"),
            ({"top_p": 0.0}, "top_p"),
            ({"top_p": 1.01}, "top_p"),
            ({"top_p": math.nan}, "top_p"),
            ({"seed": 2**64}, "seed"),
            ({"seed": -(2**63) - 1}, "seed"),
        ],
    )
    def test_rejects(self, values: dict[str, Any], message: str) -> None:
        with pytest.raises(RequestError, match=message):
            SamplingParams(**values)

    def test_defaults_are_greedy(self) -> None:
        assert SamplingParams().greedy
        assert not SamplingParams(temperature=1e-4).greedy

    @pytest.mark.parametrize("temperature", [0.0, 1e-4, 1e4])
    @pytest.mark.parametrize("top_k", [0, 1, 2**31, 2**63, 2**70])
    @pytest.mark.parametrize("top_p", [5e-324, 1e-9, 1.0])
    @pytest.mark.parametrize("seed", [-(2**63), 2**64 - 1])
    def test_whatever_is_accepted_the_device_can_hold(
        self, temperature: float, top_k: int, top_p: float, seed: int
    ) -> None:
        params = SamplingParams(temperature, top_k, top_p, seed)
        logits = normal_logits(1, 3, 40)
        chosen = choose_nodes(
            logits,
            torch.tensor([[0, 1, 1]]),
            torch.tensor([11]),
            SamplingTensors.of([params], torch.device("cpu")),
            depth=1,
            filters=params.filters,
        )
        assert chosen[0].tolist() == choose(logits[0], torch.tensor([12, 13, 13]), params).tolist()
        if temperature == 0.0 or top_k == 1 or top_p < 1e-3:
            assert chosen.tolist() == logits.argmax(-1).tolist()


class TestChoose:
    def test_greedy_takes_the_lowest_id_of_a_tie(self) -> None:
        logits = torch.zeros(2, 4000)
        logits[0, [17, 900, 3999]] = 1.0
        logits[1, 3000:] = 2.0
        assert choose(logits, torch.tensor([5, 6]), SamplingParams()).tolist() == [17, 3000]

    def test_greedy_ignores_filters_and_seed(self) -> None:
        logits = normal_logits(4, 100)
        params = SamplingParams(temperature=0.0, top_k=3, top_p=0.1, seed=77)
        assert torch.equal(choose(logits, torch.arange(4), params), logits.argmax(-1))

    def test_is_argmax_of_scores_and_noise(self) -> None:
        logits, positions = normal_logits(6, 200), torch.tensor([4, 9, 4, 4, 1000, 9])
        params = SamplingParams(temperature=1.3, top_k=50, top_p=0.9, seed=5)
        noisy = filter_logits(logits, params) + gumbel_noise(5, positions, 200)
        assert torch.equal(choose(logits, positions, params), noisy.argmax(-1))

    @pytest.mark.parametrize(
        "params",
        [
            SamplingParams(temperature=1.0, seed=1),
            SamplingParams(temperature=0.6, seed=2),
            SamplingParams(temperature=1.5, top_k=4, seed=3),
            SamplingParams(temperature=1.0, top_p=0.8, seed=4),
            SamplingParams(temperature=0.8, top_k=5, top_p=0.9, seed=5),
        ],
        ids=str,
    )
    def test_law_is_the_softmax_of_the_scores(self, params: SamplingParams) -> None:
        draws = 20_000
        logits = normal_logits(8, seed=11, scale=1.0)
        law = filter_logits(logits, params).double().softmax(-1).tolist()
        tokens = choose(logits.expand(draws, 8), torch.arange(draws), params)
        counts = tokens.bincount(minlength=8).tolist()
        kept = [token for token in range(8) if law[token] > 0]
        assert sum(counts[token] for token in kept) == draws
        observed, expected = [counts[t] for t in kept], [draws * law[t] for t in kept]
        assert chi_square(observed, expected) < chi_square_limit(len(kept) - 1)

    @pytest.mark.parametrize(
        "params",
        [
            SamplingParams(),
            SamplingParams(temperature=0.8, seed=3),
            SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=3),
        ],
        ids=str,
    )
    def test_batch_is_each_alone(self, params: SamplingParams) -> None:
        logits = normal_logits(3, 5, 300)
        positions = torch.tensor([[7, 8, 8, 9, 9], [7, 8, 9, 10, 11], [90, 91, 91, 91, 92]])
        together = choose(logits, positions, params)
        assert together.shape == (3, 5)
        for b, n in product(range(3), range(5)):
            assert together[b, n] == choose(logits[b, n], positions[b, n], params)


def random_tree(random: Random, anchor: int, *, vocabulary: int, nodes: int) -> DraftTree:
    tokens, parents = [anchor], [-1]
    for _ in range(nodes):
        edge = (random.randrange(len(tokens)), random.randrange(vocabulary))
        if edge not in zip(parents[1:], tokens[1:], strict=True):
            parents.append(edge[0])
            tokens.append(edge[1])
    return DraftTree(tuple(tokens), tuple(parents))


def tokens_to(tree: DraftTree, node: int) -> tuple[int, ...]:
    """Tokens on the path to a node, the root's apart."""
    return () if node == 0 else (*tokens_to(tree, tree.parents[node]), tree.tokens[node])


class TestLossless:
    @pytest.mark.parametrize("seed", range(6))
    def test_law_of_the_text_by_enumeration(self, seed: int) -> None:
        """Independent choices at the nodes of a tree, then token by token: the law of the first
        tokens is that of token by token from the start, in exact fractions."""
        V, length = 3, 3
        random = Random(seed)
        weights = {
            prefix: [Fraction(random.randint(1, 9)) for _ in range(V)]
            for n in range(length + 1)
            for prefix in product(range(V), repeat=n)
        }

        def law(prefix: tuple[int, ...], token: int) -> Fraction:
            return weights[prefix][token] / sum(weights[prefix])

        def one_by_one(text: tuple[int, ...], start: int) -> Fraction:
            return math.prod(
                (law(text[:n], text[n]) for n in range(start, length)), start=Fraction(1)
            )

        tree = random_tree(random, 0, vocabulary=V, nodes=5)
        tree = tree.prefix(next(n for n, d in enumerate((*tree.depths, 9)) if d >= length) - 1)
        result: Counter[tuple[int, ...]] = Counter()
        for choices in product(range(V), repeat=tree.budget + 1):
            chance = math.prod(law(tokens_to(tree, node), c) for node, c in enumerate(choices))
            path, bonus = walk(tree, choices.__getitem__)
            emitted = (*tokens_to(tree, path[-1]), bonus)
            for rest in product(range(V), repeat=length - len(emitted)):
                text = (*emitted, *rest)
                result[text] += chance * one_by_one(text, len(emitted))
        assert dict(result) == {
            text: one_by_one(text, 0) for text in product(range(V), repeat=length)
        }

    @settings(max_examples=30)
    @given(
        st.integers(0, 2**32),
        st.sampled_from(
            [
                SamplingParams(),
                SamplingParams(temperature=0.8, seed=12),
                SamplingParams(temperature=1.3, top_k=3, top_p=0.9, seed=13),
            ]
        ),
    )
    def test_every_shape_emits_the_same_text(self, seed: int, params: SamplingParams) -> None:
        """A target whose logits are a function of the prefix: one node, chains and random trees."""
        V, length = 4, 12

        def choice(prefix: tuple[int, ...]) -> int:
            logits = normal_logits(V, seed=hash((seed, *prefix)) % 2**63)
            return int(choose(logits, torch.tensor(len(prefix)), params))

        def decode(draft: Callable[[int], DraftTree]) -> tuple[int, ...]:
            text = (0,)
            while len(text) < length:
                tree = draft(text[-1])

                def choose_at(
                    node: int, tree: DraftTree = tree, text: tuple[int, ...] = text
                ) -> int:
                    return choice((*text, *tokens_to(tree, node)))

                path, bonus = walk(tree, choose_at)
                text = (*text, *tokens_to(tree, path[-1]), bonus)
            return text[:length]

        random = Random(seed)

        def random_chain(anchor: int) -> DraftTree:
            return chain(anchor, [random.randrange(V) for _ in range(5)])

        def small(anchor: int) -> DraftTree:
            return random_tree(random, anchor, vocabulary=V, nodes=3)

        def large(anchor: int) -> DraftTree:
            return random_tree(random, anchor, vocabulary=V, nodes=20)

        expected = decode(lambda anchor: chain(anchor, []))
        assert [decode(shape) for shape in (random_chain, small, large)] == [expected] * 3
