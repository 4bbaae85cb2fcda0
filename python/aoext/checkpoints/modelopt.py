"""Checkpoints of NVIDIA's Model Optimizer: nvfp4, and float8 for the whole weight, by rows or by blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from aoext.checkpoints.base import Model, Reader, left_as_they_are, take
from aoext.checkpoints.blocks import (
    by_blocks,
    by_rows,
    table_of_16,
    take_scale,
    take_whole_scale,
)
from aoext.checkpoints.settings import Settings
from aoext.formats.checks import describe
from aoext.formats.dtypes import EXPONENT_DTYPES, FLOAT_DTYPES
from aoext.formats.lookup_tables import E2M1
from aoext.tensors import QuantizedTensor
from aoext.tensors.fields import ceil_div

_NVFP4_GROUP, _MX_GROUP, _BLOCK = 16, 32, 128


class _Algorithm(NamedTuple):
    dynamic: bool = False  # whether activations are quantised at run time, as aoext does it
    leaves: int | None = None  # the bits of activations that it has and aoext leaves as they are


_ALGORITHMS = {
    "NVFP4": _Algorithm(leaves=4),
    "W4A16_NVFP4": _Algorithm(),
    "FP8": _Algorithm(leaves=8),  # by scales that were fixed beforehand
    "FP8_PER_CHANNEL_PER_TOKEN": _Algorithm(dynamic=True),
    "FP8_PB_WO": _Algorithm(),
    "MXFP8": _Algorithm(dynamic=True),
    "MIXED_PRECISION": _Algorithm(),  # of layers that are said one by one
}


class ModelOptReader(Reader):
    """weight uint8 [N, K/2] or float8_e4m3fn [N, K], weight_scale, and of nvfp4 weight_scale_2, one number.

    What a layer is shows in its tensors; algorithms that change the activation first are refused.
    """

    names = ("weight", "weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale")
    names_of_experts: Mapping[str, str] = {
        "": "weight",
        "_weight_scale": "weight_scale",
        "_weight_scale_2": "weight_scale_2",
        "_input_scale": "input_scale",
    }

    def __init__(self, settings: Settings) -> None:
        inside = settings.object("quantization")
        said = inside if "quant_algo" in inside else settings
        self.algorithm = _named(said)
        # By the names of layers, where they differ.
        where = inside if "quantized_layers" in inside else settings
        self.layer_settings = where.objects("quantized_layers")
        names = {self.algorithm, *(_name(own) for own in self.layer_settings.values())}
        left = {_ALGORITHMS[name].leaves for name in names if name in _ALGORITHMS}
        self.notes = tuple(left_as_they_are(bits, "float") for bits in (4, 8) if bits in left)

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        own = self.layer_settings.get(layer)
        algorithm = _ALGORITHMS[self.algorithm if own is None else _named(Settings(layer, own.values))]
        if "pre_quant_scale" in tensors:
            raise ValueError(f"{layer}: a weight with pre_quant_scale does not run on aoext")
        weight = take(layer, tensors, "weight", (torch.uint8, torch.float8_e4m3fn), (-1, -1))
        if weight.dtype is torch.uint8:
            shape = (weight.shape[0], 2 * weight.shape[1] // _NVFP4_GROUP)
            scale = take(layer, tensors, "weight_scale", (torch.float8_e4m3fn,), shape)
            whole = take_whole_scale(layer, tensors, "weight_scale_2")
            return table_of_16(layer, weight, E2M1, scale, _NVFP4_GROUP, dtype, whole)
        return _float8(layer, weight, tensors, dtype, algorithm.dynamic, self.model)


def _name(settings: Settings) -> str:
    return settings.text("quant_algo", "none").upper()


def _named(settings: Settings) -> str:
    """The algorithm that settings name; ValueError for others than those that are served."""
    said = Settings(settings.who, {"quant_algo": _name(settings)})
    return str(said.choice("quant_algo", tuple(_ALGORITHMS)))


def _float8(
    layer: str,
    weight: Tensor,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    dynamic: bool,
    model: Model | None,
) -> QuantizedTensor:
    rows, columns = weight.shape
    given = tensors.get("weight_scale")
    if given is not None and given.dtype in EXPONENT_DTYPES:
        scale = take_scale(layer, tensors, "weight_scale", (rows, ceil_div(columns, _MX_GROUP)))
        return by_blocks(layer, weight, scale, (1, _MX_GROUP), dtype, dynamic)
    blocks = ceil_div(rows, _BLOCK), ceil_div(columns, _BLOCK)
    few = given is None or given.numel() == 1 or list(given.shape) in ([rows], [rows, 1])
    if given is None or few or (given.dim() == 1 and given.numel() != blocks[0] * blocks[1]):
        return by_rows(layer, tensors, "weight_scale", weight, dtype, dynamic, model)
    if given.dtype not in FLOAT_DTYPES or given.numel() != blocks[0] * blocks[1]:
        raise ValueError(
            f"{layer}: weight_scale must be one float, {rows} of them, or {list(blocks)} for blocks of "
            f"{_BLOCK}, got {describe(given)}"
        )
    flat = {"weight_scale": given.reshape(blocks)}  # some have it as [blocks of N, 1, blocks of K, 1]
    scale = take_scale(layer, flat, "weight_scale", blocks)
    return by_blocks(layer, weight, scale, (_BLOCK, _BLOCK), dtype, False)
