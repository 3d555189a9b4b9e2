"""Starting values of the two models' parameters."""

from __future__ import annotations

import math

import torch
from torch import nn

_EMBEDDING_STD = 0.03
_RESIDUAL_OUTPUTS = ("out_proj.weight", "o_proj.weight", "down_proj.weight")


def initialise(model: nn.Module, num_layers: int, seed: int) -> None:
    """Draws every parameter of ``model`` anew, the same for the same ``seed`` on every device.

    Matrices are normal with variance 1 / fan-in, those that write to the residual stream smaller
    by ``sqrt(2 num_layers)``. Norms keep the value their class gives them. The decay of the
    recurrent layers starts as in the published gated delta net: ``A`` uniform in (0, 16), and a
    bias that puts the step between 0.001 and 0.1.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = _draw(name, parameter, num_layers, generator)
            if drawn is not None:
                parameter.copy_(drawn)


def _draw(
    name: str, parameter: nn.Parameter, num_layers: int, generator: torch.Generator
) -> torch.Tensor | None:
    shape = parameter.shape
    if name.endswith("A_log"):
        return (torch.rand(shape, generator=generator) * 15.9 + 0.1).log()
    if name.endswith("dt_bias"):
        low, high = math.log(1e-3), math.log(1e-1)
        step = (torch.rand(shape, generator=generator) * (high - low) + low).exp()
        return step + torch.log(-torch.expm1(-step))  # the inverse of softplus
    if "embed" in name:
        return torch.randn(shape, generator=generator) * _EMBEDDING_STD
    if parameter.ndim < 2:
        return None
    scale = 1.0 / math.sqrt(math.prod(shape[1:]))
    if name.endswith(_RESIDUAL_OUTPUTS):
        scale /= math.sqrt(2 * num_layers)
    return torch.randn(shape, generator=generator) * scale
