"""Quantised PyTorch operators (int4, int8, float8) for every device.

Importing aoext loads the operators of `torch.ops.ao`; `aoext.quantize_` puts them into a model::

    aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=128))

or, while transformers loads it, `from_pretrained(..., quantization_config=aoext.AoextConfig("int4"))`.
"""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version
from typing import Any as _Any

from aoext.library.loading import load_library as _load_library

try:
    __version__: str = _version("aoext")
except _PackageNotFoundError:  # a source tree on the path that nobody has installed
    __version__ = "unknown"

_load_library(__path__)

from aoext import inductor, integrations, ops  # noqa: E402
from aoext import operators as operators  # noqa: E402
from aoext.calibration import calibrate  # noqa: E402
from aoext.configs import (  # noqa: E402
    Float8DynamicActivationFloat8WeightConfig,
    Float8DynamicActivationInt4WeightConfig,
    Float8WeightOnlyConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt4WeightConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MXDynamicActivationMXWeightConfig,
    MXFP4WeightOnlyConfig,
    NF4WeightOnlyConfig,
    NVFP4WeightOnlyConfig,
    PerBlock,
    PerRow,
)
from aoext.configs.per_module import PerModuleConfig  # noqa: E402
from aoext.configs.training import (  # noqa: E402
    Float8BlockwiseLinearConfig,
    Float8LinearConfig,
    Int8MixedPrecisionTrainingConfig,
    Int8WeightOnlyQuantizedTrainingConfig,
)
from aoext.formats.table import Code  # noqa: E402
from aoext.integrations import onnx  # noqa: E402
from aoext.library.info import explain, show_config, warmup  # noqa: E402
from aoext.models.quantize import quantize_  # noqa: E402
from aoext.models.requantize import requantize_  # noqa: E402
from aoext.models.state_dicts import flatten_state_dict  # noqa: E402
from aoext.operators.aoti import aoti_options, library_path  # noqa: E402
from aoext.qat import QATConfig  # noqa: E402
from aoext.quality.evaluate import evaluate  # noqa: E402
from aoext.quality.mixed_precision import search  # noqa: E402
from aoext.serialization import load_model, save_model  # noqa: E402
from aoext.tensors import (  # noqa: E402
    BlockwiseTensor,
    Float8Tensor,
    GGUFTensor,
    Int2Tensor,
    Int3Tensor,
    Int4Tensor,
    Int5Tensor,
    Int6Tensor,
    Int7Tensor,
    Int8Tensor,
    Int8TrainingTensor,
    Lut4Tensor,
    NestedLut4Tensor,
)
from aoext.training.convert import convert_to_float8_training  # noqa: E402

# torchao's other names for them.
int8_mixed_precision_training = Int8MixedPrecisionTrainingConfig
int8_weight_only_quantized_training = Int8WeightOnlyQuantizedTrainingConfig

# Both wait for others to be imported.
integrations.install()
inductor.install()


def __getattr__(name: str) -> _Any:
    if name in integrations.NAMES:  # which need other packages
        return integrations.find(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BlockwiseTensor",
    "Code",
    "Float8BlockwiseLinearConfig",
    "Float8DynamicActivationFloat8WeightConfig",
    "Float8DynamicActivationInt4WeightConfig",
    "Float8LinearConfig",
    "Float8Tensor",
    "Float8WeightOnlyConfig",
    "GGUFTensor",
    "Int2Tensor",
    "Int3Tensor",
    "Int4Tensor",
    "Int4WeightOnlyConfig",
    "Int5Tensor",
    "Int6Tensor",
    "Int7Tensor",
    "Int8DynamicActivationInt4WeightConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Int8MixedPrecisionTrainingConfig",
    "Int8Tensor",
    "Int8TrainingTensor",
    "Int8WeightOnlyConfig",
    "Int8WeightOnlyQuantizedTrainingConfig",
    "IntxWeightOnlyConfig",
    "Lut4Tensor",
    "MXDynamicActivationMXWeightConfig",
    "MXFP4WeightOnlyConfig",
    "NF4WeightOnlyConfig",
    "NVFP4WeightOnlyConfig",
    "NestedLut4Tensor",
    "PerBlock",
    "PerModuleConfig",
    "PerRow",
    "QATConfig",
    "aoti_options",
    "calibrate",
    "convert_to_float8_training",
    "evaluate",
    "explain",
    "flatten_state_dict",
    "inductor",
    "int8_mixed_precision_training",
    "int8_weight_only_quantized_training",
    "library_path",
    "load_model",
    "onnx",
    "ops",
    "quantize_",
    "requantize_",
    "save_model",
    "search",
    "show_config",
    "warmup",
]
