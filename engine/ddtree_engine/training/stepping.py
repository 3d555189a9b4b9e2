"""The target one token at a time, thousands of rows in lockstep: how training data is generated.

Serving goes through trees and caches of unequal lengths; here all rows are equally long, so a step
is a handful of batched products and nothing waits for the host.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ddtree_engine.target.attention import Attention
from ddtree_engine.target.gated_delta_net import GatedDeltaNet
from ddtree_engine.target.model import DecoderLayer, TargetModel


class LockstepDecoder:
    """Recurrent state and keys of ``rows`` sequences that all advance by one token a step.

    Args:
        model: the target, in evaluation mode; its dtype is that of the keys and values.
        rows: sequences.
        max_length: most tokens a sequence.
    """

    def __init__(self, model: TargetModel, rows: int, max_length: int) -> None:
        config = model.config
        weight = model.embed_tokens.weight
        self.model = model
        self.length = 0
        self.max_length = max_length
        self._tails: dict[int, Tensor] = {}
        self._states: dict[int, Tensor] = {}
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        linear = config.linear
        for index in config.linear_layers:
            assert linear is not None, "only hybrids have recurrent layers"
            self._tails[index] = weight.new_zeros((rows, linear.conv_kernel - 1, linear.conv_dim))
            self._states[index] = torch.zeros(
                rows,
                linear.num_value_heads,
                linear.key_head_dim,
                linear.value_head_dim,
                device=weight.device,
            )
        for index in config.full_layers:
            shape = (rows, config.num_kv_heads, max_length, config.head_dim)
            self._keys[index] = weight.new_zeros(shape)
            self._values[index] = weight.new_zeros(shape)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Feeds one token a row, ``[rows]``, and returns the normed hidden states ``[rows, H]``.

        Raises:
            ValueError: the sequences are already ``max_length`` long.
        """
        if self.length == self.max_length:
            raise ValueError(f"the rows are already {self.max_length} tokens long")
        x = self.model.embed(tokens[:, None])
        position = torch.full((1, 1), self.length, device=tokens.device)
        rope = self.model.rope(position)
        for index, layer in enumerate(self.model.layers):
            assert isinstance(layer, DecoderLayer), "the model builds its own layers"
            normed = layer.input_layernorm(x)
            if layer.linear_attn is not None:
                x = x + self._recurrent(layer.linear_attn, normed, index)
            elif layer.self_attn is not None:
                x = x + self._attend(layer.self_attn, normed, rope, index)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        self.length += 1
        hidden: Tensor = self.model.norm(x)
        return hidden[:, 0]

    def _recurrent(self, layer: GatedDeltaNet, x: Tensor, index: int) -> Tensor:
        inputs = layer.in_proj_qkv(x)
        window = torch.cat([self._tails[index], inputs], dim=1)  # [rows, K, C]
        self._tails[index] = window[:, 1:]
        taps = layer.conv1d.weight[:, 0].T  # [K, C]
        mixed = functional.silu((window * taps).sum(dim=1, keepdim=True))
        q, k, v = layer.split_heads(mixed)
        g, beta = layer.gates(x, k.dtype)
        group = v.shape[2] // k.shape[2]
        q, k = (y[:, 0].repeat_interleave(group, dim=1) for y in (q, k))  # [rows, HV, dk]
        state = self._states[index]
        state *= g[:, 0, :, None, None].exp()
        recalled = (k[:, :, None] @ state)[:, :, 0]
        delta = beta[:, 0, :, None] * (v[:, 0] - recalled)
        state += k[..., None] * delta[:, :, None]
        out = (q[:, :, None] @ state)[:, :, 0]
        return layer.finish(out[:, None], x)

    def _attend(
        self, layer: Attention, x: Tensor, rope: tuple[Tensor, Tensor], index: int
    ) -> Tensor:
        q, k, v, gate = layer.project(x, rope)
        keys, values = self._keys[index], self._values[index]
        end = self.length + 1
        keys[:, :, self.length] = k[:, 0]
        values[:, :, self.length] = v[:, 0]
        out = functional.scaled_dot_product_attention(
            q.transpose(1, 2),
            keys[:, :, :end],
            values[:, :, :end],
            scale=layer.head_dim**-0.5,
            enable_gqa=True,
        )
        return layer.finish(out.transpose(1, 2), gate)
