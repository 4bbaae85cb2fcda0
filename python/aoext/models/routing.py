"""Routing of tokens to experts: rows sorted by expert, and back. No step waits for the host.

A token has k experts, so T tokens are T·k pairs; pair p is of token p // k.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sort_by_expert(expert: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """The pairs in the order of their experts, and where the rows of each expert end.

    expert: int32 or int64 [T, k], ids in 0..experts−1; a pair of any other id has no expert, as on a rank of
        expert parallelism, and comes last
    Returns order, int64 [T·k], pairs of one expert as they came; and offsets, int32 [experts].
    """
    flat = expert.reshape(-1)
    known = torch.where((flat >= 0) & (flat < experts), flat, experts)
    ordered, order = torch.sort(known, stable=True)
    each = torch.arange(experts, dtype=ordered.dtype, device=ordered.device)
    return order, torch.searchsorted(ordered, each, right=True, out_int32=True)


def weighted_sum(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """For each token the sum of its experts' rows by their weights, in rows' dtype.

    rows: [T·k, N] in the order of sort_by_expert
    weights: [T, k]; where a pair has no expert, its row must be zeros

    Terms are summed in float32, in the order of the token's experts, so that it gets the same bits whatever
    the other tokens are.
    """
    inverse = torch.empty_like(order).scatter_(
        0, order, torch.arange(order.shape[0], dtype=order.dtype, device=order.device)
    )
    of_token = rows.index_select(0, inverse).unflatten(0, weights.shape)
    return (of_token * weights.unsqueeze(-1).float()).sum(1).to(rows.dtype)
