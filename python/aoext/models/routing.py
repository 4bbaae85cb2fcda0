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

    Terms are summed in float32, the same way in every run: `order` has each pair once.
    """
    of_token = torch.empty_like(rows).index_copy_(0, order, rows).unflatten(0, weights.shape)
    if weights.dtype is rows.dtype:
        return torch.bmm(weights.unsqueeze(1), of_token).squeeze(1)
    return (of_token * weights.unsqueeze(-1).float()).sum(1).to(rows.dtype)
