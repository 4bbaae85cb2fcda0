"""What models and files of transformers call weights, and what models get that have quantised ones."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

from aoext import serialization
from aoext.models.experts import IMPLEMENTATION
from aoext.models.layers import quantized_weights


def renaming(model: Any) -> Callable[[str], str]:
    """What the model calls a tensor that its checkpoints call otherwise."""
    conversions = get_model_conversion_mapping(model)
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    return lambda name: rename_source_key(name, renamings, [])[0]


def has_quantised(file: str) -> bool:
    """Whether a file of a checkpoint has weights that aoext has quantised."""
    return str(file).endswith(".safetensors") and serialization.has_quantised(file)


def candidates(model: Any, name: str) -> tuple[str, ...]:
    """A name, with and without the prefix that a model with a head gives to its base model."""
    prefix = f"{model.base_model_prefix}."
    return name, prefix + name, name.removeprefix(prefix)


def run_experts(model: Any) -> None:
    """Has a model keep to aoext's function of experts where it has quantised ones, in all of its configs.

    generate would have another one for decoding wherever it finds transformers' default.
    """
    if any(p.dim() == 3 for module in model.modules() for _, p in quantized_weights(module)):
        model.config._experts_implementation = IMPLEMENTATION


def let_cast(model: nn.Module) -> None:
    """transformers refuses to cast models that are quantised; ours can be cast like others."""
    for method in (nn.Module.half, nn.Module.float):
        setattr(model, method.__name__, MethodType(method, model))
