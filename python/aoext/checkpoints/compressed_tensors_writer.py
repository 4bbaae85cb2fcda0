"""Quantised weights as checkpoints of compressed-tensors have them, in the format that fits each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aoext.checkpoints.base import Writer, exactly, refuse_what_is_aoexts_own
from aoext.checkpoints.blocks import looks_up
from aoext.checkpoints.codes import packed
from aoext.checkpoints.groups import integers
from aoext.formats.dtypes import EXPONENT_DTYPES, dtype_name
from aoext.formats.lookup_tables import E2M1
from aoext.tensors import BlockwiseTensor, Float8Tensor, Int8Tensor, Lut4Tensor, QuantizedTensor
from aoext.tensors.fields import gathered
from aoext.tensors.nested import with_float_scales

_KINDS = {torch.int8: "int", torch.float8_e4m3fn: "float"}

# The groups of the formats that have one size alone.
_NVFP4_GROUP, _MX_GROUP = 16, 32

# Tensors, and what the config says of the layer.
_Written = tuple[dict[str, Tensor], dict[str, Any]]


class CompressedTensorsWriter(Writer):
    """pack-, int-, float-, mxfp8-quantized, nvfp4- or mxfp4-pack-quantized, as each weight is; a group in the
    config for each.

    Scales keep float32 where no narrower dtype of a checkpoint holds them exactly. nvfp4's one scale becomes
    a divisor, which rounds once.
    """

    def write(self, layer: str, weight: QuantizedTensor) -> _Written:
        refuse_what_is_aoexts_own(layer, weight)
        if isinstance(weight, (Int8Tensor, Float8Tensor)):
            return _rows(layer, weight)
        if isinstance(weight, BlockwiseTensor):
            return _blocks(layer, weight)
        if isinstance(weight, Lut4Tensor):
            return _table_of_16(layer, with_float_scales(weight))
        made = integers(layer, weight)
        tensors = {
            "weight_packed": made.words(layer),
            "weight_scale": exactly(layer, made.scale.t(), weight.dtype, torch.float32),
            "weight_shape": torch.tensor(list(weight.shape), device="cpu"),
        }
        if not made.symmetric:  # along N
            tensors["weight_zero_point"] = packed(made.zero, made.bits).t().contiguous()
        weights: dict[str, Any] = {"num_bits": made.bits, "type": "int", "symmetric": made.symmetric}
        group_size = weight.block_size[1]
        if group_size == weight.shape[1]:
            weights["strategy"] = "channel"
        else:
            weights.update(strategy="group", group_size=group_size)
        if made.ordered:
            tensors["weight_g_idx"] = made.group.to(torch.int32)
            weights["actorder"] = "group"
        return tensors, {"format": "pack-quantized", "weights": weights, **_by_tokens(weight)}

    def settings(self, layers: Mapping[str, Mapping[str, Any]], left_alone: Sequence[str]) -> dict[str, Any]:
        kinds: dict[str, list[str]] = {}
        for layer, facts in layers.items():
            kinds.setdefault(json.dumps(facts, sort_keys=True), []).append(layer)
        groups = {
            f"group_{index}": {"targets": ["Linear"] if len(kinds) == 1 else targets, **json.loads(facts)}
            for index, (facts, targets) in enumerate(kinds.items())
        }
        formats = {group["format"] for group in groups.values()}
        return {
            "quant_method": "compressed-tensors",
            "format": formats.pop() if len(formats) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": list(left_alone),
        }


def _eight_bits(layer: str, weight: QuantizedTensor) -> tuple[str, dict[str, Any]]:
    """The type of the format's integers or floats, and what is said of weights and activations in it."""
    if weight.qdata.dtype not in _KINDS:
        raise ValueError(f"{layer}: the format has no {dtype_name(weight.qdata.dtype)}")
    kind = _KINDS[weight.qdata.dtype]
    return kind, {"num_bits": 8, "type": kind, "symmetric": True}


def _rows(layer: str, weight: Int8Tensor | Float8Tensor) -> _Written:
    kind, eight = _eight_bits(layer, weight)
    facts: dict[str, Any] = {"format": f"{kind}-quantized", "weights": {**eight, "strategy": "channel"}}
    scale = exactly(layer, weight.scale, weight.dtype, torch.float32)
    return {"weight": weight.qdata, "weight_scale": scale}, {**facts, **_by_tokens(weight)}


def _by_tokens(weight: QuantizedTensor) -> dict[str, Any]:
    """What is said of activations that are quantised row by row; nothing of others."""
    if weight.quantizes_input_to is None:
        return {}
    eight = {"num_bits": 8, "type": _KINDS[weight.quantizes_input_to], "symmetric": True}
    return {"input_activations": {**eight, "strategy": "token", "dynamic": True}}


def _blocks(layer: str, weight: BlockwiseTensor) -> _Written:
    kind, eight = _eight_bits(layer, weight)
    block_n, block_k = weight.block_size
    columns, in_groups = weight.shape[1], block_n == 1
    if in_groups and columns % block_k:
        raise ValueError(
            f"{layer}: group_size = {block_k} does not divide K = {columns}, as the format has it"
        )
    along_k: dict[str, Any] = {"strategy": "group", "group_size": block_k}
    by_block = {"strategy": "block", "block_structure": [block_n, block_k]}
    tensors, whole_rows = {"weight": weight.qdata}, False
    weights = {**eight, **(along_k if in_groups else by_block)}
    if weight.zero_point is not None:
        whole_rows = in_groups and block_k == columns and weight.k_order is None
        weights = {**({**eight, "strategy": "channel"} if whole_rows else weights), "symmetric": False}
        tensors["weight_zero_point"] = weight.zero_point.contiguous()
    if weight.k_order is not None:
        if not in_groups:
            raise ValueError(f"{layer}: blocks of several rows have their columns side by side in the format")
        back = weight.k_order.argsort()
        tensors["weight"] = gathered(weight.qdata.t(), back).t().contiguous()
        tensors["weight_g_idx"] = (back // block_k).to(torch.int32)
        weights["actorder"] = "group"
    facts: dict[str, Any] = {"format": f"{kind}-quantized", "weights": weights}
    exponents = weight.scale.dtype in EXPONENT_DTYPES
    kept: dict[str, Any] = {}  # what scales are stored in, where the format has one dtype for them
    if exponents and kind == "float" and weight.block_size == [1, _MX_GROUP]:
        scale = weight.scale.view(torch.uint8)
        facts["format"] = "mxfp8-quantized"
        kept = {"scale_dtype": "torch.uint8"}
        weights.update(kept)
    else:
        floats = weight.scale.view(torch.float8_e8m0fnu).float() if exponents else weight.scale
        scale = exactly(layer, floats, weight.dtype, torch.float32)
    if whole_rows:
        facts |= _by_tokens(weight)
    elif weight.input_block is not None:
        along_k = {"strategy": "group", "group_size": weight.input_block[1]}
        facts["input_activations"] = {**eight, **along_k, **kept, "dynamic": True}
    return {**tensors, "weight_scale": scale.contiguous()}, facts


def _table_of_16(layer: str, weight: Lut4Tensor) -> _Written:
    if not looks_up(weight, E2M1):
        raise ValueError(f"{layer}: the format has no table of 16 values but e2m1's")
    four: dict[str, Any] = {"num_bits": 4, "type": "float", "symmetric": True}
    tensors = {"weight_packed": weight.qdata}
    whole, group_size = weight.global_scale, weight.block_size[1]
    in_groups = weight.block_size[0] == 1 and weight.shape[1] % group_size == 0
    if in_groups and weight.scale.dtype in EXPONENT_DTYPES and whole is None and group_size == _MX_GROUP:
        four.update(strategy="group", group_size=group_size, scale_dtype="torch.uint8")
        tensors["weight_scale"] = weight.scale.view(torch.uint8).contiguous()
        return tensors, {"format": "mxfp4-pack-quantized", "weights": four}
    if in_groups and weight.scale.dtype is torch.float8_e4m3fn and group_size == _NVFP4_GROUP:
        four.update(strategy="tensor_group", group_size=group_size, scale_dtype="torch.float8_e4m3fn")
        tensors["weight_scale"] = weight.scale.contiguous()
        tensors["weight_global_scale"] = _divisor(whole, weight.device)
        return tensors, {"format": "nvfp4-pack-quantized", "weights": four}
    raise ValueError(
        f"{layer}: the format has e2m1 with exponents for groups of {_MX_GROUP}, or with float8_e4m3fn for "
        f"groups of {_NVFP4_GROUP} and one float32, got {dtype_name(weight.scale.dtype)} for blocks of "
        f"{weight.block_size}"
    )


def _divisor(whole: Tensor | None, device: torch.device) -> Tensor:
    """The float32 [1] whose inverse is this one, or the nearest to it where none is."""
    if whole is None:
        return torch.ones(1, dtype=torch.float32, device=device)
    near = whole.cpu().reciprocal()
    infinity = torch.full_like(near, torch.inf)
    some = torch.stack((near, near.nextafter(infinity), near.nextafter(-infinity)))
    best = (some.reciprocal().double() - whole.cpu().double()).abs().argmin()
    return some[best].to(device)
