"""What torch.distributed asks of quantised weights: a collective is one for each field.

With views, copies and products these are what DTensor needs to shard a weight, to multiply by it and to
put it together again (distribute_tensor, parallelize_module, full_tensor), and what fully_shard needs
beside its hooks (base.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed._functional_collectives  # defines some of the operators below
from torch import Tensor

from aoext.tensors import flat as flat  # which registers operations
from aoext.tensors.base import QuantizedTensor, implements
from aoext.tensors.views import concatenated

aten = torch.ops.aten
c10d = torch.ops.c10d
functional = torch.ops._c10d_functional


def _bytes_of(tensor: Tensor) -> Tensor:
    """A field as bytes, for not every backend knows every dtype of 8 bits."""
    return tensor.view(torch.uint8)


def _field_by_field(weight: QuantizedTensor, collective: Callable[[str, Tensor], Any]) -> Any:
    """The torch.distributed.Work of all fields, of which the last is to be waited for."""
    work = None
    for name, tensor in weight.named_fields():
        before = torch.distributed.Work.unbox(work) if work is not None else None
        if before is not None:  # as it is where a backend has waited by itself
            before.wait()
        _, work = collective(name, _bytes_of(tensor))
    return work


@implements(c10d.broadcast_.default)
def _broadcast_(tensors: Sequence[QuantizedTensor], *options: Any) -> tuple[Any, Any]:
    (weight,) = tensors
    return tensors, _field_by_field(weight, lambda _, t: c10d.broadcast_.default([t], *options))


@implements(c10d.scatter_.default)
def _scatter_(
    output_tensors: Sequence[QuantizedTensor],
    input_tensors: Sequence[Sequence[QuantizedTensor]],
    *options: Any,
) -> tuple[Any, Any]:
    (output,) = output_tensors

    def scatter(name: str, tensor: Tensor) -> Any:
        inputs = [[_bytes_of(getattr(weight, name)) for weight in weights] for weights in input_tensors]
        return c10d.scatter_.default([tensor], inputs, *options)

    return output_tensors, _field_by_field(output, scatter)


@implements(functional.all_gather_into_tensor.default)
def _all_gather_into_tensor(input: QuantizedTensor, group_size: int, group_name: Any) -> QuantizedTensor:
    """The weights of all ranks behind each other along dimension 0, as torch.cat puts them."""

    def gathered(tensor: Tensor) -> Sequence[Tensor]:
        parts = functional.all_gather_into_tensor(_bytes_of(tensor.contiguous()), group_size, group_name)
        return functional.wait_tensor(parts).view(tensor.dtype).chunk(group_size)

    fields = {name: gathered(tensor) for name, tensor in input.named_fields()}
    ranks = range(group_size)
    return concatenated([input.remade({name: parts[r] for name, parts in fields.items()}) for r in ranks], 0)


@implements(functional.wait_tensor.default)
def _waited_for(weight: QuantizedTensor) -> QuantizedTensor:
    """What was gathered, which has been waited for."""
    return weight


if hasattr(functional, "_wrap_tensor_autograd"):  # from torch 2.13 on
    implements(functional._wrap_tensor_autograd.default)(_waited_for)


@implements(aten.as_strided.default)  # what fully_shard calls of a weight that it has gathered
def _as_strided(
    self: QuantizedTensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> QuantizedTensor:
    if (list(size), list(stride)) != (list(self.shape), list(self.stride())) or storage_offset:
        raise NotImplementedError(
            f"{type(self).__name__}: aten.as_strided.default is not implemented for other sizes and strides"
        )
    return cast(QuantizedTensor, self.view(self.shape))
