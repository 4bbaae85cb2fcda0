"""From tokens to rows of experts and back; torch.ops.ao.sort_by_expert is the way there.

A token has k experts, so T tokens are T·k pairs; pair p is of token p // k.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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
    rows = x.repeat(k, 1) if x.shape[0] == 1 else x.index_select(0, order // k)
    summed = weighted_sum(run(rows, offsets), place, top_k_weights)
    return summed.to(hidden_states.dtype).reshape(hidden_states.shape)


def weighted_sum(rows: Tensor, place: Tensor, weights: Tensor) -> Tensor:
    """For each token the sum of its experts' rows by their weights, in rows' dtype.

    rows: [T·k, N] in the order of sort_by_expert, where the row of each pair has its `place`
    weights: [T, k]; where a pair has no expert, its row must be zeros

    Terms are summed in float32, the same way in every run. Inductor makes one kernel of it all, which a
    product by a library would break up; eagerly the product is fewer kernels.
    """
    of_token = rows.index_select(0, place).unflatten(0, weights.shape)
    if weights.dtype is rows.dtype and not torch.compiler.is_compiling():
        return torch.bmm(weights.unsqueeze(1), of_token).squeeze(1)
    return (of_token * weights.unsqueeze(-1).float()).sum(1).to(rows.dtype)
