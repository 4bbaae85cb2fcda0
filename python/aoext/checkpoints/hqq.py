"""Checkpoints of HQQ with 4 bits along axis 1: w = (u - zero)·scale, the zero a float."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from aoext.checkpoints.base import Reader, int4, packed_pairs, take
from aoext.checkpoints.settings import Settings
from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.tensors import QuantizedTensor


class HqqReader(Reader):
    """W_q uint8 [N·K/g/2, g] of the matrix [N·K/g, g], whose first half of rows lies in the high nibbles;
    scale and zero [N·K/g, 1]. The zero rounds once, to float32.
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
    telling = ("shape",)

    def __init__(self, settings: Settings) -> None:
        made = settings.object("quant_config")
        weights = made.object("weight_quant_params") if "weight_quant_params" in made else settings
        weights.choice("nbits", (4,), 4)
        weights.choice("axis", (1,), 1)
        weights.choice("view_as_float", (False,), False)

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        packed = take(layer, tensors, "W_q", (torch.uint8,), (-1, -1))
        rows, columns = take(layer, tensors, "shape", (torch.int32, torch.int64), (2,)).tolist()
        codes = torch.cat((packed >> 4, packed & 15))
        group_size = codes.shape[1]
        if min(rows, columns) < 1 or codes.numel() != rows * columns or columns % group_size:
            raise ValueError(f"{layer}: W_q must be [{rows}·{columns}/g/2, g], got {list(packed.shape)}")
        count = codes.shape[0]
        scale, zero = (
            take(layer, tensors, name, FLOAT_DTYPES, (count, 1)).float().view(rows, -1).t()
            for name in ("scale", "zero")
        )
        return int4(layer, packed_pairs(codes.view(rows, columns)), scale, zero, dtype)
