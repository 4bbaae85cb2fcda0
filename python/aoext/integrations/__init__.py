"""Where other libraries let a quantiser in: one file for each of them.

None of them is imported before the program imports it, and none is needed.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from functools import partial
from types import ModuleType
from typing import Any

from torch import nn

from aoext.integrations import accelerate_fsdp, checkpointing, onnx
from aoext.integrations.gguf import quantizer
from aoext.other_packages import when_imported

# Names in aoext that are imported when they are asked for: their module here, and what it calls them.
NAMES = {
    "AoextConfig": ("transformers", "AoextConfig"),
    "from_torchao": ("torchao", "to_aoext"),
    "load_gguf": ("gguf.loading", "load_gguf"),
    "to_torchao": ("torchao", "to_torchao"),
}


def install() -> None:
    """Make aoext known to each library as soon as the program imports it."""
    when_imported("transformers.quantizers.auto", partial(_load, "transformers"))
    when_imported("diffusers.quantizers.auto", partial(_load, "diffusers"))
    when_imported("transformers.pytorch_utils", partial(_load, "conv1d"))
    when_imported("transformers.integrations.moe", partial(_load, "experts"))
    when_imported("transformers.integrations.finegrained_fp8", partial(_load, "fp8_experts"))
    when_imported("transformers.integrations.gguf.kernels", partial(_load, "gguf.kernels"))
    when_imported("transformers.modeling_utils", partial(_load, "loading"))
    when_imported("transformers.modeling_utils", partial(_load, "resizing"))
    when_imported("accelerate.big_modeling", partial(_load, "accelerate"))
    when_imported("transformers.integrations.gguf.utils", partial(_load, "gguf.layers"))
    when_imported("transformers.quantizers.quantizer_gguf", quantizer.adapt)
    when_imported("peft", partial(_load, "peft"))
    when_imported("accelerate.utils.fsdp_utils", accelerate_fsdp.load_weights)
    when_imported("torch.distributed.checkpoint._state_dict_stager", checkpointing.stage_weights)
    when_imported("torch.distributed._state_dict_utils", checkpointing.broadcast_weights)
    when_imported("torch.onnx._internal.exporter._dispatching", onnx.name_translations)


def find(name: str) -> Any:
    """What aoext calls `name`, of NAMES; ImportError, which says what to install, without its package."""
    package, attribute = NAMES[name]
    try:
        return getattr(importlib.import_module(f"aoext.integrations.{package}"), attribute)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "aoext", "torch"):
            raise
        raise ImportError(f"aoext.{name} needs {missing}: pip install {missing}") from error


def adopt(model: nn.Module) -> None:
    """Tell the libraries of which a model, or a part of it, is made that its weights have been quantised."""
    for package, models in (
        ("transformers", "transformers.modeling_utils"),
        ("diffusers", "diffusers.models.modeling_utils"),
    ):
        known = sys.modules.get(f"aoext.integrations.{package}")
        if known is not None and models in sys.modules:
            known.adopt(model)


def _load(name: str, _: ModuleType) -> None:
    try:
        importlib.import_module(f"aoext.integrations.{name}")
    except ImportError as error:  # of another release, or of what it needs beside; the program goes on
        warnings.warn(f"aoext: {name} cannot quantise by aoext: {error}", stacklevel=2)
