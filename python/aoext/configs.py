"""How to quantise a weight: one frozen dataclass for each scheme, with torchao's names.

A config turns one weight into one tensor and says which weights it cannot serve; quantize_ does the
rest, and knows no scheme by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from aoext.packing import (
    FLOAT8_DTYPES,
    FLOAT_DTYPES,
    WHOLE_ROW,
    check_group_size,
    describe,
    dtype_name,
    is_dense,
    one_of,
)
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor, QuantizedTensor

# The group_size that is chosen layer by layer, and the sizes in question.
AUTO: Literal["auto"] = "auto"
AUTO_GROUP_SIZES = (128, 64, 32, 16)

# The largest K of a product of two int8 matrices, whose sums are int32.
INT8_MAX_K = 131071


@dataclass(frozen=True)
class QuantizationConfig(ABC):
    """A way to quantise weights."""

    @property
    def quant_method(self) -> str:
        """What transformers and diffusers ask of a quantization_config first; a scheme alone is none."""
        raise AttributeError(
            f"{type(self).__name__} is a scheme: from_pretrained takes "
            f"quantization_config=aoext.AoextConfig({self!r})"
        )

    @abstractmethod
    def quantize(self, weight: Tensor) -> QuantizedTensor:
        """The quantised weight [N, K], on the same device. NaN or Inf in it raises ValueError."""

    def obstacle(self, weight: Tensor) -> str | None:
        """Why a weight of this kind, shape and dtype cannot be quantised so; None if it can."""
        if isinstance(weight, QuantizedTensor):
            return f"already quantised: {weight}"
        if is_traceable_wrapper_subclass(weight) or not is_dense(weight):
            kind = type(weight).__name__ if is_dense(weight) else describe(weight)
            return f"its weight must be a dense tensor, not {kind}"
        if weight.dim() != 2:
            return f"its weight must be [N, K], not {list(weight.shape)}"
        if weight.dtype not in FLOAT_DTYPES:
            return f"its weight must be {one_of(FLOAT_DTYPES)}, not {dtype_name(weight.dtype)}"
        if weight.numel() == 0:
            return f"its weight is empty: {list(weight.shape)}"
        if weight.untyped_storage().nbytes() == 0:
            return "the memory of its weight was freed, as FSDP does between calls"
        return None


@dataclass(frozen=True)
class Int4WeightOnlyConfig(QuantizationConfig):
    """int4 weights in groups of group_size along K, activations as they are.

    group_size: one that divides K; −1 for the whole row; or "auto", for each layer the largest of 128, 64, 32
        and 16 that divides its K.
    symmetric: no zero points; a little less exact.
    """

    group_size: int | Literal["auto"] = 128
    symmetric: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.group_size, str) and self.group_size != AUTO:
            raise ValueError(
                f"Int4WeightOnlyConfig: group_size must be an int or {AUTO!r}, got {self.group_size!r}"
            )
        if self.group_size != AUTO:
            check_group_size("Int4WeightOnlyConfig", self.group_size)
        _check_bool("Int4WeightOnlyConfig", "symmetric", self.symmetric)

    def obstacle(self, weight: Tensor) -> str | None:
        if (general := super().obstacle(weight)) is not None:
            return general
        columns = weight.shape[1]
        if columns % 2:
            return f"K = {columns} is odd"
        group_size = self._group_size(columns)
        if group_size is None:
            return f"none of {', '.join(map(str, AUTO_GROUP_SIZES))} divides K = {columns}"
        if columns % group_size:
            fitting = _largest_that_divides(columns)
            instead = f" ({fitting} or group_size={AUTO!r} would)" if fitting else ""
            return f"group_size = {group_size} does not divide K = {columns}{instead}"
        return None

    def quantize(self, weight: Tensor) -> Int4Tensor:
        group_size = self._group_size(weight.shape[1])
        if group_size is None:
            raise ValueError(f"Int4WeightOnlyConfig: {self.obstacle(weight)}")
        return Int4Tensor.from_hp(weight, [1, group_size], symmetric=self.symmetric)

    def _group_size(self, columns: int) -> int | None:
        """The group size for a weight [N, columns]; None if "auto" finds none."""
        if self.group_size == AUTO:
            return _largest_that_divides(columns)
        return columns if self.group_size == WHOLE_ROW else self.group_size


def _largest_that_divides(columns: int) -> int | None:
    return next((size for size in AUTO_GROUP_SIZES if columns % size == 0), None)


@dataclass(frozen=True)
class Int8WeightOnlyConfig(QuantizationConfig):
    """int8 weights with a scale for each row, activations as they are."""

    def quantize(self, weight: Tensor) -> Int8Tensor:
        return Int8Tensor.from_hp(weight)


@dataclass(frozen=True)
class Int8DynamicActivationInt8WeightConfig(QuantizationConfig):
    """int8 weights with a scale for each row; activations are quantised alike at every call."""

    def obstacle(self, weight: Tensor) -> str | None:
        if (general := super().obstacle(weight)) is not None:
            return general
        columns = weight.shape[1]
        return f"K = {columns} is more than {INT8_MAX_K}" if columns > INT8_MAX_K else None

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
