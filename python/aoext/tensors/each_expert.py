"""Weights of experts [E, N, K], one expert after the other, so that no more than one is plain at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from aoext.tensors.base import QuantizedTensor

Weight = TypeVar("Weight", bound="QuantizedTensor")


def has_experts(weight: object) -> bool:
    """Whether this is a tensor of three dimensions, the first of which counts experts."""
    return isinstance(weight, Tensor) and weight.dim() == 3


def expert_of(weight: Weight, e: int) -> Weight:
    """The weight [N, K] of an expert, whose fields are views."""
    fields = {
        name: tensor.select(0, e) if weight.fields[name].follows_experts else tensor
        for name, tensor in weight.named_fields()
    }
    return weight.remade(fields, shape=weight.weight_shape[1:])


def by_expert(make: Callable[..., Weight], *weights: Any) -> Weight:
    """What `make` gives for weights [N, K]; for weights [E, N, K], what it gives for each expert's, together.

    weights: plain or quantised, of as many experts each; ValueError where there are none
    What experts share is what `make` gives for the first.
    """
    first = weights[0]
    if not has_experts(first):
        return make(*weights)
    if not len(first):
        raise ValueError(f"a weight of experts must have some, got {list(first.shape)}")
    whole: dict[str, Tensor] = {}
    for e in range(len(first)):
        made = make(*(weight[e] for weight in weights))
        for name, tensor in made.named_fields():
            if not made.fields[name].follows_experts:
                whole.setdefault(name, tensor)
                continue
            if e == 0:
                whole[name] = tensor.new_empty((len(first), *tensor.shape))
            whole[name][e].copy_(tensor)
    return made.remade(whole, shape=[len(first), *made.weight_shape])
