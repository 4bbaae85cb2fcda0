"""Quantised experts in transformers' models: ALL_EXPERTS_FUNCTIONS["aoext"]. Imported once these are.

One function for prefill and decoding, and for any number of tokens: rows sorted by expert, two grouped
products, and the weighted sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from aoext.models import routing
from aoext.models.adapted import quantized
from aoext.models.experts import IMPLEMENTATION, are_transposed
from aoext.operators.experts import bias_of_rows, times
from aoext.qat.layers import expert_product
from aoext.tensors.products import linear


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The output of a layer's experts for each token, as every function of transformers' registry gives it.

    self: a module of experts. Its quantised weights run on this package's operators; plain ones alone run as
        transformers' own `grouped_mm` runs them
    hidden_states: [T, K]; top_k_index, top_k_weights: [T, k]. Ids beyond the experts are those of other ranks
    """
    up, down = getattr(self, up_name_of(self)), self.down_proj
    if "fake_quantized" not in self.__dict__ and quantized(up) is None and quantized(down) is None:
        return ALL_EXPERTS_FUNCTIONS["grouped_mm"](self, hidden_states, top_k_index, top_k_weights)
    return output_of(self, hidden_states, top_k_index, top_k_weights)


def up_name_of(self: Any) -> str:
    """The name of the weight by which experts of a module begin."""
    return "gate_up_proj" if getattr(self, "has_gate", hasattr(self, "gate_up_proj")) else "up_proj"


def output_of(
    self: Any,
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
    note: Callable[[str, Tensor, Tensor], None] | None = None,
) -> Tensor:
    """experts_forward, by this package's operators whatever the weights are.

    note: gets the name of each weight, the rows that it multiplies, and where those of each expert end
    """
    up_name, transposed = up_name_of(self), are_transposed(self)
    trains = "fake_quantized" in self.__dict__

    def product(rows: Tensor, name: str, offsets: Tensor) -> Tensor:
        if note is not None:
            note(name, rows, offsets)
        weight, bias = getattr(self, name), getattr(self, f"{name}_bias", None)
        if trains:
            result = expert_product(self, name, rows.to(weight.dtype), bias, offsets)
            if result is not None:
                return result
        return _product(rows, weight, bias, offsets, transposed)

    experts = count_of(getattr(self, up_name))
    return routed(self, hidden_states, top_k_index, top_k_weights, experts, up_name, product)


def routed(
    self: Any,
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
    experts: int,
    up_name: str,
    product: Callable[[Tensor, str, Tensor], Tensor],
) -> Tensor:
    """The output of so many experts.

    product: of rows, the name of a weight, and where the rows of each expert end
    """
    tokens = hidden_states.numel() // hidden_states.shape[-1]
    index, weights = top_k_index.reshape(tokens, -1), top_k_weights.reshape(tokens, -1)
    if weights.shape != index.shape:  # some releases have them for all experts
        weights = weights.gather(1, index)

    def run(rows: Tensor, offsets: Tensor) -> Tensor:
        rows = product(_activated(self, product(rows, up_name, offsets), up_name), "down_proj", offsets)
        return self.post_expert_norm(rows) if getattr(self, "has_post_expert_norm", False) else rows

    return routing.routed(hidden_states, index, weights, experts, run)


def count_of(weight: Any) -> int:
    """How many experts there are: a field's shape costs less to ask than a quantised weight's."""
    ours = quantized(weight)
    return (weight if ours is None else ours.qdata).shape[0]


def _product(rows: Tensor, weight: Any, bias: Tensor | None, offsets: Tensor, transposed: bool) -> Tensor:
    """rows times the weights of their experts, [E, K, N] where these are `transposed`, plus bias [E, N]."""
    ours = quantized(weight)
    if ours is not None:
        rows = rows.to(ours.activation_dtype or rows.dtype)
        if weight is ours:
            return linear(rows, ours, bias, transposed, offsets)
        return weight.times(rows, bias, transposed, offsets)
    product = times(rows.to(weight.dtype), weight if transposed else weight.mT, offsets)
    if bias is None:
        return product
    return product + bias_of_rows(bias, rows, offsets)


def _activated(self: Any, rows: Tensor, up_name: str) -> Tensor:
    if up_name == "up_proj":
        return self.act_fn(rows)
    if hasattr(self, "_apply_gate"):
        return self._apply_gate(rows)
    gate, up = rows.chunk(2, dim=-1)
    return self.act_fn(gate) * up


ALL_EXPERTS_FUNCTIONS[IMPLEMENTATION] = experts_forward
