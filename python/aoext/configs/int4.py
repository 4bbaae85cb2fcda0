"""int4 weights in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from aoext.configs.base import QuantizationConfig, check_bool, too_long
from aoext.packing.groups import WHOLE_ROW, check_group_size
from aoext.tensors import Int4Tensor

# The group_size that is chosen layer by layer, and the sizes in question.
AUTO: Literal["auto"] = "auto"
AUTO_GROUP_SIZES = (128, 64, 32, 16)


@dataclass(frozen=True)
class _Int4Config(QuantizationConfig):
    """int4 weights in groups of group_size along K."""

    activation: ClassVar[torch.dtype | None] = None  # to which activations are quantised

    group_size: int | Literal["auto"] = 128
    symmetric: bool = False

    def __post_init__(self) -> None:
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
        if columns % 2:
            return f"K = {columns} is odd"
        group_size = self._group_size(columns)
        if group_size is None:
            return f"none of {', '.join(map(str, AUTO_GROUP_SIZES))} divides K = {columns}"
        if columns % group_size:
            fitting = _largest_that_divides(columns)
            instead = f" ({fitting} or group_size={AUTO!r} would)" if fitting else ""
            return f"group_size = {group_size} does not divide K = {columns}{instead}"
        return too_long(self.activation, columns)

    def quantize(self, weight: Tensor) -> Int4Tensor:
        group_size = self._group_size(weight.shape[-1])
        if group_size is None:
            raise ValueError(f"{type(self).__name__}: {self.obstacle(weight)}")
        return Int4Tensor.from_hp(
            weight, [1, group_size], symmetric=self.symmetric, activation=self.activation
        )

    def _group_size(self, columns: int) -> int | None:
        """The group size for a weight [N, columns]; None if "auto" finds none."""
        if self.group_size == AUTO:
            return _largest_that_divides(columns)
        return columns if self.group_size == WHOLE_ROW else self.group_size


def _largest_that_divides(columns: int) -> int | None:
    return next((size for size in AUTO_GROUP_SIZES if columns % size == 0), None)


@dataclass(frozen=True)
class Int4WeightOnlyConfig(_Int4Config):
    """int4 weights in groups of group_size along K, activations as they are.

    group_size: one that divides K; −1 for the whole row; or "auto", for each layer the largest of 128, 64, 32
        and 16 that divides its K.
    symmetric: no zero points; a little less exact.
    """


@dataclass(frozen=True)
class Int8DynamicActivationInt4WeightConfig(_Int4Config):
    """int4 weights as Int4WeightOnlyConfig makes them; activations become int8 by row at every call."""

    activation: ClassVar[torch.dtype | None] = torch.int8

    group_size: int | Literal["auto"] = 32


@dataclass(frozen=True)
class Float8DynamicActivationInt4WeightConfig(_Int4Config):
    """int4 weights as Int4WeightOnlyConfig makes them; activations become float8_e4m3fn by row."""

    activation: ClassVar[torch.dtype | None] = torch.float8_e4m3fn
