"""GGUF's blocks of 4 bits on aoext's int4: groups of 32, scales and zeros in float32.

Q4_0 and the scales of Q4_K are exact; zeros of Q4_1 and Q4_K round once. Blocks lie along K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from aoext.checkpoints.base import int4_plus, packed_pairs
from aoext.tensors import Int4Tensor

GROUP = 32


class _Unpacked(NamedTuple):
    codes: Tensor  # uint8 [N, K]
    scale: Tensor  # float32 [N, K/32]
    offset: Tensor | None  # float32 [N, K/32]: w = code·scale + offset; None: -8·scale


class BlockFormat(NamedTuple):
    values: int
    bytes: int
    unpack: Callable[[Tensor], _Unpacked]


def weight(layer: str, kind: str, blocks: Tensor, dtype: torch.dtype) -> Int4Tensor:
    """The weight [N, K] whose rows are `blocks`, uint8 [N, K/values·bytes] of the format `kind`."""
    block = FORMATS[kind]
    if blocks.dtype is not torch.uint8 or blocks.dim() != 2 or blocks.shape[1] % block.bytes:
        raise ValueError(
            f"{layer}: {kind} must be uint8 [N, K/{block.values}·{block.bytes}], got {list(blocks.shape)}"
        )
    unpacked = block.unpack(blocks.reshape(blocks.shape[0], -1, block.bytes))
    scale, offset = unpacked.scale, unpacked.offset
    if not bool(scale.isfinite().all()):
        raise ValueError(f"{layer}: {kind} must have finite scales, got NaN or Inf")
    zero_point = torch.zeros_like(scale) if offset is None else offset + 8 * scale
    return int4_plus(layer, packed_pairs(unpacked.codes), scale.t(), zero_point.t(), dtype)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block, in float32 [N, blocks, 1]."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(qs: Tensor) -> Tensor:
    """uint8 [..., 32·k or 16]: all low nibbles, then all high ones."""
    return torch.cat((qs & 15, qs >> 4), -1)


def _q4_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(_nibbles(blocks[..., 2:]).flatten(1), _half(blocks, 0).flatten(1), None)


def _q4_1(blocks: Tensor) -> _Unpacked:
    offset = _half(blocks, 2).flatten(1)
    return _Unpacked(_nibbles(blocks[..., 4:]).flatten(1), _half(blocks, 0).flatten(1), offset)


def _q4_k(blocks: Tensor) -> _Unpacked:
    """Eight groups of 32: scales and minima of 6 bits in 12 bytes, chunks of 32 bytes for two groups each."""
    low, middle, high = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), -1)
    minima = torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), -1)
    chunks = blocks[..., 16:].unflatten(-1, (4, 32))
    return _Unpacked(
        _nibbles(chunks).flatten(1),
        (_half(blocks, 0) * scales.float()).flatten(1),
        (-_half(blocks, 2) * minima.float()).flatten(1),
    )


FORMATS = {
    "Q4_0": BlockFormat(32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 20, _q4_1),
    "Q4_K": BlockFormat(256, 144, _q4_k),
}
