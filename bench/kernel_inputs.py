"""What kernels are measured on: shapes of models, random tensors of them, and an op at one size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 16


@dataclass(frozen=True)
class Shape:
    """The sizes of a target and its drafter that kernels see."""

    linear_layers: int
    key_heads: int
    value_heads: int
    linear_dim: int
    full_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    drafter_layers: int
    drafter_heads: int
    drafter_kv_heads: int
    drafter_head_dim: int
    vocab: int

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values of a recurrent layer side by side."""
        return (2 * self.key_heads + self.value_heads) * self.linear_dim


SHAPES = {
    "demo": Shape(6, 3, 6, 32, 2, 4, 2, 64, 3, 4, 2, 64, 4096),
    "qwen3.6-27b": Shape(48, 16, 48, 128, 16, 24, 4, 256, 5, 32, 8, 128, 248320),
}


@dataclass(frozen=True)
class Case:
    """One op at one size.

    Attributes:
        name: of the row in the table.
        calls: one a layer, each with its own inputs.
        plain: the same through PyTorch, in the dtypes in which the engine calls it.
        reference: float64 output of the first call, by PyTorch.
        moved: bytes that a call must read and write at least.
    """

    name: str
    calls: list[Callable[[], Any]]
    plain: list[Callable[[], Any]]
    reference: Callable[[], Tensor | tuple[Tensor, ...]]
    moved: int


class Inputs:
    """Random tensors on one device."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self.generator = torch.Generator(device).manual_seed(0)

    def randn(self, *size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Normal numbers."""
        return torch.randn(size, generator=self.generator, device=self.device).to(dtype)

    def row_scale(self, nodes: int) -> Tensor:
        """[1, N] float32 factors of the rows of a projection, as 1/rms of its inputs would be."""
        return self.randn(1, nodes, dtype=torch.float32).exp()

    def parents(self, nodes: int) -> list[int]:
        """A tree such as best-first search makes: early nodes have most of the children."""
        generator = torch.Generator().manual_seed(nodes)
        parents, depths = [-1], [0]
        while len(parents) < nodes:
            reach = 1 + int(len(parents) * torch.rand((), generator=generator) ** 2)
            parent = min(reach, len(parents)) - 1
            if depths[parent] < BLOCK - 1:
                parents.append(parent)
                depths.append(depths[parent] + 1)
        return parents

    def ancestors(self, nodes: int) -> Tensor:
        """[1, N, N] bool."""
        mask = torch.eye(nodes, dtype=torch.bool)
        for node, parent in enumerate(self.parents(nodes)):
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask[None].to(self.device)

    def taps(self, nodes: int, taps: int = 4) -> Tensor:
        """[1, N, taps] int64 as `tree_conv` takes them."""
        rows = torch.empty(nodes, taps, dtype=torch.int64)
        for node, parent in enumerate(self.parents(nodes)):
            rows[node, :-1] = rows[parent, 1:] if parent >= 0 else torch.arange(taps - 1)
            rows[node, -1] = taps - 1 + node
        return rows[None].to(self.device)

    def gdn(self, nodes: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Arguments of `tree_gdn` of one layer, but for `ancestors`."""
        one, single = self.shape, torch.float32

        def unit(*size: int) -> Tensor:
            return torch.nn.functional.normalize(self.randn(*size, dtype=single), dim=-1)

        heads, dim = one.value_heads, one.linear_dim
        return {
            "q": (unit(1, nodes, one.key_heads, dim) * dim**-0.5).to(dtype),
            "k": unit(1, nodes, one.key_heads, dim).to(dtype),
            "v": self.randn(1, nodes, heads, dim, dtype=dtype),
            "g": -self.randn(1, nodes, heads, dtype=single).exp() * 0.1,
            "beta": self.randn(1, nodes, heads, dtype=single).sigmoid(),
            "state": self.randn(1, heads, dim, dim, dtype=single),
        }


def single(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments with every float in float32."""
    return {
        name: x.float() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in arguments.items()
    }


def double(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments with every float in float64."""
    return {
        name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in arguments.items()
    }


def size(*tensors: Tensor) -> int:
    """Bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def flat(op: Callable[..., tuple[Tensor, ...]], **arguments: Any) -> tuple[Tensor, ...]:
    """What an op of several outputs returns, as a plain tuple."""
    return tuple(op(**arguments))
