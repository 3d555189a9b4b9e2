"""The least that a round can take: its matrix products alone, at its numbers of rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ddtree_engine.drafter import DrafterModel
from ddtree_engine.round_shapes import RoundShape
from ddtree_engine.target import TargetModel


def target_products(target: TargetModel, rows: int) -> list[tuple[Tensor, int]]:
    """Weights and rows of the products of one verify pass, in order."""
    products = []
    for layer in target.decoder_layers():
        products += [(weight, rows) for weight in layer.products()]
    return [*products, (target.head_weight, rows)]


def drafter_products(
    target: TargetModel, drafter: DrafterModel, shape: RoundShape
) -> list[tuple[Tensor, int]]:
    """Weights and rows of the products of one draft and of taking in what was accepted."""
    B, block = shape.rows, drafter.config.block_size
    accepted = B * (min(block - 1, shape.budget) + 1)
    products = []
    for layer in drafter.decoder_layers():
        products += [(weight, B * block) for weight in layer.products()]
    products += [(target.head_weight, B * (block - 1)), (drafter.fc.weight, accepted)]
    products += [(layer.self_attn.context_weight, accepted) for layer in drafter.decoder_layers()]
    return products


def products_of(
    target: TargetModel, drafter: DrafterModel | None, shape: RoundShape
) -> list[tuple[Tensor, int]]:
    """Weights and rows of all products of a round."""
    products = target_products(target, shape.rows * (shape.budget + 1))
    if shape.width and drafter is not None:
        products = drafter_products(target, drafter, shape) + products
    return products


def run_products(products: list[tuple[Tensor, int]]) -> Callable[[], None]:
    """Return a function that multiplies each weight with random rows."""
    inputs: dict[tuple[int, int], Tensor] = {}
    for weight, rows in products:
        key = rows, weight.shape[1]
        if key not in inputs:
            inputs[key] = torch.randn(key, device=weight.device, dtype=weight.dtype)

    def run() -> None:
        for weight, rows in products:
            F.linear(inputs[rows, weight.shape[1]], weight)

    return run


def bytes_of(products: list[tuple[Tensor, int]]) -> int:
    """Bytes of the weights that the products read."""
    return sum(weight.numel() * weight.element_size() for weight, _ in products)
