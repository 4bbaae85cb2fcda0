"""What schemes share: the base of configurations, what shares a scale, and checks of their arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from aoext.formats.checks import describe, is_dense, shown
from aoext.formats.dtypes import FLOAT8_DTYPES, FLOAT_DTYPES, dtype_name, one_of
from aoext.packing.blockwise import check_scaling
from aoext.tensors import QuantizedTensor
from aoext.tensors.fields import check_block_size

# PerRow() where a configuration is written down.
PER_ROW = "per_row"


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
        """The quantised weight [N, K] or [E, N, K], on its device. NaN or Inf in it raises ValueError."""

    def obstacle(self, weight: Tensor) -> str | None:
        """Why a weight of this kind, shape and dtype cannot be quantised so; None if it can."""
        if isinstance(weight, QuantizedTensor):
            return f"already quantised: {weight}"
        if is_traceable_wrapper_subclass(weight) or not is_dense(weight):
            kind = type(weight).__name__ if is_dense(weight) else describe(weight)
            return f"its weight must be a dense tensor, not {kind}"
        if weight.dim() not in (2, 3):
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


def granularity_of(who: str, value: Any) -> Granularity:
    """A granularity of ours, of torchao's, or as schemes.to_dict writes it: "per_row", or a block_size."""
    kind = type(value).__name__
    if value == PER_ROW or kind == "PerRow":
        return PerRow()
    if kind == "PerBlock":
        return PerBlock(list(value.block_size))
    if isinstance(value, (list, tuple)) and all(type(size) is int for size in value):
        return PerBlock(value)
    raise TypeError(f"{who}: granularity must be PerRow() or PerBlock(block_size), got {value!r}")


def granularities_of(who: str, value: Any) -> tuple[Granularity, Granularity]:
    """Those of activations and of weights, of one for both or of a pair."""
    pair = isinstance(value, (list, tuple)) and len(value) == 2 and not isinstance(value[0], int)
    activation, weight = (granularity_of(who, each) for each in (value if pair else (value, value)))
    if type(activation) is not type(weight) or (
        isinstance(activation, PerBlock) and activation.block_size[0] != 1
    ):
        raise ValueError(
            f"{who}: granularity must be PerRow(), or (PerBlock([1, block_k]), PerBlock([block_n, block_k])) "
            f"for activations and weights, got {value!r}"
        )
    return activation, weight


def check_float8(who: str, name: str, dtype: torch.dtype) -> None:
    if dtype not in FLOAT8_DTYPES:
        raise ValueError(f"{who}: {name} must be {one_of(FLOAT8_DTYPES)}, got {dtype}")


def check_positive(who: str, name: str, value: int) -> None:
    if type(value) is not int:
        raise TypeError(f"{who}: {name} must be an int, got {shown(value)}")
    if value < 1:
        raise ValueError(f"{who}: {name} must be positive, got {value}")


def take_scaling_mode(who: str, config: Any) -> None:
    """Have the name of a scaling mode, in place of torchao's enumeration where that was given."""
    mode = getattr(config.scaling_mode, "value", config.scaling_mode)
    check_scaling(who, "scaling_mode", mode)
    object.__setattr__(config, "scaling_mode", mode)


def check_bool(who: str, name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{who}: {name} must be a bool, got {value!r}")


# The largest K of a product of two int8 matrices, whose sums are int32.
INT8_MAX_K = 131071


def too_long(dtype: torch.dtype | None, columns: int) -> str | None:
    """Why sums of products of activations in `dtype` do not fit."""
    long = dtype is torch.int8 and columns > INT8_MAX_K
    return f"K = {columns} is more than {INT8_MAX_K}" if long else None
