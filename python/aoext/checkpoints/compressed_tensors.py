"""Checkpoints of llm-compressor and others in compressed-tensors' formats: w = (q - zero)·scale.

Served: pack-quantized with 2 to 7 bits (by group or row) and with 8; int-quantized and float-quantized (by
row, group or block, or for the whole tensor); mxfp8-quantized; nvfp4-pack-quantized and mxfp4-pack-quantized.
Integers may have zero points, and groups whose columns lie apart.

Activations of 8 bits that the checkpoint quantises at run time are quantised so, if they are symmetric: token
by token, or along K in the groups of the weight. Others stay as they are, which is more exact than what the
checkpoint asks for: those of 4 bits, those with zero points, those whose scales were fixed beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from aoext.checkpoints.base import (
    Model,
    Reader,
    is_nonzero,
    order_of_groups,
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
from aoext.checkpoints.codes import unpacked
from aoext.checkpoints.compressed_tensors_groups import TYPES, Refusal, Scheme, Targets, scheme_of, targets_of
from aoext.checkpoints.groups import of_codes, of_pairs
from aoext.checkpoints.settings import Settings
from aoext.formats.checks import describe
from aoext.formats.dtypes import EXPONENT_DTYPES, FLOAT_DTYPES
from aoext.formats.lookup_tables import E2M1
from aoext.tensors import QuantizedTensor
from aoext.tensors.fields import ceil_div

_INTEGERS = (torch.int32, torch.int64)
# What 8 bits without a sign have to the value.
_OFFSET = 0x80


class CompressedTensorsReader(Reader):
    """weight_packed int32 [N, ⌈K·bits/32⌉], uint8 [N, K/2] (4 bits of floats) or weight [N, K] of 8 bits,
    with weight_scale and the like.

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

    def __init__(self, settings: Settings) -> None:
        # Early releases of transformers nested it.
        said = settings.object("quantization_config") if "quantization_config" in settings else settings
        groups = said.objects("config_groups")
        if not groups:
            raise ValueError("compressed-tensors: the checkpoint's config has no config_groups")
        for place in (settings, said):
            if place.object("sparsity_config").text("format", "dense") != "dense":
                raise ValueError("compressed-tensors: sparse weights do not run on aoext")
        if said.object("transform_config").objects("config_groups"):
            raise ValueError("compressed-tensors: activations that are transformed do not run on aoext")
        self._ignored = Targets("ignore", dict.fromkeys(said.texts("ignore"), True))
        found = {name: scheme_of(name, group) for name, group in groups.items()}
        refused = [scheme for scheme in found.values() if isinstance(scheme, Refusal)]
        # Others are refused where a layer is one of theirs.
        if refused and not any(isinstance(scheme, Scheme) for scheme in found.values()):
            raise ValueError(f"compressed-tensors: {refused[0].why}")
        self._schemes = Targets(
            "targets",
            {target: found[name] for name, group in groups.items() for target in targets_of(group)},
        )
        notes = {scheme.note for scheme in found.values() if isinstance(scheme, Scheme) and scheme.note}
        notes |= {
            f"{name} of config_groups quantises no weights, and is passed over"
            for name, scheme in found.items()
            if scheme is None
        }
        cache = said.object("kv_cache_scheme")
        if cache:
            said_of_it = f"{cache.integer('num_bits', 8)} bits, {cache.text('type', 'int').lower()}"
            notes.add(f"keys and values stay as they are, where the checkpoint has them in {said_of_it}")
        self.notes = tuple(sorted(notes))

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        classes = self._classes(layer)
        if self._ignored.of(layer, classes):
            raise ValueError(
                f"{layer}: no group of the checkpoint's config has it among its targets, for ignore names it"
            )
        scheme = self._schemes.of(layer, classes)
        if scheme is None:
            raise ValueError(
                f"{layer}: no group of the checkpoint's config has it among its targets, or none with weights"
            )
        if isinstance(scheme, Refusal):
            raise ValueError(f"{layer}: {scheme.why}")
        if scheme.form == (4, "float"):
            return _table_of_16(layer, tensors, dtype, scheme)
        if "weight_packed" in tensors:
            return _packed(layer, tensors, dtype, scheme, self.model)
        weight = take(layer, tensors, "weight", tuple(TYPES.values()), (-1, -1))
        return _eight_bits(layer, weight, tensors, dtype, scheme, self.model)

    def _classes(self, layer: str) -> Sequence[str]:
        """The names of a layer's classes; where nothing is known of the layer, those of a linear one."""
        module = None if self.model is None else self.model.module(layer)
        kinds = nn.Linear.__mro__ if module is None else type(module).__mro__
        return [kind.__name__ for kind in kinds if issubclass(kind, nn.Module)]


def _packed(
    layer: str,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    scheme: Scheme,
    model: Model | None,
) -> QuantizedTensor:
    """Integers without signs, as one stream of bits in words of 32."""
    packed = take(layer, tensors, "weight_packed", (torch.int32,), (-1, -1))
    shape = take(layer, tensors, "weight_shape", _INTEGERS, (2,)).tolist()
    rows, columns = shape
    words = ceil_div(columns * scheme.form[0], 32)
    if packed.shape != (rows, words):
        raise ValueError(
            f"{layer}: weight_packed must be int32 [{rows}, {words}] for a weight {shape}, "
            f"got {describe(packed)}"
        )
    if scheme.in_groups:
        return _groups(layer, packed, shape, tensors, dtype, scheme)
    qdata = (unpacked(packed, 8)[:, :columns] ^ _OFFSET).view(torch.int8)
    return _eight_bits(layer, qdata, tensors, dtype, scheme, model)


def _groups(
    layer: str,
    packed: Tensor,
    shape: list[int],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    scheme: Scheme,
) -> QuantizedTensor:
    (rows, columns), bits = shape, scheme.form[0]
    group_size = columns if scheme.strategy == "channel" else scheme.group_size
    if columns % group_size:
        raise ValueError(f"{layer}: group_size = {group_size} does not divide K = {columns}")
    groups = columns // group_size
    scale, zero = take(layer, tensors, "weight_scale", FLOAT_DTYPES, (rows, groups)).t(), None
    if not scheme.symmetric or "weight_zero_point" in tensors:  # packed along N
        stored = ceil_div(rows * bits, 32), groups
        words = take(layer, tensors, "weight_zero_point", (torch.int32,), stored)
        zero = unpacked(words.t(), bits)[:, :rows]
    order = _order(layer, tensors, columns, group_size)
    activation = TYPES[scheme.activation] if scheme.dynamic_activation else None
    if bits == 4 and order is None and columns % 2 == 0:
        pairs = packed.contiguous().view(torch.uint8)[:, : columns // 2]
        return of_pairs(layer, pairs, scale, zero, dtype, order, activation)
    codes = unpacked(packed, bits)[:, :columns] if order is None else unpacked(packed, bits)[:, order]
    return of_codes(layer, codes, bits, scale, zero, dtype, order, activation)


def _order(layer: str, tensors: Mapping[str, Tensor], columns: int, group_size: int) -> Tensor | None:
    """The columns sorted by their groups; None where they are, which groups of -1 say as well."""
    group = tensors.get("weight_g_idx")
    if group is not None and group.shape == (columns,) and bool((group == -1).all()):
        return None
    return order_of_groups(layer, tensors, "weight_g_idx", columns, group_size)


def _eight_bits(
    layer: str,
    qdata: Tensor,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    scheme: Scheme,
    model: Model | None,
) -> QuantizedTensor:
    rows, columns = qdata.shape
    has_zeros = _has_zero_points(layer, tensors, scheme)
    if scheme.block_size is None and not has_zeros:
        return by_rows(layer, tensors, "weight_scale", qdata, dtype, scheme.dynamic_activation, model)
    block_size = scheme.block_size or [1, columns]
    if scheme.block_size is None:
        tensors = {name: _for_rows(tensor, rows) for name, tensor in tensors.items()}
    shape = blocks_of(rows, columns, block_size)
    scale = take_scale(layer, tensors, "weight_scale", shape)
    zero_point = _zero_point(layer, tensors, shape) if has_zeros else None
    order = None
    if scheme.strategy == "group":
        order = _order(layer, tensors, columns, scheme.group_size)
    if order is not None:
        qdata = qdata.view(torch.int8)[:, order].view(qdata.dtype)
    return by_blocks(layer, qdata, scale, block_size, dtype, scheme.dynamic_activation, zero_point, order)


def _has_zero_points(layer: str, tensors: Mapping[str, Tensor], scheme: Scheme) -> bool:
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
    layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype, scheme: Scheme
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
