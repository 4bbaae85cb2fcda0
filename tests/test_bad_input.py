"""Bad calls raise errors that name operator, argument, what it must be and what came."""

from __future__ import annotations

import pytest
import torch

from reference import CALLS, INPUT_CALLS, Problem

GOOD = Problem(3, 40, 64, 32, torch.bfloat16, torch.bfloat16)


def arguments(operator, generator):
    """Names and values of a good call, in the schema's order."""
    call = CALLS[operator](GOOD, generator)
    schema = getattr(torch.ops.ao, operator).default._schema
    return dict(zip([a.name for a in schema.arguments], call.args, strict=False)), call.kwargs


# (operators, argument, how to spoil it, the error after "ao::<operator>: ").
INT4 = ["bf16i4bf16_rowwise", "bf16i4bf16_rowwise_bias"]
ROWWISE = ["bf16i8bf16_rowwise", "bf16f8bf16_rowwise_bias", "scaled_linear_rowwise"]
BIAS = [
    "bf16i4bf16_rowwise_bias",
    "bf16i8bf16_rowwise_bias",
    "scaled_mm_rowwise",
    "scaled_linear_rowwise",
]
FLOAT_INPUT = [*INT4, *ROWWISE]

CASES = [
    (FLOAT_INPUT, "input", lambda t: t.double(), r"input must be bfloat16, float16 or float32 \[..., K\], got float64 \[3, 64\]"),
    (FLOAT_INPUT, "input", lambda t: t.int(), r"input must be .*, got int32 \[3, 64\]"),
    (FLOAT_INPUT, "input", lambda t: t.to(torch.complex64), r"input must be .*, got complex64"),
    (INPUT_CALLS, "input", lambda t: t[0, 0], r"input must be .* \[..., K\], got \w+ \[\]"),
    (INPUT_CALLS, "input", lambda t: t[:, :0], r"input must be \[..., K\] with K > 0, got \w+ \[3, 0\]"),
    (INT4, "input", lambda t: t[:, :63], r"input must be \[..., K\] with K even, got bfloat16 \[3, 63\]"),
    (INT4, "input", lambda t: t[:, :62], r"weight must be int8 \[N, K/2\] = \[\*, 31\] for an input with K = 62, got int8 \[40, 32\]"),
    (["int8_mm"], "input", lambda t: t.float(), r"input must be int8 \[..., K\], got float32 \[3, 64\]"),
    (["int8_mm", "scaled_mm_rowwise"], "input", lambda t: t.new_zeros(1, 131072), r"input must be \[..., K\] with K <= 131071"),
    ([*INT4, "dequantize_int4"], "weight", lambda t: t.view(torch.uint8), r"weight must be int8 .*, got uint8 \[40, 32\]"),
    ([*INT4, "dequantize_int4"], "weight", lambda t: t[0], r"weight must be int8 \[N, K/2\].*, got int8 \[32\]"),
    ([*INT4, "dequantize_int4"], "weight", lambda t: t.t().contiguous().t(), r"weight must be contiguous, got int8 \[40, 32\] with strides \[1, 40\]"),
    (["dequantize_int4"], "weight", lambda t: t[:, :0], r"weight must be int8 \[N, K/2\] with K > 0, got int8 \[40, 0\]"),
    (ROWWISE, "weight", lambda t: t[:, :32], r"weight must be .* \[N, K\] = \[\*, 64\] for an input with K = 64, got \w+ \[40, 32\]"),
    (ROWWISE, "weight", lambda t: t[:, None], r"weight must be .*, got \w+ \[40, 1, 64\]"),
    (ROWWISE, "weight", lambda t: t.float(), r"weight must be .*, got float32 \[40, 64\]"),
    (["bf16i8bf16_rowwise", "int8_mm"], "weight", lambda t: t.t().contiguous().t(), r"weight must be contiguous"),
    (["scaled_mm_rowwise"], "weight", lambda t: t.to(torch.float8_e5m2), r"weight must be of input's dtype, int8, \[N, K\] = \[\*, 64\].*, got float8_e5m2"),
    ([*INT4, "dequantize_int4"], "scale", lambda t: t.double(), r"scale must be bfloat16, float16 or float32 \[K/group_size, N\] = \[\*, 40\] with a group_size that divides K = 64, got float64"),
    ([*INT4, "dequantize_int4"], "scale", lambda t: torch.cat([t, t[:1]]), r"scale must be .* divides K = 64, got bfloat16 \[3, 40\]"),
    ([*INT4, "dequantize_int4"], "scale", lambda t: t[:0], r"scale must be .*, got bfloat16 \[0, 40\]"),
    ([*INT4, "dequantize_int4"], "scale", lambda t: t[:, 1:], r"scale must be .*, got bfloat16 \[2, 39\]"),
    ([*INT4, "dequantize_int4"], "scale", lambda t: t.t().contiguous().t(), r"scale must be contiguous"),
    ([*INT4, "dequantize_int4"], "zero_point", lambda t: t.float(), r"zero_point must be of scale's dtype and shape, bfloat16 \[2, 40\], got float32 \[2, 40\]"),
    ([*INT4, "dequantize_int4"], "zero_point", lambda t: t[:1], r"zero_point must be of scale's dtype and shape, .*, got bfloat16 \[1, 40\]"),
    ([*INT4, "dequantize_int4"], "zero_point", lambda t: t.t().contiguous().t(), r"zero_point must be contiguous"),
    (["bf16i8bf16_rowwise"], "scale", lambda t: t[:, 0], r"scale must be bfloat16, float16 or float32 \[N, 1\] = \[40, 1\], got bfloat16 \[40\]"),
    (["bf16i8bf16_rowwise"], "scale", lambda t: t[1:], r"scale must be .*, got bfloat16 \[39, 1\]"),
    (["scaled_mm_rowwise", "scaled_linear_rowwise"], "weight_scale", lambda t: t.bfloat16(), r"weight_scale must be float32 \[N, 1\] = \[40, 1\], got bfloat16"),
    (["scaled_mm_rowwise"], "input_scale", lambda t: t.half(), r"input_scale must be float32 \[..., 1\] with the leading dimensions of input, \[3, 64\], got float16"),
    (["scaled_mm_rowwise"], "input_scale", lambda t: t[:2], r"input_scale must be .*, got float32 \[2, 1\]"),
    (["scaled_mm_rowwise"], "input_scale", lambda t: t[0], r"input_scale must be .*, got float32 \[1\]"),
    (BIAS, "bias", lambda t: t[1:], r"bias must be bfloat16, float16 or float32 \[N\] = \[40\], got bfloat16 \[39\]"),
    (BIAS, "bias", lambda t: t.double(), r"bias must be .*, got float64 \[40\]"),
    (BIAS, "bias", lambda t: t[None], r"bias must be .*, got bfloat16 \[1, 40\]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "argument", "spoil", "message"),
    [(op, *rest) for operators, *rest in CASES for op in operators],
    ids=[f"{op}-{case[1]}-{i}" for i, case in enumerate(CASES) for op in case[0]],
)
def test_a_bad_argument_is_named(operator, argument, spoil, message, device, generator):
    args, kwargs = arguments(operator, generator)
    args = {name: t.to(device) for name, t in args.items()}
    args[argument] = spoil(args[argument])
    with pytest.raises(RuntimeError, match=rf"^ao::{operator}: {message}"):
        getattr(torch.ops.ao, operator)(**args, **kwargs)


@pytest.mark.parametrize("operator", CALLS)
def test_every_tensor_on_another_device_is_named(operator, generator):
    """Meta tensors stand for a second device; they reach the fake kernel, which must refuse them."""
    args, kwargs = arguments(operator, generator)
    first = next(iter(args))
    for name in list(args)[1:]:
        mixed = {**args, name: args[name].to("meta")}
        with pytest.raises(
            RuntimeError,
            match=rf"^ao::{operator}: {name} must be on the device of {first}, cpu, got meta",
        ):
            getattr(torch.ops.ao, operator)(**mixed, **kwargs)


@pytest.mark.parametrize("operator", CALLS)
def test_sparse_and_nested_tensors_are_refused(operator, generator):
    args, kwargs = arguments(operator, generator)
    for name, t in args.items():
        if t.dtype in (torch.bfloat16, torch.float32, torch.int8):
            with pytest.raises(
                RuntimeError, match=rf"^ao::{operator}: {name} must be a dense \(strided\) tensor"
            ):
                getattr(torch.ops.ao, operator)(**{**args, name: t.to_sparse()}, **kwargs)
        if t.dtype in (torch.bfloat16, torch.float32):
            nested = torch.nested.nested_tensor([t, t])
            with pytest.raises((RuntimeError, NotImplementedError)):
                getattr(torch.ops.ao, operator)(**{**args, name: nested}, **kwargs)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.bool, torch.float32])
def test_quantize_rowwise_names_a_wrong_dtype(dtype):
    with pytest.raises(
        RuntimeError,
        match=r"^ao::quantize_rowwise: dtype must be int8, float8_e4m3fn or float8_e5m2, got ",
    ):
        torch.ops.ao.quantize_rowwise(torch.randn(2, 3), dtype)


def test_quantize_rowwise_names_a_wrong_input():
    for bad in (
        torch.randn(2, 3).double(),
        torch.tensor(1.0),
        torch.randn(3, 0),
        torch.ones(2, 3, dtype=torch.int8),
    ):
        with pytest.raises(RuntimeError, match=r"^ao::quantize_rowwise: input must be "):
            torch.ops.ao.quantize_rowwise(bad, torch.int8)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e5m2])
def test_a_wrong_output_dtype_is_named(dtype, generator):
    args, _ = arguments("scaled_mm_rowwise", generator)
    with pytest.raises(
        RuntimeError,
        match=r"^ao::scaled_mm_rowwise: out_dtype must be bfloat16, float16 or float32, got ",
    ):
        torch.ops.ao.scaled_mm_rowwise(**args, out_dtype=dtype)
    args, _ = arguments("dequantize_int4", generator)
    with pytest.raises(
        RuntimeError,
        match=r"^ao::dequantize_int4: dtype must be bfloat16, float16 or float32, got ",
    ):
        torch.ops.ao.dequantize_int4(**args, dtype=dtype)


def test_missing_and_wrong_python_types_are_the_dispatchers_errors(generator):
    args, _ = arguments("bf16i4bf16_rowwise", generator)
    with pytest.raises((RuntimeError, TypeError)):
        torch.ops.ao.bf16i4bf16_rowwise(args["input"], args["weight"])
    with pytest.raises((RuntimeError, TypeError)):
        torch.ops.ao.bf16i4bf16_rowwise(args["input"], None, args["scale"], args["zero_point"])
