"""How a prepared layer quantises its weight, and what it quantises it to."""

from __future__ import annotations

import functools
import json
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from aoext.configs.base import QuantizationConfig
from aoext.configs.schemes import as_config, to_dict
from aoext.quality.grid import Grid
from aoext.tensors import QuantizedTensor
from aoext.tensors.each_expert import by_expert
from aoext.tensors.nested import with_float_scales


class Scheme(NamedTuple):
    """How a weight is quantised: a config as text, and the numbers that train beside the weight.

    scale, offset: as Grid has them, for experts with a first dimension of these; None where they follow from
        the weight
    global_scale: that of a format with one, where `scale` trains
    """

    config: str
    scale: Tensor | None = None
    offset: Tensor | None = None
    global_scale: Tensor | None = None


def as_text(config: QuantizationConfig) -> str:
    return json.dumps(to_dict(config))


@functools.cache
def config_of(text: str) -> QuantizationConfig:
    return as_config("QATConfig", json.loads(text))


def form_of(config: QuantizationConfig, weight: Tensor) -> QuantizedTensor:
    """What a config makes of a weight, without values; scales are floats."""
    if all(isinstance(size, int) for size in weight.shape):
        return _form_of(config, tuple(weight.shape), weight.dtype)
    return _form_of.__wrapped__(config, weight.shape, weight.dtype)


@functools.lru_cache(1024)  # PyTorch takes milliseconds to quantise without values, which each step asks for
def _form_of(config: QuantizationConfig, shape: tuple[int, ...], dtype: torch.dtype) -> QuantizedTensor:
    with _disable_current_modes():  # torch.compile's
        return with_float_scales(config.form(torch.empty(shape, dtype=dtype, device="meta")))


def quantized(weight: Tensor, scheme: Scheme) -> QuantizedTensor:
    """The weight [N, K] or [E, N, K] that a layer is converted to."""
    config = config_of(scheme.config)
    weight = weight.detach()
    if scheme.scale is None:
        return config.quantize(weight)

    def of_matrix(weight: Tensor, *numbers: Tensor) -> QuantizedTensor:
        return config.stored(grid_of(config, weight, *numbers).tensor(weight.float()))

    numbers = (each.detach() for each in scheme[1:] if each is not None)
    return by_expert(of_matrix, weight, *numbers)


def initial_scales(weight: Tensor, config: QuantizationConfig) -> dict[str, Tensor]:
    """The numbers of a Scheme that rounding takes for a weight, by name, in the weight's dtype."""
    found: list[dict[str, Tensor]] = []
    for matrix in weight if weight.dim() == 3 else [weight]:
        grid = Grid.of(config.quantize(matrix.detach()))
        numbers = {"scale": grid.scale.to(weight.dtype)}
        if grid.offset is not None:
            numbers["offset"] = grid.offset.to(weight.dtype)
        if grid.template.global_scale is not None:
            numbers["global_scale"] = grid.template.global_scale
        found.append({name: number.contiguous() for name, number in numbers.items()})
    if weight.dim() == 2:
        return found[0]
    return {name: torch.stack([each[name] for each in found]) for name in found[0]}


def grid_of(config: QuantizationConfig, weight: Tensor, scale: Tensor, *others: Tensor) -> Grid:
    """That of a weight [N, K] with the numbers of a Scheme that are there."""
    form = form_of(config, weight)
    rest = list(others)
    offset = rest.pop(0).float() if len(rest) > (form.global_scale is not None) else None
    fields = dict(form.named_fields())
    if form.global_scale is not None:
        fields["global_scale"] = rest.pop(0)
    if form.table is not None:
        fields["table"] = _table(config, weight)
    return Grid.with_scales(form.remade(fields), scale.float(), offset).at(scale.float(), offset)


def _table(config: QuantizationConfig, weight: Tensor) -> Tensor:
    """The values that a config's codes stand for."""
    small = with_float_scales(config.rounded(weight.new_ones(1, weight.shape[1])))
    assert small.table is not None
    return small.table
