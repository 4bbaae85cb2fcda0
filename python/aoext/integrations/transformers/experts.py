"""Which layers of a checkpoint make the 3-D weights of a model's experts, as transformers' conversions say.

Where those do not say it, the names of the layers do: gate_proj, up_proj and down_proj, or w1, w3 and w2.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

from torch import nn

from aoext.checkpoints.base import Model
from aoext.checkpoints.experts import Experts, Part
from aoext.integrations.transformers.models import candidates, conversions_of
from aoext.models.experts import are_interleaved, are_transposed, expert_weights
from aoext.models.layers import as_rows

# A layer of one expert, or of all: the path of the module, the expert, and the layer's own name.
_LAYER = re.compile(r"(?P<path>.*\bexperts)\.(?:(?P<expert>\d+)\.)?(?P<leaf>\w+)")

# The parts of the parameters, by the names that layers have.
_PARTS = {
    "gate_up_proj": ("gate_up_proj", 0),
    "gate_proj": ("gate_up_proj", 0),
    "w1": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "w3": ("gate_up_proj", 1),
    "down_proj": ("down_proj", 0),
    "w2": ("down_proj", 0),
}

_UNKNOWN = "the model has its experts in 3-D parameters, and none that this layer is known to be a part of"


def known_of(model: Any) -> Model:
    """What readers of checkpoints may know of a model of transformers that they are read for."""
    modules = dict(model.named_modules())

    def module(layer: str) -> nn.Module | None:
        return next((modules[name] for name in candidates(model, layer) if name in modules), None)

    return Model(module, model.config.get_text_config().to_dict(), functools.partial(experts_of, model))


def experts_of(model: Any, layers: Iterable[str]) -> tuple[dict[str, Experts], dict[str, str]]:
    """The weights of experts that layers of a checkpoint make, by their names in the model, and why others
    of a module of experts can make none.
    """
    with_experts = {path: module for path, module in model.named_modules() if expert_weights(module)}
    if not with_experts:
        return {}, {}
    conversions = conversions_of(model)
    found: dict[str, dict[int, dict[int | None, str]]] = {}
    refused: dict[str, str] = {}
    for layer in layers:
        place = _LAYER.fullmatch(layer)
        if place is None:
            continue
        expert = None if place["expert"] is None else int(place["expert"])
        key = conversions.renamed(f"{layer}.weight" if expert is not None else layer)
        name, converter, part = conversions.converted(key)
        if converter is None or not (parameter := _parameter(with_experts, model, name)):
            converter, (parameter, part) = None, _by_name(with_experts, model, key.removesuffix(".weight"))
        if parameter and (reason := _obstacle(with_experts, parameter, converter)):
            refused[layer] = reason
        elif parameter:
            found.setdefault(parameter, {}).setdefault(part, {})[expert] = layer
        elif _module(with_experts, model, key):
            refused[layer] = _UNKNOWN
    made: dict[str, Experts] = {}
    for parameter, parts in found.items():
        path, _, leaf = parameter.rpartition(".")
        module = with_experts[path]
        plain: Any = module._parameters[leaf]
        made[parameter] = Experts(
            list(as_rows(module, plain).shape),
            [_part(parts[part]) for part in sorted(parts)],
            len(parts) > 1 and are_interleaved(module),
        )
    return made, refused


def _part(layers: dict[int | None, str]) -> Part:
    if None in layers:
        return Part([layers[None]], stacked=True)
    return Part([layers[expert] for expert in sorted(expert for expert in layers if expert is not None)])


def _module(with_experts: dict[str, nn.Module], model: Any, name: str) -> str:
    """The path of the module of experts that a name begins with; empty where there is none."""
    place = _LAYER.match(name)
    paths = candidates(model, place["path"]) if place else ()
    return next((path for path in paths if path in with_experts), "")


def _parameter(with_experts: dict[str, nn.Module], model: Any, name: str) -> str:
    """A parameter of experts by its name in the model or in a part of it; empty for other names."""
    path, leaf = _module(with_experts, model, name), name.rpartition(".")[2]
    return f"{path}.{leaf}" if path and leaf in expert_weights(with_experts[path]) else ""


def _by_name(with_experts: dict[str, nn.Module], model: Any, layer: str) -> tuple[str, int]:
    place = _LAYER.fullmatch(layer)
    if place is None or place["leaf"] not in _PARTS:
        return "", 0
    leaf, part = _PARTS[place["leaf"]]
    if place["leaf"] == "up_proj" and not _parameter(with_experts, model, f"{place['path']}.{leaf}"):
        leaf, part = "up_proj", 0
    return _parameter(with_experts, model, f"{place['path']}.{leaf}"), part


def _obstacle(with_experts: dict[str, nn.Module], parameter: str, converter: Any) -> str | None:
    """Why quantised weights cannot go the way of a conversion."""
    module = with_experts[parameter.rpartition(".")[0]]
    allowed = {"MergeModulelist": 0, "Concatenate": 1} | (
        {"Transpose": None} if are_transposed(module) else {}
    )
    for operation in getattr(converter, "operations", ()):
        kind = type(operation).__name__
        if kind not in allowed or allowed[kind] not in (None, operation.dim):
            return f"transformers makes {parameter} of it by {operation}, which quantised weights do not take"
    return None
