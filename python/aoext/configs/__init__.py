"""How to quantise a weight: one frozen dataclass for each scheme, with torchao's names.

A config turns one weight into one tensor and says which weights it cannot serve; quantize_ does the
rest, and knows no scheme by name.
"""

from aoext.configs.base import PerBlock, PerRow, QuantizationConfig
from aoext.configs.eight_bits import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    MXDynamicActivationMXWeightConfig,
)
from aoext.configs.four_bits import MXFP4WeightOnlyConfig, NF4WeightOnlyConfig, NVFP4WeightOnlyConfig
from aoext.configs.groups import (
    Float8DynamicActivationInt4WeightConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt4WeightConfig,
    IntxWeightOnlyConfig,
)

__all__ = [
    "Float8DynamicActivationFloat8WeightConfig",
    "Float8DynamicActivationInt4WeightConfig",
    "Float8WeightOnlyConfig",
    "Int4WeightOnlyConfig",
    "Int8DynamicActivationInt4WeightConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Int8WeightOnlyConfig",
    "IntxWeightOnlyConfig",
    "MXDynamicActivationMXWeightConfig",
    "MXFP4WeightOnlyConfig",
    "NF4WeightOnlyConfig",
    "NVFP4WeightOnlyConfig",
    "PerBlock",
    "PerRow",
    "QuantizationConfig",
]
