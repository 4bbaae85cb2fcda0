"""What the operators of `torch.ops.ao` make of a quantised weight of any format.

Functions, which torch.compile traces: a method of a tensor it would take for an operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aoext.tensors.fields import K, N, gathered
from aoext.tensors.order import as_codes, as_weight

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
    """The plain weight [N, K] in `operator_dtype`."""
    return _plain(weight, *_operands(weight))


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


def linear(weight: QuantizedTensor, input: Tensor, bias: Tensor | None, operators: Any = ao) -> Tensor:
    """input [..., K] times the weight [N, K] transposed, plus bias [N].

    operators: `Direct` where nobody traces.
    """
    input = as_codes(input, weight.k_order)
    qdata, scale, code, block_size, zero_point, table, global_scale = _operands(weight)
    dtype = weight.input_dtype
    # Arguments cost the host time, but for those at the end that are left out.
    by_rows = block_size is None and zero_point is None and table is None
    if dtype is None:
        if by_rows:
            return operators.weight_only_linear(input, qdata, scale, code, bias)
        return operators.weight_only_linear(
            input, qdata, scale, code, bias, block_size, zero_point, table, global_scale
        )
    input_block = weight.input_block
    if by_rows and input_block is None and dtype == qdata.dtype:
        return operators.scaled_linear(input, qdata, scale, code, bias)
    return operators.scaled_linear(
        input, qdata, scale, code, bias, input_block, block_size, zero_point, None, dtype
    )


def _operands(weight: QuantizedTensor) -> tuple[Any, ...]:
    """qdata, scale, code, block_size, zero_point, table and global_scale, as the operators take them."""
    zero_point, table = weight.zero_point, weight.table
    return (
        weight.qdata.contiguous(),
        weight.scale.contiguous(),
        weight.code,
        weight.block_size if weight.any_blocks else None,
        None if zero_point is None else zero_point.contiguous(),
        None if table is None else table.contiguous(),
        weight.global_scale,
    )


def _plain(weight: QuantizedTensor, *operands: Any) -> Tensor:
    plain = ao.dequantize(*operands, dtype=weight.operator_dtype)
    return as_weight(plain, weight.k_order)


def _rows_of(weight: QuantizedTensor, name: str, tensor: Tensor, indices: Tensor) -> Tensor:
    """The entries of a field that rows of the weight have."""
    field = weight.fields[name]
    elements = field.axes[field.rows].step or weight.block_size[N]
    return gathered(tensor, indices if elements == 1 else indices // elements, field.rows)
