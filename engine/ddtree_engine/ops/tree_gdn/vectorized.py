"""`tree_gdn` in the WY form with an ancestor mask: one triangular solve a head, no state per node.

With G_i the sum of g over i and its ancestors, and j < i meaning "j is a proper ancestor of i":

    A_ij = beta_i e^(G_i - G_j) (k_i . k_j)              for j < i, else 0
    (I + A) U = diag(beta) (V - diag(e^G) K S0)
    O = diag(e^G) Q S0 + [(Q K^T) * e^(G_i - G_j) * 1(j <= i)] U

The equations of a node involve its ancestors only, and on one path they are the chunked delta rule
of arXiv 2406.06484; a reachability mask is transitively closed, so the solve never leaves the path.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tree_gdn(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, ancestors: Tensor
) -> Tensor:
    """See `naive.tree_gdn`. A non-finite node reaches its descendants and no one else."""
    # A dense product carries a NaN to every row (0 * NaN is NaN). On the CPU a look at the result
    # is cheap and nearly always ends here; on a GPU it would wait for the device, so isolate
    # always.
    if not q.is_cuda:
        out = _solve(q, k, v, g, beta, state, ancestors)
        if bool(torch.isfinite(out.sum())):
            return out
    broken = ~(
        torch.isfinite(q).all(-1).all(-1)
        & torch.isfinite(k).all(-1).all(-1)
        & torch.isfinite(v).all(-1).all(-1)
        & torch.isfinite(g).all(-1)
        & torch.isfinite(beta).all(-1)
    )
    row = broken[:, :, None]
    head = row[..., None]
    out = _solve(
        q.masked_fill(head, 0),
        k.masked_fill(head, 0),
        v.masked_fill(head, 0),
        g.masked_fill(row, 0),
        beta.masked_fill(row, 0),
        state,
        ancestors,
    )
    reached = (ancestors & broken[:, None, :]).any(-1)
    return out.masked_fill(reached[:, :, None, None], torch.nan)


def _solve(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, ancestors: Tensor
) -> Tensor:
    repeat = v.shape[2] // q.shape[2]
    kind = v.dtype
    q, k, v = (x if x.dtype == torch.float64 else x.float() for x in (q, k, v))
    # [B, HV, N, d] from here on.
    q = q.repeat_interleave(repeat, dim=2).transpose(1, 2)
    k = k.repeat_interleave(repeat, dim=2).transpose(1, 2)
    v = v.transpose(1, 2)
    beta = beta.transpose(1, 2)[..., None]
    G = (ancestors.to(g.dtype) @ g).transpose(1, 2)[..., None]  # [B, HV, N, 1]
    seen = ancestors[:, None]
    # -inf goes in before exp: between branches the difference can be large and positive.
    decay = (G - G.transpose(-1, -2)).masked_fill(~seen, -torch.inf).exp()
    grown = G.exp()
    A = (k @ k.transpose(-1, -2)) * decay * beta
    U = torch.linalg.solve_triangular(
        A, beta * (v - grown * (k @ state)), upper=False, unitriangular=True
    )
    out = grown * (q @ state) + ((q @ k.transpose(-1, -2)) * decay) @ U
    result: Tensor = out.transpose(1, 2).to(kind)
    return result
