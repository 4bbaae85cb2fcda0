"""What the operators of `torch.ops.ao` make of a quantised weight of any format.

Functions, which torch.compile traces: a method of a tensor it would take for an operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aoext.operators.experts import expert_of_row, times, times_quantized
from aoext.operators.gradients import in_transform, times_weight
from aoext.tensors.each_expert import expert_of
from aoext.tensors.fields import K, N, gathered
from aoext.tensors.order import as_codes, as_weight
from aoext.tensors.ranges import has_ranges, in_range
from aoext.tensors.recording import exports

if TYPE_CHECKING:
    from aoext.tensors.base import QuantizedTensor

ao = torch.ops.ao


class Direct:
    """The operators without the Python of torch.ops, which costs the host half a microsecond a call."""

    weight_only_linear = staticmethod(ao.weight_only_linear.default._op)
    scaled_linear = staticmethod(ao.scaled_linear.default._op)
    int4 = staticmethod(ao.bf16i4bf16_rowwise.default._op)
    int4_bias = staticmethod(ao.bf16i4bf16_rowwise_bias.default._op)


def dequantized(weight: QuantizedTensor) -> Tensor:
    """The plain weight [N, K] or [E, N, K] in `operator_dtype`."""
    if weight.dim() == 2:
        return _plain(weight, *_operands(weight))
    whole = torch.empty(weight.weight_shape, dtype=weight.operator_dtype, device=weight.device)
    for e, plain in enumerate(whole.unbind()):
        plain.copy_(dequantized(expert_of(weight, e)))
    return whole


def dequantized_rows(weight: QuantizedTensor, indices: Tensor) -> Tensor:
    """Rows [T, K] of the plain weight at `indices` [T], in `operator_dtype`; it reads no others."""
    zero_point, table = weight.zero_point, weight.table
    return _plain(
        weight,
        _rows_of(weight, "qdata", weight.qdata, indices),
        _rows_of(weight, "scale", weight.scale, indices),
        weight.code,
        [1, weight.block_size[K]] if weight.any_blocks else None,
        None if zero_point is None else _rows_of(weight, "zero_point", zero_point, indices),
        None if table is None else table.contiguous(),
        weight.global_scale,
    )


def linear(
    weight: QuantizedTensor,
    input: Tensor,
    bias: Tensor | None,
    operators: Any = ao,
    offsets: Tensor | None = None,
) -> Tensor:
    """input [..., K] times the weight [N, K] transposed, plus bias [N].

    operators: `Direct` where nobody traces.
    offsets: beside a weight [E, N, K] and a bias [E, N], int32 [E]: where the rows of each expert end in an
        input [T, K]
    """
    if not has_ranges(weight):
        return _product(weight, input, bias, operators, offsets)
    result = _product(weight, in_range(input, weight.input_scale), bias, operators, offsets)
    return in_range(result, weight.output_scale)


def _product(
    weight: QuantizedTensor, input: Tensor, bias: Tensor | None, operators: Any, offsets: Tensor | None
) -> Tensor:
    if weight.k_order is not None:
        input = as_codes(input, of_rows(weight.k_order, input, offsets))
    qdata, scale, code, block_size, zero_point, table, global_scale = _operands(weight)
    dtype = weight.input_dtype
    # Arguments cost the host time, but for those at the end that are left out.
    by_rows = block_size is None and zero_point is None and table is None and offsets is None
    if dtype is None:
        if by_rows:
            return operators.weight_only_linear(input, qdata, scale, code, bias)
        return operators.weight_only_linear(
            input, qdata, scale, code, bias, block_size, zero_point, table, global_scale, offsets
        )
    input_block = weight.input_block
    if by_rows and input_block is None and dtype == qdata.dtype:
        return operators.scaled_linear(input, qdata, scale, code, bias)
    return operators.scaled_linear(
        input, qdata, scale, code, bias, input_block, block_size, zero_point, offsets, dtype
    )


def linear_backward(weight: QuantizedTensor, grad: Tensor, offsets: Tensor | None = None) -> Tensor:
    """grad [..., N] times the weight, or that of each row's expert: the gradient of linear's input."""
    if exports():  # the graph has no weights but those that are nodes
        return times(grad, weight._dequantize().to(grad.dtype), offsets)
    if not (torch.compiler.is_compiling() or torch.is_grad_enabled() or in_transform()):
        return _times(weight, grad, offsets, False)
    names, parts = zip(*weight.named_fields(), strict=True)

    def product(rows: Tensor, offsets: Tensor | None, transposed: bool, *parts: Tensor) -> Tensor:
        return _times(weight.remade(dict(zip(names, parts, strict=True))), rows, offsets, transposed)

    return times_weight(grad, offsets, product, *parts)


def _times(weight: QuantizedTensor, rows: Tensor, offsets: Tensor | None, transposed: bool) -> Tensor:
    """rows [..., N] times the weight or those of their experts, or [..., K] times what is `transposed`."""
    if offsets is not None:
        return _times_experts(weight, rows, offsets, transposed)
    plain = weight._dequantize().to(rows.dtype)
    return rows @ (plain.mT if transposed else plain)


def _times_experts(weight: QuantizedTensor, rows: Tensor, offsets: Tensor, transposed: bool) -> Tensor:
    """rows [T, N] times the weights of their experts, or [T, K] times those `transposed`."""
    order = None if weight.k_order is None else of_rows(weight.k_order, rows, offsets)
    if transposed:
        rows = as_codes(rows, order)
    result = times_quantized(rows, offsets, transposed, *_operands(weight))
    return result if transposed or order is None else torch.empty_like(result).scatter_(1, order, result)


def of_rows(field: Tensor, rows: Tensor, offsets: Tensor | None) -> Tensor:
    """A field [K] as it is; of experts, [E, K], that of each row's, or the last's of rows without one."""
    if offsets is None:
        return field
    return field.index_select(0, expert_of_row(offsets, rows.shape[0]).clamp_(max=len(field) - 1))


def _operands(weight: QuantizedTensor) -> tuple[Any, ...]:
    """qdata, scale, code, block_size, zero_point, table and global_scale, as the operators take them."""
    zero_point, table, global_scale = weight.zero_point, weight.table, weight.global_scale
    return (
        weight.qdata.contiguous(),
        weight.scale.contiguous(),
        weight.code,
        weight.block_size if weight.any_blocks else None,
        None if zero_point is None else zero_point.contiguous(),
        None if table is None else table.contiguous(),
        None if global_scale is None else global_scale.contiguous(),
    )


def _plain(weight: QuantizedTensor, *operands: Any) -> Tensor:
    plain = ao.dequantize(*operands, dtype=weight.operator_dtype)
    return as_weight(plain, weight.k_order)


def _rows_of(weight: QuantizedTensor, name: str, tensor: Tensor, indices: Tensor) -> Tensor:
    """The entries of a field that rows of the weight have."""
    field = weight.fields[name]
    if field.position(N) is None:
        return tensor
    elements = field.axes[field.rows].step or weight.block_size[N]
    return gathered(tensor, indices if elements == 1 else indices // elements, field.rows)
