"""Checkpoints of llm-compressor and others in compressed-tensors' formats: w = (q - zero)·scale.

Served: pack-quantized with 4 bits (by group or row) and with 8; int-quantized and float-quantized (by row,
group or block, or for the whole tensor); mxfp8-quantized; nvfp4-pack-quantized and mxfp4-pack-quantized.
Integers may have zero points, and groups whose columns lie apart.

Activations of 8 bits that the checkpoint quantises at run time are quantised so, if they are symmetric: token
by token, or along K in the groups of the weight. Others stay as they are, which is more exact than what the
checkpoint asks for: those of 4 bits, those with zero points, those whose scales were fixed beforehand.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aoext.blocks import E2M1
from aoext.checkpoints.base import (
    Reader,
    int4,
    is_nonzero,
    left_as_they_are,
    nibbles,
    order_of_groups,
    packed_pairs,
    take,
)
from aoext.checkpoints.blocks import (
    blocks_of,
    by_blocks,
    by_rows,
    table_of_16,
    take_scale,
    take_whole_scale,
)
from aoext.packing import EXPONENT_DTYPES, FLOAT_DTYPES, describe
from aoext.tensors import QuantizedTensor
from aoext.tensors.fields import ceil_div

_INTEGERS = (torch.int32, torch.int64)
_TYPES = {"int": torch.int8, "float": torch.float8_e4m3fn}

# What may share a scale, by the bits and the type of the weights.
_STRATEGIES = {
    (4, "int"): ("group", "channel"),
    (8, "int"): ("channel", "tensor", "group", "block"),
    (8, "float"): ("channel", "tensor", "group", "block"),
    (4, "float"): ("group", "tensor_group"),
}

# What 8 bits without a sign have to the value.
_OFFSET = 0x80


class CompressedTensorsReader(Reader):
    """weight_packed int32 [N, K/8] (4 bits), int32 [N, K/4] (8 bits), uint8 [N, K/2] (4 bits of floats) or
    weight [N, K] of 8 bits, with weight_scale and the like.

    weight_global_scale divides; its inverse rounds once.
    """

    names = (
        "weight_zero_point",
        "weight_packed",
        "weight_scale",
        "weight_global_scale",
        "weight_shape",
        "weight_g_idx",
        "input_scale",
        "input_global_scale",
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
        if (settings.get("transform_config") or {}).get("config_groups"):
            raise ValueError("compressed-tensors: activations that are transformed do not run on aoext")
        self.notes = tuple(sorted({scheme.note for scheme in self.schemes if scheme.note}))

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        scheme = next((s for s in self.schemes if s.targets(layer)), None)
        if scheme is None:
            raise ValueError(f"{layer}: no group of the checkpoint's config has it among its targets")
        if scheme.form == (4, "float"):
            return _table_of_16(layer, tensors, dtype, scheme)
        if "weight_packed" in tensors:
            return _packed(layer, tensors, dtype, scheme)
        weight = take(layer, tensors, "weight", tuple(_TYPES.values()), (-1, -1))
        return _eight_bits(layer, weight, tensors, dtype, scheme)


class _Scheme:
    """One entry of config_groups."""

    def __init__(self, name: str, group: Mapping[str, Any]) -> None:
        weights = group.get("weights") or {}
        self.names = list(group.get("targets") or ["Linear"])
        bits, kind = self.form = weights.get("num_bits"), weights.get("type", "int")
        self.strategy = weights.get("strategy") or "tensor"
        self.group_size = weights.get("group_size")
        self.symmetric = bool(weights.get("symmetric", True))
        if self.form not in _STRATEGIES:
            raise ValueError(f"compressed-tensors: {name}: no kernel for weights of {bits} bits, {kind}")
        strategies = _STRATEGIES[self.form]
        if self.strategy not in strategies:
            raise ValueError(
                f"compressed-tensors: {name}: weights of {bits} bits must have a scale by "
                f"{' or '.join(strategies)} to run on aoext, got {self.strategy!r}"
            )
        # Rows and columns that share a scale; None where these are whole rows, the weight, or int4's groups.
        self.block_size = None if self.form == (4, "int") else self._blocks(name, weights)
        activations = group.get("input_activations") or {}
        self.activation = activations.get("type", "int")
        self.dynamic_activation = (
            bool(activations.get("dynamic"))
            and activations.get("num_bits") == 8
            and bool(activations.get("symmetric", True))
            and (self.activation == kind or (self.form == (4, "int") and self.activation in _TYPES))
            and self._quantises_along_k(activations)
        )
        self.note = ""
        if activations and not self.dynamic_activation:
            zeros = "" if activations.get("symmetric", True) else " with zero points"
            self.note = left_as_they_are(activations.get("num_bits"), self.activation + zeros)

    def _blocks(self, name: str, weights: Mapping[str, Any]) -> list[int] | None:
        sizes: Any
        if self.strategy == "block":
            what, given = "block_structure", weights.get("block_structure")
            sizes = given.split("x") if isinstance(given, str) else given
        elif self.strategy in ("group", "tensor_group"):
            what, given = "group_size", self.group_size
            sizes = [1, given]
        else:
            return None
        try:
            rows, columns = map(int, sizes)
        except (TypeError, ValueError):
            rows = columns = 0
        if rows < 1 or columns < 1:
            raise ValueError(f"compressed-tensors: {name}: {what} must be positive numbers, got {given!r}")
        if not self.symmetric and self.form[1] != "int":
            raise ValueError(
                f"compressed-tensors: {name}: weights of {self.form[0]} bits, {self.form[1]}, with zero "
                "points do not run on aoext"
            )
        return [rows, columns]

    def _quantises_along_k(self, activations: Mapping[str, Any]) -> bool:
        """Whether activations have scales where a product by the weight can use them."""
        if self.block_size is None:
            return activations.get("strategy", "token") == "token"
        return activations.get("strategy") == "group" and activations.get("group_size") == self.block_size[1]

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
    """Integers of 4 or 8 bits without signs, in words of 32."""
    packed = take(layer, tensors, "weight_packed", (torch.int32,), (-1, -1))
    shape = take(layer, tensors, "weight_shape", _INTEGERS, (2,)).tolist()
    rows, columns = shape
    words = ceil_div(columns * scheme.form[0], 32)
    if packed.shape != (rows, words):
        raise ValueError(
            f"{layer}: weight_packed must be int32 [{rows}, {words}] for a weight {shape}, "
            f"got {describe(packed)}"
        )
    if scheme.form == (4, "int"):
        return _four_bits(layer, packed, shape, tensors, dtype, scheme)
    qdata = (packed.contiguous().view(torch.uint8)[:, :columns] ^ _OFFSET).view(torch.int8)
    return _eight_bits(layer, qdata, tensors, dtype, scheme)


def _four_bits(
    layer: str,
    packed: Tensor,
    shape: list[int],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    scheme: _Scheme,
) -> QuantizedTensor:
    rows, columns = shape
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
    activation = _TYPES[scheme.activation] if scheme.dynamic_activation else None
    return int4(layer, pairs, scale, zero, dtype, order, activation)


def _eight_bits(
    layer: str, qdata: Tensor, tensors: Mapping[str, Tensor], dtype: torch.dtype, scheme: _Scheme
) -> QuantizedTensor:
    rows, columns = qdata.shape
    has_zeros = _has_zero_points(layer, tensors, scheme)
    if scheme.block_size is None and not has_zeros:
        return by_rows(layer, tensors, "weight_scale", qdata, dtype, scheme.dynamic_activation)
    block_size = scheme.block_size or [1, columns]
    if scheme.block_size is None:
        tensors = {name: _for_rows(tensor, rows) for name, tensor in tensors.items()}
    shape = blocks_of(rows, columns, block_size)
    scale = take_scale(layer, tensors, "weight_scale", shape)
    zero_point = _zero_point(layer, tensors, shape) if has_zeros else None
    order = None
    if scheme.strategy == "group":
        order = order_of_groups(layer, tensors, "weight_g_idx", columns, shape[1])
    if order is not None:
        qdata = qdata.view(torch.int8)[:, order].view(qdata.dtype)
    return by_blocks(layer, qdata, scale, block_size, dtype, scheme.dynamic_activation, zero_point, order)


def _has_zero_points(layer: str, tensors: Mapping[str, Tensor], scheme: _Scheme) -> bool:
    are_some = is_nonzero(tensors.get("weight_zero_point"))
    if scheme.form[1] == "int":
        return are_some or not scheme.symmetric
    if are_some:
        raise ValueError(f"{layer}: weights of 8 bits, float, with zero points do not run on aoext")
    return False


def _zero_point(layer: str, tensors: Mapping[str, Tensor], shape: list[int]) -> Tensor:
    """Zeros of 8 bits, of the scales' shape: int8, or packed along N as codes are along K."""
    name = "weight_zero_point"
    if name in tensors and tensors[name].dtype is torch.int32:
        words = take(layer, tensors, name, (torch.int32,), (ceil_div(shape[0], 4), shape[1]))
        return (words.t().contiguous().view(torch.uint8).t()[: shape[0]] ^ _OFFSET).view(torch.int8)
    return take(layer, tensors, name, (torch.int8,), shape)


def _for_rows(values: Tensor, rows: int) -> Tensor:
    """One number for the weight, or one for each row, as [N, 1]; others as they are."""
    return values.reshape(-1, 1).expand(rows, 1) if values.numel() in (1, rows) else values


def _table_of_16(
    layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype, scheme: _Scheme
) -> QuantizedTensor:
    """e2m1 with scales of e4m3 and one more (nvfp4), or with exponents (mxfp4)."""
    pairs = take(layer, tensors, "weight_packed", (torch.uint8,), (-1, -1))
    assert scheme.block_size is not None
    shape = blocks_of(pairs.shape[0], 2 * pairs.shape[1], scheme.block_size)
    group_size = scheme.block_size[1]
    if scheme.strategy == "group":
        scale = take_scale(layer, tensors, "weight_scale", shape, EXPONENT_DTYPES)
        return table_of_16(layer, pairs, E2M1, scale, group_size, dtype)
    scale = take(layer, tensors, "weight_scale", (torch.float8_e4m3fn,), shape)
    divisor = take_whole_scale(layer, tensors, "weight_global_scale")
    if is_nonzero(divisor == 0):
        raise ValueError(f"{layer}: weight_global_scale divides, and must not be 0")
    return table_of_16(layer, pairs, E2M1, scale, group_size, dtype, divisor.reciprocal())
