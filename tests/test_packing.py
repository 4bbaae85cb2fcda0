"""Packing and quantising helpers against values computed by hand, numpy and float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from aoext import packing, reference
from aoext.packing import (
    dequantize,
    float8_row_quantize,
    int4_row_quantize,
    int4_row_quantize_zp,
    int8_row_quantize,
    pack_int4,
    unpack_int4,
)
from aoext.packing.scales import held
from aoext.tensors import Int4Tensor

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

# N, K, group_size: usual groups, half and whole rows, groups that no vector fits and odd ones.
GROUPS = [(3, 64, 32), (5, 128, 64), (2, 256, 128), (7, 40, 20), (4, 26, 26), (9, 12, 6), (1, 6, 3)]


def randn(generator: torch.Generator, *shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return (torch.randn(*shape, generator=generator) * 3).to(dtype)


def test_pack_puts_the_even_k_in_the_low_nibble(device):
    q = torch.tensor([[1, -1, -8, 7], [0, 3, -2, 0]], dtype=torch.int8, device=device)
    # 0xF1, 0x78; 0x30, 0x0E
    assert pack_int4(q).tolist() == [[-15, 120], [48, 14]]


def test_unpack_reads_every_byte_as_arithmetic_does(device):
    packed = torch.arange(-128, 128, dtype=torch.int8).view(16, 16)
    q = unpack_int4(packed.to(device))
    assert q.dtype is torch.int8
    assert torch.equal(q.cpu().long(), reference.unpack_int4(packed))
    assert torch.equal(pack_int4(q).cpu(), packed)


def test_pack_takes_strided_and_empty_matrices(device, generator):
    q = torch.randint(-8, 8, (6, 10), generator=generator, dtype=torch.int8).to(device)
    assert torch.equal(unpack_int4(pack_int4(q.t())), q.t())
    assert pack_int4(q[:0]).shape == (0, 5)
    assert unpack_int4(pack_int4(q[:, :0])).shape == (6, 0)


def test_asymmetric_int4_by_hand(device):
    # min −10, max 20: s = 30/15 = 2, z = −10 + 8·2 = 6. (x − min)/s is 0, 15, 7.45, 7.55 in the
    # first group's row; the second row has the ties 0.5 and 1.5, which go to the even 0 and 2.
    x = torch.tensor([[-10.0, 20.0, 4.9, 5.1], [-9.0, -7.0, -10.0, 20.0]], device=device)
    q, scale, zero_point = int4_row_quantize_zp(x, group_size=4)
    assert q.tolist() == [[-8, 7, -1, 0], [-8, -6, -8, 7]]
    assert scale.tolist() == [[2.0, 2.0]]
    assert zero_point.tolist() == [[6.0, 6.0]]


def test_symmetric_int4_by_hand(device):
    # The extremes are −16 and 16, of which −16 goes to −8: s = 2. x/s is 8 (clamped), −8, 7.5 (to 8,
    # clamped), 1.5 (to 2), −2.5 (to −2), 0.5. Without −16 the extreme is 16: s = −2, and it goes to −8 too.
    x = torch.tensor(
        [[16.0, -16.0, 15.0, 3.0, -5.0, 1.0], [16.0, -15.0, 15.0, 3.0, -5.0, 1.0]], device=device
    )
    q, scale = int4_row_quantize(x, group_size=6)
    assert q.tolist() == [[7, -8, 7, 2, -2, 0], [-8, 7, -8, -2, 2, 0]]
    assert scale.tolist() == [[2.0, -2.0]]


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_constant_groups_are_kept(dtype, device):
    constants = [3.0, 1.0, -2.0, 1e-3, -1e-3, 1e-6, -1e-6, 0.0]
    x = torch.tensor([constants], device=device, dtype=dtype).repeat_interleave(2, 1)
    q, scale, zero_point = int4_row_quantize_zp(x, group_size=2)
    assert not q.any()
    assert not scale.any()
    assert torch.equal(dequantize(pack_int4(q), scale, zero_point), x)
    q, scale = int4_row_quantize(x, group_size=2)
    restored = dequantize(pack_int4(q), scale, torch.zeros_like(scale))
    # An eighth of float16's 1e-6 is a multiple of 2⁻²⁴ that is rounded up.
    atol = 2.0**-24 if dtype is FP16 else 0
    torch.testing.assert_close(restored, x, rtol=torch.finfo(dtype).eps, atol=atol)
    assert q.tolist()[0][:6] == [-8] * 6


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("symmetric", [False, True])
def test_groups_of_zeros_give_zeros(symmetric, dtype, device, generator):
    w = randn(generator, 4, 64, dtype=dtype)
    w[1, 16:32] = 0
    w[3] = 0
    weight = Int4Tensor.from_hp(w.to(device), [1, 16], symmetric=symmetric)
    restored = weight.dequantize().cpu()
    assert (restored[w == 0] == 0).all()
    x = randn(generator, 3, 64, dtype=dtype).to(device)
    assert (torch.nn.functional.linear(x, weight)[:, 3] == 0).all()


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize(("N", "K", "group_size"), GROUPS)
def test_int4_formulas_are_bit_for_bit_those_of_numpy(N, K, group_size, dtype, device, generator):
    x = randn(generator, N, K, dtype=dtype)
    groups = x.float().view(N, -1, group_size).numpy()
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    scale = (high - low) / np.float32(15)
    expected_q = np.clip(np.rint((groups - low) / scale), 0, 15) - 8
    expected_zero = low + np.float32(8) * scale

    q, s, z = int4_row_quantize_zp(x.to(device), group_size)
    assert (q.dtype, s.dtype, z.dtype) == (torch.int8, dtype, dtype)
    assert np.array_equal(q.cpu().numpy(), expected_q.reshape(N, K))
    assert torch.equal(s.cpu(), torch.from_numpy(scale[..., 0].T.copy()).to(dtype))
    assert torch.equal(z.cpu(), torch.from_numpy(expected_zero[..., 0].T.copy()).to(dtype))
    assert q.is_contiguous()
    assert s.is_contiguous()
    assert z.is_contiguous()

    scale = np.where(high > -low, high, low) / np.float32(-8)
    q, s = int4_row_quantize(x.to(device), group_size)
    expected_q = np.clip(np.rint(groups / scale), -8, 7)
    assert np.array_equal(q.cpu().numpy(), expected_q.reshape(N, K))
    assert torch.equal(s.cpu(), torch.from_numpy(scale[..., 0].T.copy()).to(dtype))


# Weights of these magnitudes: float16 has no numbers below 6e-8 and scales of 2 digits below 6e-7.
MAGNITUDES = [
    *(
        (dtype, 10.0**exponent)
        for dtype in (BF16, FP32)
        for exponent in (-37, -30, -20, -10, -8, -7, -6, -4, 0, 30)
    ),
    *((FP16, 10.0**exponent) for exponent in (-5, -4, -3, -2, 0, 3)),
]


@pytest.mark.parametrize(("dtype", "magnitude"), MAGNITUDES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_int4_keeps_weights_of_every_magnitude(symmetric, dtype, magnitude, device, generator):
    w = (torch.randn(32, 128, generator=generator) * magnitude).to(dtype)
    assert relative_error(w.to(device), 32, symmetric) < 0.095
    assert relative_error(w.to(device), 128, symmetric) < 0.115


@pytest.mark.parametrize("symmetric", [False, True])
def test_int4_of_float16_is_exact_where_steps_are_as_small_as_its_numbers(symmetric, device, generator):
    spacing = 2.0**-24
    few = torch.randint(-7, 8, (8, 64), generator=generator) * spacing
    assert relative_error(few.to(FP16).to(device), 16, symmetric) == 0
    more = torch.randint(-40, 41, (64, 64), generator=generator) * spacing
    # The step is at most one spacing above a fifteenth of the range.
    assert relative_error(more.to(FP16).to(device), 16, symmetric) < 0.12


def relative_error(w: Tensor, group_size: int, symmetric: bool) -> float:
    """The error of int4's values and scales, in float64."""
    if symmetric:
        q, scale = int4_row_quantize(w, group_size)
        zero_point = torch.zeros_like(scale)
    else:
        q, scale, zero_point = int4_row_quantize_zp(w, group_size)
    restored = reference.int4_float64(pack_int4(q).cpu(), scale.cpu(), zero_point.cpu())
    w = w.cpu().double()
    return ((restored - w).norm() / w.norm()).item()


@pytest.mark.parametrize("symmetric", [False, True])
def test_int4_chooses_values_by_the_scales_that_are_kept(symmetric, device, generator):
    """A float32 weight whose scales are float16, as where something is merged into it."""
    spacing = 2.0**-24
    w = torch.randn(32, 128, generator=generator) * 20 * spacing
    weight = Int4Tensor.from_hp(w.half().to(device), [1, 32], symmetric=symmetric)
    again = weight.requantized(w.to(device))
    assert again.scale.dtype is FP16
    restored = reference.int4_float64(again.qdata.cpu(), again.scale.cpu(), again.zero_point.cpu())
    assert (restored - w.double()).norm() < 0.11 * w.double().norm()
    quantize = int4_row_quantize if symmetric else int4_row_quantize_zp
    q, scale = quantize(w.to(device), 32, dtype=FP16)[:2]
    assert torch.equal(pack_int4(q), again.qdata)
    assert torch.equal(scale, again.scale)
    with pytest.raises(ValueError, match=r"dtype must be bfloat16, .* got torch\.int8"):
        quantize(w.to(device), 32, dtype=torch.int8)


def test_symmetric_int4_errs_less_than_a_scale_of_one_sign(device, generator):
    w = torch.randn(64, 1024, generator=generator)
    for group_size in (32, 128):
        groups = w.view(64, -1, group_size)
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        errors = []
        for scale in (torch.maximum(high, -low) / 8, torch.maximum(high / 7, -low / 8)):
            errors.append(((groups / scale).round().clamp(-8, 7) * scale - groups).norm() / w.norm())
        assert relative_error(w.to(device), group_size, symmetric=True) < 0.99 * min(errors)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("quantized", [torch.int8, E4M3, E5M2])
def test_rows_are_quantised_by_the_contract(quantized, dtype, device, generator):
    w = randn(generator, 5, 37, dtype=dtype)
    w[2] = 0
    to = w.to(device)
    q, scale = int8_row_quantize(to) if quantized is torch.int8 else float8_row_quantize(to, quantized)
    expected_q, expected_scale = reference.quantized(w, quantized)
    assert (q.dtype, scale.dtype) == (quantized, FP32)
    assert torch.equal(q.cpu().float(), expected_q.float())
    assert torch.equal(scale.cpu(), expected_scale)


@pytest.mark.parametrize("dtype", [None, BF16, FP16, FP32])
@pytest.mark.parametrize("scale_dtype", [BF16, FP32])
def test_dequantize_rounds_the_exact_value_once(scale_dtype, dtype, device, generator):
    w = randn(generator, 6, 24, dtype=scale_dtype).to(device)
    q, *parameters = int4_row_quantize_zp(w, 6)
    fields = (pack_int4(q), *parameters)
    exact = reference.int4_float64(*(field.cpu() for field in fields))
    result = dequantize(*fields, dtype=dtype)
    assert result.dtype is (dtype or scale_dtype)
    torch.testing.assert_close(result.cpu(), exact.to(result.dtype))

    for q, scale in (int8_row_quantize(w), float8_row_quantize(w), float8_row_quantize(w, E5M2)):
        scale = scale.to(scale_dtype)
        result = dequantize(q, scale, dtype=dtype)
        assert result.dtype is (dtype or scale_dtype)
        exact = q.cpu().double() * scale.cpu().double()
        assert torch.equal(result.cpu(), exact.float().to(result.dtype))


def test_dequantize_takes_strided_fields(device, generator):
    w = randn(generator, 24, 24).to(device)
    q, *parameters = int4_row_quantize_zp(w, 6)
    fields = (pack_int4(q)[::2], *(parameter[:, ::2] for parameter in parameters))
    assert torch.equal(dequantize(*fields), dequantize(pack_int4(q), *parameters)[::2])
    q, scale = int8_row_quantize(w)
    expected = dequantize(q, scale)[:, ::2]
    assert torch.equal(dequantize(q[:, ::2], scale), expected)
    assert torch.equal(dequantize(q.t().contiguous().t(), scale)[:, ::2], expected)


def test_blocks_of_rows_change_nothing(device, generator, monkeypatch):
    x = randn(generator, 23, 24).to(device)
    before = x.clone()

    def results() -> list[Tensor]:
        q, scale = int8_row_quantize(x)
        return [*int4_row_quantize_zp(x, 8), *int4_row_quantize(x, 12), dequantize(q, scale)]

    whole = results()
    monkeypatch.setattr(packing.scales, "BLOCK_ELEMENTS", {})
    monkeypatch.setattr(packing.scales, "BLOCK_ELEMENTS_ELSEWHERE", 100)  # 4 rows; the last block has 3
    for blocked, expected in zip(results(), whole, strict=True):
        assert torch.equal(blocked, expected)
    assert torch.equal(x, before)


def test_minus_one_means_whole_rows(device, generator):
    x = randn(generator, 5, 24).to(device)
    for quantize in (int4_row_quantize_zp, int4_row_quantize):
        for result, expected in zip(quantize(x, -1), quantize(x, 24), strict=True):
            assert torch.equal(result, expected)


def test_strides_and_gradients_of_the_weight_do_not_matter(device, generator):
    w = randn(generator, 24, 10).to(device).t().requires_grad_()
    for quantize in (int4_row_quantize_zp, int4_row_quantize):
        for result, expected in zip(quantize(w, 6), quantize(w.detach().contiguous(), 6), strict=True):
            assert torch.equal(result, expected)
            assert not result.requires_grad
    for quantize in (int8_row_quantize, float8_row_quantize):
        q, scale = quantize(w)
        assert torch.equal(dequantize(q, scale), dequantize(*quantize(w.detach().contiguous())))
        assert not scale.requires_grad


def test_no_rows_give_empty_results(device):
    x = torch.empty(0, 12, device=device)
    q, scale, zero_point = int4_row_quantize_zp(x, 6)
    assert (q.shape, scale.shape, zero_point.shape) == ((0, 12), (2, 0), (2, 0))
    q, scale = int8_row_quantize(x)
    assert (q.shape, scale.shape) == ((0, 12), (0, 1))
    assert dequantize(q, scale).shape == (0, 12)


def test_meta_tensors_have_shapes_and_no_values():
    x = torch.empty(8, 12, dtype=BF16, device="meta")
    q, scale, zero_point = int4_row_quantize_zp(x, 6)
    assert (q.shape, scale.shape, zero_point.dtype) == ((8, 12), (2, 8), BF16)
    assert dequantize(pack_int4(q), scale, zero_point).shape == (8, 12)
    assert int8_row_quantize(x)[1].is_meta


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize(
    "quantize",
    [
        lambda w: int4_row_quantize_zp(w, 4),
        lambda w: int4_row_quantize(w, 4),
        int8_row_quantize,
        float8_row_quantize,
        lambda w: float8_row_quantize(w, E5M2),
    ],
)
def test_nan_and_inf_are_refused(quantize, dtype, value, device, generator):
    w = randn(generator, 5, 8, dtype=dtype)
    w[3, int(torch.randint(8, (), generator=generator))] = value
    with pytest.raises(ValueError, match=r"row_quantize(_zp)?: [xw] must be finite"):
        quantize(w.to(device))


def test_a_range_beyond_float32_is_quantised(device):
    x = torch.tensor([[-3e38, 3e38, 1e38, 2e37]], device=device)
    q, scale, zero_point = int4_row_quantize_zp(x, 4)
    assert q.tolist() == [[-8, 7, 2, 0]]  # (x + 3e38) / 4e37 is 0, 15, 10 and 8
    assert scale.item() == pytest.approx(4e37)
    assert zero_point.item() == pytest.approx(2e37)
    assert int4_row_quantize(x[:, :2], 2)[0].tolist() == [[-8, 7]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scales_below_the_normal_numbers_are_rounded_up(dtype, device):
    limits = torch.finfo(dtype)
    step = limits.smallest_normal * limits.eps
    scale = torch.cat([torch.logspace(-44, 30, 500, dtype=torch.float64).float(), torch.zeros(1)])
    exact = (scale.double() / step).ceil().clamp(min=1) * step
    expected = torch.where(scale < limits.smallest_normal, exact, scale.double()).float()
    assert torch.equal(held(scale.to(device), dtype).cpu(), expected)


def test_scales_that_their_dtype_cannot_hold_are_refused(device):
    x = torch.tensor([[-1e7, 1e7]], device=device)
    for quantize in (int4_row_quantize, int4_row_quantize_zp):
        with pytest.raises(ValueError, match="x must have scales and zero points that float16 holds, got"):
            quantize(x, 2, dtype=FP16)


X = torch.ones(4, 8)
SPARSE = torch.eye(4).to_sparse()
NESTED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
INT8 = torch.ones(4, 8, dtype=torch.int8)

BAD_CALLS = [
    (pack_int4, ([1],), TypeError, r"pack_int4: q must be int8 \[N, K\] with K even, got a list"),
    (pack_int4, (X,), TypeError, r"q must be int8 .* got float32 \[4, 8\]"),
    (
        pack_int4,
        (INT8[:, :7],),
        ValueError,
        r"q must be int8 \[N, K\] with K even, got int8 \[4, 7\]",
    ),
    (pack_int4, (INT8[0],), ValueError, r"got int8 \[8\]"),
    (pack_int4, (INT8 * 8,), ValueError, r"q must lie in -8\.\.7, got values in 8\.\.8"),
    (pack_int4, (INT8 * -9,), ValueError, r"q must lie in -8\.\.7, got values in -9\.\.-9"),
    (unpack_int4, (INT8.to(torch.uint8),), TypeError, r"packed must be int8 \[N, K/2\], got uint8"),
    (unpack_int4, (INT8[None],), ValueError, r"got int8 \[1, 4, 8\]"),
    (int4_row_quantize_zp, (X.double(), 4), TypeError, r"x must be bfloat16, float16 or float32"),
    (int4_row_quantize_zp, (X.numpy(), 4), TypeError, "got a ndarray"),
    (int4_row_quantize_zp, (SPARSE, 2), TypeError, "got sparse_coo float32"),
    (int4_row_quantize_zp, (NESTED, 2), TypeError, "got a nested float32 tensor"),
    (int4_row_quantize_zp, (X[:, :7], 7), ValueError, r"K even and not 0, got float32 \[4, 7\]"),
    (int4_row_quantize_zp, (X[:, :0], 2), ValueError, r"K even and not 0, got float32 \[4, 0\]"),
    (int4_row_quantize_zp, (X,), ValueError, r"must be positive and divide K = 8, .* got 128"),
    (int4_row_quantize, (X, 3), ValueError, r"must be positive and divide K = 8, .* got 3"),
    (int4_row_quantize, (X, 0), ValueError, "group_size must be positive"),
    (int4_row_quantize, (X, -4), ValueError, "group_size must be positive"),
    (int4_row_quantize, (X, 4.0), TypeError, "group_size must be an int, got a float"),
    (int4_row_quantize, (X, True), TypeError, "group_size must be an int, got a bool"),
    (int8_row_quantize, (INT8,), TypeError, r"w must be bfloat16, .* got int8 \[4, 8\]"),
    (int8_row_quantize, (X[0],), ValueError, r"w must be .* \[N, K\], got float32 \[8\]"),
    (int8_row_quantize, (X[:, :0],), ValueError, r"with K not 0, got float32 \[4, 0\]"),
    (
        float8_row_quantize,
        (X, torch.int8),
        ValueError,
        "float8_e4m3fn or float8_e5m2, got torch.int8",
    ),
    (dequantize, (X, X[:, :1]), TypeError, "qdata must be int8, float8_e4m3fn or float8_e5m2"),
    (dequantize, (INT8[:, :0], X[:, :1]), ValueError, r"qdata must be .* with K not 0, got int8 \[4, 0\]"),
    (dequantize, (INT8, X), ValueError, r"scale must be \[N, 1\] = \[4, 1\]"),
    (dequantize, (INT8, X[:, :1].double()), TypeError, "scale must be bfloat16"),
    (
        dequantize,
        (INT8, X[:3, :4], X[:3, :4]),
        ValueError,
        r"\[a divisor of 16, 4\].* got \[3, 4\]",
    ),
    (dequantize, (INT8, X[:0, :4], X[:0, :4]), ValueError, r"got \[0, 4\]"),
    (
        dequantize,
        (INT8, X[:2, :4], X[:1, :4]),
        ValueError,
        r"zero_point must be \[2, 4\] like scale",
    ),
    (dequantize, (INT8, X[:2, :4], X[:2, :4].half()), TypeError, "zero_point must be float32"),
    (dequantize, (INT8, X[:, :1].to("meta")), ValueError, "scale must be on qdata's device cpu"),
]


@pytest.mark.parametrize(("helper", "arguments", "error", "message"), BAD_CALLS)
def test_bad_arguments_are_named(helper, arguments, error, message):
    with pytest.raises(error, match=message):
        helper(*arguments)


def test_dequantize_takes_no_other_dtype():
    with pytest.raises(ValueError, match=r"dtype must be bfloat16, float16 or float32, got torch\.int8"):
        dequantize(INT8, X[:, :1], dtype=torch.int8)
