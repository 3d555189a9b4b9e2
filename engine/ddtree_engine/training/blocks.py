"""Many DFlash blocks of a sequence at once.

Every block sees the context strictly before its anchor and its own rows, by the rules of
``DrafterModel.draft``, and nothing of the other blocks: ``A`` blocks of ``M`` rows over ``T``
tokens are ``A M (T + M)`` scores.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddtree_engine.drafter.model import DrafterAttention, DrafterModel


class BlockAttention(nn.Module):
    """Attention of the rows of ``A`` blocks to the context before them and to their own block."""

    def forward(
        self,
        q: Tensor,
        k_context: Tensor,
        v_context: Tensor,
        k: Tensor,
        v: Tensor,
        context_mask: Tensor,
        block_mask: Tensor,
        scale: float,
    ) -> Tensor:
        """Returns ``[B, A, M, HQ * d]``.

        Args:
            q: ``[B, A, M, HQ, d]``.
            k_context: ``[B, T, HKV, d]``, and ``v_context`` likewise.
            v_context: see ``k_context``.
            k: ``[B, A, M, HKV, d]``, and ``v`` likewise.
            v: see ``k``.
            context_mask: ``[B, A, M, T]`` bool, true where visible.
            block_mask: ``[M, M]`` bool.
            scale: of the scores.
        """
        B, A, M, HQ, d = q.shape
        T, HKV = k_context.shape[1:3]
        group = HQ // HKV
        rows = (q * scale).view(B, A, M, HKV, group, d)
        flat = rows.permute(0, 3, 4, 1, 2, 5).reshape(B, HKV, group * A * M, d)
        to_context = flat @ k_context.permute(0, 2, 3, 1)  # [B, HKV, group*A*M, T]
        to_context = to_context.view(B, HKV, group, A, M, T)
        own_k, own_v = (x.permute(0, 3, 1, 2, 4)[:, :, None] for x in (k, v))
        to_block = rows.permute(0, 3, 4, 1, 2, 5) @ own_k.transpose(-1, -2)
        scores = torch.cat(
            [
                to_context.masked_fill(~context_mask[:, None, None], float("-inf")),
                to_block.masked_fill(~block_mask, float("-inf")),
            ],
            dim=-1,
        )
        shares = scores.float().softmax(-1).to(v.dtype)
        seen = shares[..., :T].reshape(B, HKV, group * A * M, T) @ v_context.transpose(1, 2)
        out = seen.view(B, HKV, group, A, M, d) + shares[..., T:] @ own_v
        return out.permute(0, 3, 4, 1, 2, 5).reshape(B, A, M, HQ * d)


def forward_blocks(
    model: DrafterModel,
    features: Tensor,
    anchors: Tensor,
    blocks: Tensor,
    attention: BlockAttention,
) -> Tensor:
    """Fills many blocks of each sequence, differentiable; each as ``model.draft`` would.

    Args:
        model: the drafter.
        features: ``[B, T, F*H]`` of the target over whole sequences.
        anchors: ``[B, A]`` int64, position of each block's anchor, above 0.
        blocks: ``[B, A, M, H]`` embeddings of the blocks.
        attention: a module, so that it can be compiled.

    Returns:
        ``[B, A, M - 1, H]`` normed; row s - 1 of a block predicts anchor position + s.
    """
    B, A, M, H = blocks.shape
    T = features.shape[1]
    device = features.device
    keys, values = model.context(features, torch.arange(T, device=device).expand(B, T))
    offset = torch.arange(M, device=device)
    rope = model.rope((anchors[:, :, None] + offset).flatten(1))
    positions = torch.arange(T, device=device)
    before = (positions < anchors[..., None])[:, :, None].expand(B, A, M, T)
    everywhere = torch.ones(M, M, dtype=torch.bool, device=device)
    x = blocks.flatten(1, 2)
    for index, layer in enumerate(model.decoder_layers()):
        part: DrafterAttention = layer.self_attn
        visible = before
        if part.window is not None:
            oldest = anchors[:, :, None] + offset - (part.window - 1)
            visible = before & (positions >= oldest[..., None])
        normed = layer.input_layernorm(x)
        q, k, v = part.project(normed, rope)
        out = attention(
            q.view(B, A, M, *q.shape[2:]),
            keys[index],
            values[index],
            k.view(B, A, M, *k.shape[2:]),
            v.view(B, A, M, *v.shape[2:]),
            visible,
            everywhere.tril() if part.causal else everywhere,
            part.head_dim**-0.5,
        )
        x = x + part.o_proj(out.flatten(1, 2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    drafted: Tensor = model.norm(x.view(B, A, M, H)[:, :, 1:])
    return drafted
