"""Quantised experts in transformers' models: ALL_EXPERTS_FUNCTIONS["aoext"]. Imported once these are.

One function for prefill and decoding, and for any number of tokens: rows sorted by expert, two grouped
products, and the weighted sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from aoext.models.experts import IMPLEMENTATION, are_transposed
from aoext.models.routing import weighted_sum
from aoext.operators.experts import expert_of_row, times
from aoext.tensors import QuantizedTensor
from aoext.tensors.products import linear

ao = torch.ops.ao


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The output of a layer's experts for each token, as every function of transformers' registry gives it.

    self: a module of experts. Its quantised weights run on this package's operators; plain ones alone run as
        transformers' own `grouped_mm` runs them
    hidden_states: [T, K]; top_k_index, top_k_weights: [T, k]. Ids beyond the experts are those of other ranks
    """
    up_name = "gate_up_proj" if getattr(self, "has_gate", hasattr(self, "gate_up_proj")) else "up_proj"
    up, down = getattr(self, up_name), self.down_proj
    if not isinstance(up, QuantizedTensor) and not isinstance(down, QuantizedTensor):
        return ALL_EXPERTS_FUNCTIONS["grouped_mm"](self, hidden_states, top_k_index, top_k_weights)
    transposed = are_transposed(self)

    def product(rows: Tensor, name: str, offsets: Tensor) -> Tensor:
        return _product(rows, getattr(self, name), getattr(self, f"{name}_bias", None), offsets, transposed)

    return routed(self, up_name, _count(up), product, hidden_states, top_k_index, top_k_weights)


def routed(
    self: Any,
    up_name: str,
    experts: int,
    product: Callable[[Tensor, str, Tensor], Tensor],
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """The output of experts whose products are `product(rows, name of the weights, offsets)`."""
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    index = top_k_index.reshape(x.shape[0], -1)
    weights = top_k_weights.reshape(x.shape[0], -1)
    if weights.shape != index.shape:  # some releases have them for all experts
        weights = weights.gather(1, index)
    order, offsets = ao.sort_by_expert(index, experts)
    k = index.shape[1]
    rows = x.expand(k, -1) if x.shape[0] == 1 else x.index_select(0, order // k)
    rows = product(rows, up_name, offsets)
    rows = _activated(self, rows, up_name)
    rows = product(rows, "down_proj", offsets)
    if getattr(self, "has_post_expert_norm", False):
        rows = self.post_expert_norm(rows)
    return weighted_sum(rows, order, weights).to(hidden_states.dtype).reshape(hidden_states.shape)


def _count(weight: Tensor) -> int:
    """How many experts there are: a field's shape costs less to ask than a quantised weight's."""
    return (weight.qdata if isinstance(weight, QuantizedTensor) else weight).shape[0]


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor, transposed: bool) -> Tensor:
    """rows times the weights of their experts, [E, K, N] where these are `transposed`, plus bias [E, N]."""
    if isinstance(weight, QuantizedTensor):
        return linear(rows.to(weight.activation_dtype or rows.dtype), weight, bias, transposed, offsets)
    product = times(rows.to(weight.dtype), weight if transposed else weight.mT, offsets)
    if bias is None:
        return product
    return product + pad(bias, (0, 0, 0, 1))[expert_of_row(offsets, rows.shape[0])]


def _activated(self: Any, rows: Tensor, up_name: str) -> Tensor:
    if up_name == "up_proj":
        return self.act_fn(rows)
    if hasattr(self, "_apply_gate"):
        return self._apply_gate(rows)
    gate, up = rows.chunk(2, dim=-1)
    return self.act_fn(gate) * up


ALL_EXPERTS_FUNCTIONS[IMPLEMENTATION] = experts_forward
