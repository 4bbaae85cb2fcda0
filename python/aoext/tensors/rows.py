"""Rows of quantised weights: in another order, or some quantised anew while the others keep their bits."""

from __future__ import annotations

import torch
from torch import Tensor

from aoext.tensors.base import QuantizedTensor
from aoext.tensors.fields import N, gathered
from aoext.tensors.nested import NestedLut4Tensor, with_float_scales


def in_order(weight: QuantizedTensor, rows: Tensor) -> QuantizedTensor:
    """The rows of a weight [N, K] in another order, int64 [N]; ValueError where a scale is of several."""
    fields, weight = {}, with_float_scales(weight)
    for name, tensor in weight.named_fields():
        at = weight.fields[name].position(N)
        if at is None:
            fields[name] = tensor
            continue
        if (size := weight.fields[name].axes[at].elements(weight.weight_shape, weight.block_size)) > 1:
            raise ValueError(f"rows cannot change their order where {size} of them share one {name}")
        fields[name] = gathered(tensor, rows.to(tensor.device), tensor.dim() + at)
    return weight.remade(fields)


def with_rows(weight: QuantizedTensor, plain: Tensor, kept: Tensor) -> QuantizedTensor:
    """A plain matrix in the scheme of `weight`, whose own rows it has to the bit where `kept` is True.

    plain: bfloat16, float16 or float32, of the weight's shape, but for more or fewer rows [M, K]
    kept: bool [M], False for rows that the weight does not have. A block of several rows is kept where all of
        its rows are. A new scale of the whole matrix, as nvfp4 has one, quantises every row anew, and so do
        nested scales, which have a mean of all, unless all rows are kept.

    NaN or Inf in `plain` raises ValueError.
    """
    rows = (plain.t() if weight.transposed else plain).float()
    old = dict(weight.named_fields())
    new = {**old, **weight._quantized(rows)}
    if isinstance(weight, NestedLut4Tensor) and not kept.all():
        return weight.remade(new, shape=list(rows.shape))
    following = {name for name in old if any(axis.dim == N for axis in weight.fields[name].axes)}
    if kept.all():
        new.update({name: old[name] for name in old.keys() - following})
    if all(torch.equal(old[name], new[name]) for name in old.keys() - following):
        for name in following:
            field = weight.fields[name]
            size = field.axes[field.rows].elements(weight.weight_shape, weight.block_size)
            _keep(new[name], old[name], field.rows, kept, size)
    return weight.remade(new, shape=list(rows.shape))


def _keep(new: Tensor, old: Tensor, dim: int, kept: Tensor, size: int) -> None:
    """Write those entries of a field along `dim`, one for each `size` rows, whose rows are all kept."""
    padding = -len(kept) % size
    whole = torch.nn.functional.pad(kept, (0, padding), value=True).view(-1, size).all(1)
    indices = whole.nonzero().squeeze(1)
    into, source = (t.movedim(dim, 0) for t in (new, old))
    if new.itemsize == 1:  # not every device copies floats of 8 bits by their indices
        into, source = into.view(torch.int8), source.view(torch.int8)
    into.index_copy_(0, indices, source.index_select(0, indices))
