"""Weights of experts [E, N, K], one expert after the other, so that no more than one is plain at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from aoext.formats.checks import describe, is_dense, is_freed

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

    weights: plain or quantised, of as many experts each; ValueError where there are none, or no memory
    What experts share is what `make` gives for the first.
    """
    first = weights[0]
    if not has_experts(first):
        return make(*weights)
    if not len(first):
        raise ValueError(f"a weight of experts must have some, got {list(first.shape)}")
    for weight in weights:
        if is_dense(weight) and is_freed(weight):
            raise ValueError(
                f"a weight of experts must have memory, got {describe(weight)} with freed storage"
            )
    return collected((make(*(weight[e] for weight in weights)) for e in range(len(first))), len(first))


def collected(weights: Iterable[Weight], count: int) -> Weight:
    """The weights [N, K] of `count` experts, of one form, as one [E, N, K]; one after the other is asked for.

    Optional fields that some lack are filled up with what says nothing, and where only some have scales of
    float32, all get them. What experts share is what the first has.
    """
    whole: dict[str, Tensor] = {}
    for e, weight in enumerate(weights):
        fields = dict(weight.named_fields())
        for name, tensor in fields.items():
            if not weight.fields[name].follows_experts:
                whole.setdefault(name, tensor)
            elif e == 0:
                whole[name] = tensor.new_empty((count, *tensor.shape))
            elif name not in whole:
                neutral = neutral_field(weight, name)
                whole[name] = neutral.expand(count, *neutral.shape).contiguous()
        for name, tensor in whole.items():
            if weight.fields[name].follows_experts:
                if name in fields and fields[name].dtype is torch.float32:
                    tensor = whole[name] = tensor.float()
                tensor[e].copy_(fields[name] if name in fields else neutral_field(weight, name))
    return weight.remade(whole, shape=[count, *weight.weight_shape])


def neutral_field(weight: QuantizedTensor, name: str) -> Tensor:
    """An optional field that changes nothing, for a weight [N, K] that may lack it."""
    shape = weight.fields[name].shape(weight.weight_shape, weight.block_size)
    if name == "k_order":
        return torch.arange(shape[0], device=weight.device)
    if name == "global_scale":
        return weight.scale.new_ones(shape, dtype=torch.float32)
    return weight.qdata.new_zeros(shape)
