"""Checkpoints of HQQ with 2 to 6 bits along axis 1: w = (u - zero)·scale, the zero a float."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aoext.checkpoints.base import Reader, take
from aoext.checkpoints.groups import of_codes
from aoext.checkpoints.settings import Settings
from aoext.formats.checks import has_values
from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.tensors import QuantizedTensor
from aoext.tensors.fields import ceil_div


class _Packing(NamedTuple):
    """How codes are packed: as many as there are, of parts of the matrix, the first part highest."""

    bits: int
    parts: int = 1
    dtype: torch.dtype = torch.uint8


# By nbits. Codes of 5 and 6 bits are bytes; ternary ones are packed as those of 2 bits.
_PACKINGS = {
    1.58: _Packing(2, 4),
    2: _Packing(2, 4),
    3: _Packing(3, 10, torch.int32),
    4: _Packing(4, 2),
    5: _Packing(5),
    6: _Packing(6),
}


class HqqReader(Reader):
    """W_q uint8 [N·K/g/parts, g], or int32 of 3 bits, of the matrix [N·K/g, g], whose first part of rows lies
    in the highest bits; scale and zero [N·K/g, 1]. The zero rounds once, to float32.

    nbits and axis of a layer go before those of the checkpoint.
    """

    names = (
        "W_q",
        "scale",
        "zero",
        "shape",
        *("nbits", "group_size", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale"),
        *("quant_zero", "compute_dtype", "channel_wise", "optimize", "round_zero", "stores_quant_config"),
        *("encoded_state_dict", "offload_meta"),
    )
    telling = ("shape", "nbits", "axis")

    def __init__(self, settings: Settings) -> None:
        made = settings.object("quant_config")
        weights = made.object("weight_quant_params") if "weight_quant_params" in made else settings
        self.packing = _packing(weights)
        weights.choice("view_as_float", (False,), False)

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        own = Settings(layer, {name: _number(tensors.get(name)) for name in ("nbits", "axis")})
        bits, parts, stored = _packing(own) if own.any("nbits") else self.packing
        words = take(layer, tensors, "W_q", (stored,), (-1, -1))
        rows, columns = take(layer, tensors, "shape", (torch.int32, torch.int64), (2,)).tolist()
        group_size = words.shape[1]
        count = rows * columns // group_size
        if min(rows, columns) < 1 or columns % group_size or words.shape[0] != ceil_div(count, parts):
            raise ValueError(f"{layer}: W_q must be [{rows}·{columns}/g/{parts}, g], got {list(words.shape)}")
        mask = (1 << bits) - 1
        shifted = (words >> bits * part & mask for part in reversed(range(parts)))
        codes = torch.cat([part.to(torch.uint8) for part in shifted])[:count]
        scale, zero = (
            take(layer, tensors, name, FLOAT_DTYPES, (count, 1)).float().view(rows, -1).t()
            for name in ("scale", "zero")
        )
        return of_codes(layer, codes.view(rows, columns), bits, scale, zero, dtype)


def _packing(settings: Settings) -> _Packing:
    settings.choice("axis", (1,), 1)
    return _PACKINGS[settings.choice("nbits", tuple(_PACKINGS), 4)]


def _number(tensor: Tensor | None) -> Any:
    """The number that a tensor has, as JSON would have it; None where there is none, or not its value."""
    if tensor is None or tensor.numel() != 1 or not has_values(tensor):
        return None
    value = tensor.item()
    return round(value, 2) if isinstance(value, float) and value % 1 else int(value)
