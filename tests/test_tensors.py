"""Quantised weights: construction, meaning, products, gradients, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from aoext import packing
from aoext.reference import assert_close, randn
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor
from formats import CLASSES, FORMATS, HIGH_PRECISION, largest_loss, meaning, product, quantized

BF16, FP16, FP32 = HIGH_PRECISION
E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("format", FORMATS)
def test_dequantize_is_near_the_weight_and_exact_to_its_fields(format, dtype, device, generator):
    w = randn(generator, 20, 96, dtype=dtype).to(device)
    weight = FORMATS[format](w)
    restored = weight.dequantize()
    assert (restored.shape, restored.dtype, restored.device) == (w.shape, dtype, w.device)
    torch.testing.assert_close(restored.cpu(), meaning(weight).to(dtype))
    error = ((restored - w).float().norm() / w.float().norm()).item()
    assert error < largest_loss(format)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("format", FORMATS)
def test_linear_is_within_the_bound_of_float64(format, dtype, device, generator):
    weight = quantized(format, 33, 96, dtype, device, generator)
    bias = randn(generator, 33, dtype=dtype).to(device)
    for rows in ((), (1,), (7,), (2, 3), (0,), (2, 0)):
        x = randn(generator, *rows, 96, dtype=dtype).to(device)
        for b in (None, bias):
            y = linear(x, weight, b)
            assert y.dtype is dtype
            assert_close(y, product(x, weight, b))


@pytest.mark.parametrize("group_size", [2, 3, 6, 32, 64, 96, 192])
def test_int4_serves_every_group_size_that_divides(group_size, device, generator):
    w = randn(generator, 9, 192, dtype=FP32).to(device)
    weight = Int4Tensor.from_hp(w, [1, group_size])
    x = randn(generator, 4, 192, dtype=FP32).to(device)
    assert_close(linear(x, weight), product(x, weight))
    assert weight.scale.shape == (192 // group_size, 9)


@pytest.mark.parametrize("format", FORMATS)
def test_every_spelling_of_the_product_gives_the_same_bits(format, device, generator):
    weight = quantized(format, 24, 64, BF16, device, generator)
    x = randn(generator, 5, 64, dtype=BF16).to(device)
    bias = randn(generator, 24, dtype=BF16).to(device)
    y = linear(x, weight)
    for other in (
        x @ weight.t(),
        x @ weight.T,
        x @ weight.mT,
        torch.mm(x, weight.t()),
        x.mm(weight.transpose(0, 1)),
        torch.matmul(x, weight.t()),
        x.matmul(other=weight.transpose(-1, -2)),
        (x[None] @ weight.t())[0],
        torch.ops.aten.mm.default(x, weight.t()),
        linear(x, weight.t().t()),
        nn.functional.linear(input=x, weight=weight, bias=None),
    ):
        assert torch.equal(y, other)
    y = linear(x, weight, bias)
    assert torch.equal(y, torch.addmm(bias, x, weight.t()))
    assert torch.equal(y, bias.addmm(x, weight.t(), beta=1, alpha=1))
    matrix = randn(generator, 5, 24, dtype=BF16).to(device)
    assert torch.equal(torch.addmm(matrix, x, weight.t()), linear(x, weight) + matrix)


@pytest.mark.parametrize("format", FORMATS)
def test_a_weight_multiplies_as_it_lies_too(format, device, generator):
    """What gradients of products are made of."""
    weight = quantized(format, 24, 64, FP32, device, generator)
    grad, bias = randn(generator, 2, 5, 24).to(device), randn(generator, 64).to(device)
    expected = grad.cpu().double() @ meaning(weight)
    if format == "int4_prescaled":
        expected *= weight.act_pre_scale.cpu().double()
    assert_close(grad @ weight, expected)
    assert_close(torch.mm(grad[0], weight), expected[0])
    assert_close(linear(grad, weight.t(), bias), expected + bias.cpu().double())
    x = randn(generator, 2, 5, 64).to(device).requires_grad_()
    linear(x, weight).backward(grad)
    assert_close(grad @ weight, x.grad.cpu().double())


@pytest.mark.parametrize("format", FORMATS)
def test_gradients_reach_activations_and_biases_alone(format, device, generator):
    layer = nn.Linear(64, 24, device=device, dtype=FP32)
    weight = quantized(format, 24, 64, FP32, device, generator)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    x = randn(generator, 2, 5, 64).to(device).requires_grad_()
    upstream = randn(generator, 2, 5, 24).to(device)
    layer(x).backward(upstream)
    assert layer.weight.grad is None
    # Straight through the quantisation of activations: the weight's meaning alone counts.
    expected = upstream.cpu().double() @ meaning(weight)
    if format == "int4_prescaled":
        expected *= weight.act_pre_scale.cpu().double()
    assert_close(x.grad, expected)
    assert_close(layer.bias.grad[None], upstream.cpu().double().sum((0, 1))[None])


@pytest.mark.parametrize("inputs", [FP32, FP16, BF16])
@pytest.mark.parametrize("format", FORMATS)
def test_autocast_casts_the_activation_and_nothing_else(format, inputs, device, generator):
    weight = quantized(format, 24, 64, FP32, device, generator)
    x = randn(generator, 5, 64, dtype=inputs).to(device)
    with torch.autocast(device.type, BF16):
        y = linear(x, weight)
    assert y.dtype is BF16
    assert_close(y, product(x.bfloat16(), weight))
    with torch.autocast(device.type, BF16), pytest.raises(RuntimeError, match="got float64"):
        linear(x.double(), weight)


@pytest.mark.parametrize("format", CLASSES)
def test_an_activation_of_another_dtype_is_refused_as_by_nn_linear(format, device, generator):
    weight = quantized(format, 24, 64, BF16, device, generator)
    x = randn(generator, 5, 64).to(device)
    with pytest.raises(RuntimeError, match="weight's dtype bfloat16, got float32"):
        linear(x, weight)
    with pytest.raises(RuntimeError):
        linear(x, weight.dequantize())


@pytest.mark.parametrize("format", CLASSES)
def test_all_other_operations_are_named(format, device, generator):
    weight = quantized(format, 32, 32, BF16, device, generator)
    x = randn(generator, 5, 32, dtype=BF16).to(device)
    for call, name in (
        (lambda: torch.stack([weight, weight], 1), r"aten\.stack\.default"),
        (lambda: torch.abs(weight, out=x), r"aten\.abs\.out"),
        (lambda: weight.mul_(2), r"aten\.mul_\.Tensor"),
        (lambda: weight.add_(1), r"aten\.add_\.Tensor is not implemented but for a matrix \[32, 32\]"),
        (
            lambda: weight.__setitem__(0, x[0]),
            "an assignment is implemented for slices alone",
        ),
        (lambda: weight.view(2, -1), r"aten\.view\.default"),
        (lambda: weight.view(-1) + 1, r"aten\.add\.Tensor"),
        (lambda: weight.as_strided((32, 32), (1, 32)), r"aten\.as_strided\.default"),
        (lambda: weight.zero_(), r"aten\.zero_\.default"),
        (lambda: weight.apply_(abs), "apply_ of a quantised weight is not implemented"),
        (lambda: weight.map_(weight, max), "map_ of a quantised weight is not implemented"),
        (lambda: weight[::2], r"aten\.slice\.Tensor"),
        (lambda: linear(weight, weight), "linear: only the weight, the second factor"),
        (lambda: linear(x, x, weight), "linear: only the weight, the second factor"),
        (lambda: torch.addmm(x, x, weight.t(), alpha=2), "takes no beta and no alpha"),
    ):
        with pytest.raises(NotImplementedError, match=name):
            call()
        with torch.inference_mode(), pytest.raises(NotImplementedError, match=name):
            call()
    with pytest.raises(RuntimeError, match=r"mm: the first factor must be \[M, K\], got \[1, 5, 32\]"):
        torch.mm(x[None], weight.t())


def test_products_are_written_where_they_are_wanted(device, generator):
    weight = Int8Tensor.from_hp(randn(generator, 24, 32)).to(device)
    x, y = randn(generator, 5, 32).to(device), randn(generator, 5, 24).to(device)
    plain, out = weight.dequantize(), torch.empty(5, 24, device=device)
    with torch.no_grad():
        assert torch.mm(x, weight.t(), out=out) is out
        torch.testing.assert_close(out, x @ plain.t(), rtol=1e-4, atol=1e-4)
        total = torch.ones(5, 32, device=device)
        assert total.addmm_(y, weight) is total
        torch.testing.assert_close(total, 1 + y @ plain, rtol=1e-4, atol=1e-4)
        half = y.to(BF16)
        torch.addmm(total, half, weight.to(BF16), out_dtype=torch.float32, out=total)
        torch.testing.assert_close(total, 1 + y @ plain + half.float() @ plain, rtol=1e-4, atol=1e-4)
        with pytest.raises(
            RuntimeError, match=r"mm: out must be a plain tensor \[5, 24\], got float32 \[5, 32\]"
        ):
            torch.mm(x, weight.t(), out=total)


def test_repr_can_be_read(generator):
    weight = Int4Tensor.from_hp(randn(generator, 64, 256, dtype=BF16), [1, 128])
    assert repr(weight) == (
        "Int4Tensor(shape=[64, 256], dtype=bfloat16, block_size=[1, 128], device=cpu, 4.25 bits per weight)"
    )
    weight = Int8Tensor.from_hp(randn(generator, 64, 256), dynamic_activation=True)
    assert str(nn.Parameter(weight, requires_grad=False).t()) == (
        "Int8Tensor(shape=[256, 64], dtype=float32, block_size=[1, 256], dynamic_activation=True, "
        "device=cpu, 8.125 bits per weight)"
    )


Q4, Q8 = torch.zeros(6, 4, dtype=torch.int8), torch.zeros(6, 8, dtype=torch.int8)
S4, S8 = torch.ones(2, 6), torch.ones(6, 1)
SHAPE = (6, 8)

BAD_INT4 = [
    ((X8 := Q8.float(), S4, S4, [1, 4], SHAPE), TypeError, r"qdata must be int8 .* got float32"),
    ((Q4, S4.double(), S4, [1, 4], SHAPE), TypeError, "scale must be bfloat16, float16 or float32"),
    ((Q4, None, S4, [1, 4], SHAPE), TypeError, "scale must be .* got a NoneType"),
    (
        (Q4, S4, S4.half(), [1, 4], SHAPE),
        TypeError,
        "zero_point must have .* float32.* got float16",
    ),
    ((Q4, S4, None, [1, 4], SHAPE), TypeError, "zero_point must be .* got a NoneType"),
    ((Q4[0], S4, S4, [1, 4], SHAPE), ValueError, r"qdata must be int8 with 2 dim.* got int8 \[4\]"),
    ((Q4[:, :0], S4, S4, [1, 4], SHAPE), ValueError, "divides K = 0"),
    ((Q4, S4, S4, [1, 3], SHAPE), ValueError, r"divides K = 8, got \[1, 3\]"),
    ((Q4, S4, S4, [2, 4], SHAPE), ValueError, r"\[1, group_size\].* got \[2, 4\]"),
    ((Q4, S4, S4, [1, 0], SHAPE), ValueError, r"got \[1, 0\]"),
    ((Q4, S4, S4, [4], SHAPE), TypeError, r"\[1, group_size\], two positive ints, got \[4\]"),
    ((Q4, S4, S4, 4, SHAPE), TypeError, r"\[1, group_size\], two positive ints, got 4"),
    ((Q4, S4, S4, [1, 4.0], SHAPE), TypeError, "two positive ints"),
    (
        (Q4, S4.t(), S4, [1, 4], SHAPE),
        ValueError,
        r"scale must be \[2, 6\] .* got float32 \[6, 2\]",
    ),
    ((Q4, S4, S4[:1], [1, 4], SHAPE), ValueError, r"zero_point must be \[2, 6\]"),
    ((Q4, S4, S4, [1, 4], (6, 4)), ValueError, r"shape must be \[6, 8\] .* got \(6, 4\)"),
    ((Q4, S4, S4, [1, 4], SHAPE, S8[:, 0]), ValueError, r"act_pre_scale must be \[8\]"),
    ((Q4, S4, S4, [1, 4], SHAPE, 2.0), TypeError, "act_pre_scale must be .* got a float"),
    (
        (Q4, S4.to("meta"), S4, [1, 4], SHAPE),
        ValueError,
        "scale must be on qdata's device cpu, got",
    ),
]
BAD_ROWS = [
    (Int8Tensor, (Q8.float(), S8, [1, 8], BF16), TypeError, "qdata must be int8"),
    (Float8Tensor, (Q8, S8, [1, 8], BF16), TypeError, "qdata must be float8_e4m3fn or float8_e5m2"),
    (Int8Tensor, (Q8, S8.bfloat16(), [1, 8], BF16), TypeError, "scale must be float32"),
    (Int8Tensor, (Q8, S8[:, 0], [1, 8], BF16), ValueError, "scale must be float32 with 2 dim"),
    (Int8Tensor, (Q8, S8[:3], [1, 8], BF16), ValueError, r"scale must be \[6, 1\]"),
    (Int8Tensor, (Q8, torch.ones(6, 2), [1, 4], BF16), ValueError, r"block_size must be \[1, K\]"),
    (Int8Tensor, (Q8, S8, [1, 8], torch.int8), TypeError, "dtype must be bfloat16, float16, float32 or"),
    (Int8Tensor, (Q8, S8, [1, 8], BF16, 1), TypeError, "dynamic_activation must be a bool, got 1"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_INT4)
def test_int4_tensor_names_what_does_not_fit(arguments, error, message):
    with pytest.raises(error, match=f"Int4Tensor: .*{message}"):
        Int4Tensor(*arguments)


@pytest.mark.parametrize(("tensor_type", "arguments", "error", "message"), BAD_ROWS)
def test_row_scaled_tensors_name_what_does_not_fit(tensor_type, arguments, error, message):
    with pytest.raises(error, match=f"{tensor_type.__name__}: .*{message}"):
        tensor_type(*arguments)


def test_from_hp_passes_on_the_errors_of_packing(generator):
    w = randn(generator, 4, 8)
    with pytest.raises(TypeError, match=r"Int4Tensor: block_size must be \[1, group_size\]"):
        Int4Tensor.from_hp(w, [4])
    with pytest.raises(ValueError, match=r"Int4Tensor: block_size must be \[1, group_size\]"):
        Int4Tensor.from_hp(w, [2, 4])
    with pytest.raises(ValueError, match=r"group_size must be positive and divide K = 8, .* got 3"):
        Int4Tensor.from_hp(w, [1, 3])
    with pytest.raises(TypeError, match="w must be bfloat16"):
        Int8Tensor.from_hp(w.double())
    with pytest.raises(ValueError, match="dtype must be float8_e4m3fn or float8_e5m2"):
        Float8Tensor.from_hp(w, torch.int8)


def test_fields_of_other_quantisers_go_in_as_they_are(device, generator):
    w = randn(generator, 12, 64, dtype=BF16).to(device)
    q, scale, zero_point = packing.int4_row_quantize_zp(w, 32)
    weight = Int4Tensor(packing.pack_int4(q), scale, zero_point, (1, 32), torch.Size([12, 64]))
    x = randn(generator, 3, 64, dtype=BF16).to(device)
    assert torch.equal(linear(x, weight), linear(x, Int4Tensor.from_hp(w, [1, 32])))
    assert (weight.block_size, weight.dtype, weight.act_pre_scale) == ([1, 32], BF16, None)
