"""Bad calls raise errors that name operator, argument, what it must be and what came."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

import aoext
from aoext.formats.table import Code
from aoext.reference import (
    ALL_CALLS,
    BIAS_CALLS,
    CALLS,
    GROUPED,
    INPUT_CALLS,
    Problem,
    moved,
    op,
    operator_of,
)
from formats import KINDS, call_of_any

GOOD = Problem(3, 40, 64, 32, torch.bfloat16, torch.bfloat16)


def arguments(operator, generator):
    """Names and values of a good call, in the schema's order."""
    call = ALL_CALLS[operator](GOOD, generator)
    return call.named(), call.kwargs


# (operators, argument, how to spoil it, the error after "ao::<operator>: ").
INT4 = ["bf16i4bf16_rowwise", "bf16i4bf16_rowwise_bias", "weight_only_linear int4", "scaled_linear int4"]
INT4_WEIGHT = [*INT4, "scaled_mm int4", "dequantize int4"]
ROWWISE = ["weight_only_linear int8", "scaled_linear rows"]
WEIGHT_ONLY_BLOCKWISE = ["weight_only_linear int8 blocks", "weight_only_linear int8 zeros"]
BLOCKWISE = [*WEIGHT_ONLY_BLOCKWISE, "scaled_linear blocks"]
EIGHT_BIT = [*ROWWISE, *BLOCKWISE, "scaled_mm_rowwise", "scaled_mm rows", "scaled_mm blocks", "int8_mm"]
LUT4 = ["weight_only_linear lut4", "dequantize lut4"]
FLOAT_INPUT = [*INT4, *ROWWISE, *BLOCKWISE, "weight_only_linear lut4"]
WEIGHT_SCALE = ["scaled_mm blocks", "scaled_linear blocks"]
BLOCK_SIZE = [*WEIGHT_ONLY_BLOCKWISE, "dequantize blocks", *LUT4, *WEIGHT_SCALE]
GROUPED_INT4 = ["weight_only_linear int4 experts"]
PLANES = ["weight_only_linear int5", "scaled_mm int5", "scaled_linear int5", "dequantize int5"]
GGUF = ["weight_only_linear q4_k", "scaled_mm q4_k", "scaled_linear q4_k", "dequantize q4_k"]
ZEROS = ["weight_only_linear int8 zeros", "dequantize int8 zeros"]
SCALES = r"float32, bfloat16, float16, float8_e8m0fnu \(or uint8 exponents\) or float8_e4m3fn"

CASES = [
    (FLOAT_INPUT, "input", lambda t: t.double(), r"input must be bfloat16, float16 or float32 \[..., K\], got float64 \[3, 64\]"),
    (FLOAT_INPUT, "input", lambda t: t.int(), r"input must be .*, got int32 \[3, 64\]"),
    (FLOAT_INPUT, "input", lambda t: t.to(torch.complex64), r"input must be .*, got complex64"),
    (INPUT_CALLS, "input", lambda t: t[0, 0], r"input must be .* \[..., K\], got \w+ \[\]"),
    (INPUT_CALLS, "input", lambda t: t[:, :0], r"input must be \[..., K\] with K > 0, got \w+ \[3, 0\]"),
    (INT4, "input", lambda t: t[:, :63], r"input must be \[..., K\] with K even, got bfloat16 \[3, 63\]"),
    (INT4, "input", lambda t: t[:, :62], r"weight must be int8 \[N, K/2\] = \[\*, 31\] for an input with K = 62, got int8 \[40, 32\]"),
    (["int8_mm"], "input", lambda t: t.float(), r"input must be int8 \[..., K\], got float32 \[3, 64\]"),
    (["int8_mm", "scaled_mm_rowwise", "scaled_mm rows", "scaled_mm blocks", "scaled_mm int4"], "input", lambda t: t.new_zeros(1, 131072), r"input must be \[..., K\] with K <= 131071"),
    (INT4_WEIGHT, "weight", lambda t: t.view(torch.uint8), r"weight must be int8 .*, got uint8 \[40, 32\]"),
    (INT4_WEIGHT, "weight", lambda t: t[0], r"weight must be int8 \[N, K/2\].*, got int8 \[32\]"),
    (INT4_WEIGHT, "weight", lambda t: t.t().contiguous().t(), r"weight must be contiguous, got int8 \[40, 32\] with strides \[1, 40\]"),
    (["dequantize int4"], "weight", lambda t: t[:, :0], r"weight must be int8 \[N, K/2\] with K > 0, got int8 \[40, 0\]"),
    (["dequantize rows", "dequantize blocks"], "weight", lambda t: t[:, :0], r"weight must be int8 \[N, K\] with K > 0, got int8 \[40, 0\]"),
    (["dequantize rows"], "weight", lambda t: t.float(), r"weight must be int8 \[N, K\].*, got float32 \[40, 64\]"),
    (["dequantize rows"], "weight", lambda t: t.t().contiguous().t(), r"weight must be contiguous, got int8 \[40, 64\] with strides \[1, 40\]"),
    (["dequantize rows"], "scale", lambda t: t[1:], rf"scale must be {SCALES} \[ceil\(N/block_n\), ceil\(K/block_k\)\] = \[40, 1\], got bfloat16 \[39, 1\]"),
    (["dequantize rows"], "scale", lambda t: t.double(), r"scale must be .*, got float64 \[40, 1\]"),
    (EIGHT_BIT, "weight", lambda t: t[:, :32], r"weight must be .* \[N, K\] = \[\*, 64\] for an input with K = 64, got \w+ \[40, 32\]"),
    (EIGHT_BIT, "weight", lambda t: t[:, None], r"weight must be .*, got \w+ \[40, 1, 64\]"),
    (EIGHT_BIT, "weight", lambda t: t.float(), r"weight must be .*, got float32 \[40, 64\]"),
    (["weight_only_linear int8", "int8_mm", *BLOCKWISE, *LUT4], "weight", lambda t: t.t().contiguous().t(), r"weight must be contiguous"),
    (["scaled_mm_rowwise"], "weight", lambda t: t.to(torch.float8_e5m2), r"weight must be int8 \[N, K\] = \[\*, 64\].*, got float8_e5m2"),
    (INT4_WEIGHT, "scale", lambda t: t.double(), r"scale must be bfloat16, float16 or float32 \[K/group_size, N\] = \[\*, 40\] with a group_size that divides K = 64, got float64"),
    (INT4_WEIGHT, "scale", lambda t: torch.cat([t, t[:1]]), r"scale must be .* divides K = 64, got bfloat16 \[3, 40\]"),
    (INT4_WEIGHT, "scale", lambda t: t[:0], r"scale must be .*, got bfloat16 \[0, 40\]"),
    (INT4_WEIGHT, "scale", lambda t: t[:, 1:], r"scale must be .*, got bfloat16 \[2, 39\]"),
    (INT4_WEIGHT, "scale", lambda t: t.t().contiguous().t(), r"scale must be contiguous"),
    (INT4_WEIGHT, "zero_point", lambda t: t.float(), r"zero_point must be of scale's dtype and shape, bfloat16 \[2, 40\], got float32 \[2, 40\]"),
    (INT4_WEIGHT, "zero_point", lambda t: t[:1], r"zero_point must be of scale's dtype and shape, .*, got bfloat16 \[1, 40\]"),
    (INT4_WEIGHT, "zero_point", lambda t: t.t().contiguous().t(), r"zero_point must be contiguous"),
    (["weight_only_linear int8"], "scale", lambda t: t[:, 0], r"scale must be .* = \[40, 1\], got bfloat16 \[40\]"),
    (["weight_only_linear int8"], "scale", lambda t: t[1:], r"scale must be .*, got bfloat16 \[39, 1\]"),
    (["scaled_mm_rowwise"], "weight_scale", lambda t: t.bfloat16(), r"weight_scale must be float32 \[N, 1\] = \[40, 1\], got bfloat16"),
    (["scaled_mm_rowwise"], "input_scale", lambda t: t.half(), r"input_scale must be float32 \[..., 1\] with the leading dimensions of input, \[3, 64\], got float16"),
    (["scaled_mm_rowwise"], "input_scale", lambda t: t[:2], r"input_scale must be .*, got float32 \[2, 1\]"),
    (["scaled_mm_rowwise"], "input_scale", lambda t: t[0], r"input_scale must be .*, got float32 \[1\]"),
    (["scaled_mm blocks"], "input_scale", lambda t: t.half(), r"input_scale must be float32 \[..., ceil\(K/block_k\)\] with the leading dimensions of input, \[3, 64\], got float16"),
    (["scaled_mm blocks"], "input_scale", lambda t: t[:, :1], r"input_scale must be .*, got float32 \[3, 1\]"),
    (LUT4, "weight", lambda t: t.view(torch.int8), r"weight must be uint8 \[N, K/2\].*, got int8 \[40, 32\]"),
    (LUT4, "weight", lambda t: t[0], r"weight must be uint8 \[N, K/2\].*, got uint8 \[32\]"),
    (LUT4, "table", lambda t: t.bfloat16(), r"table must be float32 \[16\], or \[272\] of nested scales, got bfloat16 \[16\]"),
    (LUT4, "table", lambda t: t[:15], r"table must be float32 \[16\], or .*, got float32 \[15\]"),
    (LUT4, "table", lambda t: t.repeat(2)[::2], r"table must be contiguous"),
    (LUT4, "global_scale", lambda t: t.repeat(2), r"global_scale must be float32 with one element, got float32 \[2\]"),
    (LUT4, "global_scale", lambda t: t.bfloat16(), r"global_scale must be float32 with one element, got bfloat16 \[1\]"),
    (BLOCK_SIZE, "scale", lambda t: t.int(), rf"scale must be {SCALES} \[ceil\(N/block_n\), ceil\(K/block_k\)\] = \[40, 2\], got int32"),
    (BLOCK_SIZE, "scale", lambda t: t[:, 1:], r"scale must be .* = \[40, 2\], got bfloat16 \[40, 1\]"),
    (BLOCK_SIZE, "scale", lambda t: t.t().contiguous().t(), r"scale must be contiguous"),
    (ZEROS, "scale", lambda t: t.to(torch.float8_e4m3fn), r"scale must be bfloat16, float16 or float32 beside zero points, got float8_e4m3fn \[40, 2\]"),
    (ZEROS, "zero_point", lambda t: t.float(), r"zero_point must be of weight's dtype and scale's shape, int8 \[40, 2\], got float32 \[40, 2\]"),
    (ZEROS, "zero_point", lambda t: t[:, 1:], r"zero_point must be .*, int8 \[40, 2\], got int8 \[40, 1\]"),
    (ZEROS, "zero_point", lambda t: t.t().contiguous().t(), r"zero_point must be contiguous"),
    (WEIGHT_SCALE, "scale", lambda t: t[1:], r"scale must be .* = \[40, 2\], got bfloat16 \[39, 2\]"),
    (BLOCK_SIZE, "block_size", lambda b: b[:1], r"block_size must be \[block_n, block_k\], both positive, got \[1\]"),
    (BLOCK_SIZE, "block_size", lambda b: [0, 32], r"block_size must be \[block_n, block_k\], both positive, got \[0, 32\]"),
    (WEIGHT_SCALE, "block_size", lambda b: [1, -1], r"block_size must be \[block_n, block_k\], both positive, got \[1, -1\]"),
    (WEIGHT_SCALE, "input_block", lambda b: [2, 32], r"input_block must be \[1, block_k\], block_k positive, got \[2, 32\]"),
    (PLANES, "weight", lambda t: t[..., :19], r"weight must be uint8 \[N, K/32, 20\].*, got uint8 \[40, 2, 19\]"),
    (PLANES, "weight", lambda t: t.flatten(1), r"weight must be uint8 \[N, K/32, 20\].*, got uint8 \[40, 40\]"),
    (PLANES[:3], "input", lambda t: t[:, :63], r"input must be \[..., K\] with K a multiple of 32, got \w+ \[3, 63\]"),
    (PLANES, "scale", lambda t: t.double(), r"scale must be bfloat16, float16 or float32 \[K/group_size, N\] = \[\*, 40\]"),
    (PLANES, "zero_point", lambda t: None, r"zero_point must be of scale's dtype and shape, .*, got None"),
    (GGUF, "weight", lambda t: t.transpose(0, 2).contiguous().transpose(0, 2), r"weight must be contiguous"),
    (GGUF, "weight", lambda t: t[:, 0], r"weight must be uint8 \[N, K/256, 144\].*, got uint8 \[40, 144\]"),
    (GGUF[:3], "input", lambda t: t[:, :128], r"input must be \[..., K\] with K a multiple of 256, got \w+ \[3, 128\]"),
    (GGUF, "scale", lambda t: t.half(), r"scale must be float32 \[1\] = \[1\], got float16 \[1\]"),
    (GGUF, "scale", lambda t: t.repeat(2), r"scale must be float32 \[1\] = \[1\], got float32 \[2\]"),
    (GGUF, "block_size", lambda b: [1, 64], r"block_size must be \[1, 32\] of q4_k, got \[1, 64\]"),
    (["weight_only_linear q4_k experts"], "scale", lambda t: t[0], r"scale must be float32 \[E, 1\] = \[4, 1\], got float32 \[1\]"),
    (GROUPED, "input", lambda t: t[None], r"input must be \[T, K\] beside offsets, got \w+ \[1, 3, \d+\]"),
    (GROUPED_INT4, "input", lambda t: t[:, :62], r"weight must be int8 \[E, N, K/2\] = \[4, \*, 31\] for an input with K = 62, got int8 \[4, 40, 32\]"),
    (GROUPED_INT4, "input", lambda t: t[:, :63], r"input must be \[T, K\] with K even, got bfloat16 \[3, 63\]"),
    (GROUPED, "offsets", lambda t: t.long(), r"offsets must be int32 \[E\], for each expert where its rows end, E > 0, got int64 \[4\]"),
    (GROUPED, "offsets", lambda t: t[:0], r"offsets must be int32 \[E\], .*, got int32 \[0\]"),
    (GROUPED, "offsets", lambda t: t.repeat(2)[::2], r"offsets must be contiguous"),
    (GROUPED_INT4, "offsets", lambda t: t[1:], r"weight must be int8 \[E, N, K/2\] = \[3, \*, 32\] .*, got int8 \[4, 40, 32\]"),
    (["weight_only_linear lut4 experts"], "global_scale", lambda t: t[1:], r"global_scale must be float32 with one element or \[E\] = \[4\], got float32 \[3, 1\]"),
    (GROUPED_INT4, "weight", lambda t: t[0], r"weight must be int8 \[E, N, K/2\] = \[4, \*, 32\] .*, got int8 \[40, 32\]"),
    (GROUPED_INT4, "weight", lambda t: t.mT.contiguous().mT, r"weight must be contiguous"),
    (GROUPED_INT4, "scale", lambda t: t[:, :, 1:], r"scale must be .* \[E, K/group_size, N\] = \[4, \*, 40\] with a group_size that divides K = 64, got bfloat16 \[4, 2, 39\]"),
    (GROUPED_INT4, "zero_point", lambda t: t[:, :1], r"zero_point must be of scale's dtype and shape, bfloat16 \[4, 2, 40\], got bfloat16 \[4, 1, 40\]"),
    (["scaled_mm rows", "scaled_mm blocks"], "input", lambda t: t.to(torch.float8_e5m2), r"input must be int8 \[..., K\], got float8_e5m2 \[3, 64\]"),
    (GROUPED, "bias", lambda t: t[0], r"bias must be bfloat16, float16 or float32 \[E, N\] = \[4, 40\], got bfloat16 \[40\]"),
    (BIAS_CALLS, "bias", lambda t: t[1:], r"bias must be bfloat16, float16 or float32 \[N\] = \[40\], got bfloat16 \[39\]"),
    (BIAS_CALLS, "bias", lambda t: t.double(), r"bias must be .*, got float64 \[40\]"),
    (BIAS_CALLS, "bias", lambda t: t[None], r"bias must be .*, got bfloat16 \[1, 40\]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "argument", "spoil", "message"),
    [(op, *rest) for operators, *rest in CASES for op in operators],
    ids=[f"{op}-{case[1]}-{i}" for i, case in enumerate(CASES) for op in case[0]],
)
def test_a_bad_argument_is_named(operator, argument, spoil, message, device, generator):
    args, kwargs = arguments(operator, generator)
    args = {name: moved(t, device) for name, t in args.items()}
    args[argument] = spoil(args[argument])
    with pytest.raises(RuntimeError, match=rf"^ao::{operator_of(operator)}: {message}"):
        op(operator)(**args, **kwargs)


@pytest.mark.parametrize(
    ("operator", "argument", "spoil", "message"),
    [(op, *rest) for operators, *rest in CASES for op in operators],
    ids=[f"{op}-{case[1]}-{i}" for i, case in enumerate(CASES) for op in case[0]],
)
def test_a_fake_kernel_refuses_what_the_real_one_refuses(operator, argument, spoil, message, generator):
    """In the same words, and so does a call on meta tensors."""
    args, kwargs = arguments(operator, generator)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for name, t in args.items()}
        fake[argument] = spoil(fake[argument])
        with pytest.raises(RuntimeError, match=rf"^ao::{operator_of(operator)}: {message}"):
            op(operator)(**fake, **kwargs)
    meta = {name: moved(t, "meta") for name, t in args.items()}
    meta[argument] = spoil(meta[argument])
    with pytest.raises(RuntimeError, match=rf"^ao::{operator_of(operator)}: {message}"):
        op(operator)(**meta, **kwargs)


def test_fake_kernels_refuse_numbers_dtypes_and_layouts(generator):
    args, _ = arguments("scaled_mm_rowwise", generator)
    meta = {name: t.to("meta") for name, t in args.items()}
    ao = torch.ops.ao
    with pytest.raises(RuntimeError, match=r"^ao::scaled_mm_rowwise: out_dtype must be .*, got float64"):
        ao.scaled_mm_rowwise(**meta, out_dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"^ao::quantize: dtype must be int8, .*, got int32"):
        ao.quantize(torch.empty(2, 4, device="meta"), torch.int32)
    with pytest.raises(
        RuntimeError, match=r"^ao::convert_weight_to_int4pack: inner_k_tiles must be 2, 4 or 8"
    ):
        ao.convert_weight_to_int4pack(torch.empty(8, 64, dtype=torch.uint8, device="meta"), 3)
    sparse = torch.ones(3, 4, dtype=torch.int8).to_sparse().to("meta")
    with pytest.raises(RuntimeError, match=r"^ao::int8_mm: weight must be a dense \(strided\) tensor"):
        ao.int8_mm(torch.ones(2, 4, dtype=torch.int8, device="meta"), sparse)


class Int8Product(torch.nn.Module):
    def forward(self, x, w):
        return torch.ops.ao.int8_mm(x, w)


def test_an_impossible_call_is_not_exported():
    x, w = torch.ones(3, 64, dtype=torch.int8), torch.ones(8, 65, dtype=torch.int8)
    with pytest.raises(RuntimeError, match=r"ao::int8_mm: weight must be int8 \[N, K\] = \[\*, 64\]"):
        torch.export.export(Int8Product(), (x, w))


def test_an_export_leaves_sizes_open_that_are_said_to_be():
    x, w = torch.ones(3, 64, dtype=torch.int8), torch.ones(8, 64, dtype=torch.int8)
    M, N = torch.export.Dim("M"), torch.export.Dim("N")
    exported = torch.export.export(Int8Product(), (x, w), dynamic_shapes=({0: M}, {0: N}))
    result = exported.module()(x[:1].expand(70, -1), w[:1].expand(9, -1).contiguous())
    assert torch.equal(result, torch.full((70, 9), 64, dtype=torch.int32))


def test_sizes_that_a_trace_cannot_know_are_left_to_the_operator():
    class Chosen(torch.nn.Module):
        def forward(self, x, w):
            return torch.ops.ao.int8_mm(x[x[:, 0].nonzero()[:, 0]], w)

    x, w = torch.ones(5, 64, dtype=torch.int8), torch.ones(8, 64, dtype=torch.int8)
    exported = torch.export.export(Chosen(), (x, w))
    x[2] = 0
    assert torch.equal(exported.module()(x, w), torch.full((4, 8), 64, dtype=torch.int32))


@pytest.mark.parametrize("operator", [*CALLS, *GROUPED])
def test_every_tensor_on_another_device_is_named(operator, generator):
    """Meta tensors stand for a second device; they reach the fake kernel, which must refuse them."""
    args, kwargs = arguments(operator, generator)
    first = next(iter(args))
    for name in [name for name, a in args.items() if isinstance(a, torch.Tensor)][1:]:
        mixed = {**args, name: args[name].to("meta")}
        with pytest.raises(
            RuntimeError,
            match=rf"^ao::{operator_of(operator)}: {name} must be on the device of {first}, cpu, got meta",
        ):
            op(operator)(**mixed, **kwargs)


def everything(kind, device, generator):
    """All arguments of a good call in order, and those that go by name; of every kind there is."""
    args, kwargs = call_of_any(kind, GOOD, generator)
    return [moved(a, device) for a in args], kwargs


def operands():
    """(kind of call, argument) for every tensor of every kind."""
    for kind in KINDS:
        args, _ = call_of_any(kind, GOOD, torch.Generator())
        for a, value in zip(op(kind)._schema.arguments, args, strict=False):
            if isinstance(value, torch.Tensor):
                yield kind, a.name


@pytest.mark.parametrize("kernel", ["own", "generic"])
@pytest.mark.parametrize(("operator", "argument"), list(operands()))
def test_an_operand_whose_memory_was_given_up_is_refused(operator, argument, kernel, device, generator):
    """FSDP resizes storages between uses; a view may start anywhere in one."""
    args, kwargs = everything(operator, device, generator)
    names = [a.name for a in op(operator)._schema.arguments]
    i = names.index(argument)
    whole = args[i].clone()
    view = torch.cat([whole.flatten(), whole.flatten()])[whole.numel() :].view(whole.shape)
    last_byte = whole.clone()
    run = aoext.ops.generic(operator_of(operator)) if kernel == "generic" else op(operator)
    for t, left in ((whole, 0), (view, 0), (last_byte, last_byte.untyped_storage().nbytes() - 1)):
        run(*args[:i], t, *args[i + 1 :], **kwargs)
        t.untyped_storage().resize_(left)
        with pytest.raises(
            RuntimeError,
            match=rf"^ao::{operator_of(operator)}: {argument} must be a tensor whose storage holds it, got .* in a storage of {left} bytes",
        ):
            run(*args[:i], t, *args[i + 1 :], **kwargs)


# Tensors without strides, whose dtype is as it was where they have such a form of it; and what is no tensor.
WITHOUT_STRIDES = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((1, 1)),
    "mkldnn": lambda t: t.to_mkldnn(),
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
    "jagged": lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
    "none": lambda t: None,
}


@pytest.mark.parametrize("kernel", ["own", "generic"])
@pytest.mark.parametrize("operator", KINDS)
def test_an_operand_without_strides_is_named(operator, kernel, generator):
    args, kwargs = everything(operator, "cpu", generator)
    schema = op(operator)._schema.arguments
    run = aoext.ops.generic(operator_of(operator)) if kernel == "generic" else op(operator)
    for i, (argument, value) in enumerate(zip(schema, args, strict=False)):
        if not isinstance(value, torch.Tensor):
            continue
        seen = 0
        for kind, form in WITHOUT_STRIDES.items():
            optional = isinstance(argument.real_type, torch.OptionalType)
            if kind == "none" and (optional or (i == 0 and kernel == "generic")):  # which has a first tensor
                continue
            try:
                other = form(value)
            except (RuntimeError, TypeError, IndexError):  # PyTorch has no such tensor of this dtype or shape
                continue
            seen += 1
            must = (
                "a tensor, got None"
                if kind == "none"
                else r"a dense \(strided\) tensor, got a tensor of another"
            )
            error, text = RuntimeError, rf"^ao::{operator_of(operator)}: {argument.name} must be {must}"
            if kernel == "own" and kind in ("nested", "jagged"):  # the dispatcher has no kernel for these
                error, text = NotImplementedError, rf"ao(::|\.){operator_of(operator)}\b"
            with pytest.raises(error, match=text):
                run(*args[:i], other, *args[i + 1 :], **kwargs)
        assert seen


@pytest.mark.parametrize("operator", KINDS)
def test_quantised_dtypes_of_pytorch_are_named(operator, generator):
    args, kwargs = everything(operator, "cpu", generator)
    schema = op(operator)._schema.arguments
    for i, (argument, value) in enumerate(zip(schema, args, strict=False)):
        if isinstance(value, torch.Tensor):
            other = torch.quantize_per_tensor(value.float(), 0.1, 0, torch.qint8)
            with pytest.raises(
                RuntimeError, match=rf"^ao::{operator_of(operator)}: {argument.name} must be .*, got qint8"
            ):
                op(operator)(*args[:i], other, *args[i + 1 :], **kwargs)


def test_an_empty_operand_needs_no_memory(device, generator):
    args, _ = everything("int8_mm", device, generator)
    nothing = args[0][:0].clone()
    nothing.untyped_storage().resize_(0)
    assert torch.ops.ao.int8_mm(nothing, args[1]).shape == (0, 40)


@pytest.mark.parametrize("kernel", ["own", "generic"])
@pytest.mark.parametrize("exponent", [48, 56, 57, 58, 59, 60, 61])
def test_counts_that_no_memory_has_are_refused(exponent, kernel, device):
    """A size of 0 lets the others be anything: what loops multiply overflowed, to 0 for some."""
    most = r"must be of at most 2\^48 elements, with a size of 0 counted as 1, got"

    def run(operator, *args, **kwargs):
        call = aoext.ops.generic(operator) if kernel == "generic" else getattr(torch.ops.ao, operator)
        return call(*args, **kwargs)

    def empty(*shape, dtype=torch.int8):
        return torch.empty(*shape, dtype=dtype, device=device)

    groups = empty(1, 0, dtype=torch.float32)
    wide = empty(0, 2 ** (exponent + 1))
    with pytest.raises(RuntimeError, match=f"^ao::dequantize: weight {most}"):
        run("dequantize", wide, groups, Code.INT4, None, groups)
    with pytest.raises(RuntimeError, match=f"^ao::convert_weight_to_int4pack: weight {most}"):
        run("convert_weight_to_int4pack", wide.view(torch.uint8), 8)
    with pytest.raises(RuntimeError, match=f"^ao::quantize: input {most}"):
        run("quantize", empty(0, 2 ** (exponent + 1), dtype=torch.float32), torch.int8)
    with pytest.raises(RuntimeError, match=f"^ao::bf16i4bf16_rowwise: input {most}"):
        run("bf16i4bf16_rowwise", empty(0, 2 ** (exponent + 1), dtype=torch.float32), wide, groups, groups)
    packed = empty(0, 2 ** min(exponent, 55), 32, 4, dtype=torch.int32)  # PyTorch has no strides beyond
    with pytest.raises(RuntimeError, match=f"^ao::weight_int4pack_mm: weight {most}"):
        run("weight_int4pack_mm", empty(0, 128, dtype=torch.bfloat16), packed, 128, groups.bfloat16())
    many = empty(1, 1).expand(2**exponent, 1)  # a view of one element
    with pytest.raises(RuntimeError, match=r"^ao::int8_mm: input must be .*of at most 2\^48 elements"):
        run("int8_mm", many, empty(8, 1))


def test_empty_weights_of_large_rows_are_still_empty(device):
    weight = torch.empty(0, 2**40, dtype=torch.int8, device=device)
    groups = torch.empty(1, 0, device=device)
    assert torch.ops.ao.dequantize(weight, groups, Code.INT4, None, groups).shape == (0, 2**41)


@pytest.mark.parametrize("name", [*(f"uint{n}" for n in range(1, 8)), *(f"int{n}" for n in range(1, 8))])
def test_dtypes_that_only_pytorch_has_a_name_for_are_named(name):
    strange = torch.empty(2, 4, dtype=getattr(torch, name))
    good = torch.zeros(2, 4, dtype=torch.int8)
    with pytest.raises(RuntimeError, match=rf"^ao::int8_mm: input must be int8 .*, got {name} \[2, 4\]"):
        torch.ops.ao.int8_mm(strange, good)
    with pytest.raises(RuntimeError, match=rf"^ao::int8_mm: weight must be int8 .*, got {name} \[2, 4\]"):
        torch.ops.ao.int8_mm(good, strange)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.bool, torch.float32])
def test_quantize_names_a_wrong_dtype(dtype):
    with pytest.raises(
        RuntimeError,
        match=r"^ao::quantize: dtype must be int8, float8_e4m3fn or float8_e5m2, got ",
    ):
        torch.ops.ao.quantize(torch.randn(2, 3), dtype)


def test_quantize_names_a_wrong_input():
    for bad in (
        torch.randn(2, 3).double(),
        torch.tensor(1.0),
        torch.randn(3, 0),
        torch.ones(2, 3, dtype=torch.int8),
    ):
        with pytest.raises(RuntimeError, match=r"^ao::quantize: input must be "):
            torch.ops.ao.quantize(bad, torch.int8)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e5m2])
def test_a_wrong_output_dtype_is_named(dtype, generator):
    args, _ = arguments("scaled_mm_rowwise", generator)
    with pytest.raises(
        RuntimeError,
        match=r"^ao::scaled_mm_rowwise: out_dtype must be bfloat16, float16 or float32, got ",
    ):
        torch.ops.ao.scaled_mm_rowwise(**args, out_dtype=dtype)
    args, options = arguments("dequantize int4", generator)
    options["dtype"] = dtype
    with pytest.raises(
        RuntimeError,
        match=r"^ao::dequantize: dtype must be bfloat16, float16 or float32, got ",
    ):
        torch.ops.ao.dequantize(**args, **options)


def test_missing_and_wrong_python_types_are_the_dispatchers_errors(generator):
    args, _ = arguments("bf16i4bf16_rowwise", generator)
    with pytest.raises((RuntimeError, TypeError)):
        torch.ops.ao.bf16i4bf16_rowwise(args["input"], args["weight"])
    with pytest.raises((RuntimeError, TypeError)):
        torch.ops.ao.bf16i4bf16_rowwise(args["input"], None, args["scale"], args["zero_point"])
