"""ONNX: the operators of `torch.ops.ao` as DequantizeLinear and MatMul, for torch.onnx.export.

Needs onnxscript, as torch.onnx.export does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from aoext.formats.table import FORMATS, TABLE_SIZE, Code, Format
from aoext.operators.calls import ao
from aoext.packing.groups import planes
from aoext.packing.nested import TOGETHER


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What torch.onnx.export takes as custom_translation_table; opset 21 or later.

    Weights stay quantised in the file: int8 and float8 as they are, codes of fewer bits as packed, which the
    exporter's optimiser (its default) unpacks to 8 bits. Activations of dynamic schemes are rounded as when
    they are quantised, so that results differ by roundings alone.

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

    def codes(weight: Any, format: Format) -> Any:
        """The codes of bytes [N, K/values] as int32 [N, K]."""

        def constant(value: int) -> Any:
            return op.Constant(value=_int32(value))

        def modulo(values: Any, bits: int) -> Any:
            return op.Mod(values, constant(1 << bits))

        rows, stored = weight.shape[0], weight.shape[1]
        byte = modulo(op.Cast(weight, to=_INT32), 8)
        whole = op.Reshape(byte, op.Constant(value_ints=[rows * stored, format.bytes]))
        codes, low, at = None, 0, 0
        for bits, run in planes(format):
            size = format.values * bits // 8
            ends = (op.Constant(value_ints=[n]) for n in (at, at + size, 1))
            plane = op.Reshape(op.Slice(whole, *ends), op.Constant(value_ints=[rows * stored, -1, 1, run]))
            parts = [
                modulo(op.Div(plane, constant(1 << shift)) if shift else plane, bits)
                for shift in range(0, 8, bits)
            ]
            together = op.Reshape(
                op.Concat(*parts, axis=2) if len(parts) > 1 else parts[0],
                op.Constant(value_ints=[rows, format.values * stored]),
            )
            codes = together if codes is None else op.Add(codes, op.Mul(together, constant(1 << low)))
            low, at = low + bits, at + size
        if format.lowest == 0:
            return codes
        half = constant(-format.lowest)
        return op.Sub(modulo(op.Add(codes, half), format.bits), half)

    def by_groups(weight: Any, scale: Any, zero_point: Any, format: Format) -> Any:
        rows, columns = weight.shape[0], format.columns(weight.shape)
        groups = scale.shape[0]
        shape = op.Constant(value_ints=[rows * groups, columns // groups])
        values = op.Cast(op.Reshape(codes(weight, format), shape), to=_INT8)
        flat = op.Constant(value_ints=[-1])
        scales, zeros = (
            op.Cast(op.Reshape(op.Transpose(part, perm=[1, 0]), flat), to=_FLOAT)
            for part in (scale, zero_point)
        )
        plain = op.Add(
            op.DequantizeLinear(values, scales, axis=0), op.Unsqueeze(zeros, op.Constant(value_ints=[1]))
        )
        return op.Reshape(plain, op.Constant(value_ints=[rows, columns]))

    def number(value: float) -> Any:
        return op.Constant(value_float=value)

    def rounded(values: Any, dtype: int, powers_of_two: bool = False) -> Any:
        """float32 rows as their quantisation to `dtype` leaves them."""
        absmax = op.ReduceMax(op.Abs(values), op.Constant(value_ints=[-1]), keepdims=1)
        limit = 127.0 if dtype == _INT8 else _LARGEST_FLOAT8[dtype]
        scale = op.Where(op.Equal(absmax, number(0.0)), number(1.0), op.Div(absmax, number(limit)))
        if powers_of_two:  # next to one of them the logarithm is off by a step
            near = op.Pow(number(2.0), op.Ceil(op.Div(op.Log(scale), number(math.log(2)))))
            half = op.Mul(near, number(0.5))
            near = op.Where(op.GreaterOrEqual(half, scale), half, near)
            scale = op.Where(op.Less(near, scale), op.Mul(near, number(2.0)), near)
        q = op.Div(values, scale)
        q = op.Round(q) if dtype == _INT8 else op.Cast(op.Cast(q, to=dtype), to=_FLOAT)
        return op.Mul(q, scale)

    def rounded_rows(input: Any, dtype: int) -> Any:
        """The input as ao::quantize leaves it."""
        return op.CastLike(rounded(op.Cast(input, to=_FLOAT), dtype), input)

    def rounded_blocks(input: Any, dtype: int, columns: int, block: int, powers_of_two: bool) -> Any:
        """The input as ao::quantize leaves it by blocks."""
        last = op.Constant(value_ints=[-1])
        missing = op.Constant(value_ints=[0, -columns % block])
        padded = op.Pad(op.Cast(input, to=_FLOAT), missing, number(0.0), last)
        rows = op.Reshape(padded, op.Constant(value_ints=[-1, block]))
        result = op.Reshape(rounded(rows, dtype, powers_of_two), op.Shape(padded))
        result = op.Slice(result, op.Constant(value_ints=[0]), op.Constant(value_ints=[columns]), last)
        return op.CastLike(result, input)

    def spread(scale: Any, rows: int, columns: int, block_size: Sequence[int]) -> Any:
        """Scales of blocks as float32 [rows, columns]."""
        if int(scale.dtype) == _UINT8:
            scale = op.Pow(number(2.0), op.Sub(op.Cast(scale, to=_FLOAT), number(127.0)))
        return placed(op.Cast(scale, to=_FLOAT), rows, columns, block_size)

    def placed(floats: Any, rows: int, columns: int, block_size: Sequence[int]) -> Any:
        for axis, (size, block) in enumerate(zip((rows, columns), block_size, strict=True)):
            floats = op.Gather(floats, op.Constant(value_ints=[i // block for i in range(size)]), axis=axis)
        return floats

    def by_blocks(weight: Any, scale: Any, block_size: Sequence[int], zero_point: Any = None) -> Any:
        values = op.DequantizeLinear(weight, number(1.0))
        rows, columns = weight.shape
        if zero_point is not None:
            values = op.Sub(values, spread(zero_point, rows, columns, block_size))
        return op.Mul(values, spread(scale, rows, columns, block_size))

    def nested(scale: Any, table: Any, factors: Any, offset: Any) -> Any:
        """Scales of 8 bits as float32."""
        first, last = op.Constant(value_ints=[TABLE_SIZE]), op.Constant(value_ints=[table.shape[0]])
        looked_up = op.Gather(op.Slice(table, first, last), op.Cast(scale, to=_INT32))
        count = op.Constant(value_ints=[scale.shape[0] * scale.shape[1]])
        together = op.Expand(
            op.Reshape(factors, op.Constant(value_ints=[-1, 1])), op.Constant(value_ints=[1, TOGETHER])
        )
        of_each = op.Slice(
            op.Reshape(together, op.Constant(value_ints=[-1])), op.Constant(value_ints=[0]), count
        )
        return op.Add(op.Mul(looked_up, op.Reshape(of_each, op.Shape(scale))), offset)

    def by_table(
        weight: Any,
        table: Any,
        scale: Any,
        block_size: Sequence[int],
        whole: Any,
        offset: Any,
        format: Format,
    ) -> Any:
        rows, columns = weight.shape[0], format.columns(weight.shape)
        values = op.Gather(table, codes(weight, format))
        if table.shape[0] > TABLE_SIZE:
            floats = nested(scale, table, whole, offset)
            return op.Mul(values, placed(floats, rows, columns, block_size))
        plain = op.Mul(values, spread(scale, rows, columns, block_size))
        return plain if whole is None else op.Mul(plain, whole)

    def plain(
        weight: Any,
        scale: Any,
        code: int,
        block_size: Sequence[int] | None,
        zero_point: Any,
        table: Any,
        whole: Any,
    ) -> Any:
        """A weight [N, K] in float32."""
        format = FORMATS[Code(code)]
        if format.scales == "inside":
            raise NotImplementedError(
                f"aoext: weights of {format.name} go to no ONNX file; dequantize() them first"
            )
        if format.scales == "groups":
            return by_groups(weight, scale, zero_point, format)
        if block_size is None and zero_point is None and not format.has_table and int(scale.dtype) in _FLOATS:
            return by_rows(weight, scale)
        block_size = block_size or [1, format.columns(weight.shape)]
        if format.has_table:
            return by_table(weight, table, scale, block_size, whole, zero_point, format)
        return by_blocks(weight, scale, block_size, zero_point)

    def weight_only(
        input: Any,
        weight: Any,
        scale: Any,
        code: int,
        bias: Any = None,
        block_size: Sequence[int] | None = None,
        zero_point: Any = None,
        table: Any = None,
        global_scale: Any = None,
        offsets: Any = None,
    ) -> Any:
        _refuse_experts(offsets)
        return product(input, plain(weight, scale, code, block_size, zero_point, table, global_scale), bias)

    def dynamic(
        input: Any,
        weight: Any,
        scale: Any,
        code: int,
        bias: Any = None,
        input_block: Sequence[int] | None = None,
        block_size: Sequence[int] | None = None,
        zero_point: Any = None,
        offsets: Any = None,
        input_dtype: int = -1,
    ) -> Any:
        _refuse_experts(offsets)
        format = FORMATS[Code(code)]
        dtype = input_dtype if input_dtype != -1 else _INT8 if format.is_packed else int(weight.dtype)
        if input_block is None:
            x = rounded_rows(input, dtype)
        else:
            columns, powers_of_two = format.columns(weight.shape), int(scale.dtype) == _UINT8
            x = rounded_blocks(input, dtype, columns, input_block[1], powers_of_two)
        return product(x, plain(weight, scale, code, block_size, zero_point, None, None), bias)

    def dequantized(
        weight: Any,
        scale: Any,
        code: int,
        block_size: Sequence[int] | None = None,
        zero_point: Any = None,
        table: Any = None,
        global_scale: Any = None,
        dtype: int = -1,
    ) -> Any:
        result = plain(weight, scale, code, block_size, zero_point, table, global_scale)
        if dtype != -1:
            return op.Cast(result, to=dtype)
        return op.CastLike(result, scale) if int(scale.dtype) in _FLOATS else result

    def seed(input: Any, weight: Any, scale: Any, zero_point: Any, bias: Any = None) -> Any:
        return weight_only(input, weight, scale, Code.INT4, bias, zero_point=zero_point)

    return {
        ao.weight_only_linear.default: weight_only,
        ao.scaled_linear.default: dynamic,
        ao.dequantize.default: dequantized,
        ao.bf16i4bf16_rowwise.default: seed,
        ao.bf16i4bf16_rowwise_bias.default: seed,
    }


def _refuse_experts(offsets: Any) -> None:
    if offsets is not None:
        raise NotImplementedError("aoext.onnx has no translation of products by expert, with offsets")


def name_translations(dispatching: Any) -> None:
    """Have the exporter name `translations` where it meets an operator of ours without them."""
    dispatch = getattr(dispatching, "dispatch", None)
    if dispatch is None:  # another version of PyTorch
        return

    @functools.wraps(dispatch)
    def dispatched(node: Any, registry: Any) -> Any:
        function, message = dispatch(node, registry)
        if function is None and node.target in translations():
            message += ": custom_translation_table=aoext.onnx.translations() has it"
        return function, message

    dispatching.dispatch = dispatched


# onnx.TensorProto.DataType
_FLOAT, _UINT8, _INT8, _INT32 = 1, 2, 3, 6
_FLOATS = (_FLOAT, 10, 16)  # with float16 and bfloat16
_LARGEST_FLOAT8 = {17: 448.0, 19: 57344.0}  # e4m3fn, e5m2


def _int32(number: int) -> Any:
    import numpy
    import onnx.numpy_helper

    return onnx.numpy_helper.from_array(numpy.array(number, numpy.int32))
