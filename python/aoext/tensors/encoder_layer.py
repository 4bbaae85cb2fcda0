"""The fused encoder layer and attention of torch.nn, of which torch.compile has no parts to quantise.

Outside of compiled code torch.nn asks whether an argument is a subclass and leaves them alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, relu, scaled_dot_product_attention

from aoext.tensors.base import implements

_KEY_PADDING = 1  # a mask [B, L]; others broadcast to [B, heads, L, L]


@implements(torch._transformer_encoder_layer_fwd)
def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """torch.nn.TransformerEncoderLayer.forward in evaluation mode."""

    def attention(x: Tensor) -> Tensor:
        projected = linear(x, qkv_weight, qkv_bias).unflatten(-1, (3, num_heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind()
        allowed = None if mask is None else mask.bool().logical_not()
        if allowed is not None and mask_type == _KEY_PADDING:
            allowed = allowed[:, None, None, :]
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return linear(mixed.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def feed_forward(x: Tensor) -> Tensor:
        hidden = linear(x, ffn_weight_1, ffn_bias_1)
        return linear(gelu(hidden) if use_gelu else relu(hidden), ffn_weight_2, ffn_bias_2)

    def norm_1(x: Tensor) -> Tensor:
        return layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attention(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attention(src))
    return norm_2(x + feed_forward(x))
