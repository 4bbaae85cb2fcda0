"""The two steps of quantisation-aware training: before it, and after it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from aoext.configs import QuantizationConfig
from aoext.formats.checks import has_values
from aoext.integrations import adopt
from aoext.models.choice import Owner, Owners, choose
from aoext.models.layers import as_rows, as_weight, weight_name
from aoext.models.quantize import give
from aoext.models.summary import QuantizationSummary, QuantizedLayer, model_bytes
from aoext.packing.scales import is_surely_finite
from aoext.qat.config import QATConfig
from aoext.qat.layers import (
    is_prepared,
    prepare_layer,
    restore_layer,
    scheme_of,
    trained_weights,
    why_not_trained,
)
from aoext.qat.schemes import as_text, config_of, initial_scales, quantized

Filter = Callable[[nn.Module, str], bool]


def take_step(
    model: nn.Module,
    config: QATConfig,
    filter_fn: Filter | None,
    device: torch.device | str | int | None,
    quantize_trainable: bool,
    quantize_embeddings: bool,
) -> QuantizationSummary:
    """What quantize_ does with a QATConfig."""
    if device is not None:
        model.to(device)
    summary = QuantizationSummary(config, model_bytes_before=model_bytes(model))
    if config.step == "prepare":
        summary.done = "prepared to be quantised"
        _prepare(model, config, filter_fn, quantize_trainable, quantize_embeddings, summary)
    else:
        _convert(model, config, filter_fn, summary)
    return summary


def _prepare(
    model: nn.Module,
    config: QATConfig,
    filter_fn: Filter | None,
    quantize_trainable: bool,
    quantize_embeddings: bool,
    summary: QuantizationSummary,
) -> None:
    for name, module in model.named_modules():
        if is_prepared(module) and (filter_fn is None or filter_fn(module, name)):
            raise ValueError(f"quantize_: layer {name!r} is prepared for training already")
    choice = choose(
        model, config.base_config, filter_fn, quantize_trainable, quantize_embeddings, why_not_trained
    )
    summary.skipped = choice.skipped
    # All that can fail comes first, so that the model stays as it was.
    numbers = [_numbers(owners[0], config.learn_scales) for owners in choice.groups]
    for owners, own in zip(choice.groups, numbers, strict=True):
        first, *others = owners
        assert first.config is not None
        rows = as_rows(first.layer, first.weight)
        for owner in owners:
            prepare_layer(owner.layer, owner.parameter, first.config, own)
        tied = tuple(other.name for other in others)
        after = first.config.form(rows).stored_bytes
        summary.layers.append(QuantizedLayer(first.name, tuple(rows.shape), first.weight.nbytes, after, tied))
    names = {owner.name for owners in choice.groups for owner in owners}
    summary.count(model, names)


def _numbers(owner: Owner, learnt: bool) -> dict[str, Tensor]:
    """What trains beside a weight, and what it needs. ValueError for a weight that cannot be quantised."""
    assert owner.config is not None
    rows = as_rows(owner.layer, owner.weight)
    try:
        if not learnt:
            if has_values(rows) and not is_surely_finite(rows):
                owner.config.quantize(rows.detach())  # which tells
            return {}
        found = initial_scales(rows, owner.config)
    except ValueError as error:
        raise ValueError(f"quantize_: layer {owner.name!r}: {error}") from error
    trains = owner.weight.requires_grad
    return {
        name: number if name == "global_scale" else nn.Parameter(number, requires_grad=trains)
        for name, number in found.items()
    }


def _convert(
    model: nn.Module, config: QATConfig, filter_fn: Filter | None, summary: QuantizationSummary
) -> None:
    groups: dict[int, Owners] = {}
    for path, module in model.named_modules():
        for parameter in trained_weights(module):
            name = weight_name(path, parameter)
            if filter_fn is None or filter_fn(module, name):
                owner = Owner(name, module, parameter, _checked(name, module, parameter, config))
                groups.setdefault(id(owner.weight), []).append(owner)
    if not groups:
        raise ValueError(
            "quantize_: no layer is prepared for training: "
            'QATConfig(base_config, step="prepare") prepares a model'
        )
    weights = [None if config.base_config is None else _quantized(owners[0]) for owners in groups.values()]
    for owner in (owner for owners in groups.values() for owner in owners):
        if is_prepared(owner.layer):
            restore_layer(owner.layer)
    for owners, weight in zip(groups.values(), weights, strict=True):
        if weight is not None:
            summary.layers.append(give(owners, weight))
    adopt(model)
    summary.count(model)


def _checked(name: str, module: nn.Module, parameter: str, config: QATConfig) -> QuantizationConfig:
    """The scheme of a prepared layer, which must be the one that a QATConfig names."""
    scheme = scheme_of(module, parameter)
    assert scheme is not None
    own = config_of(scheme.config)
    if config.base_config is not None:
        wanted = config.base_config.config_for(name)
        if wanted is None or as_text(wanted) != scheme.config:
            raise ValueError(
                f"quantize_: layer {name!r} was prepared for {own}, and would become {wanted}: name the same "
                "base_config in both steps"
            )
    return own


@torch.no_grad()
def _quantized(owner: Owner) -> Tensor:
    scheme = scheme_of(owner.layer, owner.parameter)
    assert scheme is not None
    if getattr(owner.layer, "_is_fsdp_managed_module", False) or type(owner.weight) is not nn.Parameter:
        raise ValueError(
            f"quantize_: layer {owner.name!r} is distributed: convert a prepared model that is not, with the "
            "whole state_dict of this one"
        )
    try:
        rows = as_rows(owner.layer, owner.weight)
        return as_weight(owner.layer, quantized(rows, scheme))
    except ValueError as error:
        raise ValueError(f"quantize_: layer {owner.name!r}: {error}") from error
