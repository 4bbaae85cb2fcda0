"""What models and files of transformers call weights, and what models get that have quantised ones."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming

from aoext import serialization
from aoext.models.experts import IMPLEMENTATION
from aoext.models.layers import quantized_weights

# Dtypes of quantised weights that are called `weight`.
_STORED = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)


class Conversions:
    """transformers' conversions of a model's names."""

    def __init__(self, conversions: Sequence[Any]) -> None:
        self._renamings = copy.deepcopy([c for c in conversions if isinstance(c, WeightRenaming)])
        self._converters = copy.deepcopy([c for c in conversions if isinstance(c, WeightConverter)])

    def renamed(self, key: str) -> str:
        """A checkpoint's name as conversions find it that do more than to rename."""
        for renaming in self._renamings:
            key, _ = renaming.rename_source_key(key)
        return key

    def converted(self, key: str) -> tuple[str, Any, int]:
        """A name as `renamed` gives it in the model, the conversion that leads there, and as what part."""
        for converter in self._converters:
            name, pattern = converter.rename_source_key(key)
            if pattern is not None:
                return name, converter, converter.source_patterns.index(pattern)
        return key, None, 0


def conversions_of(model: Any) -> Conversions:
    """Those of a model of transformers."""
    return Conversions(get_model_conversion_mapping(model))


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


def expect_stored(model: Any, stored: Mapping[str, Tensor]) -> dict[str, torch.dtype]:
    """Gives weights that a file holds in 8 bits that dtype until they are read, or they would be cast.

    Those that they have in the model, by their names.
    """
    dtypes = {}
    for key, form in stored.items():
        if not key.endswith(".weight") or form.dtype not in _STORED:
            continue
        for name in candidates(model, key):
            path, _, leaf = name.rpartition(".")
            with contextlib.suppress(AttributeError):
                module = model.get_submodule(path)
                plain = module._parameters[leaf]
                dtypes[name] = plain.dtype
                empty = torch.empty_like(plain, dtype=form.dtype)
                module._parameters[leaf] = nn.Parameter(empty, requires_grad=False)
                break
    return dtypes


def leave_aside(model: Any, expressions: Iterable[str]) -> None:
    """Has transformers pass over a checkpoint's tensors whose names have one of these."""
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    model._keys_to_ignore_on_load_unexpected = {*ignored, *expressions}


def let_cast(model: nn.Module) -> None:
    """transformers refuses to cast models that are quantised; ours can be cast like others."""
    for method in (nn.Module.half, nn.Module.float):
        setattr(model, method.__name__, MethodType(method, model))
