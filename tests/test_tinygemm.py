"""The tinygemm layout: packing and its product, on every device, against plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import aoext
from aoext import reference
from aoext.packing import layouts
from aoext.reference import Problem, assert_close, moved, randn
from conftest import compiler_for, zero_point_slack

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

# Shapes of packed weights: N, K, inner_k_tiles. One n-tile, an odd number of them, K that is no multiple of 128.
PACKED = [
    (8, 32, 2),
    (16, 96, 2),
    (24, 64, 4),
    (40, 192, 4),
    (8, 128, 8),
    (72, 640, 8),
    (136, 1024, 2),
    (32, 2048, 8),
]

# M, N, K, group_size, inner_k_tiles.
PRODUCTS = [
    (1, 8, 128, 128, 8),
    (1, 264, 4096, 128, 8),
    (2, 24, 96, 32, 2),
    (3, 40, 192, 64, 4),
    (5, 72, 320, 32, 2),
    (7, 16, 512, 256, 8),
    (8, 136, 1024, 64, 8),
    (9, 48, 256, 32, 4),
    (16, 40, 384, 128, 8),
    (17, 88, 2048, 256, 4),
    (31, 64, 640, 32, 8),
    (33, 104, 512, 128, 2),
    (70, 136, 256, 64, 4),
    (259, 72, 768, 256, 8),
]


@pytest.fixture(params=["own", "generic"])
def kernel_of(request: pytest.FixtureRequest) -> Callable[[str], Callable[..., Any]]:
    """operator -> what to call: the kernel that its device chooses, or the generic twin."""
    if request.param == "generic":
        return aoext.ops.generic
    return lambda operator: getattr(torch.ops.ao, operator)


def product(M, N, K, group_size, inner, generator):
    return reference.weight_int4pack_mm(Problem(M, N, K, group_size), generator, inner)


# ---- packing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("N", "K", "inner"), PACKED)
def test_packing_is_bit_for_bit_the_layout(N, K, inner, device, kernel_of, generator):
    weight = reference.tinygemm_bytes(N, K, generator)
    packed = kernel_of("convert_weight_to_int4pack")(weight.to(device), inner)
    assert packed.device.type == device.type
    assert packed.is_contiguous()
    assert torch.equal(packed.cpu(), reference.tinygemm_pack(weight, inner))
    assert torch.equal(layouts.tinygemm_unpack(packed).cpu(), weight)


def test_packing_by_hand(device, kernel_of):
    """Row 1 alone, so lanes 4 to 7; k = 2, 3, 18 and 25 are 1, 2, 3 and 4."""
    weight = torch.zeros(8, 16, dtype=torch.uint8)
    weight[1, 1], weight[1, 9], weight[1, 12] = 0x12, 0x30, 0x04
    packed = kernel_of("convert_weight_to_int4pack")(weight.to(device), 2).cpu()
    expected = torch.zeros(1, 1, 32, 1, dtype=torch.int32)
    # k = 2 is lane 4 + 1, nibble 0; k = 3 beside it in the high half; k = 18 = 16 + 2, nibble 2.
    expected[0, 0, 5, 0] = 0x1 | 0x2 << 16 | 0x3 << 8
    expected[0, 0, 4, 0] = 0x4 << 28  # k = 25 = 24 + 1: lane 4, high half, nibble 3
    assert torch.equal(packed, expected)


def test_packing_is_that_of_torch(generator):
    """torch's own operator, where it exists: on CUDA from compute capability 8.0 on."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("torch packs this layout on CUDA alone")
    for N, K, inner in PACKED:
        weight = reference.tinygemm_bytes(N, K, generator).cuda()
        expected = torch.ops.aten._convert_weight_to_int4pack(weight, inner)
        assert torch.equal(torch.ops.ao.convert_weight_to_int4pack(weight, inner), expected)


def test_products_are_those_of_torch(generator):
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("torch multiplies this layout on CUDA alone")
    for M, N, K, group_size, inner in PRODUCTS:
        call = product(M, N, K, group_size, inner, generator)
        args = [a.cuda() if isinstance(a, torch.Tensor) else a for a in call.args]
        theirs = torch.ops.aten._weight_int4pack_mm(*args)
        difference = torch.ops.ao.weight_int4pack_mm(*args).double() - theirs.double()
        assert difference.norm() <= 1e-2 * theirs.double().norm()


def test_packing_no_rows(device, kernel_of):
    empty = torch.empty(0, 64, dtype=torch.uint8, device=device)
    assert kernel_of("convert_weight_to_int4pack")(empty, 4).shape == (0, 2, 32, 2)


# ---- product --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("M", "N", "K", "group_size", "inner"), PRODUCTS)
def test_result_is_within_the_bound_of_float64(M, N, K, group_size, inner, device, kernel_of, generator):
    call = product(M, N, K, group_size, inner, generator)
    assert_close(call.run(device, kernel_of("weight_int4pack_mm")), call.reference)


@pytest.mark.parametrize("group_size", [32, 128])
@pytest.mark.parametrize("N", [8, 24])
@pytest.mark.parametrize("M", [9, 33, 130])
def test_rows_of_few_outputs_keep_the_bound(M, N, group_size, device, kernel_of, generator):
    """As in test_operators.py."""
    for _ in range(20):
        call = product(M, N, 128, group_size, 4, generator)
        assert_close(call.run(device, kernel_of("weight_int4pack_mm")), call.reference)


def test_a_dimension_of_one_word_may_have_any_stride(device, kernel_of, generator):
    call = product(3, 16, 64, 32, 2, generator)
    x, packed, group_size, scale_and_zero = (moved(a, device) for a in call.args)
    assert packed.shape[-1] == 1
    strided = packed.as_strided(packed.shape, (*packed.stride()[:-1], 32))
    assert strided.is_contiguous()
    result = kernel_of("weight_int4pack_mm")(x, strided, group_size, scale_and_zero)
    assert_close(result, call.reference)


@pytest.mark.parametrize("M", [1, 3, 12, 40])
def test_an_outlier_keeps_the_bound_of_its_row(M, device, kernel_of, generator):
    """One activation 1000 times its group: first it meets random weights, then weights of zero."""
    call = product(M, 64, 256, 32, 8, generator)
    x, packed, group_size, scale_and_zero = call.args
    x[0, 37] *= 1000
    weight = layouts.tinygemm_unpack(packed)
    for weights_are_zero in (False, True):
        if weights_are_zero:
            weight[:, 37 // 2] = (weight[:, 37 // 2] & 0xF0) | 0x0D  # u − 8 = 5; an odd k, so the low nibble
            scale_and_zero[1, :, 1] = -5 * scale_and_zero[1, :, 0]
            scale_and_zero[1] = scale_and_zero[1].bfloat16()
            packed = torch.ops.ao.convert_weight_to_int4pack(weight, 8)
        w = reference.tinygemm_float64(weight, scale_and_zero)
        if weights_are_zero:
            assert (w[:, 37].abs() <= 0.05 * w.abs().amax(1)).all()
        result = kernel_of("weight_int4pack_mm")(
            x.to(device), packed.to(device), group_size, scale_and_zero.to(device)
        )
        assert_close(result, x.double() @ w.t())


@pytest.mark.parametrize("group_size", [32, 128])
@pytest.mark.parametrize("zero_over_scale", [8, 16, 64])
@pytest.mark.parametrize("M", [1, 5, 17, 65, 130])
def test_zero_points_far_above_their_scales_keep_the_bound(
    M, zero_over_scale, group_size, device, kernel_of, generator
):
    """Every other row of x sums to 0 in each group: its result owes nothing to zero points, however large."""
    N, K = 384, 512
    x, _, _, scale_and_zero = product(M, N, K, group_size, 8, generator).args
    signs = torch.randint(0, 2, scale_and_zero.shape[:2], generator=generator) * 2 - 1
    scale_and_zero[..., 1] = zero_over_scale * signs * scale_and_zero[..., 0]
    by_group = x.view(M, -1, group_size)
    order = torch.randperm(group_size // 2, generator=generator)
    by_group[::2, :, group_size // 2 :] = -by_group[::2, :, order]
    assert (by_group[::2].double().sum(-1) == 0).all()
    weight = reference.tinygemm_bytes(N, K, generator)
    packed = reference.tinygemm_pack(weight, 8).to(device)
    args = (x.to(device), packed, group_size, scale_and_zero.to(device))
    slack = zero_point_slack(args[0], N, group_size, zero_over_scale)
    expected = x.double() @ reference.tinygemm_float64(weight, scale_and_zero).t()
    assert_close(kernel_of("weight_int4pack_mm")(*args), expected, slack=slack)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("M", [2, 5, 24, 50])
def test_nan_and_inf_stay_in_their_row(M, poison, device, kernel_of, generator):
    call = product(M, 40, 128, 32, 8, generator)
    clean = call.run(device, kernel_of("weight_int4pack_mm")).cpu()
    x, *rest = call.args
    x[1, 77] = poison
    rest = [a.to(device) if isinstance(a, torch.Tensor) else a for a in rest]
    dirty = kernel_of("weight_int4pack_mm")(x.to(device), *rest).cpu()
    others = torch.arange(M) != 1
    assert torch.equal(dirty[others], clean[others])
    assert not torch.isfinite(dirty[1]).any()


@pytest.mark.parametrize("M", [1, 7, 40])
def test_strided_and_shifted_operands_give_the_same_bits(M, device, kernel_of, generator):
    call = product(M, 40, 256, 64, 4, generator)
    expected = call.run(device, kernel_of("weight_int4pack_mm"))
    x, packed, group_size, scale_and_zero = (
        a.to(device) if isinstance(a, torch.Tensor) else a for a in call.args
    )

    def shifted(t):
        return torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape)

    op = kernel_of("weight_int4pack_mm")
    for view in (x.t().contiguous().t(), torch.stack([x, x], -1)[..., 0], shifted(x)):
        assert torch.equal(op(view, packed, group_size, scale_and_zero), expected)
    assert torch.equal(op(x, shifted(packed), group_size, shifted(scale_and_zero)), expected)


@pytest.mark.parametrize(("M", "N"), [(0, 24), (0, 0), (3, 0), (50, 0)])
def test_empty_results(M, N, device, kernel_of, generator):
    call = product(M, N, 64, 32, 4, generator)
    result = call.run(device, kernel_of("weight_int4pack_mm"))
    assert result.shape == (M, N)
    assert result.dtype is BF16
    assert result.device.type == device.type


@pytest.mark.parametrize("M", [1, 12, 100])
def test_same_inputs_give_the_same_bits(M, device, kernel_of, generator):
    call = product(M, 304, 1024, 128, 8, generator)
    first, second = (call.run(device, kernel_of("weight_int4pack_mm")) for _ in range(2))
    assert torch.equal(first, second)


def test_a_slice_of_rows_is_a_weight(device, generator):
    call = product(4, 64, 256, 64, 8, generator)
    x, packed, group_size, scale_and_zero = (
        a.to(device) if isinstance(a, torch.Tensor) else a for a in call.args
    )
    part = torch.ops.ao.weight_int4pack_mm(x, packed[3:6], group_size, scale_and_zero[:, 24:48].contiguous())
    assert_close(part, call.reference[:, 24:48])


# ---- bad calls ------------------------------------------------------------------------------------------

MM_CASES = [
    ("input", lambda t: t.float(), r"input must be bfloat16 \[M, K\], got float32 \[3, 128\]"),
    ("input", lambda t: t[None], r"input must be bfloat16 \[M, K\], got bfloat16 \[1, 3, 128\]"),
    ("input", lambda t: t[:, :0], r"input must be \[..., K\] with K > 0, got bfloat16 \[3, 0\]"),
    ("input", lambda t: t[:, :64], r"weight must be int32 .* for an input with K = 64, got int32 \[5, 1, 32, 4\]"),
    ("weight", lambda t: t.long(), r"weight must be int32 .*, got int64 \[5, 1, 32, 4\]"),
    ("weight", lambda t: t.flatten(1), r"weight must be int32 .*, got int32 \[5, 128\]"),
    ("weight", lambda t: t[..., :3], r"weight must be int32 .* inner_k_tiles 2, 4 or 8 .*, got int32 \[5, 1, 32, 3\]"),
    ("weight", lambda t: t[:, :, :16], r"weight must be int32 .*, got int32 \[5, 1, 16, 4\]"),
    ("weight", lambda t: t.transpose(2, 3).contiguous().transpose(2, 3), r"weight must be contiguous, got int32"),
    ("group_size", lambda n: 16, r"group_size must be 32, 64, 128 or 256 and divide K = 128, got 16"),
    ("group_size", lambda n: 256, r"group_size must be 32, 64, 128 or 256 and divide K = 128, got 256"),
    ("group_size", lambda n: 0, r"group_size must be .*, got 0"),
    ("group_size", lambda n: 128, r"scale_and_zero must be bfloat16 \[K/group_size, N, 2\] = \[1, 40, 2\], got bfloat16 \[2, 40, 2\]"),
    ("scale_and_zero", lambda t: t.half(), r"scale_and_zero must be .* = \[2, 40, 2\], got float16 \[2, 40, 2\]"),
    ("scale_and_zero", lambda t: t[1:], r"scale_and_zero must be .*, got bfloat16 \[1, 40, 2\]"),
    ("scale_and_zero", lambda t: t[:, 1:], r"scale_and_zero must be .*, got bfloat16 \[2, 39, 2\]"),
    ("scale_and_zero", lambda t: t[..., :1], r"scale_and_zero must be .*, got bfloat16 \[2, 40, 1\]"),
    ("scale_and_zero", lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), r"scale_and_zero must be contiguous"),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "spoil", "message"), MM_CASES)
def test_a_bad_argument_of_the_product_is_named(argument, spoil, message, device, kernel_of, generator):
    call = product(3, 40, 128, 64, 8, generator)
    names = ("input", "weight", "group_size", "scale_and_zero")
    args = {
        name: a.to(device) if isinstance(a, torch.Tensor) else a
        for name, a in zip(names, call.args, strict=True)
    }
    args[argument] = spoil(args[argument])
    with pytest.raises(RuntimeError, match=rf"^ao::weight_int4pack_mm: {message}"):
        kernel_of("weight_int4pack_mm")(*args.values())


PACK_CASES = [
    (lambda t: t, 3, r"inner_k_tiles must be 2, 4 or 8, got 3"),
    (lambda t: t, 0, r"inner_k_tiles must be 2, 4 or 8, got 0"),
    (lambda t: t.view(torch.int8), 8, r"weight must be uint8 \[N, K/2\] with N a multiple of 8 and K one of 16 \* inner_k_tiles = 128, not 0, got int8 \[16, 64\]"),
    (lambda t: t[:15], 8, r"weight must be uint8 .*, got uint8 \[15, 64\]"),
    (lambda t: t[:, :32].contiguous(), 8, r"weight must be uint8 .*, got uint8 \[16, 32\]"),
    (lambda t: t[:, :0], 2, r"weight must be uint8 .*, got uint8 \[16, 0\]"),
    (lambda t: t[None], 2, r"weight must be uint8 .*, got uint8 \[1, 16, 64\]"),
    (lambda t: t.t().contiguous().t(), 2, r"weight must be contiguous, got uint8 \[16, 64\] with strides \[1, 16\]"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "inner", "message"), PACK_CASES)
def test_a_bad_argument_of_the_packing_is_named(spoil, inner, message, device, kernel_of, generator):
    weight = spoil(reference.tinygemm_bytes(16, 128, generator).to(device))
    with pytest.raises(RuntimeError, match=rf"^ao::convert_weight_to_int4pack: {message}"):
        kernel_of("convert_weight_to_int4pack")(weight, inner)


def test_every_tensor_on_another_device_is_named(generator):
    x, packed, group_size, scale_and_zero = product(3, 40, 128, 64, 8, generator).args
    op = torch.ops.ao.weight_int4pack_mm
    with pytest.raises(RuntimeError, match=r"^ao::weight_int4pack_mm: weight must be on the device of input"):
        op(x, packed.to("meta"), group_size, scale_and_zero)
    with pytest.raises(RuntimeError, match=r"scale_and_zero must be on the device of input, cpu, got meta"):
        op(x, packed, group_size, scale_and_zero.to("meta"))


def test_a_sparse_tensor_is_refused(kernel_of, generator):
    x, packed, group_size, scale_and_zero = product(3, 40, 128, 64, 8, generator).args
    with pytest.raises(RuntimeError, match=r"scale_and_zero must be a dense \(strided\) tensor"):
        kernel_of("weight_int4pack_mm")(x, packed, group_size, scale_and_zero.to_sparse())


# ---- what PyTorch asks of an operator -------------------------------------------------------------------


@pytest.mark.parametrize("operator", reference.TINYGEMM_CALLS)
def test_fake_results_have_the_shape_and_dtype_of_real_ones(operator, generator):
    for problem in (Problem(3, 40, 128, 64), Problem(0, 8, 96, 32), Problem(2, 0, 256, 256)):
        call = reference.TINYGEMM_CALLS[operator](problem, generator)
        function = getattr(torch.ops.ao, operator)
        meta = function(*call.on("meta"))
        real = function(*call.args)
        assert (meta.shape, meta.dtype, meta.stride()) == (real.shape, real.dtype, real.stride())


def test_the_gradient_reaches_the_input_alone(device, generator):
    call = product(5, 40, 128, 64, 8, generator)
    x, packed, group_size, scale_and_zero = (
        a.to(device) if isinstance(a, torch.Tensor) else a for a in call.args
    )
    x.requires_grad_()
    scale_and_zero.requires_grad_()
    result = torch.ops.ao.weight_int4pack_mm(x, packed, group_size, scale_and_zero)
    grad = randn(generator, 5, 40, dtype=BF16)
    result.backward(grad.to(device))
    w = reference.tinygemm_float64(layouts.tinygemm_unpack(packed).cpu(), scale_and_zero.detach().cpu())
    # The weight is rounded to bfloat16 for this product.
    assert_close(x.grad, grad.double() @ w.bfloat16().double())
    assert scale_and_zero.grad is None


def test_a_compiled_function_serves_every_batch(device, generator):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *args: torch.ops.ao.weight_int4pack_mm(*args) * 2,
        fullgraph=True,
        dynamic=True,
        backend=compiler_for(device),
    )
    for M in (2, 5, 33):
        call = product(M, 40, 256, 64, 8, generator)
        args = call.on(device)
        assert torch.equal(compiled(*args), torch.ops.ao.weight_int4pack_mm(*args) * 2)


def test_explain_takes_the_tensors_of_a_call(device, generator):
    for operator, make in reference.TINYGEMM_CALLS.items():
        args = [
            a.to(device) if isinstance(a, torch.Tensor) else a
            for a in make(Problem(3, 40, 128, 64), generator).args
        ]
        assert aoext.explain(operator, *args)
    with pytest.raises(RuntimeError, match="weight must be int32"):
        aoext.explain("weight_int4pack_mm", args[0].cpu(), args[1].cpu().long(), 64, args[3].cpu())
