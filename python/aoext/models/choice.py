"""Which layers of a model quantize_ takes, and why it leaves the others as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aoext.configs import QuantizationConfig
from aoext.configs.per_module import AnyConfig
from aoext.models import shards
from aoext.models.layers import (
    CLASSES,
    as_rows,
    as_weight,
    has_transposed_weight,
    quantizable,
    weight_name,
    why_never_quantized,
)
from aoext.other_packages import is_within, offloaded_by_accelerate, peft_adapters, quantised_by
from aoext.tensors import QuantizedTensor


class Owner(NamedTuple):
    """A layer that has a weight: what the weight is called, the layer, and the parameter's name in it."""

    name: str
    layer: nn.Module
    parameter: str
    config: QuantizationConfig | None = None  # how to quantise it

    @property
    def weight(self) -> Any:
        """The weight; None where the layer has none, or computes it."""
        return self.layer._parameters.get(self.parameter)


# The layers that own one weight; more than one where layers share it.
Owners = list[Owner]


@dataclass
class Choice:
    """The weights to quantise, by their owners, and reasons by the names of layers that are left alone.

    Keeps no reference to a weight, so that each is freed as soon as it is replaced.
    """

    groups: list[Owners] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def choose(
    model: nn.Module,
    config: AnyConfig,
    filter_fn: Callable[[nn.Module, str], bool] | None,
    quantize_trainable: bool,
    quantize_embeddings: bool,
    not_trained: Callable[[nn.Module, Tensor], str | None] | None = None,
) -> Choice:
    """The layers to quantise. ValueError for those that another package has quantised or offloaded.

    not_trained: where layers are chosen to train for it first: why this layer with this weight cannot
    """
    users: dict[int, list[str]] = {}
    named: list[Owner] = []
    for path, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            users.setdefault(id(parameter), []).append(weight_name(path, leaf))
        named += _named(path, module, config, filter_fn, quantize_embeddings)

    choice = Choice()
    training = None if quantize_trainable else _Training.of(model)
    if training is not None and not_trained is not None:
        training.is_partial = False
    offloaded = offloaded_by_accelerate(model)
    chosen: dict[str, Owner] = {}
    for owner in named:
        name, module, _, own = owner
        weight = owner.weight
        if (reason := why_never_quantized(module)) is not None:
            if weight is not None:  # containers and the like are passed over without a word
                choice.skipped[name] = reason
            continue
        if isinstance(module, nn.Embedding) and not quantize_embeddings:
            choice.skipped[name] = "embeddings are quantised with quantize_embeddings=True"
            continue
        if own is None:
            choice.skipped[name] = "the config leaves it as it is"
            continue
        if weight is not None:
            _refuse_foreign(name, weight, offloaded)
        reason = _reason(owner, own, None if own.trains else training)
        if reason is None and not_trained is not None:
            reason = not_trained(module, weight)
        elif reason is None and filter_fn is None:
            reason = refusal_of_own_forward(module, own)
        if reason is None:
            chosen[name] = owner
        else:
            choice.skipped[name] = reason

    groups: dict[int, Owners] = {}
    for name, owner in chosen.items():
        lies = has_transposed_weight(owner.layer)
        strangers = [
            user
            for user in users[id(owner.weight)]
            if user not in chosen
            or has_transposed_weight(chosen[user].layer) != lies
            or chosen[user].config != owner.config
        ]
        if strangers:
            choice.skipped[name] = f"its weight is shared with {', '.join(strangers)}, not to be quantised"
        else:
            groups.setdefault(id(owner.weight), []).append(owner)
    choice.groups = list(groups.values())
    return choice


def _named(
    path: str,
    module: nn.Module,
    config: AnyConfig,
    filter_fn: Callable[[nn.Module, str], bool] | None,
    quantize_embeddings: bool,
) -> Iterator[Owner]:
    """The weights of a module that are meant, as filter_fn says by the module's name or their own."""
    parameters = quantizable(module)
    whole = bool(filter_fn(module, path)) if filter_fn else quantize_embeddings or not _is_embedding(module)
    if filter_fn and whole and not parameters:
        parameters = ("weight",)  # of which the choice says why it cannot be
    for parameter in parameters:
        name = weight_name(path, parameter)
        if whole or (filter_fn is not None and name != path and filter_fn(module, name)):
            yield Owner(name, module, parameter, config.config_for(name))


def _is_embedding(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding)


def _reason(owner: Owner, config: QuantizationConfig, training: _Training | None) -> str | None:
    """Why a layer is left alone, for what its weight is; None if nothing speaks against it."""
    weight = owner.weight
    if weight is None:
        return "its weight is computed from other parameters"
    if nn.parameter.is_lazy(weight):
        return "its weight is not initialised yet"
    obstacle = shards.obstacle(config, owner.layer, as_rows(owner.layer, weight))
    if obstacle is None and training is not None:
        return training.reason(owner.name, weight)
    return obstacle


def _refuse_foreign(name: str, weight: Tensor, offloaded: tuple[str, ...]) -> None:
    where = f"quantize_: layer {name!r}"
    if (package := quantised_by(weight)) is not None:
        kind = f"{type(weight).__module__}.{type(weight).__qualname__}"
        raise ValueError(
            f"{where} was already quantised by {package} (its weight is a {kind}): quantise the original "
            "model, or leave the layer out by filter_fn; aoext.from_torchao takes over what torchao has made"
        )
    if weight.is_meta and is_within(name, offloaded):
        raise ValueError(
            f"{where} is offloaded by accelerate, which brings its weight at every call: quantise the model "
            "before it is offloaded, or first take the hooks off by "
            "accelerate.hooks.remove_hook_from_submodules"
        )


@dataclass
class _Training:
    """What of a model is to be trained.

    A fresh model, which wants gradients for all of its parameters, has said nothing by it.
    """

    adapters: tuple[str, ...]
    is_partial: bool

    @classmethod
    def of(cls, model: nn.Module) -> _Training:
        return cls(peft_adapters(model), _is_partly_frozen(model))

    def reason(self, name: str, weight: Tensor) -> str | None:
        asking = "quantize_trainable=True quantises it all the same"
        if is_within(name, self.adapters):
            return f"it is an adapter of PEFT ({asking})"
        if self.is_partial and weight.requires_grad:
            return f"it requires gradients, in a model that is partly frozen ({asking})"
        return None


def _is_partly_frozen(model: nn.Module) -> bool:
    """Whether the plain weight of a linear layer or of experts is, or more than half of all plain parameters.

    Embeddings do not count, for many a fresh model has a frozen table of positions or of word vectors;
    quantised weights are always frozen.
    """
    frozen, values = 0, 0
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if not _is_plain(parameter):
                continue
            values += parameter.numel()
            if not parameter.requires_grad:
                if name in quantizable(module):
                    return True
                frozen += parameter.numel()
    return 2 * frozen > values


def _is_plain(parameter: Tensor) -> bool:
    return (
        not nn.parameter.is_lazy(parameter)
        and parameter.is_floating_point()
        and not isinstance(shards.own_part(parameter), QuantizedTensor)
        and quantised_by(parameter) is None
    )


def refusal_of_own_forward(layer: Any, config: QuantizationConfig) -> str | None:
    """Why a subclass with a forward of its own cannot have a quantised weight; None if it can.

    It is tried on the meta device, with a plain weight first: what that fails of has other reasons.
    """
    kind: Any = type(layer)
    if not issubclass(kind, tuple(CLASSES)):  # experts, whose forward is known
        return None
    known: list[Any] = [*CLASSES.keys(), *CLASSES.values()]
    if kind.forward in [layer_class.forward for layer_class in known]:
        return None
    plain = None
    try:
        trial = _on_meta(layer)
        rows = as_rows(layer, _empty(layer.weight))
        if isinstance(layer, nn.Embedding):
            input = torch.empty(2, dtype=torch.int64, device="meta")
        else:
            input = rows.new_empty(2, rows.shape[1])
        plain = kind.forward(trial, input)
        quantized = as_weight(layer, config.quantize(rows))
        trial._parameters["weight"] = nn.Parameter(quantized, requires_grad=False)
        result = kind.forward(trial, input)
    except Exception as error:  # whatever a user's forward may raise
        if plain is None:
            return (
                f"the forward of {kind.__name__}, its own, could not be tried: filter_fn can name the layer"
            )
        return f"the forward of {kind.__name__} cannot take a quantised weight: {_brief(error)}"
    if _form(plain) != _form(result):
        return f"the forward of {kind.__name__} gives another result with a quantised weight"
    return None


def _on_meta(module: nn.Module) -> nn.Module:
    """A module of the same attributes with all parameters and buffers on the meta device."""
    twin = copy.copy(module)
    parts = twin.__dict__
    parts["_parameters"] = {
        name: None if p is None else nn.Parameter(_empty(p), requires_grad=False)
        for name, p in module._parameters.items()
    }
    parts["_buffers"] = {name: None if b is None else _empty(b) for name, b in module._buffers.items()}
    parts["_modules"] = {
        name: None if child is None else _on_meta(child) for name, child in module._modules.items()
    }
    return twin


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_like(shards.own_part(tensor), device="meta")


def _form(result: object) -> object:
    return (result.shape, result.dtype) if isinstance(result, Tensor) else type(result)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
