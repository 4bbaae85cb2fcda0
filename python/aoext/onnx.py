"""ONNX: the operators of `torch.ops.ao` as DequantizeLinear and MatMul, for torch.onnx.export.

Needs onnxscript, as torch.onnx.export does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aoext.ops import ao


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What torch.onnx.export takes as custom_translation_table; opset 21 or later.

    Weights stay quantised in the file: int8 and float8 as they are, int4 as packed, which the exporter's
    optimiser (its default) unpacks to 8 bits. Activations of dynamic schemes are rounded as when they are
    quantised, so that results differ by roundings alone.

    >>> torch.onnx.export(  # doctest: +SKIP
    ...     model, (x,), dynamo=True, opset_version=21, custom_translation_table=aoext.onnx.translations()
    ... )
    """
    from onnxscript import opset21 as op

    def product(input: Any, weight: Any, bias: Any) -> Any:
        """input · weightᵀ + bias for a plain weight [N, K] in float32."""
        result = op.MatMul(input, op.Transpose(op.CastLike(weight, input), perm=[1, 0]))
        return result if bias is None else op.Add(result, op.CastLike(bias, result))

    def by_rows(weight: Any, scale: Any) -> Any:
        float_scale = op.Cast(op.Reshape(scale, op.Constant(value_ints=[-1])), to=_FLOAT)
        return op.DequantizeLinear(weight, float_scale, axis=0)

    def by_groups(weight: Any, scale: Any, zero_point: Any) -> Any:
        rows, half = weight.shape
        groups = scale.shape[0]
        byte = op.Cast(weight, to=_INT32)
        sixteen, eight = op.Constant(value=_int32(16)), op.Constant(value=_int32(8))
        low = op.Sub(op.Mod(op.Add(byte, eight), sixteen), eight)
        high = op.Div(op.Sub(byte, op.Mod(byte, sixteen)), sixteen)
        last = op.Constant(value_ints=[2])
        pairs = op.Concat(op.Unsqueeze(low, last), op.Unsqueeze(high, last), axis=2)
        shape = op.Constant(value_ints=[rows * groups, 2 * half // groups])
        values = op.Cast(op.Reshape(pairs, shape), to=_INT8)
        flat = op.Constant(value_ints=[-1])
        scales, zeros = (
            op.Cast(op.Reshape(op.Transpose(part, perm=[1, 0]), flat), to=_FLOAT)
            for part in (scale, zero_point)
        )
        plain = op.Add(
            op.DequantizeLinear(values, scales, axis=0), op.Unsqueeze(zeros, op.Constant(value_ints=[1]))
        )
        return op.Reshape(plain, op.Constant(value_ints=[rows, 2 * half]))

    def rounded(input: Any, weight: Any) -> Any:
        """The input as ao::quantize_rowwise to the weight's dtype leaves it."""
        values = op.Cast(input, to=_FLOAT)
        absmax = op.ReduceMax(op.Abs(values), op.Constant(value_ints=[-1]), keepdims=1)
        is_int8 = weight.dtype == _INT8
        limit = 127.0 if is_int8 else _LARGEST_FLOAT8[int(weight.dtype)]
        zero, one = op.Constant(value_float=0.0), op.Constant(value_float=1.0)
        scale = op.Where(op.Equal(absmax, zero), one, op.Div(absmax, op.Constant(value_float=limit)))
        q = op.Div(values, scale)
        q = op.Round(q) if is_int8 else op.Cast(op.Cast(q, to=int(weight.dtype)), to=_FLOAT)
        return op.CastLike(op.Mul(q, scale), input)

    def rowwise(input: Any, weight: Any, scale: Any, bias: Any = None) -> Any:
        return product(input, by_rows(weight, scale), bias)

    def groupwise(input: Any, weight: Any, scale: Any, zero_point: Any, bias: Any = None) -> Any:
        return product(input, by_groups(weight, scale, zero_point), bias)

    def dynamic(input: Any, weight: Any, weight_scale: Any, bias: Any = None) -> Any:
        return product(rounded(input, weight), by_rows(weight, weight_scale), bias)

    def cast(plain: Any, scale: Any, dtype: int) -> Any:
        return op.CastLike(plain, scale) if dtype == -1 else op.Cast(plain, to=dtype)

    def groups_dequantized(weight: Any, scale: Any, zero_point: Any, dtype: int = -1) -> Any:
        return cast(by_groups(weight, scale, zero_point), scale, dtype)

    def rows_dequantized(weight: Any, scale: Any, dtype: int = -1) -> Any:
        return cast(by_rows(weight, scale), scale, dtype)

    return {
        ao.bf16i4bf16_rowwise.default: groupwise,
        ao.bf16i4bf16_rowwise_bias.default: groupwise,
        ao.bf16i8bf16_rowwise.default: rowwise,
        ao.bf16f8bf16_rowwise.default: rowwise,
        ao.scaled_linear_rowwise.default: dynamic,
        ao.dequantize_int4.default: groups_dequantized,
        ao.dequantize_rowwise.default: rows_dequantized,
    }


# onnx.TensorProto.DataType
_FLOAT, _INT8, _INT32 = 1, 3, 6
_LARGEST_FLOAT8 = {17: 448.0, 19: 57344.0}  # e4m3fn, e5m2


def _int32(number: int) -> Any:
    import numpy
    import onnx.numpy_helper

    return onnx.numpy_helper.from_array(numpy.array(number, numpy.int32))
