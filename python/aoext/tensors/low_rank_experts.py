"""A product of experts with a quantised weight and low-rank changes, W + Σ s·L·R, as one function.

As low_rank.py has it of one weight: what the changes add goes into the product in place, and so do their
parts of the gradient of rows. Where the rows of each expert lie is worked out once for all products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aoext.operators.experts import BY_EXPERT, Groups, times
from aoext.operators.gradients import in_transform
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.kept import KeptWeight
from aoext.tensors.products import cast_by_autocast, in_operators_dtype, without_autocast

# left [E, A, r], right [E, r, B] and s of what is added to a weight [E, A, B].
LowRank = tuple[Tensor, Tensor, float]


def takes(rows: Tensor, weight: QuantizedTensor, changes: Sequence[LowRank]) -> bool:
    """Whether adapted_experts is for these: plain tensors, in eager code."""
    return (
        not torch.compiler.is_compiling()
        and type(rows) is Tensor
        and weight.activation_dtype is not None
        and not weight.trains
        and not in_transform()
        and all(type(factor) in (Tensor, nn.Parameter) for change in changes for factor in change[:2])
    )


def _in_turn(left: Tensor, right: Tensor, transposed: bool) -> tuple[Tensor, Tensor]:
    """The factors of a change as rows meet them, one after the other."""
    return (left, right) if transposed else (right.mT, left.mT)


def added(product: Tensor, rows: Tensor, change: LowRank, transposed: bool, offsets: Tensor | None) -> Tensor:
    """`product` of rows and a weight, with what a change of the weight adds, as separate operations.

    offsets: as adapted_experts has it; None beside one weight [A, B]
    """
    left, right, scale = change
    first, second = _in_turn(left, right, transposed)
    low = times(rows.to(product.dtype), first.to(product.dtype), offsets)
    return product + times(low * scale, second.to(product.dtype), offsets)


def adapted_experts(
    rows: Tensor,
    weight: QuantizedTensor,
    bias: Tensor | None,
    transposed: bool,
    offsets: Tensor,
    changes: Sequence[LowRank],
) -> Tensor:
    """rows [T, A] times the weights [E, A, B] of their experts, or [T, B] unless `transposed`, plus bias.

    offsets: where the rows of each expert end
    """
    rows = cast_by_autocast("linear", rows, weight)
    factors = [factor for change in changes for factor in change[:2]]
    scales = [change[2] for change in changes]
    with without_autocast():
        tensors = [rows, *factors] if bias is None else [rows, *factors, bias]
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors):
            return _apply(rows, bias, (weight, transposed, offsets, scales), *factors)
        groups = Groups(offsets, rows)
        return _product(rows, weight, bias, transposed, groups, factors, scales)[0]


def _product(
    rows: Tensor,
    weight: QuantizedTensor,
    bias: Tensor | None,
    transposed: bool,
    groups: Groups,
    factors: Sequence[Tensor],
    scales: Sequence[float],
) -> tuple[Tensor, list[Tensor]]:
    """The result, and s·rows·L of each change, of which there is nothing where a row has no expert."""
    result = in_operators_dtype(rows, weight, bias, transposed, groups.offsets)
    low = []
    for left, right, scale in zip(factors[::2], factors[1::2], scales, strict=True):
        first, second = _in_turn(left, right, transposed)
        low.append(groups.thin(rows, first.to(rows.dtype)).mul_(scale))
        result += groups.wide(low[-1], second.to(rows.dtype))
    return result, low


class _AdaptedExperts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, bias: Tensor | None, others: Any, *factors: Tensor) -> Tensor:
        weight, ctx.transposed, offsets, ctx.scales = others
        ctx.weight, ctx.groups = KeptWeight(weight), Groups(offsets, rows)
        result, low = _product(rows, weight, bias, ctx.transposed, ctx.groups, factors, ctx.scales)
        ctx.save_for_backward(rows, bias, *factors, *low)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        rows, bias, *others = ctx.saved_tensors  # once: checkpointing lets nobody ask again
        factors, low = others[: 2 * len(ctx.scales)], others[2 * len(ctx.scales) :]
        weight, groups = ctx.weight.get(), ctx.groups
        wants_rows, wants_bias, _, *wanted = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return _differentiable(ctx, weight, grad, rows, bias, factors)
        with without_autocast():
            rows_grad = bias_grad = None
            grad = grad.contiguous()
            if wants_rows:
                rows_grad = in_operators_dtype(grad, weight, None, not ctx.transposed, groups.offsets)
            if wants_bias:
                bias_grad = BY_EXPERT.bias_grad(grad, {"offsets": groups.offsets}).to(bias.dtype)
            grads: list[Tensor | None] = []
            for i, scale in enumerate(ctx.scales):
                left, right = factors[2 * i : 2 * i + 2]
                first, second = _in_turn(left, right, ctx.transposed)
                wants_first, wants_second = wanted[2 * i : 2 * i + 2][:: 1 if ctx.transposed else -1]
                first_grad = second_grad = None
                if wants_first or wants_rows:
                    low_grad = groups.thin(grad, second.mT.to(grad.dtype)).mul_(scale)
                    first_grad = groups.grad(rows, low_grad).to(first.dtype) if wants_first else None
                    if rows_grad is not None:
                        rows_grad += groups.wide(low_grad, first.mT.to(grad.dtype))
                if wants_second:
                    second_grad = groups.grad(low[i], grad).to(second.dtype)
                if ctx.transposed:
                    grads += (first_grad, second_grad)
                else:
                    grads += (
                        None if second_grad is None else second_grad.mT,
                        None if first_grad is None else first_grad.mT,
                    )
        return (rows_grad, bias_grad, None, *grads)


def _differentiable(
    ctx: Any,
    weight: QuantizedTensor,
    grad: Tensor,
    rows: Tensor,
    bias: Tensor | None,
    factors: Sequence[Tensor],
) -> tuple[Any, ...]:
    """Gradients of which gradients can be taken."""
    offsets = ctx.groups.offsets
    with without_autocast():
        result = in_operators_dtype(rows, weight, bias, ctx.transposed, offsets)
        for left, right, scale in zip(factors[::2], factors[1::2], ctx.scales, strict=True):
            result = added(result, rows, (left, right, scale), ctx.transposed, offsets)
    flags = (*ctx.needs_input_grad[:2], *ctx.needs_input_grad[3:])
    inputs = (rows, bias, *factors)
    wanted = [tensor for tensor, flag in zip(inputs, flags, strict=True) if flag and tensor is not None]
    found = iter(torch.autograd.grad(result, wanted, grad, create_graph=True))
    grads = [next(found) if flag else None for flag in flags]
    return (*grads[:2], None, *grads[2:])


# Not _AdaptedExperts.apply itself, which unwraps what transforms of torch.func have wrapped.
_apply = super(torch.autograd.Function, _AdaptedExperts).apply
