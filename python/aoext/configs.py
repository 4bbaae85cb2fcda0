"""How to quantise a weight: one frozen dataclass for each scheme, with torchao's names.

A config turns one weight into one tensor and says which weights it cannot serve; quantize_ does the
rest, and knows no scheme by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from aoext.packing import FLOAT8_DTYPES, FLOAT_DTYPES, check_group_size, dtype_name, one_of
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor, QuantizedTensor


@dataclass(frozen=True)
class QuantizationConfig(ABC):
    """A way to quantise weights."""

    @abstractmethod
    def quantize(self, weight: Tensor) -> QuantizedTensor:
        """The quantised weight [N, K], on the same device. NaN or Inf in it raises ValueError."""

    def obstacle(self, weight: Tensor) -> str | None:
        """Why a weight of this shape and dtype cannot be quantised so; None if it can."""
        if isinstance(weight, QuantizedTensor):
            return f"already quantised: {weight}"
        if weight.dtype not in FLOAT_DTYPES:
            return f"its weight must be {one_of(FLOAT_DTYPES)}, not {dtype_name(weight.dtype)}"
        if weight.numel() == 0:
            return f"its weight is empty: {list(weight.shape)}"
        return None


@dataclass(frozen=True)
class Int4WeightOnlyConfig(QuantizationConfig):
    """int4 weights in groups of group_size along K, activations as they are.

    symmetric: no zero points; a little less exact.
    """

    group_size: int = 128
    symmetric: bool = False

    def __post_init__(self) -> None:
        check_group_size("Int4WeightOnlyConfig", self.group_size)
        _check_bool("Int4WeightOnlyConfig", "symmetric", self.symmetric)

    def obstacle(self, weight: Tensor) -> str | None:
        columns = weight.shape[1]
        if (general := super().obstacle(weight)) is not None:
            return general
        if columns % 2:
            return f"K = {columns} is odd"
        if columns % self.group_size:
            return f"group_size = {self.group_size} does not divide K = {columns}"
        return None

    def quantize(self, weight: Tensor) -> Int4Tensor:
        return Int4Tensor.from_hp(weight, [1, self.group_size], symmetric=self.symmetric)


@dataclass(frozen=True)
class Int8WeightOnlyConfig(QuantizationConfig):
    """int8 weights with a scale for each row, activations as they are."""

    def quantize(self, weight: Tensor) -> Int8Tensor:
        return Int8Tensor.from_hp(weight)


@dataclass(frozen=True)
class Int8DynamicActivationInt8WeightConfig(QuantizationConfig):
    """int8 weights with a scale for each row; activations are quantised alike at every call."""

    def quantize(self, weight: Tensor) -> Int8Tensor:
        return Int8Tensor.from_hp(weight, dynamic_activation=True)


@dataclass(frozen=True)
class Float8WeightOnlyConfig(QuantizationConfig):
    """float8 weights with a scale for each row, activations as they are.

    weight_dtype: float8_e4m3fn or float8_e5m2.
    """

    weight_dtype: torch.dtype = torch.float8_e4m3fn

    def __post_init__(self) -> None:
        _check_float8("Float8WeightOnlyConfig", self.weight_dtype)

    def quantize(self, weight: Tensor) -> Float8Tensor:
        return Float8Tensor.from_hp(weight, self.weight_dtype)


@dataclass(frozen=True)
class Float8DynamicActivationFloat8WeightConfig(QuantizationConfig):
    """float8 weights with a scale for each row; activations are quantised alike at every call.

    weight_dtype: float8_e4m3fn or float8_e5m2.
    """

    weight_dtype: torch.dtype = torch.float8_e4m3fn

    def __post_init__(self) -> None:
        _check_float8("Float8DynamicActivationFloat8WeightConfig", self.weight_dtype)

    def quantize(self, weight: Tensor) -> Float8Tensor:
        return Float8Tensor.from_hp(weight, self.weight_dtype, dynamic_activation=True)


def _check_float8(who: str, dtype: torch.dtype) -> None:
    if dtype not in FLOAT8_DTYPES:
        raise ValueError(f"{who}: weight_dtype must be {one_of(FLOAT8_DTYPES)}, got {dtype}")


def _check_bool(who: str, name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{who}: {name} must be a bool, got {value!r}")
