"""The gated delta rule in chunks (WY form): batched matrix products and one short loop.

Inside a chunk of ``C`` tokens, with ``G`` the running sum of ``g`` from the chunk's start and
``S`` the state before it::

    A_ij = beta_i exp(G_i - G_j) (k_i . k_j)  for j < i, else 0
    (I + A) U = diag(beta) (V - diag(exp G) K S)
    O  = diag(exp G) Q S + [(Q K^T) * exp(G_i - G_j) * (j <= i)] U
    S' = exp(G_C) S + sum_j exp(G_C - G_j) k_j u_j^T

With ``U = X - W S`` the last line is affine in ``S``: ``S' = M S + N``. Everything but the
state is therefore computed for all chunks at once, and the loop over chunks is one small matrix
product each. (Parallelizing linear transformers with the delta rule, arXiv 2406.06484; gated
delta networks, arXiv 2412.06464.)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_BASE = 8
"""Side of the blocks that are inverted by a product of powers."""


def unit_lower_inverse(A: Tensor) -> Tensor:
    """Returns ``(I + A)^-1`` for strictly lower triangular ``A [..., C, C]``.

    Diagonal blocks of side 8 by ``(I - A)(I + A^2)(I + A^4)``, then block pairs are joined:
    the lower left block of a pair is ``-T22 A21 T11``. The product form alone would do for all
    of ``A``, but its powers grow like binomials of the side when neighbouring keys are alike
    and cancel catastrophically; blocks of 8 keep them below 35.
    """
    C = A.shape[-1]
    side = min(_BASE, C)
    eye = torch.eye(side, dtype=A.dtype, device=A.device)
    block = _diagonal_blocks(A, side)
    square = block @ block
    inverse = (eye - block) @ (eye + square)
    if side > 4:
        inverse = inverse @ (eye + square @ square)
    while side < C:
        lower = _diagonal_blocks(A, 2 * side)[..., side:, :side]
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        corner = -(second @ lower @ first)
        top = torch.cat([first, torch.zeros_like(first)], dim=-1)
        bottom = torch.cat([corner, second], dim=-1)
        inverse = torch.cat([top, bottom], dim=-2)
        side *= 2
    return inverse.squeeze(-3)


def _diagonal_blocks(A: Tensor, side: int) -> Tensor:
    """The diagonal blocks of ``A [..., C, C]`` as ``[..., C // side, side, side]``."""
    count = A.shape[-1] // side
    tiled = A.reshape(*A.shape[:-2], count, side, count, side)
    return tiled.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def differentiable_inverse(A: Tensor) -> Tensor:
    """``(I + A)^-1`` with its gradient ``dA = -T^T dT T^T``, keeping no power of ``A``.

    One Newton step from the inverse ``T`` found without gradient, ``T (2I - (I + A) T)``: its
    value is ``T`` with the rounding error squared, its derivative ``-T dA T`` is the exact one.
    """
    with torch.no_grad():
        inverse = unit_lower_inverse(A)
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    return inverse @ (2 * eye - (eye + A) @ inverse)


def chunk_gdn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """Full-sequence gated delta rule.

    Args:
        q: ``[B, T, HK, dk]`` queries, l2-normalised and scaled by ``dk ** -0.5``.
        k: ``[B, T, HK, dk]`` keys, l2-normalised.
        v: ``[B, T, HV, dv]`` values; key head ``h`` serves value heads ``h*r .. h*r + r - 1``
            with ``r = HV // HK``.
        g: ``[B, T, HV]`` log decay, at most 0.
        beta: ``[B, T, HV]`` step size.
        initial_state: ``[B, HV, dk, dv]`` or None for zeros.
        chunk_size: tokens a chunk, a power of two. ``T`` need not be a multiple of it.

    Returns:
        ``o [B, T, HV, dv]`` and the final state ``[B, HV, dk, dv]``, in fp32 (fp64 if ``v`` is).

    Raises:
        ValueError: heads that do not divide, or a chunk size that is not a power of two.
    """
    B, T, HK, dk = k.shape
    HV, dv = v.shape[2:]
    if HV % HK:
        raise ValueError(f"{HV} value heads are not a multiple of {HK} key heads")
    if chunk_size < 4 or chunk_size & (chunk_size - 1):
        raise ValueError(f"chunk size {chunk_size} is not a power of two of at least 4")
    group = HV // HK
    C = chunk_size
    dtype = torch.float64 if v.dtype == torch.float64 else torch.float32
    with torch.autocast(device_type=v.device.type, enabled=False):
        q, k, v = (_chunked(x.to(dtype), C) for x in (q, k, v))  # [B, H, n, C, d]
        g, beta = (_chunked(x.to(dtype).unsqueeze(-1), C) for x in (g, beta))  # [B, HV, n, C, 1]
        G = g.cumsum(dim=-2)
        gap = G - G.transpose(-1, -2)
        index = torch.arange(C, device=v.device)
        below = index[:, None] > index[None, :]
        up_to = index[:, None] >= index[None, :]
        decay = gap.masked_fill(~up_to, float("-inf")).exp()  # [B, HV, n, C, C]

        A = (k @ k.transpose(-1, -2)).repeat_interleave(group, dim=1) * decay * beta
        inverse = differentiable_inverse(A.masked_fill(~below, 0.0))
        scores = (q @ k.transpose(-1, -2)).repeat_interleave(group, dim=1) * decay
        q, k = (x.repeat_interleave(group, dim=1) for x in (q, k))
        grown = G.exp()
        X = inverse @ (v * beta)
        W = inverse @ (k * (beta * grown))
        last = G[..., -1:, :]
        faded = (k * (last - G).exp()).transpose(-1, -2)  # [B, HV, n, dk, C]
        M = torch.eye(dk, dtype=dtype, device=v.device) * last.exp() - faded @ W
        N = faded @ X

        state = (
            torch.zeros(B, HV, dk, dv, dtype=dtype, device=v.device)
            if initial_state is None
            else initial_state.to(dtype)
        )
        before: list[Tensor] = []
        for step_M, step_N in zip(M.unbind(dim=2), N.unbind(dim=2), strict=True):
            before.append(state)
            state = step_M @ state + step_N
        S = torch.stack(before, dim=2)  # [B, HV, n, dk, dv]
        out = (q * grown) @ S + scores @ (X - W @ S)
    out = out.flatten(2, 3)[:, :, :T].transpose(1, 2)
    return out, state


def _chunked(x: Tensor, chunk: int) -> Tensor:
    """``[B, T, H, d]`` to ``[B, H, n, chunk, d]``; zero rows at the end change no state."""
    padded = functional.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % chunk))
    B, T, H, d = padded.shape
    return padded.transpose(1, 2).reshape(B, H, T // chunk, chunk, d)
