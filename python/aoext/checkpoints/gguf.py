"""GGUF's blocks on aoext's weights: int4, int8 in groups, or a table of 16 values. Blocks lie along K.

All are exact but the zeros of Q4_1 and Q4_K, which round once. Scales are float32 for int4 and where a
block has one for all of its groups and another for each; else they are the file's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from aoext.checkpoints.base import int4_plus, packed_pairs
from aoext.checkpoints.blocks import by_blocks, table_of_16, take_scale
from aoext.formats.lookup_tables import E2M1
from aoext.tensors import QuantizedTensor


class BlockFormat(NamedTuple):
    values: int
    bytes: int
    # The weight of a layer's blocks, uint8 [N, K/values, bytes].
    read: Callable[[str, Tensor, torch.dtype], QuantizedTensor]


def weight(layer: str, kind: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    """The weight [N, K] whose rows are `blocks`, uint8 [N, K/values·bytes] of the format `kind`."""
    block = FORMATS[kind]
    if blocks.dtype is not torch.uint8 or blocks.dim() != 2 or blocks.shape[1] % block.bytes:
        raise ValueError(
            f"{layer}: {kind} must be uint8 [N, K/{block.values}·{block.bytes}], got {list(blocks.shape)}"
        )
    try:
        return block.read(layer, blocks.reshape(blocks.shape[0], -1, block.bytes), dtype)
    except _NotFiniteError as error:
        raise ValueError(f"{layer}: {kind} must have finite scales, got NaN or Inf") from error


class _NotFiniteError(Exception):
    """Scales are NaN or Inf."""


def _finite(scale: Tensor) -> Tensor:
    if not bool(scale.float().isfinite().all()):
        raise _NotFiniteError
    return scale


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block: [N, blocks, 1]."""
    return _finite(blocks[..., at : at + 2].contiguous().view(torch.float16))


def _nibbles(qs: Tensor) -> Tensor:
    """uint8 [..., 32·k or 16]: all low nibbles, then all high ones."""
    return torch.cat((qs & 15, qs >> 4), -1)


def _pairs_of_bits(qs: Tensor) -> Tensor:
    """uint8 [..., k]: all lowest two bits, then all next ones, and so on; [..., 4·k]."""
    return torch.cat([(qs >> shift) & 3 for shift in (0, 2, 4, 6)], -1)


# These are w = (code - 8)·scale, or code·scale + offset, in groups of 32.


def _int4(
    layer: str, codes: Tensor, scale: Tensor, offset: Tensor | None, dtype: torch.dtype
) -> QuantizedTensor:
    scale = scale.flatten(1).float()
    zero_point = torch.zeros_like(scale) if offset is None else offset.flatten(1).float() + 8 * scale
    return int4_plus(layer, packed_pairs(codes.flatten(1)), scale.t(), zero_point.t(), dtype)


def _q4_0(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    return _int4(layer, _nibbles(blocks[..., 2:]), _half(blocks, 0), None, dtype)


def _q4_1(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    return _int4(layer, _nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2), dtype)


def _q4_k(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    """Eight groups of 32: scales and minima of 6 bits in 12 bytes, chunks of 32 bytes for two groups each."""
    low, middle, high = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), -1)
    minima = torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), -1)
    chunks = blocks[..., 16:].unflatten(-1, (4, 32))
    scale, offset = _half(blocks, 0).float() * scales, -_half(blocks, 2).float() * minima
    return _int4(layer, _nibbles(chunks), scale, offset, dtype)


# These are w = q·scale, q an int8.


def _int8(layer: str, q: Tensor, scale: Tensor, group: int, dtype: torch.dtype) -> QuantizedTensor:
    return by_blocks(layer, q.flatten(1), scale.flatten(1), (1, group), dtype)


def _q8_0(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    return _int8(layer, blocks[..., 2:].contiguous().view(torch.int8), _half(blocks, 0), 32, dtype)


def _q5_0(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    """Fifth bits, value by value, in 4 bytes before the nibbles."""
    fifth = (blocks[..., 2:6, None] >> torch.arange(8, device=blocks.device)) & 1
    q = (_nibbles(blocks[..., 6:]) | (fifth.flatten(-2) << 4)).to(torch.int8) - 16
    return _int8(layer, q, _half(blocks, 0), 32, dtype)


def _q6_k(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    """Sixteen groups of 16. Halves of 128 values: 64 bytes of lower nibbles, and 32 of upper two bits."""
    low = blocks[..., :128].unflatten(-1, (2, 64))
    high = blocks[..., 128:192].unflatten(-1, (2, 32))
    q = (_nibbles(low) | (_pairs_of_bits(high) << 4)).to(torch.int8) - 32
    scale = _half(blocks, 208).float() * blocks[..., 192:208].contiguous().view(torch.int8)
    return _int8(layer, q, scale, 16, dtype)


def _q3_k(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    """Sixteen groups of 16. Halves of 128 values: 32 bytes of lower two bits; a third bit that is missing
    takes 4 off: bits 0 to 7 of 32 bytes for eight times 32 values. Scales of 6 bits in 12 bytes.
    """
    third = (blocks[..., None, :32] >> torch.arange(8, device=blocks.device)[:, None]) & 1
    low = _pairs_of_bits(blocks[..., 32:96].unflatten(-1, (2, 32)))
    q = low.flatten(-2).to(torch.int8) - 4 * (1 - third.flatten(-2).to(torch.int8))
    scales = _nibbles(blocks[..., 96:104]) | (_pairs_of_bits(blocks[..., 104:108]) << 4)
    scale = _half(blocks, 108).float() * (scales.to(torch.int8) - 32)
    return _int8(layer, q, scale, 16, dtype)


# These are w = table[code]·scale, in groups of 32.

_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _iq4_nl(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    pairs = packed_pairs(_nibbles(blocks[..., 2:]).flatten(1))
    return table_of_16(layer, pairs, _IQ4_NL, _half(blocks, 0).flatten(1), 32, dtype)


def _iq4_xs(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    """Eight groups: scales of 6 bits, the upper two of all in 2 bytes, the lower four in 4."""
    low = blocks[..., 4:8]
    lower = torch.stack((low & 15, low >> 4), -1).flatten(-2)
    upper = (blocks[..., 2:4, None] >> torch.tensor([0, 2, 4, 6], device=blocks.device)) & 3
    scales = (lower | (upper.flatten(-2) << 4)).to(torch.int8) - 32
    pairs = packed_pairs(_nibbles(blocks[..., 8:].unflatten(-1, (8, 16))).flatten(1))
    return table_of_16(layer, pairs, _IQ4_NL, (_half(blocks, 0).float() * scales).flatten(1), 32, dtype)


def _mxfp4(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    """An exponent, and the codes of e2m1."""
    exponents = blocks[..., 0].contiguous()
    if bool((exponents == 255).any()):
        raise _NotFiniteError
    scale = take_scale(layer, {"scale": exponents}, "scale", exponents.shape)
    pairs = packed_pairs(_nibbles(blocks[..., 1:]).flatten(1))
    return table_of_16(layer, pairs, E2M1, scale, 32, dtype)


FORMATS = {
    "Q4_0": BlockFormat(32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 20, _q4_1),
    "Q4_K": BlockFormat(256, 144, _q4_k),
    "Q8_0": BlockFormat(32, 34, _q8_0),
    "Q5_0": BlockFormat(32, 22, _q5_0),
    "Q6_K": BlockFormat(256, 210, _q6_k),
    "Q3_K": BlockFormat(256, 110, _q3_k),
    "IQ4_NL": BlockFormat(32, 18, _iq4_nl),
    "IQ4_XS": BlockFormat(256, 136, _iq4_xs),
    "MXFP4": BlockFormat(32, 17, _mxfp4),
}
