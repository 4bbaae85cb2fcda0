"""GGUF's blocks as aoext's weights: as they lie, or, of two formats, as others of the same values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from aoext.checkpoints.blocks import table_of_16, take_scale
from aoext.checkpoints.codes import packed_pairs
from aoext.checkpoints.experts import put_together
from aoext.formats.lookup_tables import E2M1
from aoext.formats.table import FORMATS as CODES
from aoext.tensors import GGUF_TYPES, QuantizedTensor


class BlockFormat(NamedTuple):
    """A type of GGUF: so many values in so many bytes, and at which of these float16 scales begin."""

    values: int
    bytes: int
    halves: tuple[int, ...]


_HALVES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ2_0": (64,),
    "TQ1_0": (52,),
}

FORMATS = {
    **{
        name: BlockFormat(CODES[kind.codes[0]].values, CODES[kind.codes[0]].bytes, _HALVES[name])
        for name, kind in GGUF_TYPES.items()
    },
    "MXFP4": BlockFormat(32, 17, ()),
    "NVFP4": BlockFormat(64, 36, ()),
}


def weight(
    layer: str, kind: str, rows: Tensor, dtype: torch.dtype, activation: torch.dtype | None = None
) -> QuantizedTensor:
    """The weight [N, K] with these rows, uint8 [N, K/values·bytes] of the format `kind`; of experts with a
    dimension E before these.

    activation: to what activations are quantised in blocks as long as the weight's, or None; only where
        it keeps the file's blocks
    """
    format = FORMATS[kind]
    if rows.dtype is not torch.uint8 or rows.dim() not in (2, 3) or rows.shape[-1] % format.bytes:
        raise ValueError(
            f"{layer}: {kind} must be uint8 [N, K/{format.values}·{format.bytes}], got {list(rows.shape)}"
        )
    blocks = rows.contiguous().unflatten(-1, (-1, format.bytes))
    if not all(_is_finite(blocks, at) for at in format.halves):
        raise ValueError(f"{layer}: {kind} must have finite scales, got NaN or Inf")
    if kind in GGUF_TYPES:
        block = None if activation is None else [1, format.values]
        return GGUF_TYPES[kind](blocks, dtype, activation=activation, input_block=block)
    if rows.dim() == 2:
        return _AS_OTHERS[kind](layer, blocks, dtype)
    shape = [*blocks.shape[:2], blocks.shape[2] * format.values]
    return put_together((_AS_OTHERS[kind](layer, each, dtype) for each in blocks), shape)


def _is_finite(blocks: Tensor, at: int) -> bool:
    """Whether the float16 at byte `at` of every block is neither NaN nor Inf."""
    exponents = blocks.view(torch.int16)[..., at // 2] & 0x7C00
    return not bool((exponents == 0x7C00).any())


def _nibbles(qs: Tensor) -> Tensor:
    """uint8 [..., k]: all low nibbles, then all high ones; [..., 2·k]."""
    return torch.cat((qs & 15, qs >> 4), -1)


def _mxfp4(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    """An exponent, and the codes of e2m1."""
    exponents = blocks[..., 0].contiguous()
    if bool((exponents == 255).any()):
        raise ValueError(f"{layer}: MXFP4 must have finite scales, got NaN or Inf")
    scale = take_scale(layer, {"scale": exponents}, "scale", exponents.shape)
    pairs = packed_pairs(_nibbles(blocks[..., 1:]).flatten(1))
    return table_of_16(layer, pairs, E2M1, scale, 32, dtype)


def _nvfp4(layer: str, blocks: Tensor, dtype: torch.dtype) -> QuantizedTensor:
    """Four groups of 16: scales of e4m3 without a sign, then the codes of e2m1 of each."""
    scale = blocks[..., :4].flatten(1)
    scale = torch.where(scale == 0x7F, 0, scale)  # NaN, which ggml reads as 0
    if bool((scale > 0x7F).any()):
        raise ValueError(f"{layer}: NVFP4 must have scales without a sign")
    pairs = packed_pairs(_nibbles(blocks[..., 4:].unflatten(-1, (4, 8))).flatten(1))
    return table_of_16(layer, pairs, E2M1, scale.view(torch.float8_e4m3fn), 16, dtype)


_AS_OTHERS = {"MXFP4": _mxfp4, "NVFP4": _nvfp4}
