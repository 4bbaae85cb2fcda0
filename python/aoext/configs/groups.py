"""Weights of integers of 2 to 8 bits in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from aoext.configs.base import QuantizationConfig, check_bool, too_long
from aoext.formats.checks import shown
from aoext.formats.table import FORMATS
from aoext.packing.groups import WHOLE_ROW, check_group_size, columns_of
from aoext.tensors import GROUPS_TYPES, BlockwiseTensor, QuantizedTensor

# The group_size that is chosen layer by layer, and the sizes in question.
AUTO: Literal["auto"] = "auto"
AUTO_GROUP_SIZES = (128, 64, 32, 16)


@dataclass(frozen=True)
class _GroupsConfig(QuantizationConfig):
    """Weights in groups of group_size along K, of 4 bits where a config does not say it."""

    activation: ClassVar[torch.dtype | None] = None  # to which activations are quantised

    group_size: int | Literal["auto"] = 128
    symmetric: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        who = type(self).__name__
        if isinstance(self.group_size, str) and self.group_size != AUTO:
            raise ValueError(f"{who}: group_size must be an int or {AUTO!r}, got {self.group_size!r}")
        if self.group_size != AUTO:
            check_group_size(who, self.group_size)
        check_bool(who, "symmetric", self.symmetric)

    def obstacle(self, weight: Tensor) -> str | None:
        if (general := super().obstacle(weight)) is not None:
            return general
        columns = weight.shape[-1]
        kind = GROUPS_TYPES.get(self._bits())
        if kind is not None and columns % (format := FORMATS[kind.codes[0]]).values:
            return (
                f"K = {columns} is odd"
                if format.values == 2
                else f"{columns_of(format)} is wanted, got {columns}"
            )
        group_size = self._group_size(columns)
        if group_size is None:
            return f"none of {', '.join(map(str, AUTO_GROUP_SIZES))} divides K = {columns}"
        if columns % group_size:
            fitting = _largest_that_divides(columns)
            instead = f" ({fitting} or group_size={AUTO!r} would)" if fitting else ""
            return f"group_size = {group_size} does not divide K = {columns}{instead}"
        return too_long(self.activation, columns)

    def rounded(self, weight: Tensor) -> QuantizedTensor:
        group_size = self._group_size(weight.shape[-1])
        if group_size is None:
            raise ValueError(f"{type(self).__name__}: {self.obstacle(weight)}")
        block, symmetric = [1, group_size], self.symmetric
        kind = GROUPS_TYPES.get(self._bits())
        if kind is not None:
            return kind.from_hp(weight, block, symmetric=symmetric, activation=self.activation)
        return BlockwiseTensor.from_hp(
            weight, block, torch.int8, scale_dtype=weight.dtype, symmetric=symmetric
        )

    @property
    def _has_offsets(self) -> bool:
        return not self.symmetric

    def _bits(self) -> int:
        return 4

    def _group_size(self, columns: int) -> int | None:
        """The group size for a weight [N, columns]; None if "auto" finds none."""
        if self.group_size == AUTO:
            return _largest_that_divides(columns)
        return columns if self.group_size == WHOLE_ROW else self.group_size


def _largest_that_divides(columns: int) -> int | None:
    return next((size for size in AUTO_GROUP_SIZES if columns % size == 0), None)


@dataclass(frozen=True)
class Int4WeightOnlyConfig(_GroupsConfig):
    """int4 weights in groups of group_size along K, activations as they are.

    group_size: one that divides K; −1 for the whole row; or "auto", for each layer the largest of 128, 64, 32
        and 16 that divides its K.
    symmetric: no zero points; a little less exact.
    """


@dataclass(frozen=True)
class Int8DynamicActivationInt4WeightConfig(_GroupsConfig):
    """int4 weights as Int4WeightOnlyConfig makes them; activations become int8 by row at every call."""

    activation: ClassVar[torch.dtype | None] = torch.int8

    group_size: int | Literal["auto"] = 32


@dataclass(frozen=True)
class Float8DynamicActivationInt4WeightConfig(_GroupsConfig):
    """int4 weights as Int4WeightOnlyConfig makes them; activations become float8_e4m3fn by row."""

    activation: ClassVar[torch.dtype | None] = torch.float8_e4m3fn


@dataclass(frozen=True)
class IntxWeightOnlyConfig(_GroupsConfig):
    """Weights of 2 to 8 bits in groups of group_size along K, activations as they are.

    bits: of a weight; 4 is Int4WeightOnlyConfig's, and of 8 zero points are integers
    group_size, symmetric: as Int4WeightOnlyConfig has them; weights of 3, 5, 6 and 7 bits need a K that is a
        multiple of 32, of 2 bits one of 4

    >>> IntxWeightOnlyConfig(bits=3, group_size=64)
    IntxWeightOnlyConfig(bits=3, group_size=64, symmetric=False)
    """

    bits: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        who = type(self).__name__
        if type(self.bits) is not int:
            raise TypeError(f"{who}: bits must be an int, got {shown(self.bits)}")
        if not 2 <= self.bits <= 8:
            raise ValueError(f"{who}: bits must be 2 to 8, got {self.bits}")

    def _bits(self) -> int:
        return self.bits
