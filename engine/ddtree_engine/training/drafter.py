"""Trains the DFlash drafter on text of the target: random anchors, one block each.

DFlash, arXiv 2602.06036: the loss is the cross-entropy of the tokens at offsets 1 .. block - 1 from
the anchor, weighted by ``exp(-(offset - 1) / 7)``, since a late match counts only after all earlier
ones. Embeddings and output head are the target's and stay fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddtree_engine.config import DrafterConfig
from ddtree_engine.config_file import read_drafter_config
from ddtree_engine.drafter.model import DrafterModel
from ddtree_engine.mlp import GatedMLP
from ddtree_engine.norm import RMSNorm
from ddtree_engine.target.attention import Attention
from ddtree_engine.target.gated_delta_net import GatedDeltaNet
from ddtree_engine.target.model import TargetModel
from ddtree_engine.training.accelerate import autocast, compiled_objective, eager
from ddtree_engine.training.acceptance import acceptance_lengths
from ddtree_engine.training.blocks import BlockAttention, forward_blocks
from ddtree_engine.training.initialise import initialise
from ddtree_engine.training.loop import Schedule, train

LOSS_DECAY = 7.0
"""Offsets over which the weight of the loss falls by e, for blocks of 16."""

TOP_K = 8
"""Candidates a depth in the estimate of acceptance."""


class BlockLoss(nn.Module):
    """Weighted mean cross-entropy over the offsets of many blocks."""

    def forward(self, drafted: Tensor, weight: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
        """Loss of ``drafted [B, A, L, H]`` against ``labels [B, A, L]`` where ``valid``."""
        logits = functional.linear(drafted, weight).float().flatten(0, 2)
        losses = functional.cross_entropy(logits, labels.flatten(), reduction="none")
        offsets = torch.arange(labels.shape[-1], device=labels.device)
        weights = (torch.exp(-offsets / LOSS_DECAY) * valid).flatten()
        return (losses * weights).sum() / weights.sum()


@dataclass(frozen=True, slots=True)
class HeldOutText:
    """Greedy continuations by the target of held-out prompts, ``[R, T]``; prompts of one length."""

    tokens: Tensor
    prompt_length: int


def train_drafter(
    folder: Path,
    target: TargetModel,
    generated: Tensor,
    held_out: HeldOutText,
    schedule: Schedule,
    *,
    batch: int,
    anchors: int,
    compiled: bool,
    about: Mapping[str, Any],
    resume: bool,
) -> dict[str, Any]:
    """Trains the drafter whose `config.json` is in ``folder`` and returns the run's facts.

    Args:
        folder: receives the state and the best parameters.
        target: frozen.
        generated: ``[R, T]`` sequences to learn from, on the device to train on.
        held_out: what decides which parameters are the best.
        schedule: see :class:`Schedule`.
        batch: sequences a step.
        anchors: blocks a sequence.
        compiled: use ``torch.compile``.
        about: recorded with the run.
        resume: continue from the state in ``folder``.
    """
    device = generated.device
    config = read_drafter_config(folder)
    model = DrafterModel(config)
    initialise(model, config.num_layers, schedule.seed + 1)
    model.to(device).train()
    attention, head = BlockAttention(), BlockLoss()
    rows = generated.shape[0]
    if rows < batch:
        raise ValueError(f"{rows} sequences are fewer than a batch of {batch}")
    order: dict[int, Tensor] = {}

    def objective(step: int) -> Tensor:
        epoch, index = divmod(step, rows // batch)
        if epoch not in order:
            order.clear()
            shuffle = torch.Generator().manual_seed(schedule.seed * 1_000_003 + epoch)
            order[epoch] = torch.randperm(rows, generator=shuffle).to(device)
        chosen = order[epoch][index * batch : (index + 1) * batch]
        tokens = generated[chosen].long()
        last = tokens.shape[1] - config.block_size
        places = 1 + torch.rand(batch, last, device=device).topk(anchors).indices
        with autocast(device):
            drafted, labels, valid = draft_blocks(target, model, tokens, places, attention)
            loss: Tensor = head(drafted, target.embed_tokens.weight, labels, valid)
        return loss

    modules = [
        m
        for owner in (target, model)
        for m in owner.modules()
        if isinstance(m, GatedDeltaNet | Attention | GatedMLP)
        or (isinstance(m, RMSNorm) and m.weight.numel() > config.head_dim)
    ]
    step = compiled_objective(objective, model, [*modules, attention, head], enabled=compiled)
    return train(
        model,
        step,
        lambda final: evaluate_drafter(target, model, held_out, None if final else 16),
        schedule,
        folder,
        tokens_per_step=batch * generated.shape[1],
        about={
            **about,
            "batch": batch,
            "anchors": anchors,
            "epoch_steps": rows // batch,
            "generated_tokens": generated.numel(),
            "parameters": sum(p.numel() for p in model.parameters()),
        },
        resume=resume,
    )


def draft_blocks(
    target: TargetModel,
    drafter: DrafterModel,
    tokens: Tensor,
    places: Tensor,
    attention: BlockAttention,
) -> tuple[Tensor, Tensor, Tensor]:
    """Drafts a block at each of ``places [B, A]`` in ``tokens [B, T]``.

    Returns:
        ``drafted [B, A, L, H]``, the tokens that follow the anchors ``[B, A, L]``, and which of
        those there are (a block may reach past the end).
    """
    config = drafter.config
    with torch.no_grad():
        _, features = target.forward_sequence(tokens, config.target_layer_ids)
        assert features is not None, "the drafter names at least one layer"
        blocks = block_embeddings(target, config, tokens.gather(1, places))
    drafted = forward_blocks(drafter, features, places, blocks, attention)
    following = places[..., None] + torch.arange(1, config.block_size, device=tokens.device)
    valid = following < tokens.shape[1]
    index = following.clamp_max(tokens.shape[1] - 1).flatten(1)
    return drafted, tokens.gather(1, index).view(following.shape), valid


def block_embeddings(target: TargetModel, config: DrafterConfig, anchors: Tensor) -> Tensor:
    """``[B, A, block, H]``: the anchor token in slot 0, masks in the others."""
    masks = anchors.new_full((*anchors.shape, config.block_size - 1), config.mask_token_id)
    return target.embed(torch.cat([anchors[..., None], masks], dim=-1))


@torch.no_grad()
def evaluate_drafter(
    target: TargetModel,
    drafter: DrafterModel,
    held_out: HeldOutText,
    replayed: int | None = None,
) -> dict[str, float]:
    """Held-out loss, accuracy at the first offset, and estimated acceptance lengths.

    The lengths are those of the first ``replayed`` texts (None: of all).
    """
    tokens = held_out.tokens
    device = tokens.device
    first = held_out.prompt_length - 1
    anchors = torch.arange(first, tokens.shape[1] - 1, device=device)
    attention, head = BlockAttention(), BlockLoss()
    losses, hits = [], []
    log_probs, candidates = [], []
    was_training = drafter.training
    drafter.eval()
    with eager(), autocast(device):
        for start in range(0, tokens.shape[0], 16):
            piece = tokens[start : start + 16]
            places = anchors.expand(piece.shape[0], -1)
            drafted, labels, valid = draft_blocks(target, drafter, piece, places, attention)
            losses.append(head(drafted, target.embed_tokens.weight, labels, valid))
            best = target.logits(drafted).log_softmax(-1).topk(TOP_K, dim=-1)
            hits.append((best.indices[:, :, 0, 0] == labels[:, :, 0]).float().mean())
            log_probs.append(best.values.float().cpu())
            candidates.append(best.indices.cpu())
    drafter.train(was_training)
    return {
        "loss": torch.stack(losses).mean().item(),
        "first_accuracy": torch.stack(hits).mean().item(),
        "replayed": len(tokens[:replayed]),
        **acceptance_lengths(
            tokens[:replayed].cpu().numpy(),
            first,
            torch.cat(log_probs)[:replayed].numpy(),
            torch.cat(candidates)[:replayed].numpy(),
        ),
    }
