"""Every operator against float64: the device's own kernels and the generic ones, by the same bodies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import aoext
from aoext import reference
from aoext.formats.table import Code, code_of
from aoext.reference import (
    ACTIVATION_CALLS,
    BIAS_CALLS,
    CALLS,
    EIGHT_BIT,
    HIGH_PRECISION,
    INPUT_CALLS,
    INT4_CALLS,
    OPTIONAL_BIAS_CALLS,
    PACKED_CALLS,
    Problem,
    assert_close,
    moved,
    op,
    operator_of,
    without_bias,
)
from conftest import on_the_device_alone, zero_point_slack
from formats import BY_ATEN_ON_XPU, KINDS, OPERATORS

BF16, FP16, FP32 = HIGH_PRECISION

WEIGHT_ONLY = ["bf16i4bf16_rowwise", "weight_only_linear int8", "weight_only_linear float8"]
SHAPES = [
    Problem(1, 32, 64, 32),
    Problem(1, 7, 2, 2, FP32, FP32),
    Problem(2, 3, 6, 3, FP32, BF16),  # a group that starts in the middle of a byte
    Problem(4, 33, 96, 6, BF16, FP32),
    Problem(3, 257, 130, 26, FP16, FP16),
    Problem(5, 64, 256, 128, FP16, FP32),
    Problem(6, 96, 384, 384, BF16, BF16),
    Problem(7, 100, 512, 64, FP32, FP16),
    Problem(8, 31, 1000, 250, BF16, FP16),
    Problem(17, 130, 1024, 256, BF16, BF16),
    Problem(64, 96, 384, 128, FP16, BF16),
    Problem(129, 515, 320, 32, FP32, FP32),
    Problem(33, 40, 640, 128, BF16, FP32, leading=(3, 1, 11)),
    Problem(1, 48, 128, 32, BF16, BF16, leading=()),
    Problem(515, 500, 2080, 416, BF16, BF16),  # on CPUs several slabs of K, of which two share a group
]


def generic_of(kind: str) -> Callable[..., Any]:
    return aoext.ops.generic(operator_of(kind))


@pytest.fixture(params=["own", "generic"])
def kernel_of(request: pytest.FixtureRequest) -> Callable[[str], Callable[..., Any]]:
    """Kind of call -> what to call: the kernel that its device chooses, or the generic twin."""
    if request.param == "generic":
        return generic_of

    def own(kind: str) -> Callable[..., Any]:
        operator = operator_of(kind)

        def call(*args: Any, **kwargs: Any) -> Any:
            has_own = torch._C._dispatch_has_kernel_for_dispatch_key(f"ao::{operator}", "XPU")
            alone = has_own and kind not in BY_ATEN_ON_XPU
            with on_the_device_alone() if alone else nullcontext():
                return getattr(torch.ops.ao, operator)(*args, **kwargs)

        return call

    return own


def test_every_operator_has_a_reference() -> None:
    assert set(OPERATORS) == {*map(operator_of, KINDS)}


@pytest.mark.parametrize("problem", SHAPES, ids=str)
@pytest.mark.parametrize("operator", CALLS)
def test_result_is_within_the_bound_of_float64(operator, problem, device, kernel_of, generator):
    call = CALLS[operator](problem, generator)
    assert_close(call.run(device, kernel_of(operator)), call.reference)


@pytest.mark.parametrize("dtype", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("groups", [1, 5])
@pytest.mark.parametrize("group_size", [2, 8, 16, 32, 64, 96, 128, 384])
@pytest.mark.parametrize("M", [1, 3, 6])
def test_int4_groups_of_every_size(M, group_size, groups, dtype, device, kernel_of, generator):
    problem = Problem(M, 37, group_size * groups, group_size, dtype, dtype)
    call = CALLS["bf16i4bf16_rowwise"](problem, generator)
    assert_close(call.run(device, kernel_of(call.operator)), call.reference)


@pytest.mark.parametrize("groups", [8, 27])
@pytest.mark.parametrize("group_size", [8, 16, 24, 32])
@pytest.mark.parametrize("N", [64, 100])
@pytest.mark.parametrize("M", [47, 48, 130])
def test_many_rows_by_short_groups(M, N, group_size, groups, device, kernel_of, generator):
    problem = Problem(M, N, group_size * groups, group_size, BF16, BF16)
    call = CALLS["bf16i4bf16_rowwise"](problem, generator)
    assert_close(call.run(device, kernel_of(call.operator)), call.reference)


@pytest.mark.parametrize("K", [32, 96, 160, 224, 416])
@pytest.mark.parametrize("M", [20, 70, 300])
def test_many_rows_by_one_group(M, K, device, kernel_of, generator):
    call = CALLS["bf16i4bf16_rowwise"](Problem(M, 64, K, K, BF16, BF16), generator)
    assert_close(call.run(device, kernel_of(call.operator)), call.reference)


@pytest.mark.parametrize("group_size", [16, 32, 128])
@pytest.mark.parametrize("M", [1, 12, 64])
def test_int4_weights_of_zero_meet_an_outlier_as_zero(M, group_size, device, kernel_of, generator):
    weight, scale, _ = reference.int4_weight(96, 256, group_size, BF16, generator)
    zero = (scale.float() * torch.randint(-7, 9, scale.shape, generator=generator)).to(BF16)
    ideal = reference.int4_float64(weight, scale, zero)
    k = int((ideal == 0).sum(0).argmax())
    nothing = ideal[:, k] == 0
    assert nothing.any()
    x = torch.zeros(M, 256, dtype=BF16)
    x[:, k] = 2.0**60
    args = (t.to(device) for t in (x, weight, scale, zero))
    assert (kernel_of("bf16i4bf16_rowwise")(*args).cpu()[:, nothing] == 0).all()


@pytest.mark.parametrize("eight_bit", EIGHT_BIT, ids=str)
@pytest.mark.parametrize("M", [1, 2, 3, 4])
@pytest.mark.parametrize("operator", [op for op in INPUT_CALLS if op not in PACKED_CALLS])
def test_few_rows_by_long_ones(operator, M, eight_bit, device, kernel_of, generator):
    """Longer than what CPUs multiply in one piece, and of a length that no vector divides."""
    call = CALLS[operator](Problem(M, 43, 16453, 16453, BF16, BF16, eight_bit), generator)
    assert_close(call.run(device, kernel_of(operator)), call.reference)


@pytest.mark.parametrize("group_size", [32, 128])
@pytest.mark.parametrize("N", [5, 24])
@pytest.mark.parametrize("M", [9, 33, 130])
def test_int4_rows_of_few_outputs_keep_the_bound(M, N, group_size, device, kernel_of, generator):
    """Among many rows of so few outputs some nearly cancel: weights rounded to bfloat16 would show."""
    for _ in range(20):
        call = CALLS["bf16i4bf16_rowwise"](Problem(M, N, 128, group_size, BF16, BF16), generator)
        assert_close(call.run(device, kernel_of(call.operator)), call.reference)


@pytest.mark.parametrize("eight_bit", EIGHT_BIT, ids=str)
@pytest.mark.parametrize("dtype", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("M", [1, 5, 40])
@pytest.mark.parametrize("operator", ["scaled_mm rows", "scaled_linear rows", "weight_only_linear float8"])
def test_every_eight_bit_format_gives_every_output_dtype(
    operator, M, dtype, eight_bit, device, kernel_of, generator
):
    call = CALLS[operator](Problem(M, 70, 205, 205, dtype, FP32, eight_bit), generator)
    assert_close(call.run(device, kernel_of(operator)), call.reference)


@pytest.mark.parametrize("M", [1, 5, 33])
@pytest.mark.parametrize("operator", [op for op in CALLS if op not in PACKED_CALLS])
def test_a_single_column_is_multiplied_right(operator, M, device, kernel_of, generator):
    call = CALLS[operator](Problem(M, 40, 1, 1, FP32, FP32), generator)
    assert_close(call.run(device, kernel_of(operator)), call.reference)


@pytest.mark.parametrize("dtype", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("N", [1, 7])
@pytest.mark.parametrize("M", [1, 5, 33, 400])
@pytest.mark.parametrize("operator", INPUT_CALLS)
def test_few_output_channels_are_multiplied_right(operator, M, N, dtype, device, kernel_of, generator):
    """Some of 400 rows of one sum each all but cancel."""
    call = CALLS[operator](Problem(M, N, 512, 128, dtype, FP32), generator)
    assert_close(call.run(device, kernel_of(operator)), call.reference, call.terms)


@pytest.mark.parametrize("dtype", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("M", [1, 5, 40])
@pytest.mark.parametrize("operator", WEIGHT_ONLY)
def test_results_among_the_subnormal_numbers_are_right(operator, M, dtype, device, kernel_of, generator):
    """Or next to them, of operands that are none themselves."""
    call = without_bias(CALLS[operator](Problem(M, 40, 256, 64, dtype, FP32), generator))
    large, weight, *others = call.args
    for exponent in (-6, -8, -10) if dtype is FP16 else (-62, -65, -68):
        x = large * 2.0**exponent
        small = [a * 2.0**exponent if isinstance(a, torch.Tensor) else a for a in others]
        w = (
            reference.int4_float64(weight, *small)
            if operator in INT4_CALLS
            else weight.double() * small[0].double()
        )
        result = kernel_of(operator)(*(moved(a, device) for a in (x, weight, *small)), **call.kwargs)
        assert_close(result, x.double() @ w.t())


@pytest.mark.parametrize("eight_bit", EIGHT_BIT, ids=str)
@pytest.mark.parametrize("M", [2, 70])
@pytest.mark.parametrize("operator", OPTIONAL_BIAS_CALLS)
def test_a_bias_that_is_left_out_adds_nothing(operator, M, eight_bit, device, kernel_of, generator):
    call = without_bias(CALLS[operator](Problem(M, 40, 64, 64, FP32, FP32, eight_bit), generator))
    result = call.run(device, kernel_of(operator))
    assert_close(result, call.reference)
    on_meta = op(operator)(*call.on("meta"), **call.kwargs)
    assert (on_meta.shape, on_meta.dtype) == (result.shape, result.dtype)


@pytest.mark.parametrize("group_size", [2, 24, 32, 128, 256, 1024])
@pytest.mark.parametrize("M", [1, 7, 40])
def test_int4_by_int8_is_exact_within_a_group(M, group_size, device, kernel_of, generator):
    x = torch.randint(-128, 128, (M, 3072), dtype=torch.int8, generator=generator)
    packed = torch.randint(-128, 128, (37, 1536), dtype=torch.int8, generator=generator)
    ones, zeros = torch.ones(3072 // group_size, 37), torch.zeros(3072 // group_size, 37)
    *args, zero_point = (t.to(device) for t in (x, packed, torch.ones(M, 1), ones, zeros))
    options = {"zero_point": zero_point, "code": Code.INT4, "out_dtype": torch.float32}
    result = kernel_of("scaled_mm")(*args, **options)
    assert torch.equal(result.cpu().double(), x.double() @ reference.int4_float64(packed, ones, zeros).t())


@pytest.mark.parametrize("M", [1, 9])
def test_int8_mm_is_exact_at_the_largest_sum(M, device, kernel_of):
    x = torch.full((M, 131071), -128, dtype=torch.int8)
    result = kernel_of("int8_mm")(x.to(device), x[:1].expand(3, -1).contiguous().to(device))
    assert torch.equal(result.cpu(), torch.full((M, 3), 128 * 128 * 131071, dtype=torch.int32))


@pytest.mark.parametrize("dtype", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("M", [1, 3, 12, 40])
@pytest.mark.parametrize("operator", WEIGHT_ONLY)
def test_an_outlier_keeps_the_bound_of_its_row(operator, M, dtype, device, kernel_of, generator):
    """One activation 1000 times its group: first it meets random weights, then weights of zero."""
    call = without_bias(CALLS[operator](Problem(M, 64, 256, 32, dtype, FP32), generator))
    x, weight, scale, *others = call.args
    x[0, 37] *= 1000
    for weights_are_zero in (False, True):
        if weights_are_zero and operator in INT4_CALLS:
            weight[:, 37 // 2] &= 0x0F  # an odd k sits in the high nibble
            others[0][37 // 32] = 0
        elif weights_are_zero:
            weight[:, 37] = 0
        w = (
            reference.int4_float64(weight, scale, *others)
            if operator in INT4_CALLS
            else weight.double() * scale.double()
        )
        assert (w[:, 37] == 0).all() == weights_are_zero
        result = kernel_of(operator)(*(moved(a, device) for a in (x, weight, scale, *others)), **call.kwargs)
        assert_close(result, x.double() @ w.t())


@pytest.mark.parametrize("eight_bit", EIGHT_BIT, ids=str)
@pytest.mark.parametrize("K", [256, 512])
@pytest.mark.parametrize("M", [1, 20, 300])
def test_an_outlier_keeps_the_bound_beside_what_it_could_drown(M, K, eight_bit, device, kernel_of, generator):
    """A value 1000 times all others comes first, and no weight is negative: what sums lose has one sign."""
    most = 100 if eight_bit is torch.int8 else 448
    x = (torch.rand(M, K, generator=generator) + 1) * (most / 1500)
    x[:, 0] = most
    weight = torch.rand(64, K, generator=generator) + 0.5
    if eight_bit is torch.int8:
        x, weight = x.ceil(), (weight * 80).round()
    x, weight = x.to(eight_bit), weight.to(eight_bit)
    scales = [torch.rand(rows, 1, generator=generator) / 100 for rows in (M, 64)]
    expected = (x.double() @ weight.double().t()) * scales[0].double() * scales[1].double().t()
    args = (t.to(device) for t in (x, weight, *scales))
    assert_close(kernel_of("scaled_mm_rowwise")(*args), expected)


@pytest.mark.parametrize("dtype", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("M", [1, 5, 20, 80, 300])
def test_an_outlier_keeps_the_bound_where_the_zero_point_cancels_its_weights(
    M, dtype, device, kernel_of, generator
):
    """w = q · scale + zero_point = 0 from large terms, against an activation 1000 times its neighbours."""
    N, K, group_size = 64, 512, 128
    weight, scale, zero = reference.int4_weight(N, K, group_size, dtype, generator)
    weight[:, 3] = 0x55  # q = 5 at k = 6 and 7
    scale = torch.full_like(scale, 0.125)
    zero[0] = -5 * scale[0]
    x = reference.randn(generator, M, K, dtype=dtype)
    x[0, 6] = 1000
    w = reference.int4_float64(weight, scale, zero)
    assert (w[:, 6] == 0).all()
    result = kernel_of("bf16i4bf16_rowwise")(*(moved(t, device) for t in (x, weight, scale, zero)))
    assert_close(result, x.double() @ w.t())


@pytest.mark.parametrize("dtype", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("groups", [1, 6])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("zero_over_scale", [8, 16, 64])
@pytest.mark.parametrize("M", [1, 5, 17, 65, 130])
def test_zero_points_far_above_their_scales_keep_the_bound(
    M, zero_over_scale, group_size, groups, dtype, device, kernel_of, generator
):
    """Every other row of x sums to 0 in each group: its result owes nothing to zero points, however large."""
    N, K = 392, group_size * groups
    weight, scale, _ = reference.int4_weight(N, K, group_size, dtype, generator)
    signs = torch.randint(0, 2, scale.shape, generator=generator) * 2 - 1
    zero = (zero_over_scale * signs * scale.float()).to(dtype)
    x = reference.randn(generator, M, groups, group_size, dtype=dtype)
    order = torch.randperm(group_size // 2, generator=generator)
    x[::2, :, group_size // 2 :] = -x[::2, :, order]
    assert (x[::2].double().sum(-1) == 0).all()
    x = x.flatten(1)
    args = tuple(t.to(device) for t in (x, weight, scale, zero))
    slack = zero_point_slack(args[0], N, group_size, zero_over_scale)
    expected = x.double() @ reference.int4_float64(weight, scale, zero).t()
    assert_close(kernel_of("bf16i4bf16_rowwise")(*args), expected, slack=slack)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("M", [2, 5, 24])
@pytest.mark.parametrize("operator", ACTIVATION_CALLS)
def test_nan_and_inf_stay_in_their_row(operator, M, poison, dtype, device, kernel_of, generator):
    """Row 0 has an outlier, so that CPUs take it as floats, alone or beside the one that no integers hold."""
    call = CALLS[operator](Problem(M, 40, 128, 32, dtype), generator)
    x, others = call.args[0].clone(), torch.arange(M) != 1
    x[0, 40] = 64
    run = lambda: kernel_of(operator)(x.to(device), *call.on(device)[1:], **call.kwargs).cpu()  # noqa: E731
    clean = run()
    x[1, 77] = poison
    dirty = run()
    assert torch.equal(dirty[others], clean[others])
    assert not torch.isfinite(dirty[1]).any()


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("exponent", [101, -110])
@pytest.mark.parametrize("M", [5, 24, 70])
@pytest.mark.parametrize("operator", WEIGHT_ONLY)
def test_a_row_of_huge_or_tiny_numbers_changes_no_other(
    operator, M, exponent, dtype, device, kernel_of, generator
):
    call = without_bias(CALLS[operator](Problem(M, 70, 256, 32, dtype), generator))
    clean = call.run(device, kernel_of(operator)).cpu()
    x = call.args[0].clone()
    x[1] *= 2.0**exponent
    scaled = kernel_of(operator)(x.to(device), *call.on(device)[1:], **call.kwargs).cpu()
    others = torch.arange(M) != 1
    assert torch.equal(scaled[others], clean[others])
    assert_close(scaled[1:2], call.reference[1:2] * 2.0**exponent)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("M", [1, 2, 12, 40])
def test_a_small_scale_meets_small_numbers(M, group_size, dtype, device, kernel_of, generator):
    """Results of 2⁻¹¹⁰ and below are normal, and the steps on the way to them must not be less."""
    x, weight, scale, zero = CALLS["bf16i4bf16_rowwise"](
        Problem(M, 64, 256, group_size, dtype, FP32), generator
    ).args
    x, scale, zero = x * 2.0**-26, scale * 2.0**-90, zero * 2.0**-90
    args = (t.to(device) for t in (x, weight, scale, zero))
    expected = x.double() @ reference.int4_float64(weight, scale, zero).t()
    assert_close(kernel_of("bf16i4bf16_rowwise")(*args), expected)


@pytest.mark.parametrize("eight_bit", [d for d in EIGHT_BIT if d.is_floating_point], ids=str)
@pytest.mark.parametrize("M", [1, 3, 40, 70])
@pytest.mark.parametrize("operator", ["scaled_mm rows", "weight_only_linear float8"])
def test_every_float8_value_keeps_its_meaning_in_a_weight(
    operator, M, eight_bit, device, kernel_of, generator
):
    """A row of the weight for each byte: NaN or an infinity gives such a column, and no other."""
    call = CALLS[operator](Problem(M, 256, 150, 150, FP32, FP32, eight_bit), generator)
    x, weight, *others = without_bias(call).args
    scales = [a for a in others if isinstance(a, torch.Tensor)]
    values = torch.arange(256, dtype=torch.uint8).view(eight_bit)
    weight[:, -1] = values
    x[:, -1] = 1
    result = kernel_of(operator)(*(moved(a, device) for a in (x, weight, *others)), **call.kwargs).cpu()
    expected = x.double() @ weight.double().t() * scales[-1].double().t()
    if len(scales) == 2:
        expected *= scales[0].double()
    finite = values.float().isfinite()
    assert_close(result[:, finite], expected[:, finite])
    assert not result[:, ~finite].isfinite().any()
    assert torch.equal(result[:, ~finite].isnan(), expected[:, ~finite].isnan())


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("M", [2, 40])
@pytest.mark.parametrize("operator", [kind for kind in BIAS_CALLS if not kind.startswith("scaled")])
def test_a_bias_is_added_before_the_one_rounding(operator, M, dtype, device, kernel_of, generator):
    """It takes away 15/16 of a product that float16 cannot hold and that rounding would leave its mark on."""
    call = CALLS[operator](Problem(M, 40, 128, 32, dtype, FP32), generator)
    args = call.named()
    args["input"] = args["input"][:1].repeat(M, 1)
    product = args["input"].double() @ call.weight.t()
    factor = 2.0 ** (17 - product.abs().max().log2().floor())
    for name in ("scale", "zero_point"):
        if args.get(name) is not None and args[name].is_floating_point():
            args[name] = args[name] * factor
    product *= factor
    assert (product.abs() > torch.finfo(FP16).max).any()
    args["bias"] = (product[0] * (-15 / 16)).float()
    result = kernel_of(operator)(*(moved(a, device) for a in args.values()), **call.kwargs)
    slack = 1
    if kernel_of is not generic_of:
        # As a device may: kernels of matrix engines multiply by weights of the input's type. And of the
        # sixteenth that the bias leaves, errors of sums in float32 are 16 times as large a part.
        slack = 16 if dtype is BF16 or device.type == "cuda" else 2
    assert_close(result, product + args["bias"].double(), slack=slack)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("M", [2, 40])
@pytest.mark.parametrize("operator", BIAS_CALLS)
def test_a_bias_that_is_not_finite_stays_in_its_column(operator, M, value, device, kernel_of, generator):
    call = CALLS[operator](Problem(M, 40, 128, 32), generator)
    clean = call.run(device, kernel_of(operator)).cpu()
    call.named()["bias"][7] = value
    result = call.run(device, kernel_of(operator)).cpu()
    others = torch.arange(40) != 7
    assert torch.equal(result[:, others], clean[:, others])
    assert torch.equal(
        result[:, 7].nan_to_num(1, 2, 3), torch.full((M,), value).nan_to_num(1, 2, 3).bfloat16()
    )


@pytest.mark.parametrize("M", [1, 7, 30])
@pytest.mark.parametrize("operator", INPUT_CALLS)
def test_non_contiguous_input_gives_the_same_bits(operator, M, device, kernel_of, generator):
    call = CALLS[operator](Problem(M, 36, 160, 32), generator)
    expected = call.run(device, kernel_of(operator))
    x, *others = call.on(device)
    column_major = x.t().contiguous().t()
    strided = torch.stack([x, x], -1)[..., 0]
    for view in (column_major, strided):
        assert view.is_contiguous() == (M == 1 and view is column_major)
        assert torch.equal(kernel_of(operator)(view, *others, **call.kwargs), expected)


@pytest.mark.parametrize("leading", [(0,), (0, 5), (4, 0)])
@pytest.mark.parametrize("operator", INPUT_CALLS)
def test_empty_input_gives_an_empty_result(operator, leading, device, kernel_of, generator):
    call = CALLS[operator](Problem(0, 24, 64, 32, leading=leading), generator)
    result = call.run(device, kernel_of(operator))
    assert result.shape == (*leading, 24)
    assert result.dtype is (torch.int32 if operator == "int8_mm" else BF16)
    assert result.device.type == device.type


@pytest.mark.parametrize("M", [3, 50])
@pytest.mark.parametrize("operator", CALLS)
def test_no_output_channels_give_an_empty_result(operator, M, device, kernel_of, generator):
    call = CALLS[operator](Problem(M, 0, 64, 32), generator)
    assert call.run(device, kernel_of(operator)).shape == call.reference.shape
    assert 0 in call.reference.shape


@pytest.mark.parametrize("M", [1, 4, 100])
@pytest.mark.parametrize("operator", CALLS)
def test_same_inputs_give_the_same_bits(operator, M, device, kernel_of, generator):
    call = CALLS[operator](Problem(M, 300, 512, 128), generator)
    first, second = (call.run(device, kernel_of(operator)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("M", [1, 30])
def test_results_do_not_depend_on_the_thread_count(M, kernel_of, generator):
    threads = torch.get_num_threads()
    call = CALLS["bf16i4bf16_rowwise"](Problem(M, 700, 512, 128), generator)
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(call.run(torch.device("cpu"), kernel_of("bf16i4bf16_rowwise")))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert_close(results[0], results[1].double())


# ---- quantize -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("eight_bit", EIGHT_BIT, ids=str)
@pytest.mark.parametrize("dtype", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 3, 130), (65, 513)], ids=str)
def test_quantize_by_rows_gives_the_formulas_bits(shape, dtype, eight_bit, device, kernel_of, generator):
    x = (
        torch.randn(shape, generator=generator)
        * 10 ** (4 * torch.rand(*shape[:-1], 1, generator=generator) - 2)
    ).to(dtype)
    values, scales = kernel_of("quantize rows")(x.to(device), eight_bit)
    expected_values, expected_scales = reference.quantized(x, eight_bit)
    assert values.dtype is eight_bit
    assert scales.dtype is torch.float32
    assert torch.equal(scales.cpu(), expected_scales)
    assert torch.equal(values.cpu().view(torch.int8), expected_values.view(torch.int8))


@pytest.mark.parametrize("eight_bit", EIGHT_BIT, ids=str)
def test_quantize_by_rows_of_special_rows(eight_bit, device, kernel_of):
    limit = reference.quantized_max(eight_bit)
    tiny = torch.finfo(torch.float32).tiny
    x = torch.ones(6, 20)
    x[1] = 0
    x[2, 3] = torch.nan
    x[3, 4] = -torch.inf
    x[4] = tiny / 2**20  # its scale would be subnormal
    x[5] = -torch.finfo(torch.float32).max
    values, scales = (t.cpu() for t in kernel_of("quantize rows")(x.to(device), eight_bit))
    assert scales[1] == 1
    assert scales[2].isnan()
    assert scales[3].isnan()
    assert scales[4] == tiny
    assert (values[1:5].float() == 0).all()
    assert (values[0].float() == limit).all()
    assert (values[5].float() == -limit).all()


@pytest.mark.parametrize("eight_bit", EIGHT_BIT, ids=str)
def test_quantize_by_rows_rounds_every_tie_to_even(eight_bit, device, kernel_of):
    """Every midpoint of two neighbouring codes, in a row whose scale is 1."""
    if eight_bit is torch.int8:
        codes = torch.arange(-127, 128).float()
    else:
        codes = torch.arange(256, dtype=torch.uint8).view(eight_bit).float()
        codes = codes[torch.isfinite(codes)].sort().values
    midpoints = (codes[1:].double() + codes[:-1].double()) / 2
    x = torch.cat([midpoints.float(), codes[-1:]])[None]
    values, scales = (t.cpu() for t in kernel_of("quantize rows")(x.to(device), eight_bit))
    assert scales.item() == 1
    expected = x.round() if eight_bit is torch.int8 else x.to(eight_bit).float()
    assert torch.equal(values.float(), expected)


@pytest.mark.parametrize("M", [1, 5, 80])
@pytest.mark.parametrize("K", [1, 64, 90])
@pytest.mark.parametrize("dtype", EIGHT_BIT[1:], ids=str)
def test_every_float8_code_is_multiplied_exactly(dtype, K, M, device, kernel_of):
    """Each code alone in a row of zeros, times one."""
    codes = torch.arange(256, dtype=torch.uint8)
    weight = torch.zeros(256, K, dtype=torch.uint8)
    weight[torch.arange(256), torch.arange(256) % K] = codes
    weight, expected = weight.view(dtype).to(device), codes.view(dtype).float().expand(M, -1)
    ones = torch.ones(256, 1).to(device)
    for x in (torch.ones(M, K), torch.ones(M, K, dtype=BF16)):
        result = kernel_of("weight_only_linear")(x.to(device), weight, ones, code=code_of(dtype))
        torch.testing.assert_close(result.cpu().float(), expected, rtol=0, atol=0, equal_nan=True)


# ---- sizes past 2**31 -----------------------------------------------------------------------------------


def test_a_weight_of_more_than_2_31_bytes(device, generator):
    """Rows repeat, so every repetition must give the same bits as the first."""
    base_rows, K = 4096, 8192
    problem = Problem(1, base_rows, K, 2048)
    call = reference.bf16i4bf16_rowwise(problem, generator)
    repeats = 2**31 // (base_rows * K // 2) + 1
    x, weight, scale, zero_point = (a.to(device) for a in call.args)
    big = weight.repeat(repeats, 1)
    assert big.numel() > 2**31
    result = torch.ops.ao.bf16i4bf16_rowwise(x, big, scale.repeat(1, repeats), zero_point.repeat(1, repeats))
    assert_close(result[:, :base_rows], call.reference)
    assert torch.equal(result.view(repeats, base_rows), result[:, :base_rows].expand(repeats, -1))
