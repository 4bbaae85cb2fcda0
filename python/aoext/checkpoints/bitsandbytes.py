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
from aoext.checkpoints.settings import Settings, named
from aoext.formats.checks import describe
from aoext.formats.dtypes import dtype_name
from aoext.formats.lookup_tables import LUT4_FORMATS
from aoext.formats.table import TABLE_SIZE
from aoext.packing.nested import TOGETHER, Nested, float_scales
from aoext.serialization.container import parse_json
from aoext.tensors import Int8Tensor, Lut4Tensor, NestedLut4Tensor, QuantizedTensor
from aoext.tensors.fields import ceil_div
from aoext.tensors.nested import as_global_scale, factors_of

_KINDS = ("nf4", "fp4")
_STATE = "weight.quant_state."
_STATES = tuple(f"bitsandbytes__{kind}" for kind in _KINDS)

# How values of 8 bits lie in memory, by weight_format.
_LAYOUTS = ("row", "col32", "col_turing", "col_ampere")

# What bytes are stored as for programs that gather floats alone.
_STORAGE = (torch.uint8, torch.bfloat16, torch.float16, torch.float32)


# Sizes of blocks that its kernels have.
_BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)


class BitsandbytesReader(Reader):
    """weight int8 [N, K] and SCB float32 [N], whose outliers of the activation are not set apart; or weight
    uint8 [N·K/2, 1], weight.absmax for each block, weight.quant_map [16] and the rest as JSON.

    Scales of 4 bits that are quantised themselves keep their bytes where blocks divide rows and so does
    nested_blocksize as the format has it; others become float32.
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
    blocks = ceil_div(rows * columns, block)
    # A row's groups are parts of the flat matrix's blocks, and these are groups where they divide the row.
    group = math.gcd(columns, block)
    pairs = (packed << 4) | (packed >> 4)
    if "weight.nested_absmax" in tensors or said.nested_offset is not None:
        scale = _nested(layer, tensors, said, blocks)
        if group == block and said.nested_blocksize == TOGETHER:
            return _with_nested(layer, pairs, table, scale, said, dtype)
        factors = scale.factors.repeat_interleave(min(said.nested_blocksize, blocks))[:blocks]
        floats = float_scales(scale.codes, scale.table, factors, scale.offset)
    else:
        floats = take(layer, tensors, "weight.absmax", (torch.float32,), (blocks,))
    if group < block:
        firsts = torch.arange(0, rows * columns, group, device=floats.device)
        floats = floats[firsts // block]
    return table_of_16(layer, pairs, table, floats.view(rows, columns // group), group, dtype)


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
    nested = said.integer("nested_blocksize", TOGETHER)
    return _Said(shape, said.integer("blocksize", 1), nested, None if offset is None else float(offset))


def _nested(layer: str, tensors: Mapping[str, Tensor], said: _Said, blocks: int) -> Nested:
    """The scales of `blocks` blocks that are quantised themselves."""
    codes = take(layer, tensors, "weight.absmax", (torch.uint8,), (blocks,))
    parts = (ceil_div(blocks, said.nested_blocksize),)
    factors = take(layer, tensors, "weight.nested_absmax", (torch.float32,), parts)
    table = take(layer, tensors, "weight.nested_quant_map", (torch.float32,), (256,))
    offset = torch.full((1,), said.nested_offset or 0.0, dtype=torch.float32, device=codes.device)
    return Nested(codes, table, factors, offset)


def _with_nested(
    layer: str, pairs: Tensor, table: Tensor, scale: Nested, said: _Said, dtype: torch.dtype
) -> NestedLut4Tensor:
    (rows, columns), block = said.shape, said.blocksize
    with named(layer):
        return NestedLut4Tensor(
            pairs,
            torch.cat((table, scale.table)),
            scale.codes.view(rows, columns // block),
            [1, block],
            dtype,
            as_global_scale(scale.factors, said.shape, [1, block]),
            scale.offset,
        )


class BitsandbytesWriter(Writer):
    """nf4 and fp4 as the reader takes them, with a float32 for each block; nested scales stay as they are.

    double_quantization: whether all scales become 8 bits themselves, as bitsandbytes has them with
        bnb_4bit_use_double_quant, which rounds those that are not yet
    """

    def __init__(self, *, symmetric: bool, double_quantization: bool = False) -> None:
        super().__init__(symmetric=symmetric)
        self.double_quantization = double_quantization
        self._has_nested = False
        self._kind: str | None = None  # of the layers so far, of which a checkpoint has one alone

    def write(self, layer: str, weight: QuantizedTensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        kind = next((kind for kind in _KINDS if looks_up(weight, LUT4_FORMATS[kind].table)), None)
        if not isinstance(weight, Lut4Tensor) or kind is None:
            raise ValueError(f"{layer}: the format has nf4 and fp4 alone, got a {type(weight).__name__}")
        if self._kind not in (None, kind):
            raise ValueError(f"{layer}: a checkpoint is {' or '.join(_KINDS)}, and this one has {self._kind}")
        refuse_what_is_aoexts_own(layer, weight)
        (rows, columns), (block_n, block) = weight.shape, weight.block_size
        if block_n != 1 or columns % block or block not in _BLOCK_SIZES or not _is_its_own(weight):
            raise ValueError(
                f"{layer}: the format has one float32 for each {', '.join(map(str, _BLOCK_SIZES))} of a row, "
                f"got {describe(weight.scale)} for blocks of {weight.block_size} of {[rows, columns]}"
            )
        said: dict[str, Any] = {"quant_type": kind, "blocksize": block}
        said |= {"dtype": dtype_name(weight.dtype), "shape": [rows, columns]}
        tensors = {
            "weight": ((weight.qdata << 4) | (weight.qdata >> 4)).reshape(-1, 1).contiguous(),
            "weight.quant_map": weight.table[:TABLE_SIZE].contiguous(),
        }
        if self.double_quantization and not isinstance(weight, NestedLut4Tensor):
            weight = NestedLut4Tensor.of(weight)
        tensors["weight.absmax"] = weight.scale.reshape(-1).contiguous()
        if isinstance(weight, NestedLut4Tensor):
            tensors["weight.nested_absmax"] = factors_of(weight).contiguous()
            tensors["weight.nested_quant_map"] = weight.table[TABLE_SIZE:].contiguous()
            offset = float(weight.zero_point)
            said |= {"nested_blocksize": TOGETHER, "nested_dtype": "float32", "nested_offset": offset}
            self._has_nested = True
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
            "bnb_4bit_use_double_quant": self.double_quantization or self._has_nested,
            "bnb_4bit_compute_dtype": first["dtype"],
            "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": list(left_alone),
        }


def _is_its_own(weight: Lut4Tensor) -> bool:
    """Whether a weight has the format's scales: of float32, or nested."""
    plain = weight.scale.dtype is torch.float32 and weight.global_scale is None
    return plain or isinstance(weight, NestedLut4Tensor)
