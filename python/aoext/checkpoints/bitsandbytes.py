"""Checkpoints of bitsandbytes: LLM.int8(), w = q·SCB/127 by rows, and 4 bits (nf4, fp4).

Those of 4 bits have a scale for each block of the flat matrix, whose codes lie high nibble first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aoext.checkpoints.base import Reader, setting, take
from aoext.checkpoints.blocks import table_of_16
from aoext.layouts import float64
from aoext.packing import describe, has_values
from aoext.tensors import Int8Tensor, QuantizedTensor
from aoext.tensors.fields import ceil_div

_KINDS = ("nf4", "fp4")
_STATE = "weight.quant_state."
_STATES = tuple(f"bitsandbytes__{kind}" for kind in _KINDS)

# What bytes are stored as for programs that gather floats alone.
_STORAGE = (torch.uint8, torch.bfloat16, torch.float16, torch.float32)


class BitsandbytesReader(Reader):
    """weight int8 [N, K] and SCB float32 [N], whose outliers of the activation are not set apart; or weight
    uint8 [N·K/2, 1], weight.absmax for each block, weight.quant_map [16] and the rest as JSON.

    Scales of 4 bits that are quantised themselves round once, to float32.
    """

    names = (
        "weight_format",
        "weight",
        "SCB",
        "weight.absmax",
        "weight.quant_map",
        "weight.nested_absmax",
        "weight.nested_quant_map",
        *(_STATE + state for state in _STATES),
    )
    telling = _STATES

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if settings.get("load_in_4bit") or settings.get("_load_in_4bit"):
            setting("bitsandbytes", settings, "bnb_4bit_quant_type", _KINDS, "fp4")

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        state = next((_STATE + state for state in _STATES if _STATE + state in tensors), None)
        if state is not None or "weight.absmax" in tensors:
            return _four_bits(layer, tensors, state or _STATE + _STATES[0], dtype)
        q = take(layer, tensors, "weight", (torch.int8,), (-1, -1))
        rows, columns = q.shape
        largest = take(layer, tensors, "SCB", (torch.float32,), (rows,))
        return Int8Tensor(q, (largest / 127).unsqueeze(1), [1, columns], dtype)


def _four_bits(layer: str, tensors: Mapping[str, Tensor], state: str, dtype: torch.dtype) -> QuantizedTensor:
    said = _state(layer, tensors, state)
    rows, columns = said["shape"]
    block: int = said["blocksize"]
    if columns % 2:
        raise ValueError(f"{layer}: K must be even for weights of 4 bits to run on aoext, got {columns}")
    stored = take(layer, tensors, "weight", _STORAGE, (-1, -1), finite=False)
    if stored.numel() * stored.itemsize != rows * columns // 2:
        raise ValueError(
            f"{layer}: weight must be uint8 [{rows}·{columns}/2, 1] for a weight {[rows, columns]}, "
            f"got {describe(stored)}"
        )
    packed = stored.contiguous().view(torch.uint8).view(rows, columns // 2)
    table = take(layer, tensors, "weight.quant_map", (torch.float32,), (16,))
    scale = _scales(layer, tensors, said, ceil_div(rows * columns, block))
    # A row's groups are parts of the flat matrix's blocks, and these are groups where they divide the row.
    group = math.gcd(columns, block)
    if group < block:
        firsts = torch.arange(0, rows * columns, group, device=scale.device)
        scale = scale[firsts // block]
    pairs = (packed << 4) | (packed >> 4)
    return table_of_16(layer, pairs, table, scale.view(rows, columns // group), group, dtype)


def _state(layer: str, tensors: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """What the checkpoint says in JSON; ValueError for what makes no weight."""
    text = take(layer, tensors, name, (torch.uint8,), (-1,))
    try:
        said = json.loads(bytes(text.tolist()))
        shape, sizes = said["shape"], [said["blocksize"], said.get("nested_blocksize", 1)]
        good = len(shape) == 2 and all(isinstance(size, int) and size > 0 for size in [*shape, *sizes])
        good = good and math.isfinite(said.get("nested_offset", 0))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{layer}: {name} must be JSON with a shape and a blocksize") from error
    if not good:
        raise ValueError(
            f"{layer}: {name} must have a shape [N, K] and positive sizes of blocks, got {said!r}"
        )
    return dict(said)


def _scales(layer: str, tensors: Mapping[str, Tensor], said: Mapping[str, Any], blocks: int) -> Tensor:
    """float32 [blocks]; of nested ones nested_quant_map[absmax]·nested_absmax + nested_offset, in float64."""
    if "weight.nested_absmax" not in tensors and "nested_offset" not in said:
        return take(layer, tensors, "weight.absmax", (torch.float32,), (blocks,))
    codes = take(layer, tensors, "weight.absmax", (torch.uint8,), (blocks,))
    size = said.get("nested_blocksize", 256)
    outer = take(layer, tensors, "weight.nested_absmax", (torch.float32,), (ceil_div(blocks, size),))
    table = take(layer, tensors, "weight.nested_quant_map", (torch.float32,), (256,))
    if not has_values(codes):
        return torch.empty(blocks, dtype=torch.float32, device=codes.device)
    spread = float64(outer).repeat_interleave(size)[:blocks]
    scale = float64(table)[codes.cpu().long()] * spread + said.get("nested_offset", 0.0)
    return scale.float().to(codes.device)
