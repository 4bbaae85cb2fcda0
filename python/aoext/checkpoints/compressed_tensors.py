"""Checkpoints of llm-compressor and others in compressed-tensors' formats: w = (q - zero)·scale.

Served: pack-quantized with 4 bits (by group or row), int-quantized and float-quantized (by row or for the
whole tensor). Activations that the checkpoint quantises at run time, token by token, are quantised so; scales
of activations that were fixed beforehand are left aside, and the activations stay as they are.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aoext.checkpoints.base import (
    Reader,
    Writer,
    exactly,
    int4,
    int32_words,
    integers,
    is_nonzero,
    nibbles,
    order_of_groups,
    packed_pairs,
    refuse_what_is_aoexts_own,
    take,
)
from aoext.packing import FLOAT_DTYPES, describe, dtype_name
from aoext.tensors import Float8Tensor, Int8Tensor, QuantizedTensor
from aoext.tensors.rowwise import RowScaledTensor

_INTEGERS = (torch.int32, torch.int64)
_ROW_TYPES: dict[torch.dtype, type[RowScaledTensor]] = {
    torch.int8: Int8Tensor,
    torch.float8_e4m3fn: Float8Tensor,
}


class CompressedTensorsReader(Reader):
    """weight_packed int32 [N, K/8] or weight [N, K] of 8 bits, with weight_scale and the like."""

    names = (
        "weight_zero_point",
        "weight_packed",
        "weight_scale",
        "weight_shape",
        "weight_g_idx",
        "input_scale",
        "input_zero_point",
        "weight",
    )
    telling = ("weight_shape", "weight_g_idx")

    def __init__(self, settings: Mapping[str, Any]) -> None:
        groups = settings.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise ValueError("compressed-tensors: the checkpoint's config has no config_groups")
        self.schemes = [_Scheme(name, group) for name, group in groups.items()]
        if settings.get("sparsity_config"):
            raise ValueError("compressed-tensors: sparse weights do not run on aoext")

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        scheme = next((s for s in self.schemes if s.targets(layer)), None)
        if scheme is None:
            raise ValueError(f"{layer}: no group of the checkpoint's config has it among its targets")
        make = _packed if "weight_packed" in tensors else _by_rows
        return make(layer, tensors, dtype, scheme)


class _Scheme:
    """One entry of config_groups."""

    def __init__(self, name: str, group: Mapping[str, Any]) -> None:
        weights = group.get("weights") or {}
        self.names = list(group.get("targets") or ["Linear"])
        bits, kind = weights.get("num_bits"), weights.get("type", "int")
        self.strategy = weights.get("strategy") or "tensor"
        self.group_size = weights.get("group_size")
        if (bits, kind) not in {(4, "int"), (8, "int"), (8, "float")}:
            raise ValueError(f"compressed-tensors: {name}: no kernel for weights of {bits} bits, {kind}")
        strategies = ("group", "channel") if bits == 4 else ("channel", "tensor")
        if self.strategy not in strategies:
            raise ValueError(
                f"compressed-tensors: {name}: weights of {bits} bits must have a scale by "
                f"{' or '.join(strategies)} to run on aoext, got {self.strategy!r}"
            )
        self.bits, self.symmetric = bits, bool(weights.get("symmetric", True))
        activations = group.get("input_activations") or {}
        self.dynamic_activation = (
            bool(activations.get("dynamic"))
            and activations.get("num_bits") == 8
            and activations.get("type", "int") == kind
            and activations.get("strategy", "token") == "token"
        )

    def targets(self, layer: str) -> bool:
        """Whether the layer is meant: by the class, its name, or a regular expression behind "re:"."""
        return any(
            target == "Linear"
            or fnmatch.fnmatchcase(layer, target)
            or (target.startswith("re:") and re.match(target[3:], layer))
            for target in self.names
        )


def _packed(
    layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype, scheme: _Scheme
) -> QuantizedTensor:
    packed = take(layer, tensors, "weight_packed", (torch.int32,), (-1, -1))
    shape = take(layer, tensors, "weight_shape", _INTEGERS, (2,)).tolist()
    rows, columns = shape
    if scheme.bits != 4:
        raise ValueError(f"{layer}: packed weights of {scheme.bits} bits do not run on aoext yet")
    if packed.shape != (rows, -(-columns // 8)):
        raise ValueError(
            f"{layer}: weight_packed must be int32 [{rows}, {-(-columns // 8)}] for a weight {shape}, "
            f"got {describe(packed)}"
        )
    scale = take(layer, tensors, "weight_scale", FLOAT_DTYPES, (rows, -1)).t()
    if scheme.strategy == "group" and scheme.group_size and scale.shape[0] * scheme.group_size != columns:
        raise ValueError(
            f"{layer}: weight_scale must be [{rows}, {columns}/{scheme.group_size}], "
            f"got {list(scale.t().shape)}"
        )
    groups = scale.shape[0]
    if scheme.symmetric and "weight_zero_point" not in tensors:
        zero = torch.full_like(scale, 8, dtype=torch.uint8)
    else:  # eight rows to a word
        words = take(layer, tensors, "weight_zero_point", (torch.int32,), (-(-rows // 8), groups))
        zero = nibbles(words.t())[:, :rows]
    pairs = packed.contiguous().view(torch.uint8)[:, : columns // 2]
    order = order_of_groups(layer, tensors, "weight_g_idx", columns, groups)
    if order is not None:
        pairs = packed_pairs(nibbles(packed)[:, order])
    return int4(layer, pairs, scale, zero, dtype, order)


def _by_rows(
    layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype, scheme: _Scheme
) -> QuantizedTensor:
    weight = take(layer, tensors, "weight", tuple(_ROW_TYPES), (-1, -1))
    rows, columns = weight.shape
    scale = tensors.get("weight_scale")
    count = rows if scale is not None and scale.numel() == rows else 1
    if scale is None or scale.numel() not in (1, rows) or not scale.is_floating_point():
        raise ValueError(f"{layer}: weight_scale must be a float [{rows}, 1] or [1]")
    if is_nonzero(tensors.get("weight_zero_point")):
        raise ValueError(f"{layer}: weights of 8 bits with zero points do not run on aoext")
    scale = take(layer, {"weight_scale": scale.reshape(count, 1)}, "weight_scale", FLOAT_DTYPES, (count, 1))
    return _ROW_TYPES[weight.dtype](
        weight, scale.float().expand(rows, 1).contiguous(), [1, columns], dtype, scheme.dynamic_activation
    )


class CompressedTensorsWriter(Writer):
    """pack-quantized, int-quantized or float-quantized, as each weight is; a group in the config for each.

    Scales keep float32 where no narrower dtype of a checkpoint holds them exactly.
    """

    def write(self, layer: str, weight: QuantizedTensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        refuse_what_is_aoexts_own(layer, weight)
        scales = (weight.dtype, torch.float32)
        if isinstance(weight, (Int8Tensor, Float8Tensor)):
            return self._eight_bits(layer, weight, scales)
        codes, scale, zero, group, ordered = integers(layer, weight)
        tensors = {
            "weight_packed": int32_words(codes),
            "weight_scale": exactly(layer, scale.t(), *scales),
            "weight_shape": torch.tensor(list(weight.shape)),
        }
        symmetric = bool((zero == 8).all())
        if not symmetric:  # eight rows to a word
            filled = torch.nn.functional.pad(zero, (0, -zero.shape[1] % 8))
            tensors["weight_zero_point"] = int32_words(filled).t().contiguous()
        weights: dict[str, Any] = {"num_bits": 4, "type": "int", "symmetric": symmetric}
        group_size = weight.shape[1] // scale.shape[0]
        if group_size == weight.shape[1]:
            weights["strategy"] = "channel"
        else:
            weights.update(strategy="group", group_size=group_size)
        if ordered:
            tensors["weight_g_idx"] = group.to(torch.int32)
            weights["actorder"] = "group"
        return tensors, {"format": "pack-quantized", "weights": weights}

    @staticmethod
    def _eight_bits(
        layer: str, weight: Int8Tensor | Float8Tensor, scales: tuple[torch.dtype, ...]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if weight.qdata.dtype not in _ROW_TYPES:
            raise ValueError(f"{layer}: the format has no {dtype_name(weight.qdata.dtype)}")
        kind = "int" if isinstance(weight, Int8Tensor) else "float"
        eight: dict[str, Any] = {"num_bits": 8, "type": kind, "symmetric": True}
        facts: dict[str, Any] = {
            "format": f"{kind}-quantized",
            "weights": {**eight, "strategy": "channel"},
        }
        if weight.dynamic_activation:
            facts["input_activations"] = {**eight, "strategy": "token", "dynamic": True}
        return {"weight": weight.qdata, "weight_scale": exactly(layer, weight.scale, *scales)}, facts

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
