"""From rows of experts back to tokens; torch.ops.ao.sort_by_expert is the way there.

A token has k experts, so T tokens are T·k pairs; pair p is of token p // k.
"""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_sum(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """For each token the sum of its experts' rows by their weights, in rows' dtype.

    rows: [T·k, N] in the order of sort_by_expert
    weights: [T, k]; where a pair has no expert, its row must be zeros

    Terms are summed in float32, in the order of the token's experts, so that it gets the same bits whatever
    the other tokens are.
    """
    pairs = torch.arange(order.shape[0], dtype=order.dtype, device=order.device)
    inverse = torch.empty_like(order).scatter_(0, order, pairs)
    of_token = rows.index_select(0, inverse).unflatten(0, weights.shape)
    return (of_token * weights.unsqueeze(-1).float()).sum(1).to(rows.dtype)
