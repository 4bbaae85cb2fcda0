"""Weights of 4 bits that look a table of 16 values up."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aoext.configs.base import QuantizationConfig, check_bool, check_positive, take_scaling_mode
from aoext.formats.lookup_tables import LUT4_FORMATS
from aoext.packing.blockwise import Scaling
from aoext.tensors import Lut4Tensor


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
        take_scaling_mode(type(self).__name__, self)

    def quantize(self, weight: Tensor) -> Lut4Tensor:
        return Lut4Tensor.from_hp(weight, "mxfp4", scaling=self.scaling_mode)


@dataclass(frozen=True)
class NVFP4WeightOnlyConfig(_Lut4Config):
    """nvfp4: floats of 4 bits with a scale in float8_e4m3fn for every 16 along K, activations as they are.

    use_dynamic_per_tensor_scale: one float32 for the whole weight too, by which the others reach far enough.
    """

    use_dynamic_per_tensor_scale: bool = True

    def __post_init__(self) -> None:
        check_bool(type(self).__name__, "use_dynamic_per_tensor_scale", self.use_dynamic_per_tensor_scale)

    def quantize(self, weight: Tensor) -> Lut4Tensor:
        return Lut4Tensor.from_hp(weight, "nvfp4", two_scales=self.use_dynamic_per_tensor_scale)


@dataclass(frozen=True)
class NF4WeightOnlyConfig(_Lut4Config):
    """NF4, QLoRA's: quantiles of the normal distribution and a scale for each block, activations as they are.

    block_size: how many along K share a scale; bitsandbytes has 64.
    """

    block_size: int = LUT4_FORMATS["nf4"].block_k

    def __post_init__(self) -> None:
        check_positive(type(self).__name__, "block_size", self.block_size)

    def quantize(self, weight: Tensor) -> Lut4Tensor:
        return Lut4Tensor.from_hp(weight, "nf4", block_size=[1, self.block_size])
