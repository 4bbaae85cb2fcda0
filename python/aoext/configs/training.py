"""How layers train with products, or weights, of 8 bits; the names are torchao's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, cast, get_args

import torch
from torch import Tensor

from aoext.configs.base import QuantizationConfig, check_bool
from aoext.tensors.int8_training import Int8TrainingTensor
from aoext.training.products import EightBits

Recipe = Literal["rowwise", "rowwise_with_gw_hp", "blockwise"]

# Rows and columns of a weight that share a scale in DeepSeek-V3's recipe.
BLOCK = 128


@dataclass(frozen=True)
class Int8WeightOnlyQuantizedTrainingConfig(QuantizationConfig):
    """Weights that train in int8 with a scale for each row; activations and gradients as they are.

    Optimizers change them in float32 and round at random, up or down with the odds that keep the mean.
    """

    trains: ClassVar[bool] = True

    def obstacle(self, weight: Tensor) -> str | None:
        if weight.dim() != 2:
            return f"its weight must be [N, K], not {list(weight.shape)}"
        return super().obstacle(weight)

    def rounded(self, weight: Tensor) -> Int8TrainingTensor:
        return Int8TrainingTensor.from_hp(weight)


@dataclass(frozen=True)
class EightBitTrainingConfig(ABC):
    """A way to make the products of layers whose weights stay in high precision."""

    @abstractmethod
    def products(self) -> EightBits:
        """How a layer's products are made."""


@dataclass(frozen=True)
class Int8MixedPrecisionTrainingConfig(EightBitTrainingConfig):
    """Products of int8: weights, activations and gradients are quantised on the way, with a scale a row.

    output, grad_input, grad_weight: which of a layer's three products are of int8.
    module_swap: torchao's choice of a layer's class in place of a weight's; here it always is the layer's.
    """

    output: bool = True
    grad_input: bool = True
    grad_weight: bool = True
    module_swap: bool = True

    def __post_init__(self) -> None:
        for name in ("output", "grad_input", "grad_weight", "module_swap"):
            check_bool(type(self).__name__, name, getattr(self, name))

    def products(self) -> EightBits:
        return EightBits(
            torch.int8, output=self.output, grad_input=self.grad_input, grad_weight=self.grad_weight
        )


@dataclass(frozen=True)
class Float8LinearConfig(EightBitTrainingConfig):
    """Products of float8_e4m3fn: weights, activations and gradients are quantised on the way.

    recipe: "rowwise" has a power of two for each row, along what a product sums over;
        "rowwise_with_gw_hp" too, and the gradient of weights in high precision; "blockwise" has a scale for
        128 values of a product's first operand, and for [128, 128] of its second: w, w and x.
    """

    recipe: Recipe = "rowwise"

    def __post_init__(self) -> None:
        recipe = getattr(self.recipe, "value", self.recipe)  # of torchao's enumeration
        if recipe not in get_args(Recipe):
            raise ValueError(
                f"{type(self).__name__}: recipe must be one of {', '.join(get_args(Recipe))}, got {recipe!r}"
            )
        object.__setattr__(self, "recipe", recipe)

    @staticmethod
    def from_recipe_name(recipe_name: str) -> Float8LinearConfig:
        """The config of a recipe by name."""
        return Float8LinearConfig(cast(Recipe, recipe_name))

    def products(self) -> EightBits:
        if self.recipe == "blockwise":
            return EightBits(torch.float8_e4m3fn, BLOCK, BLOCK)
        return EightBits(torch.float8_e4m3fn, power_of_two=True, grad_weight=self.recipe == "rowwise")


@dataclass(frozen=True)
class Float8BlockwiseLinearConfig(Float8LinearConfig):
    """Float8LinearConfig("blockwise"), by torchao's name."""

    recipe: Recipe = "blockwise"
