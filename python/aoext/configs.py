"""How to quantise a weight: one frozen dataclass for each scheme, with torchao's names.

A config turns one weight into one tensor and says which weights it cannot serve; quantize_ does the
rest, and knows no scheme by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from aoext.blocks import LUT4_FORMATS, Scaling, check_scaling
from aoext.packing import (
    FLOAT8_DTYPES,
    FLOAT_DTYPES,
    WHOLE_ROW,
    check_group_size,
    describe,
    dtype_name,
    is_dense,
    one_of,
    shown,
)
from aoext.tensors import (
    BlockwiseTensor,
    Float8Tensor,
    Int4Tensor,
    Int8Tensor,
    Lut4Tensor,
    QuantizedTensor,
)
from aoext.tensors.fields import check_block_size

# The group_size that is chosen layer by layer, and the sizes in question.
AUTO: Literal["auto"] = "auto"
AUTO_GROUP_SIZES = (128, 64, 32, 16)

# PerRow() where a configuration is written down.
PER_ROW = "per_row"

# The largest K of a product of two int8 matrices, whose sums are int32.
INT8_MAX_K = 131071


@dataclass(frozen=True)
class QuantizationConfig(ABC):
    """A way to quantise weights."""

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
class PerRow:
    """One scale for each row, as torchao's class of this name, which serves as well."""


@dataclass(frozen=True)
class PerBlock:
    """One scale for each block [block_n, block_k], as torchao's class of this name, which serves as well.

    >>> PerBlock([128, 128])
    PerBlock(block_size=(128, 128))
    """

    block_size: Sequence[int]

    def __post_init__(self) -> None:
        check_block_size("PerBlock", self.block_size, any_blocks=True)
        object.__setattr__(self, "block_size", tuple(self.block_size))


Granularity = PerRow | PerBlock


def _granularity(who: str, value: Any) -> Granularity:
    """A granularity of ours, of torchao's, or as schemes.to_dict writes it: "per_row", or a block_size."""
    kind = type(value).__name__
    if value == PER_ROW or kind == "PerRow":
        return PerRow()
    if kind == "PerBlock":
        return PerBlock(list(value.block_size))
    if isinstance(value, (list, tuple)) and all(type(size) is int for size in value):
        return PerBlock(value)
    raise TypeError(f"{who}: granularity must be PerRow() or PerBlock(block_size), got {value!r}")


def _of_both(who: str, value: Any) -> tuple[Granularity, Granularity]:
    """Those of activations and of weights, of one for both or of a pair."""
    pair = isinstance(value, (list, tuple)) and len(value) == 2 and not isinstance(value[0], int)
    activation, weight = (_granularity(who, each) for each in (value if pair else (value, value)))
    if type(activation) is not type(weight) or (
        isinstance(activation, PerBlock) and activation.block_size[0] != 1
    ):
        raise ValueError(
            f"{who}: granularity must be PerRow(), or (PerBlock([1, block_k]), PerBlock([block_n, block_k])) "
            f"for activations and weights, got {value!r}"
        )
    return activation, weight


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
        _check_bool(who, "symmetric", self.symmetric)

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
        return _too_long(self.activation, columns)

    def quantize(self, weight: Tensor) -> Int4Tensor:
        group_size = self._group_size(weight.shape[1])
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


def _too_long(dtype: torch.dtype | None, columns: int) -> str | None:
    """Why sums of products of activations in `dtype` do not fit."""
    long = dtype is torch.int8 and columns > INT8_MAX_K
    return f"K = {columns} is more than {INT8_MAX_K}" if long else None


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
        return _too_long(torch.int8, weight.shape[1])

    def quantize(self, weight: Tensor) -> Int8Tensor:
        return Int8Tensor.from_hp(weight, dynamic_activation=True)


@dataclass(frozen=True)
class Float8WeightOnlyConfig(QuantizationConfig):
    """float8 weights with a scale for each row or block, activations as they are.

    weight_dtype: float8_e4m3fn or float8_e5m2.
    granularity: PerRow() or PerBlock([block_n, block_k]).
    """

    weight_dtype: torch.dtype = torch.float8_e4m3fn
    granularity: Any = field(default_factory=PerRow)

    def __post_init__(self) -> None:
        who = type(self).__name__
        _check_float8(who, "weight_dtype", self.weight_dtype)
        object.__setattr__(self, "granularity", _granularity(who, self.granularity))

    def quantize(self, weight: Tensor) -> QuantizedTensor:
        if isinstance(self.granularity, PerBlock):
            return BlockwiseTensor.from_hp(weight, self.granularity.block_size, self.weight_dtype)
        return Float8Tensor.from_hp(weight, self.weight_dtype)


@dataclass(frozen=True)
class Float8DynamicActivationFloat8WeightConfig(QuantizationConfig):
    """float8 weights with a scale for each row or block; activations are quantised alike at every call.

    weight_dtype: float8_e4m3fn or float8_e5m2.
    granularity: PerRow(), or (PerBlock([1, 128]), PerBlock([128, 128])) for activations and weights, as
        DeepSeek's models have it; other sizes too.
    """

    weight_dtype: torch.dtype = torch.float8_e4m3fn
    granularity: Any = field(default_factory=PerRow)

    def __post_init__(self) -> None:
        who = type(self).__name__
        _check_float8(who, "weight_dtype", self.weight_dtype)
        activation, weight = _of_both(who, self.granularity)
        object.__setattr__(
            self, "granularity", weight if isinstance(weight, PerRow) else (activation, weight)
        )

    def quantize(self, weight: Tensor) -> QuantizedTensor:
        if isinstance(self.granularity, PerRow):
            return Float8Tensor.from_hp(weight, self.weight_dtype, dynamic_activation=True)
        activation, blocks = self.granularity
        return BlockwiseTensor.from_hp(
            weight, blocks.block_size, self.weight_dtype, input_block=activation.block_size
        )


@dataclass(frozen=True)
class MXDynamicActivationMXWeightConfig(QuantizationConfig):
    """mxfp8: float8 weights with a power of two for every 32 along K; activations alike at every call.

    block_size: how many share a power of two; 32 is OCP's.
    activation_dtype, weight_dtype: float8_e4m3fn or float8_e5m2, the same; MXFP4WeightOnlyConfig has 4 bits.
    scaling_mode: "rceil" rounds the power of two up, "floor" is OCP's; of weights. That of activations is
        rounded up.
    """

    block_size: int = 32
    activation_dtype: torch.dtype = torch.float8_e4m3fn
    weight_dtype: torch.dtype = torch.float8_e4m3fn
    scaling_mode: Scaling = "rceil"

    def __post_init__(self) -> None:
        who = type(self).__name__
        _check_positive(who, "block_size", self.block_size)
        for name in ("activation_dtype", "weight_dtype"):
            _check_float8(who, name, getattr(self, name))
        if self.activation_dtype is not self.weight_dtype:
            raise ValueError(
                f"{who}: activation_dtype must be weight_dtype, {dtype_name(self.weight_dtype)}, "
                f"got {dtype_name(self.activation_dtype)}"
            )
        _take_scaling_mode(who, self)

    def quantize(self, weight: Tensor) -> BlockwiseTensor:
        block = [1, self.block_size]
        return BlockwiseTensor.from_hp(
            weight,
            block,
            self.weight_dtype,
            scale_dtype=torch.float8_e8m0fnu,
            scaling=self.scaling_mode,
            input_block=block,
        )


@dataclass(frozen=True)
class _Lut4Config(QuantizationConfig):
    """Weights of 4 bits that look a table of 16 values up."""

    def obstacle(self, weight: Tensor) -> str | None:
        if (general := super().obstacle(weight)) is not None:
            return general
        return f"K = {weight.shape[1]} is odd" if weight.shape[1] % 2 else None


@dataclass(frozen=True)
class MXFP4WeightOnlyConfig(_Lut4Config):
    """mxfp4: floats of 4 bits with a power of two for every 32 along K, activations as they are.

    scaling_mode: "rceil" rounds the power of two up, "floor" is OCP's.
    """

    scaling_mode: Scaling = "rceil"

    def __post_init__(self) -> None:
        _take_scaling_mode(type(self).__name__, self)

    def quantize(self, weight: Tensor) -> Lut4Tensor:
        return Lut4Tensor.from_hp(weight, "mxfp4", scaling=self.scaling_mode)


@dataclass(frozen=True)
class NVFP4WeightOnlyConfig(_Lut4Config):
    """nvfp4: floats of 4 bits with a scale in float8_e4m3fn for every 16 along K, activations as they are.

    use_dynamic_per_tensor_scale: one float32 for the whole weight too, by which the others reach far enough.
    """

    use_dynamic_per_tensor_scale: bool = True

    def __post_init__(self) -> None:
        _check_bool(type(self).__name__, "use_dynamic_per_tensor_scale", self.use_dynamic_per_tensor_scale)

    def quantize(self, weight: Tensor) -> Lut4Tensor:
        return Lut4Tensor.from_hp(weight, "nvfp4", two_scales=self.use_dynamic_per_tensor_scale)


@dataclass(frozen=True)
class NF4WeightOnlyConfig(_Lut4Config):
    """NF4, QLoRA's: quantiles of the normal distribution and a scale for each block, activations as they are.

    block_size: how many along K share a scale; bitsandbytes has 64.
    """

    block_size: int = LUT4_FORMATS["nf4"].block_k

    def __post_init__(self) -> None:
        _check_positive(type(self).__name__, "block_size", self.block_size)

    def quantize(self, weight: Tensor) -> Lut4Tensor:
        return Lut4Tensor.from_hp(weight, "nf4", block_size=[1, self.block_size])


def _check_float8(who: str, name: str, dtype: torch.dtype) -> None:
    if dtype not in FLOAT8_DTYPES:
        raise ValueError(f"{who}: {name} must be {one_of(FLOAT8_DTYPES)}, got {dtype}")


def _check_positive(who: str, name: str, value: int) -> None:
    if type(value) is not int:
        raise TypeError(f"{who}: {name} must be an int, got {shown(value)}")
    if value < 1:
        raise ValueError(f"{who}: {name} must be positive, got {value}")


def _take_scaling_mode(who: str, config: Any) -> None:
    """Have the name of a scaling mode, in place of torchao's enumeration where that was given."""
    mode = getattr(config.scaling_mode, "value", config.scaling_mode)
    check_scaling(who, "scaling_mode", mode)
    object.__setattr__(config, "scaling_mode", mode)


def _check_bool(who: str, name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{who}: {name} must be a bool, got {value!r}")
