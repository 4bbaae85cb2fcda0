"""Where other libraries let a quantiser in: one file for each of them.

None of them is imported before the program imports it, and none is needed.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from types import ModuleType
from typing import Any

from torch import nn

from aoext._imports import when_imported
from aoext.integrations import accelerate, checkpointing

# Names in aoext that are imported when they are asked for: their module here, and what it calls them.
NAMES = {
    "AoextConfig": ("transformers", "AoextConfig"),
    "from_torchao": ("torchao", "to_aoext"),
    "load_gguf": ("gguf", "load_gguf"),
    "to_torchao": ("torchao", "to_torchao"),
}


def install() -> None:
    """Make aoext known to each library as soon as the program imports it."""
    when_imported("transformers.quantizers.auto", partial(_load, "transformers"))
    when_imported("peft.tuners.lora.model", partial(_load, "peft"))
    when_imported("accelerate.utils.fsdp_utils", accelerate.load_weights)
    when_imported("torch.distributed.checkpoint._state_dict_stager", checkpointing.stage_weights)
    when_imported("torch.distributed._state_dict_utils", checkpointing.broadcast_weights)


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
    known = sys.modules.get("aoext.integrations.transformers")
    if known is not None and "transformers.modeling_utils" in sys.modules:
        known.adopt(model)


def _load(name: str, _: ModuleType) -> None:
    importlib.import_module(f"aoext.integrations.{name}")
