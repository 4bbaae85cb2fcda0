"""A layer with a quantised weight and low-rank adapters, y = x·Wᵀ + Σ s·(x·Aᵀ)·Bᵀ + bias, as one function.

Adapters are added to the product in place, and so are their parts of dx to dy·W: no tensor of the size of y
or of x comes in between. Nothing is kept that has the rank r, x·Aᵀ is made anew. All factors are in the
dtype of x; gradients have those of A and B.

What the backward pass needs is saved before the product is made. Recomputation in gradient checkpointing
stops with the last tensor that is saved, and so leaves out the product of a block's last layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aoext.operators.choice import prefers_plain_weight
from aoext.tensors.base import QuantizedTensor
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
    *leading, K = input.shape
    N = weight.shape[0]
    rows = input.reshape(math.prod(leading), K)
    factors = [factor for adapter in adapters for factor in adapter[:2]]
    scales = [adapter.scale for adapter in adapters]

    def product() -> Tensor:
        with without_autocast():
            return _product(rows, weight, bias, factors, scales)

    tensors = [rows, *factors] if bias is None else [rows, *factors, bias]
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors):
        result = _Product.apply(_Gradients.apply(rows, weight, bias, scales, *factors), product)
    else:
        result = product()
    return result.view(*leading, N)


def _product(
    rows: Tensor,
    weight: QuantizedTensor,
    bias: Tensor | None,
    factors: Sequence[Tensor],
    scales: Sequence[float],
) -> Tensor:
    meets_plainly = weight.input_dtype is None and getattr(weight, "act_pre_scale", None) is None
    if meets_plainly and prefers_plain_weight(rows, weight.code):
        plain = weight.dequantize().to(rows.dtype)
        result = torch.nn.functional.linear(rows, plain, None if bias is None else bias.to(rows.dtype))
    else:
        result = weight._linear(rows, bias)
    for a, b, scale in zip(factors[::2], factors[1::2], scales, strict=True):
        result.addmm_(rows @ a.to(rows.dtype).t(), b.to(rows.dtype).t(), alpha=scale)
    return result


def _scaled(place: Tensor, scale: float, first: Tensor, second: Tensor) -> Tensor:
    """scale · first @ second in one product; `place` has its shape, and no other part in it."""
    return torch.addmm(place, first, second, beta=0, alpha=scale)


class _Gradients(torch.autograd.Function):
    """Saves what the gradients need, and stands for the product in the graph. It has no values of its own."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: QuantizedTensor,
        bias: Tensor | None,
        scales: Sequence[float],
        *factors: Tensor,
    ) -> Tensor:
        ctx.names, fields = zip(*weight.named_fields(), strict=True)
        ctx.remade, ctx.scales = weight.remade, scales
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(rows, *factors, *fields)
        return rows.new_empty(()).expand(rows.shape[0], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        rows, *others = ctx.saved_tensors  # once: checkpointing lets nobody ask again
        factors, fields = others[: 2 * len(ctx.scales)], others[2 * len(ctx.scales) :]
        weight = ctx.remade(dict(zip(ctx.names, fields, strict=True)))
        wants_rows, _, wants_bias, _, *wanted = ctx.needs_input_grad
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
        return (rows_grad, None, bias_grad, None, *grads)


class _Product(torch.autograd.Function):
    """The product's values in the place of what stands for it."""

    @staticmethod
    def forward(ctx: Any, place: Tensor, product: Callable[[], Tensor]) -> Tensor:
        return product()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
