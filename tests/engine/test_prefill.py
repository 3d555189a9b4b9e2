"""Prompts in pieces against the verify and commit passes that decoding makes, and each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddtree_engine.cache import DrafterCache, TargetCache
from ddtree_engine.config import LinearAttentionConfig
from ddtree_engine.decoder import Decoder
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.errors import OutOfMemoryError
from ddtree_engine.host_round import HostRound
from ddtree_engine.sequence import PREFILL_CHUNK, Mode, Sequence, Speculation
from ddtree_engine.stages import StageClock
from ddtree_engine.target import TargetModel
from ddtree_engine.tree_batch import TreeBatch
from tests.engine.conftest import VOCAB, drafter_config, randomize, target_config

CPU = torch.device("cpu")
ROW = 1
_WIDE = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "head_dim": 64,
}
KINDS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "hybrid": ({}, {}),
    "dense": (
        {"layer_types": ("full_attention",) * 3, "linear": None, "attention_gate": False},
        {},
    ),
    # As wide as kernels for a GPU want heads to be.
    "wide": (
        {**_WIDE, "rotary_dim": 16, "linear": LinearAttentionConfig(2, 6, 128, 128, 4)},
        _WIDE,
    ),
}


class Engine:
    """Models of random weights, and caches of three rows whose second one takes tokens."""

    def __init__(
        self,
        kind: str,
        dtype: torch.dtype,
        length: int,
        *,
        fused: bool = True,
        device: torch.device = CPU,
        rounded: torch.dtype = torch.float64,
    ) -> None:
        """`rounded`: the weights are numbers of that type."""
        of_target, of_drafter = KINDS[kind]
        self.target = TargetModel(target_config(**of_target))
        self.drafter = DrafterModel(drafter_config(**of_drafter))
        for seed, model in enumerate((self.target, self.drafter)):
            randomize(model, seed, 2 * model.config.hidden_size**-0.5)
            model.to(rounded).to(dtype).to(device)
        if fused:
            self.target.fuse()
            self.drafter.fuse()
        shape = {"rows": 3, "max_length": length, "dtype": dtype, "device": device}
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.cache = TargetCache(self.target.config, **shape, state_dtype=wide)  # type: ignore[arg-type]
        self.drafter_cache = DrafterCache(self.drafter.config, **shape)  # type: ignore[arg-type]
        self.rounds = HostRound(
            self.target, self.drafter, self.cache, self.drafter_cache, StageClock(), leak=False
        )

    def prefill(self, tokens: Tensor, pieces: list[int], *, speculating: bool = True) -> None:
        for piece in torch.split(tokens, pieces, dim=1):
            self.rounds.append(piece, ROW, speculating=speculating)

    def verify_and_commit(self, tokens: Tensor, pieces: list[int]) -> None:
        """As chains whose nodes are all accepted."""
        rows = slice(ROW, ROW + 1)
        for piece in torch.split(tokens, pieces, dim=1):
            batch = TreeBatch.chain(piece, conv_kernel=self.target.conv_kernel)
            layers = self.rounds.feature_layers
            found = self.target.verify(batch, self.cache, rows, layers)
            self.rounds.commit(found, [list(range(piece.shape[1]))], rows)

    def tensors(self) -> dict[str, Tensor]:
        cache, drafted = self.cache, self.drafter_cache
        return {
            "states": cache.states,
            "tails": cache.tails,
            "keys": cache.keys,
            "values": cache.values,
            "drafter keys": drafted.keys,
            "drafter values": drafted.values,
        }


def some_tokens(count: int) -> Tensor:
    return torch.randint(0, VOCAB, (1, count), generator=torch.Generator().manual_seed(count))


def assert_same(found: Engine, expected: Engine, tolerance: float) -> None:
    """Every number of every row; the tolerance is relative to the largest of a tensor."""
    assert found.cache.lengths == expected.cache.lengths
    assert found.drafter_cache.lengths == expected.drafter_cache.lengths
    for name, tensor in found.tensors().items():
        other = expected.tensors()[name]
        atol = tolerance * float(other.abs().amax()) if other.numel() else 0.0
        difference = (tensor - other).abs()
        assert (difference <= atol).all(), (name, float(difference.amax()), atol)


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
@pytest.mark.parametrize(
    "pieces", [[1, 2, 3, 64, 65, 512], [513, 134], [512, 135], [647], [2, 1, 644]], ids=str
)
@torch.inference_mode()
def test_a_row_is_as_after_verify_and_commit(kind: str, pieces: list[int]) -> None:
    tokens = some_tokens(647)
    expected = Engine(kind, torch.float64, 650)
    expected.verify_and_commit(tokens, [128, 128, 128, 128, 128, 7])
    # In float32 the two differ by rounding, of which this one has less.
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 5e-5)):
        found = Engine(kind, dtype, 650)
        found.prefill(tokens, pieces)
        assert_same(found, expected, tolerance)


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
@given(pieces=st.lists(st.integers(1, 70), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@torch.inference_mode()
def test_any_pieces_are_one_pass(kind: str, pieces: list[int]) -> None:
    tokens = some_tokens(sum(pieces))
    found, expected = (Engine(kind, torch.float64, 420) for _ in range(2))
    found.prefill(tokens, pieces)
    expected.prefill(tokens, [sum(pieces)])
    assert_same(found, expected, 1e-10)


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@torch.inference_mode()
def test_prompts_around_the_taps_of_the_convolution(kind: str, count: int) -> None:
    for fused in (True, False):
        found, expected = (Engine(kind, torch.float64, 8, fused=fused) for _ in range(2))
        found.prefill(some_tokens(count), [count])
        expected.verify_and_commit(some_tokens(count), [1] * count)
        assert_same(found, expected, 1e-10)


@torch.inference_mode()
def test_other_rows_are_neither_read_nor_written() -> None:
    alone, among = (Engine("hybrid", torch.float32, 100) for _ in range(2))
    for tensor in among.tensors().values():
        tensor[:, [0, 2]] = torch.randn_like(tensor[:, [0, 2]])
    before = {name: tensor.clone() for name, tensor in among.tensors().items()}
    for one in (alone, among):
        one.prefill(some_tokens(90), [40, 50])
    for name, tensor in among.tensors().items():
        assert torch.equal(tensor[:, ROW], alone.tensors()[name][:, ROW]), name
        assert torch.equal(tensor[:, [0, 2]], before[name][:, [0, 2]]), name


@torch.inference_mode()
def test_without_speculation_the_drafter_gets_nothing() -> None:
    engine = Engine("hybrid", torch.float32, 50)
    engine.prefill(some_tokens(40), [25, 15], speculating=False)
    assert engine.cache.lengths == [0, 40, 0]
    assert engine.drafter_cache.lengths == [0, 0, 0]
    assert not engine.drafter_cache.keys.any()


@pytest.mark.parametrize("fails", ["target", "drafter"])
def test_a_piece_without_memory_commits_nothing(
    target: TargetModel, drafter: DrafterModel, fails: str
) -> None:
    def no_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    length = PREFILL_CHUNK + 300
    tokens = some_tokens(length)[0].tolist()
    decoder, plain = (Decoder(target, drafter, rows=2, max_length=length + 100) for _ in range(2))
    one, other = (Sequence(tokens, 9, speculation=Speculation(Mode.TREE)) for _ in range(2))
    decoder.start(one)
    decoder.prefill(one)
    cache, first = decoder.cache, one.prefilled
    before = [cache.tails.clone(), cache.states.clone(), cache.keys[:, :, :first].clone()]
    place = (
        (target.decoder_layers()[-1].mlp, "add_to") if fails == "target" else (drafter, "context")
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(*place, no_memory)
        with pytest.raises(OutOfMemoryError):
            decoder.prefill(one)
    after = [cache.tails, cache.states, cache.keys[:, :, :first]]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert (one.prefilled, cache.lengths[0]) == (first, first)
    assert decoder.drafter_cache is not None
    assert decoder.drafter_cache.lengths[0] == first
    # The scheduler may end another request instead, and then go on.
    plain.start(other)
    for each, by in ((one, decoder), (other, plain)):
        while each.finish_reason is None:
            if each.decoding:
                by.round()
            else:
                by.prefill(each)
    assert one.emitted == other.emitted
