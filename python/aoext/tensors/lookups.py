"""Rows of quantised weights by their numbers: F.embedding, torch.embedding, w[3] and w[ids].

The rows are gathered field by field and dequantised then, so that a lookup reads and computes what it gives
and no more. A weight that an embedding shares with a linear layer is one weight for both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aoext.tensors.base import QuantizedTensor, implements

aten = torch.ops.aten


def lookup(indices: Tensor, weight: QuantizedTensor) -> Tensor:
    """Rows of a weight [N, K] in its dtype, [..., K] for `indices` [...], int32 or int64 in 0..N-1."""
    if weight.transposed:
        raise NotImplementedError("embedding takes no transposed view of a quantised weight")
    if weight.dim() != 2:
        raise RuntimeError(f"embedding: the weight must be [N, K], got {list(weight.shape)}")
    rows = rows_at(weight, indices.reshape(indices.numel()))
    return rows.view(*indices.shape, rows.shape[-1])


def rows_at(weight: QuantizedTensor, indices: Tensor) -> Tensor:
    """Rows [T, K] of a weight [N, K] in its dtype, for `indices` [T]."""
    # type(weight), so that torch.compile finds it, and the fields.
    rows = type(weight)._rows(weight, indices)
    return rows.double() if weight.activation_dtype is None else rows


@implements(torch.nn.functional.embedding)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """F.embedding with a quantised weight, which takes no gradient, so that what shapes one has no effect."""
    if max_norm is not None:
        raise NotImplementedError("embedding with a quantised weight takes no max_norm, which changes it")
    return _embedding(weight, input)


@implements(torch.embedding, aten.embedding.default)
def _embedding(weight: Tensor, indices: Tensor, *_: Any, **__: Any) -> Tensor:
    if not isinstance(indices, Tensor):
        raise TypeError(f"embedding: indices must be a Tensor, got a {type(indices).__name__}")
    if not isinstance(weight, QuantizedTensor) or isinstance(indices, QuantizedTensor):
        raise NotImplementedError(
            f"embedding: only the weight can be quantised, "
            f"got {type(indices).__name__} as indices of a {type(weight).__name__}"
        )
    return lookup(indices, weight)
