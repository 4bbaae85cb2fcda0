"""What schemes share: the base of configurations, what shares a scale, and checks of their arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from aoext.formats.checks import describe, has_values, is_dense, shown
from aoext.formats.dtypes import FLOAT8_DTYPES, FLOAT_DTYPES, dtype_name, one_of
from aoext.packing.blockwise import check_scaling
from aoext.quality.scales import check_algorithm, fitted
from aoext.tensors import QuantizedTensor
from aoext.tensors.each_expert import by_expert
from aoext.tensors.fields import check_block_size

if TYPE_CHECKING:
    from typing_extensions import Self

# PerRow() where a configuration is written down.
PER_ROW = "per_row"


@dataclass(frozen=True)
class QuantizationConfig(ABC):
    """A way to quantise weights.

    algorithm: how scales and zero points are chosen. "rounding": by the extremes of what shares them;
        "search": for the least squared error, which no weight is worse by and which takes longer; "hqq":
        Half-Quadratic Quantization, for integers with zero points.
    """

    trains: ClassVar[bool] = False  # whether the weights that it makes take gradients

    algorithm: str = field(default="rounding", kw_only=True)

    def __init_subclass__(cls) -> None:
        cls.__repr__ = QuantizationConfig.__repr__  # type: ignore[method-assign]  # dataclass leaves it then

    def __post_init__(self) -> None:
        check_algorithm(type(self).__name__, self.algorithm, self._has_offsets)

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self.arguments().items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def arguments(self) -> dict[str, Any]:
        """What it was made of, by name; the algorithm last, and only where it is not rounding."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        algorithm = found.pop("algorithm")
        return found if algorithm == "rounding" else {**found, "algorithm": algorithm}

    @property
    def _has_offsets(self) -> bool:
        """Whether zero points are chosen."""
        return False

    @property
    def quant_method(self) -> str:
        """What transformers and diffusers ask of a quantization_config first; a scheme alone is none."""
        raise AttributeError(
            f"{type(self).__name__} is a scheme: from_pretrained takes "
            f"quantization_config=aoext.AoextConfig({self!r})"
        )

    def with_algorithm(self, algorithm: str | None) -> Self:
        """The config with another algorithm, where one is given. ValueError for one that it cannot have."""
        return self if algorithm is None else replace(self, algorithm=algorithm)

    def config_for(self, module: str) -> QuantizationConfig | None:
        """The config of the module of this name: PerModuleConfig has one for each."""
        return self

    @abstractmethod
    def rounded(self, weight: Tensor) -> QuantizedTensor:
        """What `quantize` gives by the algorithm "rounding"."""

    def quantize(self, weight: Tensor) -> QuantizedTensor:
        """The quantised weight [N, K] or [E, N, K], on its device. NaN or Inf in it raises ValueError."""
        if self.algorithm == "rounding" or not has_values(weight):
            return self.rounded(weight)

        def of_matrix(matrix: Tensor) -> QuantizedTensor:
            return self.stored(fitted(self.rounded(matrix), matrix, algorithm=self.algorithm).tensor(matrix))

        return by_expert(of_matrix, weight)

    def stored(self, weight: QuantizedTensor) -> QuantizedTensor:
        """A weight [N, K] on a grid of this config's as its layers keep it."""
        return weight

    def form(self, weight: Tensor) -> QuantizedTensor:
        """What `quantize` makes of a weight of this shape and dtype, without values."""
        return self.rounded(torch.empty(weight.shape, dtype=weight.dtype, device="meta"))

    def obstacle(self, weight: Tensor) -> str | None:
        """Why a weight of this kind, shape and dtype cannot be quantised so; None if it can."""
        trains = isinstance(weight, QuantizedTensor) and weight.trains
        if isinstance(weight, QuantizedTensor) and not trains:
            return f"already quantised: {weight}"
        if (is_traceable_wrapper_subclass(weight) and not trains) or not is_dense(weight):
            kind = type(weight).__name__ if is_dense(weight) else describe(weight)
            return f"its weight must be a dense tensor, not {kind}"
        if weight.dim() not in (2, 3):
            return f"its weight must be [N, K], not {list(weight.shape)}"
        if weight.dtype not in FLOAT_DTYPES:
            return f"its weight must be {one_of(FLOAT_DTYPES)}, not {dtype_name(weight.dtype)}"
        if weight.numel() == 0:
            return f"its weight is empty: {list(weight.shape)}"
        if not trains and weight.untyped_storage().nbytes() == 0:
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
