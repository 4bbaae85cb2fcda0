"""int8 and float8 weights by rows and by blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aoext.configs.base import (
    PerBlock,
    PerRow,
    QuantizationConfig,
    check_float8,
    check_positive,
    granularities_of,
    granularity_of,
    take_scaling_mode,
    too_long,
)
from aoext.formats.dtypes import dtype_name
from aoext.packing.blockwise import Scaling
from aoext.tensors import BlockwiseTensor, Float8Tensor, Int8Tensor, QuantizedTensor


@dataclass(frozen=True)
class Int8WeightOnlyConfig(QuantizationConfig):
    """int8 weights with a scale for each row, activations as they are."""

    def rounded(self, weight: Tensor) -> Int8Tensor:
        return Int8Tensor.from_hp(weight)


@dataclass(frozen=True)
class Int8DynamicActivationInt8WeightConfig(QuantizationConfig):
    """int8 weights with a scale for each row; activations are quantised alike at every call."""

    def obstacle(self, weight: Tensor) -> str | None:
        if (general := super().obstacle(weight)) is not None:
            return general
        return too_long(torch.int8, weight.shape[-1])

    def rounded(self, weight: Tensor) -> Int8Tensor:
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
        super().__post_init__()
        who = type(self).__name__
        check_float8(who, "weight_dtype", self.weight_dtype)
        object.__setattr__(self, "granularity", granularity_of(who, self.granularity))

    def rounded(self, weight: Tensor) -> QuantizedTensor:
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
        super().__post_init__()
        who = type(self).__name__
        check_float8(who, "weight_dtype", self.weight_dtype)
        activation, weight = granularities_of(who, self.granularity)
        object.__setattr__(
            self, "granularity", weight if isinstance(weight, PerRow) else (activation, weight)
        )

    def rounded(self, weight: Tensor) -> QuantizedTensor:
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
        super().__post_init__()
        who = type(self).__name__
        check_positive(who, "block_size", self.block_size)
        for name in ("activation_dtype", "weight_dtype"):
            check_float8(who, name, getattr(self, name))
        if self.activation_dtype is not self.weight_dtype:
            raise ValueError(
                f"{who}: activation_dtype must be weight_dtype, {dtype_name(self.weight_dtype)}, "
                f"got {dtype_name(self.activation_dtype)}"
            )
        take_scaling_mode(who, self)

    def rounded(self, weight: Tensor) -> BlockwiseTensor:
        block = [1, self.block_size]
        return BlockwiseTensor.from_hp(
            weight,
            block,
            self.weight_dtype,
            scale_dtype=torch.float8_e8m0fnu,
            scaling=self.scaling_mode,
            input_block=block,
        )
