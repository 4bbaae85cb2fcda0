"""Experts of quantised weights [E, N, K] by their numbers: w[3], w[ids], iteration, and their inverse, stack.

Experts one by one are views, as slices are; those that indices name are copies. The numbers of a
matrix are those of its rows, which come plain, and no others are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aoext.tensors.base import QuantizedTensor, implements
from aoext.tensors.each_expert import expert_of, has_experts
from aoext.tensors.fields import E, N, gathered
from aoext.tensors.lookups import rows_at
from aoext.tensors.outer import counted_versions
from aoext.tensors.views import concatenated, weight_dim

aten = torch.ops.aten


def _is_of_experts(self: QuantizedTensor, dim: int) -> bool:
    return weight_dim(self, dim) == E


def _is_of_rows(self: QuantizedTensor, dim: int) -> bool:
    return self.dim() == 2 and weight_dim(self, dim) == N


@implements(aten.select.int)
def _select(self: QuantizedTensor, dim: int, index: int) -> Tensor:
    if _is_of_rows(self, dim):
        rows = self.weight_shape[N]
        if not -rows <= index < rows:
            raise IndexError(f"{type(self).__name__}: there are {rows} rows, got the index {index}")
        return rows_at(self, torch.full((1,), index % rows, device=self.device)).squeeze(0)
    if not _is_of_experts(self, dim):
        return aten.select.int(self.dequantize(), dim, index)
    if not -len(self) <= index < len(self):
        raise IndexError(f"{type(self).__name__}: there are {len(self)} experts, got the index {index}")
    with counted_versions():
        return expert_of(self, index % len(self))


@implements(aten.unbind.int)  # what iteration calls
def _unbind(self: QuantizedTensor, dim: int = 0) -> Sequence[Tensor]:
    if not _is_of_experts(self, dim):
        return aten.unbind.int(self.dequantize(), dim)
    with counted_versions():
        return [expert_of(self, e) for e in range(len(self))]


@implements(aten.index_select.default)
def _index_select(self: QuantizedTensor, dim: int, index: Tensor) -> Tensor:
    if not isinstance(index, QuantizedTensor) and _is_of_rows(self, dim):
        rows = rows_at(self, index.reshape(-1))
        return rows.t() if self.transposed else rows
    if not _is_of_experts(self, dim):
        return aten.index_select.default(self.dequantize(), dim, index)
    return _experts(self, index)


@implements(aten.index.Tensor)
def _index(self: QuantizedTensor, indices: Sequence[Any]) -> Tensor:
    first, *others = indices
    alone = first is not None and first.dim() <= 1 and all(i is None for i in others)
    if not alone or (self.transposed and not has_experts(self)):
        return aten.index.Tensor(self.dequantize(), indices)
    if first.dtype in (torch.bool, torch.uint8):
        first = first.nonzero().squeeze(1)
    at = torch.where(first < 0, first + len(self), first).reshape(-1)
    if not has_experts(self):
        return rows_at(self, at).view(*first.shape, self.shape[1])
    experts = _experts(self, at)
    return experts if first.dim() else expert_of(experts, 0)


def _experts(self: QuantizedTensor, index: Tensor) -> QuantizedTensor:
    fields = {
        name: gathered(tensor, index) if self.fields[name].follows_experts else tensor.clone()
        for name, tensor in self.named_fields()
    }
    return self.remade(fields, shape=[len(index), *self.weight_shape[1:]])


@implements(aten.stack.default)
def _stack(tensors: Sequence[Tensor], dim: int = 0) -> QuantizedTensor:
    """Matrices of one form as the weights of experts."""
    if dim not in (0, -3) or any(not isinstance(t, QuantizedTensor) or t.dim() != 2 for t in tensors):
        raise NotImplementedError(
            "aten.stack.default of quantised weights is implemented for matrices alone, along a first "
            "dimension; dequantize() gives plain tensors"
        )
    return concatenated([_alone(weight) for weight in tensors])


def _alone(weight: Any) -> QuantizedTensor:
    """A weight [N, K] as that of one expert."""
    fields = {
        name: tensor.unsqueeze(0) if weight.fields[name].follows_experts else tensor
        for name, tensor in weight.named_fields()
    }
    return weight.remade(fields, shape=[1, *weight.weight_shape])
