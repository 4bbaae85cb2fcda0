"""Checkpoints of NVIDIA's Model Optimizer: nvfp4, and float8 for the whole weight, by rows or by blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aoext.blocks import E2M1
from aoext.checkpoints.base import Reader, setting, take
from aoext.checkpoints.blocks import (
    by_blocks,
    by_rows,
    table_of_16,
    take_scale,
    take_whole_scale,
)
from aoext.packing import EXPONENT_DTYPES, FLOAT_DTYPES, describe
from aoext.tensors import QuantizedTensor
from aoext.tensors.fields import ceil_div

_NVFP4_GROUP, _MX_GROUP, _BLOCK = 16, 32, 128

# Whether activations are quantised at run time as aoext does it, by the algorithm's name.
_ALGORITHMS = {
    "NVFP4": False,
    "W4A16_NVFP4": False,
    "FP8": False,  # its scale of activations is fixed beforehand
    "FP8_PER_CHANNEL_PER_TOKEN": True,
    "FP8_PB_WO": False,
    "MXFP8": True,
}
_MIXED = "MIXED_PRECISION"


class ModelOptReader(Reader):
    """weight uint8 [N, K/2] or float8_e4m3fn [N, K], weight_scale, and of nvfp4 weight_scale_2, one number.

    What a layer is shows in its tensors; algorithms that change the activation first are refused.
    """

    names = ("weight", "weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale")

    def __init__(self, settings: Mapping[str, Any]) -> None:
        said = {**settings, **(settings.get("quantization") or {})}
        allowed = (*_ALGORITHMS, _MIXED)
        algorithm = str(said.get("quant_algo")).upper()
        self.algorithm = setting("modelopt", {"quant_algo": algorithm}, "quant_algo", allowed)
        # By the names of layers, where they differ.
        self.layer_settings: Mapping[str, Mapping[str, Any]] = said.get("quantized_layers") or {}
        if self.algorithm == "NVFP4" or any(
            str(own.get("quant_algo")).upper() == "NVFP4" for own in self.layer_settings.values()
        ):
            self.notes = ("nvfp4: activations stay as they are, where the checkpoint has them in 4 bits",)

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        own = self.layer_settings.get(layer, {}).get("quant_algo")
        algorithm = self.algorithm if own is None else str(own).upper()
        setting(layer, {"quant_algo": algorithm}, "quant_algo", (*_ALGORITHMS, _MIXED))
        if "pre_quant_scale" in tensors:
            raise ValueError(f"{layer}: a weight with pre_quant_scale does not run on aoext")
        weight = take(layer, tensors, "weight", (torch.uint8, torch.float8_e4m3fn), (-1, -1))
        if weight.dtype is torch.uint8:
            shape = (weight.shape[0], 2 * weight.shape[1] // _NVFP4_GROUP)
            scale = take(layer, tensors, "weight_scale", (torch.float8_e4m3fn,), shape)
            whole = take_whole_scale(layer, tensors, "weight_scale_2")
            return table_of_16(layer, weight, E2M1, scale, _NVFP4_GROUP, dtype, whole)
        return self._float8(layer, weight, tensors, dtype, _ALGORITHMS.get(algorithm, False))

    def _float8(
        self, layer: str, weight: Tensor, tensors: Mapping[str, Tensor], dtype: torch.dtype, dynamic: bool
    ) -> QuantizedTensor:
        rows, columns = weight.shape
        given = tensors.get("weight_scale")
        exponents = given is not None and given.dtype in EXPONENT_DTYPES
        if given is None or not exponents and (given.numel() == 1 or list(given.shape) in ([rows], [rows, 1])):
            return by_rows(layer, tensors, "weight_scale", weight, dtype, dynamic)
        if exponents:
            scale = take_scale(layer, tensors, "weight_scale", (rows, ceil_div(columns, _MX_GROUP)))
            return by_blocks(layer, weight, scale, (1, _MX_GROUP), dtype, dynamic)
        blocks = ceil_div(rows, _BLOCK), ceil_div(columns, _BLOCK)
        if given.dtype not in FLOAT_DTYPES or given.numel() != blocks[0] * blocks[1]:
            raise ValueError(
                f"{layer}: weight_scale must be one float, {rows} of them, or {list(blocks)} for blocks of "
                f"{_BLOCK}, got {describe(given)}"
            )
        flat = {"weight_scale": given.reshape(blocks)}  # some have it as [blocks of N, 1, blocks of K, 1]
        scale = take_scale(layer, flat, "weight_scale", blocks)
        return by_blocks(layer, weight, scale, (_BLOCK, _BLOCK), dtype, False)
