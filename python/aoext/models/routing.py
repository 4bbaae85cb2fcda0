"""From tokens to rows of experts and back; torch.ops.ao.sort_by_expert is the way there.

A token has k experts, so T tokens are T·k pairs; pair p is of token p // k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aoext.operators.gradients import in_transform

ao = torch.ops.ao


def routed(
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
    experts: int,
    run: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The output of so many experts for each token.

    hidden_states: [..., K]; top_k_index, top_k_weights: [T, k]. Ids that no expert has count as nothing
    run: what experts make of rows that are sorted by them, beside where those of each expert end
    """
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    order, place, offsets = ao.sort_by_expert(top_k_index, experts)
    k = top_k_index.shape[1]
    if x.shape[0] == 1:
        rows = x.repeat(k, 1)
    elif _has_gradient(x):
        rows = _RowsOfPairs.apply(x, order, place, k)
    else:
        rows = x.index_select(0, order // k)
    summed = weighted_sum(run(rows, offsets), place, top_k_weights, order)
    return summed.to(hidden_states.dtype).reshape(hidden_states.shape)


def weighted_sum(rows: Tensor, place: Tensor, weights: Tensor, order: Tensor | None = None) -> Tensor:
    """For each token the sum of its experts' rows by their weights, in rows' dtype.

    rows: [T·k, N] in the order of sort_by_expert, where the row of each pair has its `place`
    weights: [T, k]; where a pair has no expert, its row must be zeros
    order: the pair of each row, where it is known

    Terms are summed in float32, the same way in every run. Inductor makes one kernel of it all, which a
    product by a library would break up; eagerly the product is fewer kernels.
    """
    if order is not None and _has_gradient(rows):
        of_token = _Permuted.apply(rows, place, order)
    else:
        of_token = rows.index_select(0, place)
    of_token = of_token.unflatten(0, weights.shape)
    if weights.dtype is rows.dtype and not torch.compiler.is_compiling():
        return torch.bmm(weights.unsqueeze(1), of_token).squeeze(1)
    return (of_token * weights.unsqueeze(-1).float()).sum(1).to(rows.dtype)


def _has_gradient(rows: Tensor) -> bool:
    """Whether eager code takes a gradient of plain rows.

    index_select adds rows to its gradient, one at a time where that is to be the same in every run. The
    functions below know where each row went, and take it from there.
    """
    return (
        not torch.compiler.is_compiling()
        and type(rows) is Tensor
        and rows.requires_grad
        and torch.is_grad_enabled()
        and not in_transform()
    )


class _Permuted(torch.autograd.Function):
    """Rows by a permutation, and their gradient by its inverse."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return rows.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grad.index_select(0, back), None, None


class _RowsOfPairs(torch.autograd.Function):
    """A row of x [T, K] for each of T·k pairs in their `order`, where pair p has its `place`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, place: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.k = k
        return x.index_select(0, order // k)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (place,) = ctx.saved_tensors
        return grad.index_select(0, place).unflatten(0, (-1, ctx.k)).sum(1), None, None, None
