"""Projections of one input as one matrix product, whose parts keep the checkpoint's names."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ddtree_engine.ops.few_rows_linear import few_rows_linear, few_rows_linear_into, plan_beside
from ddtree_engine.side_stream import beside


def fuse(*linears: nn.Linear) -> Tensor:
    """Put the weights of bias-free layers with one input size under one another.

    Each layer's own weight becomes a view of its rows, so nothing is held twice; while this runs,
    these weights are.

    Returns:
        [sum of the layers' outputs, inputs]
    """
    fused = torch.cat([linear.weight.detach() for linear in linears])
    sizes = [linear.out_features for linear in linears]
    for linear, rows in zip(linears, torch.split(fused, sizes), strict=True):
        linear.weight = nn.Parameter(rows, requires_grad=False)
    return fused


def give_back(device: torch.device) -> None:
    """Return memory that weights had before they were fused, for the next ones to take.

    PyTorch keeps freed memory in pieces of its old sizes, which a larger weight does not fit: over
    all layers that would come to nearly half of a model.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()


def project(x: Tensor, fused: Tensor | None, *linears: nn.Linear) -> Tensor:
    """Outputs of `linears` for `x` side by side: one product where they are fused."""
    if fused is None:
        return torch.cat([linear(x) for linear in linears], dim=-1)
    return few_rows_linear(x, fused)


def project_beside(
    x: Tensor, fused: Tensor | None, *linears: nn.Linear
) -> tuple[Tensor, AbstractContextManager[None]]:
    """Like `project`, but outputs of the last of `linears` come while a recurrence works.

    Args:
        x: [B, N, K]
        fused: as of `fuse`; None if they are not fused.
        linears: the layers.

    Returns:
        The outputs, and a context to launch the recurrence in, entered at once: those of the last
        one are there behind it.
    """
    count = linears[-1].out_features
    run = None if fused is None else plan_beside(x, fused[-count:])
    if fused is None or run is None:
        return project(x, fused, *linears), nullcontext()
    out = x.new_empty(*x.shape[:-1], len(fused))
    few_rows_linear_into(out[..., :-count], x, fused[:-count])
    return out, beside(lambda: run(out[..., -count:]), x.device)
