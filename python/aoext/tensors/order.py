"""Columns in another order than the weight's, so that a group holds columns that lie apart: GPTQ's act-order.

k_order, int64 [K], is a permutation: column j of the codes belongs to column k_order[j] of the weight and of
the activation. Experts, [E, K], have one each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aoext.formats.checks import has_values
from aoext.tensors.fields import Axis, Field, K

K_ORDER = Field((Axis(K),), (torch.int64,), optional=True, whole=True)


def check_order(who: str, k_order: Tensor | None) -> None:
    """ValueError unless it is a permutation, or None."""
    if k_order is None or not has_values(k_order):
        return
    columns = torch.arange(k_order.shape[-1], device=k_order.device)
    if not torch.equal(k_order.sort().values, columns.expand(k_order.shape)):
        raise ValueError(f"{who}: k_order must be a permutation of 0..{len(columns) - 1}")


def as_codes(input: Tensor, k_order: Tensor | None) -> Tensor:
    """An activation [..., K] with its columns in the order of the codes'; k_order: [K], or of each row."""
    if k_order is None:
        return input
    return input.gather(-1, k_order.expand(input.shape))  # takes half of index_select's time, or less


def as_weight(rows: Tensor, k_order: Tensor | None) -> Tensor:
    """Rows [..., K] whose columns lie as the codes' do, with their columns as the weight has them."""
    return rows if k_order is None else torch.empty_like(rows).index_copy_(1, k_order, rows)
