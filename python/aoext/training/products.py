"""y = x·wᵀ and its gradients as products of 8 bits, whose operands are quantised on the way.

A product sums over one dimension, along which values of its operands share scales: y over K, the gradient of
x over N, and that of w over the rows of x. So each of x, w and dy is quantised once along either dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from aoext.configs.base import INT8_MAX_K
from aoext.formats.table import FORMATS, Code
from aoext.tensors.products import without_autocast

ao = torch.ops.ao

_CODES = {FORMATS[code].storage: int(code) for code in (Code.INT8, Code.E4M3)}


class EightBits(NamedTuple):
    """How the products of a layer are made.

    dtype: int8 or float8_e4m3fn
    block: how many values along the sum share a scale; None: all of them
    second_block: how many rows of a product's second operand share it too
    power_of_two: whether scales are rounded up to powers of two
    output, grad_input, grad_weight: which products are of 8 bits; others are of the operands as they are
    """

    dtype: torch.dtype
    block: int | None = None
    second_block: int = 1
    power_of_two: bool = False
    output: bool = True
    grad_input: bool = True
    grad_weight: bool = True


def linear_of_8_bits(input: Tensor, weight: Tensor, bias: Tensor | None, how: EightBits) -> Tensor:
    """F.linear with a gradient; all of one dtype, bfloat16, float16 or float32."""
    return _Linear.apply(input, weight, bias, *how)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
        ctx.how = how
        kept = (input if ctx.needs_input_grad[1] else None, weight if ctx.needs_input_grad[0] else None)
        ctx.save_for_backward(*kept)
        ctx.bias_dtype = None if bias is None else bias.dtype
        with without_autocast():
            if not EightBits(*how).output:
                return linear(input, weight, bias)
            rows = input.reshape(-1, input.shape[-1])
            result = product(rows, weight, EightBits(*how), bias)
            return result.reshape(*input.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        how = EightBits(*ctx.how)
        input, weight = ctx.saved_tensors
        input_grad = weight_grad = bias_grad = None
        rows = grad.reshape(-1, grad.shape[-1])
        with without_autocast():
            if weight is not None:
                input_grad = product(rows, weight.t(), how) if how.grad_input else rows @ weight
                input_grad = input_grad.reshape(*grad.shape[:-1], weight.shape[1])
            if input is not None:
                x = input.reshape(-1, input.shape[-1])
                weight_grad = product(rows.t(), x.t(), how) if how.grad_weight else rows.t() @ x
            if ctx.needs_input_grad[2]:
                bias_grad = rows.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return input_grad, weight_grad, bias_grad, *(None for _ in ctx.how)


def product(a: Tensor, b: Tensor, how: EightBits, bias: Tensor | None = None) -> Tensor:
    """a [M, K] times b [N, K] transposed, both quantised along K, in a's dtype."""
    K = a.shape[1]
    if K == 0:  # a batch of no rows, of which a weight's gradient is the sum
        return a.new_zeros(a.shape[0], b.shape[0])
    if how.dtype is torch.int8 and K > INT8_MAX_K:  # more than a sum in int32 holds
        parts = (_product(a[:, k], b[:, k], how, None, torch.float32) for k in _slices(K))
        total = sum(parts, next(parts))
        return (total if bias is None else total + bias.float()).to(a.dtype)
    return _product(a, b, how, bias, a.dtype)


def _slices(K: int) -> Iterator[slice]:
    step = INT8_MAX_K // 128 * 128
    return (slice(begin, begin + step) for begin in range(0, K, step))


def _product(a: Tensor, b: Tensor, how: EightBits, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    rows = how.second_block
    a_values, a_scale = _quantized(a, how)
    b_values, b_scale = _quantized(b, how) if rows == 1 else _quantized_blocks(b, how, rows)
    code = _CODES[how.dtype]
    if how.block is None:
        return ao.scaled_mm(a_values, b_values, a_scale, b_scale, code, bias, out_dtype=dtype)
    blocks = [1, how.block], [rows, how.block]
    return ao.scaled_mm(a_values, b_values, a_scale, b_scale, code, bias, *blocks, out_dtype=dtype)


def _quantized(x: Tensor, how: EightBits) -> tuple[Tensor, Tensor]:
    block = None if how.block is None else [1, how.block]
    return ao.quantize(x, how.dtype, block, power_of_two=how.power_of_two)


def _quantized_blocks(w: Tensor, how: EightBits, rows: int) -> tuple[Tensor, Tensor]:
    """Values and scales in blocks of `rows` by how.block, which the operator takes as rows."""
    N, K = w.shape
    columns = how.block or K
    whole = pad(w, (0, -K % columns, 0, -N % rows))
    down, across = whole.shape[0] // rows, whole.shape[1] // columns
    blocks = whole.reshape(down, rows, across, columns).transpose(1, 2)
    values, scale = ao.quantize(blocks.reshape(-1, rows * columns), how.dtype, power_of_two=how.power_of_two)
    values = values.reshape(down, across, rows, columns).transpose(1, 2).reshape(whole.shape)
    return values[:N, :K].contiguous(), scale.reshape(down, across)
