"""Mixed precision: which scheme each layer gets, so that a model loses least at so many bits a weight.

What a scheme costs a layer, its sensitivity, is measured one layer at a time and taken to add up. A knapsack
then chooses: of all ways to spend the bits the one with the smallest sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from aoext.configs import QuantizationConfig
from aoext.configs.base import check_bool
from aoext.configs.per_module import PerModuleConfig
from aoext.configs.schemes import Scheme, as_config
from aoext.models.choice import Owner, Owners, choose
from aoext.models.layers import as_rows
from aoext.quality.evaluate import Batch
from aoext.quality.sensitivity import divergences, fisher_errors, same_inputs

Sensitivity = Literal["fisher", "divergence"]
SENSITIVITIES = ("fisher", "divergence")

# Schemes of 3.5 to 8.5 bits that leave activations as they are.
CANDIDATES: tuple[Scheme, ...] = (
    {"scheme": "int3", "group_size": 128},
    {"scheme": "int3", "group_size": 64},
    {"scheme": "int3", "group_size": 32},
    {"scheme": "int4", "group_size": 128},
    {"scheme": "int4", "group_size": 64},
    {"scheme": "int4", "group_size": 32},
    {"scheme": "nf4", "block_size": 64},
    {"scheme": "nf4", "block_size": 32},
    {"scheme": "int5", "group_size": 64},
    {"scheme": "int6", "group_size": 64},
    "int8",
)

# Parts into which the knapsack divides its budget.
_UNITS = 1 << 16


@dataclass(frozen=True)
class MixedPrecision(PerModuleConfig):
    """What aoext.search has found: a scheme for each layer.

    bits_per_weight: stored bits for each weight of these layers, with scales
    error: the sum of the layers' sensitivities: by "fisher" and "divergence" alike an estimate of the
        KL from the plain model's predictions, in nats for a token
    """

    bits_per_weight: float = math.nan
    error: float = math.nan

    def __str__(self) -> str:
        counts: dict[str, int] = {}
        for config in self.per_module.values():
            counts[str(config)] = counts.get(str(config), 0) + 1
        first = (
            f"{len(self.per_module)} layers, {self.bits_per_weight:.3f} bits per weight, "
            f"expected KL {self.error:.4f}"
        )
        return "\n".join((first, *(f"  {count} x {config}" for config, count in sorted(counts.items()))))


def search(
    model: nn.Module,
    data: Iterable[Batch],
    target_bits: float = 4.5,
    candidates: Sequence[Scheme | QuantizationConfig | None] = CANDIDATES,
    *,
    sensitivity: Sensitivity = "fisher",
    algorithm: str | None = None,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
    quantize_embeddings: bool = False,
    seed: int = 0,
) -> MixedPrecision:
    """Schemes for a model's layers with which it stores `target_bits` for a weight on average, at most.

    data: batches of token ids, as `evaluate` takes them; some dozen of 512 tokens serve
    candidates: configs, their names, or None for weights that stay as they are
    sensitivity: "fisher" weighs each weight's rounding error by the mean square of its gradient, with labels
        that are drawn from the model's own predictions, from `seed`. It takes a forward and a backward pass
        over the data, and memory for one layer's gradient and 1/16 of the weights in float32. "divergence"
        evaluates the model with one layer changed, each layer with each candidate: longer, and it sees what
        schemes do to activations
    algorithm: how candidates choose scales and zero points, as quantize_ has it; their own if it is not given
    filter_fn, quantize_embeddings: which layers are meant, as quantize_ has them

    Layers with a common input, such as projections that are computed as one, and layers that share a weight
    get the same scheme. The model is as it was afterwards.

    ValueError for data that never reaches a layer or has no token to predict, for NaN in losses, for
    target_bits that no candidate allows, and for "fisher" with candidates that quantise activations.

    >>> scheme = aoext.search(model, data, target_bits=4.5)  # doctest: +SKIP
    >>> aoext.quantize_(model, scheme)  # doctest: +SKIP
    """
    if sensitivity not in SENSITIVITIES:
        raise ValueError(f"search: sensitivity must be {' or '.join(SENSITIVITIES)}, got {sensitivity!r}")
    check_bool("search", "quantize_embeddings", quantize_embeddings)
    configs = [
        None if each is None else as_config("search", each).with_algorithm(algorithm) for each in candidates
    ]
    batches = list(data)
    items = _items(model, configs, filter_fn, quantize_embeddings, batches)
    measure = fisher_errors if sensitivity == "fisher" else divergences
    if sensitivity == "fisher":
        _refuse_activations(items)
    errors = measure(model, batches, items, seed)
    weights = sum(item.weights for item in items)
    chosen = knapsack(
        [list(zip(item.bits, error, strict=True)) for item, error in zip(items, errors, strict=True)],
        target_bits * weights,
    )
    if chosen is None:
        fewest = sum(min(item.bits) for item in items) / weights
        raise ValueError(
            f"search: target_bits must be at least {fewest:.3f}, the fewest that candidates store, "
            f"got {target_bits}"
        )
    schemes = {
        owner.name: item.configs[c]
        for item, c in zip(items, chosen, strict=True)
        for owners in item.groups
        for owner in owners
    }
    return MixedPrecision(
        None,
        schemes,
        bits_per_weight=sum(item.bits[c] for item, c in zip(items, chosen, strict=True)) / weights,
        error=sum(error[c] for error, c in zip(errors, chosen, strict=True)),
    )


@dataclass
class Item:
    """Weights that get one scheme: their owners, the configs that serve them, and stored bits of each."""

    groups: list[Owners]
    configs: list[QuantizationConfig | None]
    bits: list[float]
    weights: int


def _items(
    model: nn.Module,
    configs: Sequence[QuantizationConfig | None],
    filter_fn: Callable[[nn.Module, str], bool] | None,
    quantize_embeddings: bool,
    batches: Sequence[Batch],
) -> list[Item]:
    """The weights in question; ValueError where no candidate serves any."""
    found: dict[int, Owners] = {}
    serving: dict[int, list[QuantizationConfig | None]] = {}
    for config in configs:
        if config is None:
            continue
        for owners in choose(model, config, filter_fn, False, quantize_embeddings).groups:
            key = id(owners[0].weight)
            found.setdefault(key, [Owner(*owner[:3]) for owner in owners])
            serving.setdefault(key, []).append(config)
    if not found:
        raise ValueError("search: no candidate serves any layer of the model")
    if not batches:
        raise ValueError("search: data has no batch")
    items = []
    for groups in same_inputs(model, batches[0], list(found.values())):
        keys = [id(owners[0].weight) for owners in groups]
        own: list[QuantizationConfig | None] = [
            config for config in configs if config is None or all(config in serving[key] for key in keys)
        ]
        if not own:  # each of them by itself then
            items += [_item([found[key]], serving[key]) for key in keys]
        else:
            items.append(_item(groups, own))
    return items


def _item(groups: list[Owners], configs: list[QuantizationConfig | None]) -> Item:
    bits = []
    for config in configs:
        stored = 0.0
        for owner, *_ in groups:
            rows = as_rows(owner.layer, owner.weight)
            stored += 8 * (rows.nbytes if config is None else config.form(rows).stored_bytes)
        bits.append(stored)
    return Item(groups, configs, bits, sum(owners[0].weight.numel() for owners in groups))


def _refuse_activations(items: Sequence[Item]) -> None:
    for item in items:
        owner = item.groups[0][0]
        for config in filter(None, item.configs):
            if config.form(as_rows(owner.layer, owner.weight)).input_dtype is not None:
                raise ValueError(
                    f'search: sensitivity="fisher" measures weights alone, and {config} quantises '
                    'activations too: use "divergence"'
                )


def knapsack(items: Sequence[Sequence[tuple[float, float]]], budget: float) -> list[int] | None:
    """One of each item's (cost, error), by place: the smallest sum of errors with costs within the budget.

    Exact but for costs, which are rounded up to 1/65,536 of the budget; None where nothing fits.
    """
    best = torch.zeros(_UNITS + 1, dtype=torch.float64)
    choices = []
    for options in items:
        sums = torch.full((len(options), _UNITS + 1), math.inf, dtype=torch.float64)
        for row, (cost, error) in zip(sums, options, strict=True):
            units = max(0, math.ceil(cost / budget * _UNITS - 1e-9)) if budget > 0 else _UNITS + 1
            if units <= _UNITS:
                row[units:] = best[: _UNITS + 1 - units] + error
        best, choice = sums.min(0)
        choices.append(choice.to(torch.uint8))
    if not best[-1].isfinite():
        return None
    left, chosen = _UNITS, []
    for options, choice in zip(reversed(items), reversed(choices), strict=True):
        c = int(choice[left])
        chosen.append(c)
        left -= max(0, math.ceil(options[c][0] / budget * _UNITS - 1e-9))
    return chosen[::-1]
