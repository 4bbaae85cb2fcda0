"""A layer with a quantised weight and low-rank adapters, y = x·Wᵀ + Σ s·(x·Aᵀ)·Bᵀ + bias, as one function.

Adapters are added to the product in place, and so are their parts of dx to dy·W: no tensor of the size of y
or of x comes in between. Nothing is kept that has the rank r, x·Aᵀ is made anew. All factors are in the
dtype of x; gradients have those of A and B.

What the backward pass needs is saved before the product is made. Recomputation in gradient checkpointing
stops with the last tensor that is saved, and so leaves out the product of a block's last layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aoext.operators.choice import prefers_plain_weight
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.computing import Direct
from aoext.tensors.kept import KeptWeight
from aoext.tensors.products import without_autocast


class Adapter(NamedTuple):
    """What is added to a product x·Wᵀ: s·(x·Aᵀ)·Bᵀ; a [r, K], b [N, r]."""

    a: Tensor
    b: Tensor
    scale: float


def adapted_linear(
    input: Tensor, weight: QuantizedTensor, bias: Tensor | None, adapters: Sequence[Adapter]
) -> Tensor:
    """F.linear(input [..., K], weight [N, K], bias [N]), with what adapters add.

    input: in weight's dtype, or in that of autocast
    """
    leading, N = input.shape[:-1], adapters[0].b.shape[0]
    rows = input if len(leading) == 1 else input.reshape(math.prod(leading), input.shape[-1])
    factors = [factor for adapter in adapters for factor in adapter[:2]]
    scales = [adapter.scale for adapter in adapters]
    tensors = [rows, *factors] if bias is None else [rows, *factors, bias]
    with without_autocast():
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors):
            result = _apply(rows, weight, N, bias, scales, *factors)
            result.data = _product(rows, weight, bias, factors, scales)
        else:
            result = _product(rows, weight, bias, factors, scales)
    return result if len(leading) == 1 else result.view(*leading, N)


def _product(
    rows: Tensor,
    weight: QuantizedTensor,
    bias: Tensor | None,
    factors: Sequence[Tensor],
    scales: Sequence[float],
) -> Tensor:
    meets_plainly = weight.input_dtype is None and getattr(weight, "act_pre_scale", None) is None
    with torch._C._AutoDispatchBelowAutograd():
        if meets_plainly and prefers_plain_weight(rows, weight.code):
            plain = weight.dequantize().to(rows.dtype)
            result = torch.nn.functional.linear(rows, plain, None if bias is None else bias.to(rows.dtype))
        else:
            result = weight._linear(rows, bias, Direct)
        for a, b, scale in zip(factors[::2], factors[1::2], scales, strict=True):
            result.addmm_(rows @ a.to(rows.dtype).t(), b.to(rows.dtype).t(), alpha=scale)
    return result


def _scaled(place: Tensor, scale: float, first: Tensor, second: Tensor) -> Tensor:
    """scale · first @ second in one product; `place` has its shape, and no other part in it."""
    return torch.addmm(place, first, second, beta=0, alpha=scale)


class _Gradients(torch.autograd.Function):
    """Saves what the gradients need. Its result has no values yet, and takes those of the product."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: QuantizedTensor,
        N: int,
        bias: Tensor | None,
        scales: Sequence[float],
        *factors: Tensor,
    ) -> Tensor:
        ctx.weight, ctx.scales = KeptWeight(weight), scales
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(rows, *factors)
        return rows.new_empty_strided((len(rows), N), (0, 0))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        rows, *factors = ctx.saved_tensors  # once: checkpointing lets nobody ask again
        weight = ctx.weight.get()
        wants_rows, _, _, wants_bias, _, *wanted = ctx.needs_input_grad
        with without_autocast():
            rows_grad = weight._linear_backward(grad) if wants_rows else None
            bias_grad = grad.sum(0, dtype=torch.float32).to(ctx.bias_dtype) if wants_bias else None
            grads: list[Tensor | None] = []
            for i, scale in enumerate(ctx.scales):
                a, b = factors[2 * i : 2 * i + 2]
                wants_a, wants_b = wanted[2 * i : 2 * i + 2]
                own_a, own_b = a.to(rows.dtype), b.to(rows.dtype)
                a_grad = b_grad = None
                if wants_a or wants_rows:
                    low_grad = grad @ own_b
                    a_grad = _scaled(own_a, scale, low_grad.t(), rows).to(a.dtype) if wants_a else None
                    if rows_grad is not None:
                        rows_grad.addmm_(low_grad, own_a, alpha=scale)
                if wants_b:
                    b_grad = _scaled(own_b, scale, grad.t(), rows @ own_a.t()).to(b.dtype)
                grads += (a_grad, b_grad)
        return (rows_grad, None, None, bias_grad, None, *grads)


# Not _Gradients.apply itself, which unwraps what transforms of torch.func have wrapped.
_apply = super(torch.autograd.Function, _Gradients).apply
