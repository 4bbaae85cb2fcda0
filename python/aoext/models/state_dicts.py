"""State dicts in which quantised weights are replaced by their fields, for what knows plain tensors alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from aoext.models import shards
from aoext.tensors import QuantizedTensor


def flatten_state_dict(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict with the fields of quantised weights in their place, as `name.qdata` and `name.scale`.

    state: names and tensors; dicts among the values are flattened too, and all else stays as it is.

    The fields share memory with the weights: what copies into them, as torch.distributed.checkpoint.load
    does, loads the model. The fields of a DTensor are DTensors, sharded where the weight is;
    NotImplementedError for placements other than Shard and Replicate.

    >>> weight = aoext.Int8Tensor.from_hp(torch.randn(4, 8))
    >>> sorted(flatten_state_dict({"weight": weight, "bias": torch.zeros(4)}))
    ['bias', 'weight.qdata', 'weight.scale']
    """
    flat: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            flat[name] = flatten_state_dict(value)
        elif (fields := _fields(name, value)) is not None:
            flat.update({f"{name}.{field}": tensor for field, tensor in fields})
        else:
            flat[name] = value
    return flat


def _fields(name: str, value: Any) -> Iterator[tuple[str, Tensor]] | None:
    """Names and tensors of the fields; None for what is not quantised."""
    if isinstance(value, QuantizedTensor):
        return value.named_fields()
    return shards.named_fields(name, value)
