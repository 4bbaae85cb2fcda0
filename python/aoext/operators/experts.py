"""What gradients take products for: of one weight, and of a weight for each expert."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from aoext.operators.batches import vmap_rule

ao = torch.ops.ao

# The operator lives as long as this object.
_library = torch.library.Library("ao", "FRAGMENT")


class OneWeight:
    """What gradients take a product for: input [..., K] times a weight [N, K] in high precision."""

    bias_wants_parts = False

    def times(self, input: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor | None) -> Tensor:
        return linear(input, weight, bias)

    def input_grad(self, grad: Tensor, weight: Tensor, offsets: Tensor | None) -> Tensor:
        return grad @ weight

    def bias_grad(self, grad: Tensor, offsets: Tensor | None) -> Tensor:
        return grad.reshape(-1, grad.shape[-1]).sum(0, dtype=torch.float32)


class ByExpert(OneWeight):
    """Rows of input [T, K] times the weights [E, N, K] of their experts."""

    bias_wants_parts = True

    def times(self, input: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor | None) -> Tensor:
        assert offsets is not None
        product = self.input_grad(input, weight.mT, offsets)
        if bias is None:
            return product
        return product + pad(bias, (0, 0, 0, 1))[expert_of_row(offsets, input.shape[0])]

    def input_grad(self, grad: Tensor, weight: Tensor, offsets: Tensor | None) -> Tensor:
        return ao._times_experts(grad, weight, offsets)

    def bias_grad(self, grad: Tensor, offsets: Tensor | None) -> Tensor:
        assert offsets is not None
        sums = grad.new_zeros((len(offsets) + 1, grad.shape[-1]), dtype=torch.float32)
        return sums.index_add(0, expert_of_row(offsets, grad.shape[0]), grad.float())[:-1]


def expert_of_row(offsets: Tensor, rows: int) -> Tensor:
    """The expert of each row, as many as there are experts behind the last offset."""
    at = torch.arange(rows, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, at, right=True)


def times(rows: Tensor, weight: Tensor, offsets: Tensor | None) -> Tensor:
    """rows [..., A] times a plain weight [A, B]; beside offsets, those of their experts, [E, A, B]."""
    return rows @ weight if offsets is None else ao._times_experts(rows, weight, offsets)


ONE_WEIGHT, BY_EXPERT = OneWeight(), ByExpert()

_library.define("_times_experts(Tensor rows, Tensor weight, Tensor offsets) -> Tensor")


def _times_experts(rows: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """rows [T, A] times the weights [E, A, B] of their experts; zeros where a row has none.

    All are of one dtype. It is an operator, since a graph holds no loop whose steps depend on offsets;
    torch._grouped_mm is it for bfloat16 on CUDA alone, and where rows have whole 16 bytes.
    """
    result = rows.new_zeros((rows.shape[0], weight.shape[2]))
    begin = 0
    for of_expert, end in zip(weight, offsets.tolist(), strict=True):
        result[begin:end] = rows[begin:end] @ of_expert
        begin = end
    return result


def _register_times_experts() -> None:
    name = "ao::_times_experts"
    _library.impl("_times_experts", _times_experts, "CompositeExplicitAutograd")
    torch.library.register_fake(
        name, lambda rows, weight, offsets: rows.new_empty((rows.shape[0], weight.shape[2]))
    )

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, offsets = ctx.saved_tensors
        return ao._times_experts(grad, weight.mT, offsets), None, None

    torch.library.register_autograd(name, backward, setup_context=setup_context)
    torch.library.register_vmap(name, vmap_rule(ao._times_experts.default, ("rows", "weight", "offsets")))


_register_times_experts()
