"""Checkpoints of bitsandbytes: LLM.int8(), w = q·SCB/127 by rows, and 4 bits (nf4, fp4).

Those of 4 bits have a scale for each block of the flat matrix, whose codes lie high nibble first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aoext.checkpoints.base import Reader, Writer, refuse_what_is_aoexts_own, take
from aoext.checkpoints.blocks import looks_up, table_of_16
from aoext.checkpoints.settings import Settings
from aoext.formats.checks import describe, has_values
from aoext.formats.dtypes import dtype_name
from aoext.formats.lookup_tables import LUT4_FORMATS
from aoext.packing.layouts import float64
from aoext.serialization.container import parse_json
from aoext.tensors import Int8Tensor, Lut4Tensor, QuantizedTensor
from aoext.tensors.fields import ceil_div

_KINDS = ("nf4", "fp4")
_STATE = "weight.quant_state."
_STATES = tuple(f"bitsandbytes__{kind}" for kind in _KINDS)

# How values of 8 bits lie in memory, by weight_format.
_LAYOUTS = ("row", "col32", "col_turing", "col_ampere")

# What bytes are stored as for programs that gather floats alone.
_STORAGE = (torch.uint8, torch.bfloat16, torch.float16, torch.float32)


# Sizes of blocks that its kernels have, and how many scales share one where these are quantised themselves.
_BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_NESTED_BLOCK = 256


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
    telling = (*_STATES, "weight_format")

    def __init__(self, settings: Settings) -> None:
        if settings.flag("load_in_4bit", False) or settings.flag("_load_in_4bit", False):
            settings.choice("bnb_4bit_quant_type", _KINDS, "fp4")

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        state = next((_STATE + state for state in _STATES if _STATE + state in tensors), None)
        if state is not None or "weight.absmax" in tensors:
            return _four_bits(layer, tensors, state or _STATE + _STATES[0], dtype)
        _check_layout(layer, tensors)
        q = take(layer, tensors, "weight", (torch.int8,), (-1, -1))
        rows, columns = q.shape
        largest = take(layer, tensors, "SCB", (torch.float32,), (rows,))
        return Int8Tensor(q, (largest / 127).unsqueeze(1), [1, columns], dtype)


def _check_layout(layer: str, tensors: Mapping[str, Tensor]) -> None:
    """ValueError for values of 8 bits in a GPU's tiles, as early releases saved them after a first call."""
    if "weight_format" not in tensors:
        return
    kind = tensors["weight_format"].reshape(-1)
    number = int(take(layer, {"weight_format": kind}, "weight_format", (torch.uint8,), (1,)))
    if number != 0:
        name = _LAYOUTS[number] if number < len(_LAYOUTS) else "unknown"
        raise ValueError(
            f"{layer}: weight_format must be 0 (row) to run on aoext, as it does in bitsandbytes by now, "
            f"got {number} ({name})"
        )


def _four_bits(layer: str, tensors: Mapping[str, Tensor], state: str, dtype: torch.dtype) -> QuantizedTensor:
    said = _state(layer, tensors, state)
    (rows, columns), block = said.shape, said.blocksize
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


class _Said(NamedTuple):
    """What the checkpoint says in JSON."""

    shape: list[int]
    blocksize: int
    nested_blocksize: int
    nested_offset: float | None  # None where scales are not quantised themselves


def _state(layer: str, tensors: Mapping[str, Tensor], name: str) -> _Said:
    """ValueError for what makes no weight."""
    text = take(layer, tensors, name, (torch.uint8,), (-1,))
    try:
        said = Settings(f"{layer}: {name}", parse_json(bytes(text.tolist())))
    except ValueError as error:
        raise ValueError(f"{layer}: {name} must be JSON with a shape and a blocksize") from error
    shape, offset = said.sizes("shape"), said.any("nested_offset")
    if shape is None or "blocksize" not in said:
        raise ValueError(f"{layer}: {name} must be JSON with a shape and a blocksize")
    number = isinstance(offset, (int, float)) and not isinstance(offset, bool)
    if offset is not None and not (number and math.isfinite(offset)):
        said.refuse("nested_offset", "a finite number")
    nested = said.integer("nested_blocksize", _NESTED_BLOCK)
    return _Said(shape, said.integer("blocksize", 1), nested, None if offset is None else float(offset))


def _scales(layer: str, tensors: Mapping[str, Tensor], said: _Said, blocks: int) -> Tensor:
    """float32 [blocks]; of nested ones nested_quant_map[absmax]·nested_absmax + nested_offset, in float64."""
    if "weight.nested_absmax" not in tensors and said.nested_offset is None:
        return take(layer, tensors, "weight.absmax", (torch.float32,), (blocks,))
    codes = take(layer, tensors, "weight.absmax", (torch.uint8,), (blocks,))
    size = said.nested_blocksize
    outer = take(layer, tensors, "weight.nested_absmax", (torch.float32,), (ceil_div(blocks, size),))
    table = take(layer, tensors, "weight.nested_quant_map", (torch.float32,), (256,))
    if not has_values(codes):
        return torch.empty(blocks, dtype=torch.float32, device=codes.device)
    spread = float64(outer)[torch.arange(blocks, device="cpu") // size]
    scale = float64(table)[codes.cpu().long()] * spread + (said.nested_offset or 0.0)
    return scale.float().to(codes.device)


class BitsandbytesWriter(Writer):
    """nf4 and fp4 as the reader takes them, with a float32 for each block.

    double_quantization: whether these scales become 8 bits themselves, as bitsandbytes has them with
        bnb_4bit_use_double_quant, which rounds them
    """

    def __init__(self, *, symmetric: bool, double_quantization: bool = False) -> None:
        super().__init__(symmetric=symmetric)
        self.double_quantization = double_quantization
        self._kind: str | None = None  # of the layers so far, of which a checkpoint has one alone

    def write(self, layer: str, weight: QuantizedTensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        kind = next((kind for kind in _KINDS if looks_up(weight, LUT4_FORMATS[kind].table)), None)
        if not isinstance(weight, Lut4Tensor) or kind is None:
            raise ValueError(f"{layer}: the format has nf4 and fp4 alone, got a {type(weight).__name__}")
        if self._kind not in (None, kind):
            raise ValueError(f"{layer}: a checkpoint is {' or '.join(_KINDS)}, and this one has {self._kind}")
        refuse_what_is_aoexts_own(layer, weight)
        (rows, columns), (block_n, block) = weight.shape, weight.block_size
        good = block_n == 1 and columns % block == 0 and block in _BLOCK_SIZES
        if not good or weight.scale.dtype is not torch.float32 or weight.global_scale is not None:
            raise ValueError(
                f"{layer}: the format has one float32 for each {', '.join(map(str, _BLOCK_SIZES))} of a row, "
                f"got {describe(weight.scale)} for blocks of {weight.block_size} of {[rows, columns]}"
            )
        said: dict[str, Any] = {"quant_type": kind, "blocksize": block}
        said |= {"dtype": dtype_name(weight.dtype), "shape": [rows, columns]}
        tensors = {
            "weight": ((weight.qdata << 4) | (weight.qdata >> 4)).reshape(-1, 1).contiguous(),
            "weight.absmax": weight.scale.reshape(-1).contiguous(),
            "weight.quant_map": weight.table.contiguous(),
        }
        if self.double_quantization:
            nested, offset = _nested(tensors["weight.absmax"])
            tensors |= nested
            said |= {"nested_blocksize": _NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": offset}
        text = list(json.dumps(said).encode())
        tensors[f"{_STATE}bitsandbytes__{kind}"] = torch.tensor(text, dtype=torch.uint8, device="cpu")
        self._kind = kind
        return tensors, {"kind": kind, "dtype": said["dtype"]}

    def settings(self, layers: Mapping[str, Mapping[str, Any]], left_alone: Sequence[str]) -> dict[str, Any]:
        first = next(iter(layers.values()), {"kind": _KINDS[0], "dtype": "bfloat16"})
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "_load_in_4bit": True,
            "bnb_4bit_quant_type": first["kind"],
            "bnb_4bit_use_double_quant": self.double_quantization,
            "bnb_4bit_compute_dtype": first["dtype"],
            "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": list(left_alone),
        }


def _nested(scale: Tensor) -> tuple[dict[str, Tensor], float]:
    """Scales in 8 bits with one float32 for each 256, and what is to be added to them."""
    offset = scale.mean()
    shifted = torch.nn.functional.pad(scale - offset, (0, -scale.numel() % _NESTED_BLOCK))
    blocks = shifted.view(-1, _NESTED_BLOCK)
    outer = blocks.abs().amax(1)
    table = _table_of_256().to(scale.device)
    relative = blocks / outer.where(outer > 0, 1).unsqueeze(1)
    above = torch.searchsorted(table, relative.contiguous()).clamp(1, len(table) - 1)
    below = above - 1
    nearer = relative - table[below] > table[above] - relative  # of two that are as near, the lower
    codes = torch.where(nearer, above, below).view(-1)[: scale.numel()].to(torch.uint8)
    names = ("weight.absmax", "weight.nested_absmax", "weight.nested_quant_map")
    return dict(zip(names, (codes, outer, table), strict=True)), float(offset)


def _table_of_256() -> Tensor:
    """float32 [256]: 0, 1, and numbers of both signs, a bit of fraction more for each decimal exponent."""
    magnitudes = []
    for exponent in range(7):
        bounds = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32, device="cpu")
        magnitudes.append(10 ** (exponent - 6) * ((bounds[:-1] + bounds[1:]) / 2.0))
    several = torch.cat(magnitudes)
    return torch.cat((several, -several, several.new_tensor([0.0, 1.0]))).sort().values
