"""Quantised weights as parameters of modules: what their data is, and that they take no gradient."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from aoext.tensors.base import QuantizedTensor, implements


def _setter(name: str) -> Any:
    """What PyTorch calls to assign an attribute of a tensor."""
    return getattr(Tensor, name).__set__


@implements(_setter("data"))
def _set_data(self: QuantizedTensor, data: Tensor) -> None:
    """self.data = data: this weight has the fields of another of its class, of any shape and dtype."""
    who = type(self).__name__
    if type(data) is not type(self):
        raise TypeError(
            f"{who}: data must be of the same class {who}, got {type(data).__name__}; "
            "give the layer another parameter instead: layer.weight = torch.nn.Parameter(...)"
        )
    _setter("data")(self, data)  # raises before anything has changed
    self.become(data)


# A weight without gradients remains one, whoever asks for them: model.requires_grad_(True),
# load_state_dict(assign=True) into a plain model, and nn.Parameter itself, whose default that is.
@implements(Tensor.requires_grad_)
def _requires_grad_(self: QuantizedTensor, requires_grad: bool = True) -> QuantizedTensor:
    return self


@implements(_setter("requires_grad"))
def _set_requires_grad(self: QuantizedTensor, requires_grad: bool) -> None:
    return None


@implements(Tensor.__deepcopy__)
def _deepcopy(self: QuantizedTensor, memo: dict[int, Any]) -> QuantizedTensor:
    """A clone with copies of what has been set on this weight, such as that it is a parameter."""
    if id(self) in memo:
        return memo[id(self)]
    memo[id(self)] = twin = self.mapped(lambda t: t.clone(memory_format=torch.contiguous_format))
    twin.__dict__.update(copy.deepcopy(self.remarks(), memo))
    return twin


def _stable_hash_for_caching(self: QuantizedTensor) -> str:
    """All that compiled code may depend on, as text that is the same in every process."""
    fields = [
        (name, str(t.dtype), list(t.shape), t.stride(), t.storage_offset(), str(t.device))
        for name, t in self.named_fields()
    ]
    _, context = self.__tensor_flatten__()
    outside = (type(self).__qualname__, list(self.shape), self.requires_grad)
    return repr((outside, context, fields))


QuantizedTensor._stable_hash_for_caching = _stable_hash_for_caching  # type: ignore[attr-defined]
