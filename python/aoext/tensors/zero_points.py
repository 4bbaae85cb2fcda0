"""Integer zero points of 8-bit weights, w = (q − z)·s for each block, under activations of 8 bits.

No operator knows both. A product is one with the codes and a small one beside it,

    y = x · (q·s)ᵀ − Σ_block(x) · (z·s)ᵀ,    Σ_block(x) [..., ⌈K/block_k⌉],

for inside a block z·s is one number. Codes minus zeros are 9 bits wide, so no int8 holds them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aoext.operators.experts import times
from aoext.packing.blockwise import in_blocks
from aoext.tensors.fields import K, N


def product(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    block_size: Sequence[int],
    rows: int,
    offsets: Tensor | None = None,
) -> Tensor:
    """Σ_block(x) · (z·s)ᵀ in float32: what a product with the codes has too much. x: float32 [..., K]."""
    sums = in_blocks(x, block_size[K]).sum(-1)
    result = times(sums, (zero_point.float() * scale.float()).mT, offsets)
    return result if block_size[N] == 1 else result.repeat_interleave(block_size[N], -1)[..., :rows]


def rounded(x: Tensor, input_block: Sequence[int]) -> Tensor:
    """A float32 activation [..., K] as its int8 by blocks of input_block stands for it."""
    codes, scale = torch.ops.ao.quantize(x, torch.int8, input_block)
    return (in_blocks(codes, input_block[K]).float() * scale.unsqueeze(-1)).flatten(-2)[..., : x.shape[-1]]
