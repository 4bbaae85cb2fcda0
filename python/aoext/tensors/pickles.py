"""Quantised weights in files of torch.save: their fields, of which the weight is made and checked anew.

The fields follow map_location as plain tensors do, and the weight lies where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aoext.tensors.base import QuantizedTensor, implements


@implements(Tensor.__reduce_ex__)
def _reduce_ex(self: QuantizedTensor, protocol: int) -> tuple[Any, ...]:
    fields, attributes = dict(self.named_fields()), self.named_attributes()
    return rebuild, (type(self), fields, self.dtype, attributes, self.transposed, self.remarks())


def rebuild(
    tensor_type: type[QuantizedTensor],
    fields: Mapping[str, Tensor],
    dtype: torch.dtype,
    attributes: Mapping[str, Any],
    transposed: bool,
    remarks: Mapping[str, Any],
) -> QuantizedTensor:
    """The weight that was saved; files call this by its name. Errors as those of its constructor."""
    who = getattr(tensor_type, "__name__", repr(tensor_type))
    if not (isinstance(tensor_type, type) and issubclass(tensor_type, QuantizedTensor)):
        raise TypeError(f"torch.load: a quantised weight must be a QuantizedTensor, got {who}")
    required = {name for name, field in tensor_type.fields.items() if not field.optional}
    if not required <= fields.keys() <= tensor_type.fields.keys():
        raise ValueError(f"{who}: fields must be {list(tensor_type.fields)}, got {list(fields)}")
    if not {"block_size"} <= attributes.keys() <= set(tensor_type.attributes):
        raise ValueError(f"{who}: attributes must be {tensor_type.attributes}, got {list(attributes)}")
    weight = tensor_type.from_fields({**dict.fromkeys(tensor_type.fields), **fields}, dtype, **attributes)
    if transposed:
        weight = weight.remade(fields, transposed=True)
    hidden = [name for name in remarks if name in tensor_type.own_names() or hasattr(tensor_type, name)]
    if hidden:
        raise ValueError(
            f"{who}: what was set on a weight must not hide what it has of its own, got {hidden}"
        )
    weight.__dict__.update(remarks)
    return weight


def _set_state(self: QuantizedTensor, state: Mapping[str, Any]) -> None:
    """The weight of a file in PyTorch's own form, which earlier versions wrote: self is the outer tensor."""
    fields = {name: state[name] for name in self.fields if state.get(name) is not None}
    attributes = {name: state.get(name) for name in self.attributes}
    remarks = {name: value for name, value in state.items() if name not in self.own_names()}
    transposed = bool(state.get("transposed"))
    weight = rebuild(type(self), fields, self.dtype, attributes, transposed, remarks)
    if weight.shape != self.shape:
        raise ValueError(
            f"{type(self).__name__}: the fields make up a weight {list(weight.shape)}, not {list(self.shape)}"
        )
    self.data = weight
    self.__dict__.update(remarks)


QuantizedTensor.__setstate__ = _set_state  # type: ignore[assignment,method-assign]
torch.serialization.add_safe_globals([rebuild])  # for torch.load(weights_only=True)
