"""Weights of 4 bits that look a table of 16 values up."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aoext.configs.base import QuantizationConfig, check_bool, check_positive, take_scaling_mode
from aoext.formats.lookup_tables import LUT4_FORMATS
from aoext.packing.blockwise import Scaling
from aoext.tensors import Lut4Tensor, NestedLut4Tensor, QuantizedTensor


@dataclass(frozen=True)
class _Lut4Config(QuantizationConfig):
    """Weights of 4 bits that look a table of 16 values up."""

    def obstacle(self, weight: Tensor) -> str | None:
        if (general := super().obstacle(weight)) is not None:
            return general
        return f"K = {weight.shape[-1]} is odd" if weight.shape[-1] % 2 else None


@dataclass(frozen=True)
class MXFP4WeightOnlyConfig(_Lut4Config):
    """mxfp4: floats of 4 bits with a power of two for every 32 along K, activations as they are.

    scaling_mode: "rceil" rounds the power of two up, "floor" is OCP's.
    """

    scaling_mode: Scaling = "rceil"

    def __post_init__(self) -> None:
        super().__post_init__()
        take_scaling_mode(type(self).__name__, self)

    def rounded(self, weight: Tensor) -> Lut4Tensor:
        return Lut4Tensor.from_hp(weight, "mxfp4", scaling=self.scaling_mode)


@dataclass(frozen=True)
class NVFP4WeightOnlyConfig(_Lut4Config):
    """nvfp4: floats of 4 bits with a scale in float8_e4m3fn for every 16 along K, activations as they are.

    use_dynamic_per_tensor_scale: one float32 for the whole weight too, by which the others reach far enough.
    """

    use_dynamic_per_tensor_scale: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool(type(self).__name__, "use_dynamic_per_tensor_scale", self.use_dynamic_per_tensor_scale)

    def rounded(self, weight: Tensor) -> Lut4Tensor:
        return Lut4Tensor.from_hp(weight, "nvfp4", two_scales=self.use_dynamic_per_tensor_scale)


@dataclass(frozen=True)
class NF4WeightOnlyConfig(_Lut4Config):
    """NF4, QLoRA's: quantiles of the normal distribution and a scale for each block, activations as they are.

    block_size: how many along K share a scale; bitsandbytes has 64.
    double_quantization: scales of 8 bits with one float32 for each 256 of them, as bitsandbytes has them with
        bnb_4bit_use_double_quant: 4.13 bits a weight in place of 4.5.
    """

    block_size: int = LUT4_FORMATS["nf4"].block_k
    double_quantization: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(type(self).__name__, "block_size", self.block_size)
        check_bool(type(self).__name__, "double_quantization", self.double_quantization)

    def obstacle(self, weight: Tensor) -> str | None:
        if (general := super().obstacle(weight)) is not None:
            return general
        if self.double_quantization and weight.shape[-1] % self.block_size:
            return f"K = {weight.shape[-1]} is no multiple of {self.block_size}, as double_quantization needs"
        return None

    def rounded(self, weight: Tensor) -> Lut4Tensor:
        kind = NestedLut4Tensor if self.double_quantization else Lut4Tensor
        return kind.from_hp(weight, "nf4", block_size=[1, self.block_size])

    def stored(self, weight: QuantizedTensor) -> QuantizedTensor:
        if not self.double_quantization or not isinstance(weight, Lut4Tensor):
            return weight
        return NestedLut4Tensor.of(weight)
