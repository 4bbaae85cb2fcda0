"""Where other libraries let a quantiser in: one file for each of them.

None of them is imported before the program imports it, and none is needed.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from types import ModuleType

from torch import nn

from aoext._imports import when_imported


def install() -> None:
    """Make aoext known to each library as soon as the program imports it."""
    when_imported("transformers.quantizers.auto", partial(_load, "transformers"))
    when_imported("peft.tuners.lora.model", partial(_load, "peft"))


def transformers_config() -> type:
    """AoextConfig; ImportError, which says how to get it, without transformers."""
    try:
        from aoext.integrations.transformers import AoextConfig
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "transformers":
            raise
        raise ImportError("aoext.AoextConfig needs transformers: pip install transformers") from error
    return AoextConfig


def adopt(model: nn.Module) -> None:
    """Tell the libraries of which a model, or a part of it, is made that its weights have been quantised."""
    known = sys.modules.get("aoext.integrations.transformers")
    if known is not None and "transformers.modeling_utils" in sys.modules:
        known.adopt(model)


def _load(name: str, _: ModuleType) -> None:
    importlib.import_module(f"aoext.integrations.{name}")
