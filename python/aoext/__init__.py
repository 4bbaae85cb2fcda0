"""Quantised PyTorch operators (int4, int8, float8) for every device.

Importing aoext loads the operators of `torch.ops.ao`; `aoext.quantize_` puts them into a model::

    aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=128))
"""

from importlib.metadata import version as _version

from aoext._library import load_library as _load_library

__version__: str = _version("aoext")

_load_library(__path__)

from aoext import ops  # noqa: E402
from aoext.info import explain, show_config  # noqa: E402

__all__ = ["explain", "ops", "show_config"]
