"""The fields of a quantised weight: how a table declares them, and the checks that follow from it.

A field's dimensions follow those of the weight [N, K] that it belongs to:

    "qdata": Field((Axis(N), Axis(K, 2)), (torch.int8,))         int8 [N, K/2]
    "scale": Field((Axis(K, BLOCK), Axis(N)), FLOAT_DTYPES)      [K/block_size[1], N]
    "table": Field((Axis(FIXED, 16),), (torch.float32,))         float32 [16], whatever the weight
    "qdata": Field((Axis(N), Axis(K, 32), Axis(FIXED, 20)), …)   [N, K/32, 20]: 32 codes in 20 bytes
    "global_scale": Field((Axis(N, NESTED), Axis(FIXED, NESTED)), …)   as nested_blocks says

Weights of experts [E, N, K] have the same tables: a field that follows the weight, or that `each_expert` has,
has E before these dimensions, and another one is all experts'. So dimensions are counted from the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from aoext.formats.checks import describe, is_dense, shown
from aoext.formats.dtypes import FLOAT_DTYPES, one_of
from aoext.formats.table import FORMATS, TABLE_SIZE, Code
from aoext.packing.nested import TOGETHER

# The dimensions of a weight, and what error messages call them.
E, N, K = -3, -2, -1
DIM_NAMES = {E: "E", N: "N", K: "K"}

# The dtypes of activations. No operator takes float64: its products are float32's, converted.
ACTIVATION_DTYPES = (*FLOAT_DTYPES, torch.float64)

# The step of an axis that has one entry for each block of the weight.
BLOCK = 0

# The step of an axis that has entries for whole blocks of nested scales.
NESTED = -1

# The dimension of an axis that follows none of the weight's: its step is its size.
FIXED = 0


class Axis(NamedTuple):
    """A dimension of a field: one entry for `step` elements along dimension `dim` of the weight."""

    dim: int
    step: int = 1

    def elements(self, weight_shape: Sequence[int], block_size: Sequence[int]) -> int:
        """Elements of the weight for one entry; for the last one there may be fewer."""
        if self.step == NESTED:
            return nested_blocks(weight_shape, block_size).rows
        return self.step or block_size[self.dim]

    def entries(self, weight_shape: Sequence[int], block_size: Sequence[int]) -> int:
        """Entries for a weight [N, K]."""
        if self.dim != FIXED:
            return ceil_div(weight_shape[self.dim], self.elements(weight_shape, block_size))
        return nested_blocks(weight_shape, block_size).columns if self.step == NESTED else self.step


def ceil_div(count: int, step: int) -> int:
    """How many parts of `step` hold `count`."""
    return -(-count // step)


class NestedBlocks(NamedTuple):
    """How many rows of scales are whole blocks of TOGETHER, and how many blocks these are."""

    rows: int
    columns: int


def nested_blocks(weight_shape: Sequence[int], block_size: Sequence[int]) -> NestedBlocks:
    groups = weight_shape[K] // block_size[K]
    common = math.gcd(groups, TOGETHER)
    return NestedBlocks(TOGETHER // common, groups // common)


def as_stored(shape: Sequence[int], transposed: bool) -> list[int]:
    """The shape of a weight that has this one, or a view of this one that is `transposed`."""
    *experts, rows, columns = shape
    return [*experts, columns, rows] if transposed else [*experts, rows, columns]


@dataclass(frozen=True)
class Field:
    """A tensor that a quantised weight keeps."""

    axes: tuple[Axis, ...]
    dtypes: tuple[torch.dtype, ...]
    follows_dtype: bool = False  # whether .to(dtype) of the weight converts it
    optional: bool = False  # whether it may be None
    each_expert: bool = False  # whether experts have one each although it follows neither N nor K
    whole: bool = False  # whether its entries speak of each other, so that no part of it means anything

    def shape(self, weight_shape: Sequence[int], block_size: Sequence[int]) -> list[int]:
        """The field's shape for a weight [N, K] or [E, N, K]."""
        entries = [axis.entries(weight_shape, block_size) for axis in self.axes]
        return [*weight_shape[:N], *entries] if self.follows_experts else entries

    def position(self, dim: int) -> int | None:
        """Which of its dimensions follows one of the weight's; None where none does."""
        if dim == E:
            return -len(self.axes) - 1 if self.follows_experts else None
        return next((at - len(self.axes) for at, axis in enumerate(self.axes) if axis.dim == dim), None)

    @property
    def follows_experts(self) -> bool:
        """Whether each expert has its own."""
        return self.each_expert or any(axis.dim != FIXED for axis in self.axes)

    @property
    def rows(self) -> int:
        """The dimension that follows the weight's rows, or 0 of a field that all rows share."""
        at = self.position(N)
        return 0 if at is None else at

    @property
    def per_block(self) -> bool:
        """Whether it has entries for blocks of the weight, as scales have."""
        return any(axis.step == BLOCK for axis in self.axes)


def fields_of(*codes: Code) -> dict[str, Field]:
    """The fields that weights of these codes have by the table of formats, which stores them alike."""
    formats = [FORMATS[code] for code in codes]
    first = formats[0]
    by_groups = first.scales == "groups"
    axes: tuple[Axis, ...] = (Axis(K, BLOCK), Axis(N)) if by_groups else (Axis(N, BLOCK), Axis(K, BLOCK))
    if first.scales == "inside":
        axes = (Axis(FIXED, 1),)
    storage = tuple(format.storage for format in formats)
    in_blocks = (Axis(FIXED, first.bytes),) if first.bytes > 1 else ()
    fields = {"qdata": Field((Axis(N), Axis(K, first.values), *in_blocks), storage)}
    if first.has_table:
        fields["table"] = Field((Axis(FIXED, TABLE_SIZE),), (torch.float32,))
    inside = first.scales == "inside"
    fields["scale"] = Field(axes, first.scale_dtypes, follows_dtype=by_groups, each_expert=inside)
    for format in formats:
        if format.zero == "added":
            fields["zero_point"] = fields["scale"]
        elif format.zero == "subtracted":
            fields["zero_point"] = Field(axes, (format.storage,), optional=True)
    if first.has_table:
        one = (Axis(FIXED, 1),)
        fields["global_scale"] = Field(one, (torch.float32,), optional=True, each_expert=True)
    return fields


def check_fields(
    who: str,
    fields: Mapping[str, Field],
    tensors: Mapping[str, Tensor | None],
    block_size: Sequence[int],
    dtype: torch.dtype,
    any_blocks: bool = False,
) -> list[int]:
    """The shape [N, K] or [E, N, K] of the weight that `tensors` make up.

    TypeError or ValueError if they, the block_size or the weight's dtype do not fit the table. `any_blocks`:
    whether blocks may be of several rows, and the last ones partial.
    """
    codes = tensors["qdata"]
    experts = int(isinstance(codes, Tensor) and codes.dim() == len(fields["qdata"].axes) + 1)
    for name, field in fields.items():
        tensor = tensors.get(name)
        if tensor is not None or not field.optional:
            dims = len(field.axes) + (experts if field.follows_experts else 0)
            _check_kind(who, name, field, tensor, dims)
    if dtype not in ACTIVATION_DTYPES:
        raise TypeError(f"{who}: dtype must be {one_of(ACTIVATION_DTYPES)}, got {shown(dtype)}")

    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    qdata = present["qdata"]
    axes = [*[Axis(E)] * experts, *fields["qdata"].axes]
    shape = [size * axis.step for size, axis in zip(qdata.shape, axes, strict=True) if axis.dim != FIXED]
    if experts and shape[E] == 0:
        raise ValueError(f"{who}: qdata must have experts, got {describe(qdata)}")
    check_block_size(who, block_size, any_blocks)
    if any_blocks and shape[K] == 0:
        raise ValueError(f"{who}: qdata must have columns, got {describe(qdata)}")
    if not any_blocks and (shape[K] == 0 or shape[K] % block_size[K]):
        raise ValueError(
            f"{who}: block_size must be [1, group_size] with a group_size that divides "
            f"K = {shape[K]}, got {list(block_size)}"
        )
    for name, tensor in present.items():
        expected = fields[name].shape(shape, block_size)
        if list(tensor.shape) != expected:
            raise ValueError(
                f"{who}: {name} must be {expected} for a weight {shape} with block_size "
                f"{list(block_size)}, got {describe(tensor)}"
            )
        if tensor.device != qdata.device:
            raise ValueError(f"{who}: {name} must be on qdata's device {qdata.device}, got {tensor.device}")
    return shape


def _check_kind(who: str, name: str, field: Field, tensor: Tensor | None, dims: int) -> None:
    """Raise unless a field is a dense tensor of the right dtype and number of dimensions."""
    message = f"{who}: {name} must be {one_of(field.dtypes)} with {dims} dimension(s), got {describe(tensor)}"
    if tensor is None or not is_dense(tensor) or tensor.dtype not in field.dtypes:
        raise TypeError(message)
    if tensor.dim() != dims:
        raise ValueError(message)


def check_block_size(
    who: str, block_size: Sequence[int], any_blocks: bool = False, argument: str = "block_size"
) -> None:
    """Raise unless block_size is [1, G] with a positive G, or with `any_blocks` two positive ints."""
    form = "[block_n, block_k]" if any_blocks else "[1, group_size]"
    message = f"{who}: {argument} must be {form}, two positive ints, got {shown(block_size)}"
    ints = isinstance(block_size, Sequence) and all(type(size) is int for size in block_size)
    if not ints or len(block_size) != 2:
        raise TypeError(message)
    if min(block_size) < 1 or (block_size[N] != 1 and not any_blocks):
        raise ValueError(message)


def gathered(field: Tensor, indices: Tensor, dim: int = 0) -> Tensor:
    """Entries of a field at `indices` along a dimension.

    Floats of 8 bits go as integers, for not every device gathers them. Over a batch of torch.vmap they are
    indexed: older torches have no rule for view(dtype) there.
    """
    if field.itemsize > 1 or not field.is_floating_point():
        return field.index_select(dim, indices)
    if torch._C._functorch.is_batchedtensor(indices):
        return field.movedim(dim, 0)[indices].movedim(0, dim)
    return field.view(torch.int8).index_select(dim, indices).view(field.dtype)
