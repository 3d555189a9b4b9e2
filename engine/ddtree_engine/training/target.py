"""Trains the demo's target: next-token prediction on the corpus, from scratch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddtree_engine.config_file import read_target_config
from ddtree_engine.mlp import GatedMLP
from ddtree_engine.norm import RMSNorm
from ddtree_engine.target.attention import Attention
from ddtree_engine.target.gated_delta_net import GatedDeltaNet
from ddtree_engine.target.model import TargetModel
from ddtree_engine.training.accelerate import autocast, compiled_objective, eager
from ddtree_engine.training.batches import Windows
from ddtree_engine.training.checkpoint import load_best
from ddtree_engine.training.initialise import initialise
from ddtree_engine.training.loop import Schedule, train


class NextTokenLoss(nn.Module):
    """Mean cross-entropy of tied-embedding logits; a module so that it can be compiled."""

    def forward(self, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        """Loss of normed ``hidden [B, T, H]`` against ``labels [B, T]``; ``weight [V, H]``."""
        logits = functional.linear(hidden, weight).float()
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Dropout(nn.Module):
    """Forward hook that drops elements of a sublayer's output, before the residual sum."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def hook(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        """Drops while ``module`` trains."""
        del inputs
        return functional.dropout(output, self.share, training=module.training)


def train_target(
    folder: Path,
    tokens: Tensor,
    held_out: Tensor,
    schedule: Schedule,
    *,
    batch: int,
    length: int,
    dropout: float,
    compiled: bool,
    about: Mapping[str, Any],
    resume: bool,
) -> dict[str, Any]:
    """Trains the target whose `config.json` is in ``folder`` and returns the run's facts.

    Args:
        folder: receives the state and the best parameters (by held-out loss).
        tokens: ``[N]`` the training stream, on the device to train on.
        held_out: ``[M]`` the held-out modules' stream, likewise.
        schedule: see :class:`Schedule`.
        batch: windows a step.
        length: tokens a window.
        dropout: share of each sublayer's output that is dropped.
        compiled: use ``torch.compile``.
        about: recorded with the run.
        resume: continue from the state in ``folder``.
    """
    device = tokens.device
    model = TargetModel(read_target_config(folder))
    initialise(model, model.config.num_layers, schedule.seed)
    model.to(device).train()
    head = NextTokenLoss()
    sublayers = [m for m in model.modules() if isinstance(m, GatedDeltaNet | Attention | GatedMLP)]
    if dropout:
        for sublayer in sublayers:
            sublayer.register_forward_hook(Dropout(dropout).hook)
    windows = Windows(tokens, batch, length + 1, schedule.seed)

    def objective(step: int) -> Tensor:
        window = windows.at(step)
        with autocast(device):
            hidden, _ = model.forward_sequence(window[:, :-1])
            loss: Tensor = head(hidden, model.embed_tokens.weight, window[:, 1:])
        return loss

    norms = [m for m in model.modules() if isinstance(m, RMSNorm) and _width(m) > 64]
    step = compiled_objective(objective, model, [*sublayers, *norms, head], enabled=compiled)
    return train(
        model,
        step,
        lambda _: evaluate_target(model, held_out, batch, length),
        schedule,
        folder,
        tokens_per_step=batch * length,
        about={
            **about,
            "batch": batch,
            "length": length,
            "dropout": dropout,
            "epoch_steps": windows.steps_per_epoch,
            "parameters": sum(p.numel() for p in model.parameters()),
        },
        resume=resume,
    )


@torch.no_grad()
def evaluate_target(
    model: TargetModel, held_out: Tensor, batch: int, length: int
) -> dict[str, float]:
    """Mean loss (nats a token) and accuracy over the held-out stream, in windows of ``length``."""
    was_training = model.training
    model.eval()
    count = (held_out.numel() - 1) // length
    starts = torch.arange(count, device=held_out.device) * length
    span = torch.arange(length + 1, device=held_out.device)
    total = torch.zeros(2, device=held_out.device, dtype=torch.float64)
    with eager(), autocast(held_out.device):
        for first in range(0, count, batch):
            window = held_out[starts[first : first + batch, None] + span].long()
            hidden, _ = model.forward_sequence(window[:, :-1])
            logits = model.logits(hidden).flatten(0, 1)
            labels = window[:, 1:].flatten()
            total[0] += functional.cross_entropy(logits, labels, reduction="sum")
            total[1] += (logits.argmax(-1) == labels).sum()
    model.train(was_training)
    loss, hits = (total / (count * length)).tolist()
    return {"loss": loss, "accuracy": hits}


def load_trained_target(folder: Path, device: torch.device) -> TargetModel:
    """The best target of a run: its bf16 parameters, in fp32, frozen."""
    model = TargetModel(read_target_config(folder))
    model.load_state_dict(load_best(folder))
    return model.to(device).eval().requires_grad_(False)


def _width(norm: RMSNorm) -> int:
    return norm.weight.numel()
