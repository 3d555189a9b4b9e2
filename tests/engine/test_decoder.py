"""Lossless decoding: every mode emits the same tokens, alone and in a batch."""

from __future__ import annotations

import pytest
import torch

from ddtree_engine import cache
from ddtree_engine.decoder import Decoder
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.errors import (
    CapacityError,
    CheckpointError,
    EngineError,
    OutOfMemoryError,
    RequestError,
)
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import Mode, Sequence, Speculation
from ddtree_engine.shadow import BUDGETS, LINEAR
from ddtree_engine.target import TargetModel
from tests.engine.conftest import VOCAB, drafter_config, target_config

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.8, seed=7)
FILTERED = SamplingParams(temperature=1.3, top_k=6, top_p=0.9, seed=1 << 40)
MODES = [
    Speculation(Mode.LINEAR),
    Speculation(Mode.SHADOW, topk=4),
    Speculation(Mode.TREE, budget=1, topk=2),
    Speculation(Mode.TREE, budget=12, topk=3),
    Speculation(Mode.TREE, budget=40, topk=11),
]


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (length,), generator=generator).tolist()


def run(decoder: Decoder, *sequences: Sequence) -> list[list[int]]:
    """Run requests together to their end."""
    waiting = list(sequences)
    while waiting or decoder.sequences:
        while waiting and decoder.free:
            decoder.start(waiting.pop(0))
        for sequence in [one for one in decoder.sequences if not one.decoding][:1]:
            decoder.prefill(sequence)
        for sequence, _ in decoder.round():
            if sequence.finish_reason:
                decoder.stop(sequence)
    return [sequence.emitted for sequence in sequences]


@pytest.mark.parametrize(
    "sampling", [GREEDY, SAMPLED, FILTERED], ids=["greedy", "t0.8", "filtered"]
)
@pytest.mark.parametrize("length", [1, 2, 30, 200])
def test_every_mode_emits_the_tokens_of_ar(
    target: TargetModel, drafter: DrafterModel, sampling: SamplingParams, length: int
) -> None:
    decoder = Decoder(target, drafter, max_length=300)
    ar = Sequence(prompt(length), 60, sampling, Speculation(Mode.AR))
    run(decoder, ar)
    assert ar.rounds == 60
    rounds = 0
    for speculation in MODES:
        other = Sequence(prompt(length), 60, sampling, speculation)
        run(decoder, other)
        assert other.emitted == ar.emitted, speculation
        assert sum(other.accepted) == 60
        rounds += other.rounds
    assert rounds < 60 * len(MODES), "nothing was accepted: a wrong commit would not be seen"


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_a_request_may_fill_the_context_to_the_last_token(
    target: TargetModel, drafter: DrafterModel, max_tokens: int
) -> None:
    decoder = Decoder(target, drafter, max_length=20 + max_tokens)
    (ar,) = run(decoder, Sequence(prompt(20), max_tokens, SAMPLED, Speculation(Mode.AR)))
    for speculation in MODES:
        assert run(decoder, Sequence(prompt(20), max_tokens, SAMPLED, speculation)) == [ar]


def test_a_batch_of_different_modes_equals_each_alone(
    target: TargetModel, drafter: DrafterModel
) -> None:
    def requests() -> list[Sequence]:
        shapes = [Speculation(Mode.AR), *MODES]
        return [
            Sequence(prompt(5 + 40 * i, i), 20 + 9 * i, SAMPLED if i % 2 else GREEDY, shapes[i])
            for i in range(6)
        ]

    alone = [run(Decoder(target, drafter, max_length=400), one)[0] for one in requests()]
    together = run(Decoder(target, drafter, rows=3, max_length=400), *requests())
    assert together == alone


def test_the_state_after_tree_rounds_is_the_state_of_ar(
    target: TargetModel, drafter: DrafterModel
) -> None:
    states = []
    for speculation in (Speculation(Mode.AR), Speculation(Mode.TREE, budget=20, topk=4)):
        decoder = Decoder(target, drafter, max_length=300)
        sequence = Sequence(prompt(20), 200, SAMPLED, speculation)
        decoder.start(sequence)
        decoder.prefill(sequence)
        while len(sequence.emitted) < 150:
            decoder.round()
        states.append((sequence, decoder))
    (ar, plain), (tree, forked) = states
    while len(ar.emitted) < len(tree.emitted):
        plain.round()
    assert ar.emitted == tree.emitted
    assert plain.cache.lengths == forked.cache.lengths
    length = plain.cache.lengths[0]
    close = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(forked.cache.states, plain.cache.states, **close)
    torch.testing.assert_close(forked.cache.tails, plain.cache.tails, **close)
    torch.testing.assert_close(
        forked.cache.keys[:, :, :length], plain.cache.keys[:, :, :length], **close
    )
    torch.testing.assert_close(
        forked.cache.values[:, :, :length], plain.cache.values[:, :, :length], **close
    )


def test_dense_target_and_untied_rounds(drafter: DrafterModel) -> None:
    from tests.engine.conftest import randomize

    dense = TargetModel(
        target_config(
            architecture="Qwen3ForCausalLM",
            layer_types=("full_attention",) * 3,
            linear=None,
            rotary_dim=8,
            attention_gate=False,
            zero_centered_norm=False,
        )
    )
    randomize(dense, 3)
    decoder = Decoder(dense.eval(), drafter, max_length=100)
    (ar,) = run(decoder, Sequence(prompt(9), 40, SAMPLED, Speculation(Mode.AR)))
    (tree,) = run(decoder, Sequence(prompt(9), 40, SAMPLED, Speculation(Mode.TREE, 20, 5)))
    assert tree == ar


def test_leaking_state_between_siblings_changes_the_output(
    target: TargetModel, drafter: DrafterModel
) -> None:
    exact = Decoder(target, drafter, max_length=300)
    leaky = Decoder(target, drafter, max_length=300, recurrent_state="leak")
    speculation = Speculation(Mode.TREE, budget=30, topk=6)
    (right,) = run(exact, Sequence(prompt(20), 200, GREEDY, speculation))
    (wrong,) = run(leaky, Sequence(prompt(20), 200, GREEDY, speculation))
    assert wrong != right
    # A chain has no siblings: there the shortcut is harmless.
    (chain,) = run(leaky, Sequence(prompt(20), 200, GREEDY, Speculation(Mode.LINEAR)))
    assert chain == right


def test_shadow_evidence_is_what_a_tree_would_have_accepted(
    target: TargetModel, drafter: DrafterModel
) -> None:
    decoder = Decoder(target, drafter, max_length=300)
    shadow = Sequence(prompt(12), 120, SAMPLED, Speculation(Mode.SHADOW, topk=4))
    run(decoder, shadow)
    assert shadow.shadow is not None
    summary = shadow.shadow.summary()
    assert summary.rounds > 10
    # Replay: at each of the shadow's anchors, one real tree round of every budget.
    starts = [0]
    for accepted in shadow.accepted:
        starts.append(starts[-1] + accepted)
    # The last rounds may be censored; they are the latest ones.
    for budget in BUDGETS:
        found: dict[int, int] = {}
        for start in starts[: summary.rounds]:
            known = [*shadow.prompt, *shadow.emitted[:start]]
            tree = Sequence(known, 50, SAMPLED, Speculation(Mode.TREE, budget, topk=4))
            decoder.start(tree)
            while not tree.decoding:
                decoder.prefill(tree)
            decoder.round()
            decoder.stop(tree)
            found[tree.accepted[0]] = found.get(tree.accepted[0], 0) + 1
        assert found == dict(summary.histograms[str(budget)])
    chain = shadow.accepted[: summary.rounds]
    assert {n: chain.count(n) for n in set(chain)} == dict(summary.histograms[LINEAR])


def test_stop_token_ends_a_request_within_a_round(
    target: TargetModel, drafter: DrafterModel
) -> None:
    decoder = Decoder(target, drafter, max_length=300)
    (free,) = run(decoder, Sequence(prompt(20), 60, SAMPLED, Speculation(Mode.AR)))
    stop = free[25]
    first = free.index(stop)
    for speculation in [Speculation(Mode.AR), *MODES]:
        one = Sequence(prompt(20), 60, SAMPLED, speculation, stop_ids=frozenset({stop}))
        run(decoder, one)
        assert one.emitted == free[: first + 1]
        assert one.finish_reason == "stop"


@pytest.mark.parametrize("speculation", [Speculation(Mode.AR), *MODES])
def test_numbers_that_are_not_finite_fail_one_request_and_no_other(
    target: TargetModel, drafter: DrafterModel, speculation: Speculation
) -> None:
    healthy = Sequence([1, 2, 3, 4], 20, GREEDY, Speculation(Mode.AR))
    (expected,) = run(Decoder(target, drafter, max_length=60), healthy)
    bad = next(token for token in range(VOCAB) if token not in expected and token > 4)
    target.embed_tokens.weight[bad] = torch.nan
    decoder = Decoder(target, drafter, rows=2, max_length=60)
    victim = Sequence([1, 2, bad, 4], 20, GREEDY, speculation)
    # Its own drafts may be the bad token: a branch that is rejected takes nothing with it.
    neighbour = Sequence([1, 2, 3, 4], 20, GREEDY, speculation)
    run(decoder, victim, neighbour)
    assert victim.finish_reason == "failed"
    assert victim.emitted == []
    assert neighbour.emitted == expected


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (Sequence([], 5), "empty"),
        (Sequence([VOCAB], 5), "outside the vocabulary"),
        (Sequence([-1], 5), "outside the vocabulary"),
        (Sequence([1], 0), "max_tokens"),
        (Sequence([1] * 20, 13), "exceed the context of 32"),
    ],
)
def test_requests_that_cannot_run(
    target: TargetModel, drafter: DrafterModel, sequence: Sequence, message: str
) -> None:
    decoder = Decoder(target, drafter, max_length=32)
    with pytest.raises(RequestError, match=message):
        decoder.start(sequence)
    assert not decoder.sequences


def test_a_full_decoder_and_a_missing_drafter(target: TargetModel) -> None:
    decoder = Decoder(target, None, max_length=32)
    with pytest.raises(RequestError, match="needs a drafter"):
        decoder.start(Sequence([1], 5, GREEDY, Speculation(Mode.TREE)))
    decoder.start(Sequence([1], 1, GREEDY, Speculation(Mode.AR)))
    with pytest.raises(CapacityError):
        decoder.start(Sequence([1], 5, GREEDY, Speculation(Mode.AR)))
    decoder.round()
    with pytest.raises(EngineError, match="call `stop` first"):
        decoder.round()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 12}, "vocab_size 12 against 11"),
        ({"hidden_size": 16}, "hidden_size 16 against 24"),
        ({"target_layer_ids": (0, 3)}, "target_layer_ids"),
        ({"num_target_layers": 4}, "num_target_layers 4 against 3"),
        ({"mask_token_id": 11}, "mask_token_id 11 outside"),
    ],
)
def test_a_drafter_that_does_not_fit(
    target: TargetModel, change: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        Decoder(target, DrafterModel(drafter_config(**change)), max_length=32)


def test_a_context_that_no_memory_holds(target: TargetModel) -> None:
    with pytest.raises(CapacityError, match="no memory for the caches of 2 x") as error:
        Decoder(target, None, rows=2, max_length=1 << 45)
    assert error.value.hint is not None


@pytest.mark.parametrize(
    ("part", "name", "told"),
    [
        ("target", "verify", "a round of 2 requests with 12 nodes each and 105 tokens before"),
        ("drafter", "context", "a piece of 105 tokens of a prompt with 0 before them"),
    ],
)
def test_a_rehearsal_without_memory_is_one_message(
    target: TargetModel,
    drafter: DrafterModel,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    name: str,
    told: str,
) -> None:
    decoder = Decoder(target, drafter, rows=2, max_length=100)

    def no_memory(*_: object, **__: object) -> None:
        torch.empty(1 << 50, dtype=torch.uint8)

    monkeypatch.setattr(getattr(decoder, part), name, no_memory)
    with pytest.raises(CapacityError, match=f"no memory for {told}") as error:
        decoder.rehearse(budget=12, topk=3)
    assert error.value.hint is not None


@pytest.mark.parametrize("step", ["commit", "conv_commit"])
def test_a_round_without_memory_leaves_no_trace(
    target: TargetModel, drafter: DrafterModel, step: str
) -> None:
    """It is run again: evidence is counted once, and a failure is told by the round that ends."""

    def tokens_and_evidence(failures: int, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
        decoder = Decoder(target, drafter, max_length=100)
        one = Sequence(prompt(9), 20, GREEDY, Speculation(Mode.SHADOW, topk=3))
        decoder.start(one)
        while not one.decoding:
            decoder.prefill(one)
        # The latter after the recurrent states of the path are known.
        place = decoder.host_round if step == "commit" else cache
        works = getattr(place, step)

        def no_memory(*_: object) -> None:
            raise torch.OutOfMemoryError("no memory")

        while one.finish_reason is None:
            monkeypatch.setattr(place, step, no_memory)
            for _ in range(failures):
                with pytest.raises(OutOfMemoryError):
                    decoder.round()
                assert one.finish_reason is None
            monkeypatch.setattr(place, step, works)
            decoder.round()
        assert one.shadow is not None
        return one.emitted, one.rounds, one.shadow.summary()

    with pytest.MonkeyPatch.context() as patched:
        assert tokens_and_evidence(2, patched) == tokens_and_evidence(0, patched)
