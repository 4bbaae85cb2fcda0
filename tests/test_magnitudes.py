"""Weights of every magnitude that floats have: zeros, the smallest, the largest; and sums that cancel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import linear

import aoext
from aoext.formats.dtypes import EXPONENT_DTYPES
from aoext.formats.table import Code
from aoext.reference import assert_close, randn, values
from formats import FORMATS, LARGEST_CODES, largest_loss, meaning, product

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = [BF16, FP16, FP32]
ROWS = [1, 5, 40]  # of x: each gets kernels of its own


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", FORMATS)
def test_weights_of_zeros_give_zeros(format, dtype, device, generator):
    w = randn(generator, 72, 256, dtype=dtype)
    w[:40], w[:, 64:128] = 0, 0
    zeros, some = (FORMATS[format](t.to(device)) for t in (torch.zeros_like(w), w))
    for M in ROWS:
        x = (1000 * randn(generator, M, 256, dtype=dtype)).to(device)
        assert not linear(x, zeros).any()
        assert not linear(x, some)[:, :40].any()


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("format", FORMATS)
def test_finite_weights_give_finite_results_up_to_the_largest_float(format, dtype, generator):
    """Where float64 says that they are floats; on the CPU."""
    # Two products of which one is taken off the other are each some times as large as their difference.
    sizes = [1e30, 1e35, 1e36] if format == "block_int8_zeros_dynamic" else [1e30, 1e35, 1e36, 1e37, 6e37]
    for size in sizes:
        w = size * randn(generator, 40, 256, dtype=FP32).clamp(-4, 4)
        weight = FORMATS[format](w.to(dtype))
        for M in ROWS:
            x = randn(generator, M, 256, dtype=dtype)
            x[:, 3] = 0  # beside weights that are infinite in float32
            y, reference = linear(x, weight), product(x, weight)
            held = reference.abs() < torch.finfo(dtype).max
            assert held.any()
            assert y[held].isfinite().all()
            error = (y.double() - reference).where(held, 0).norm(dim=1)
            assert (error <= aoext.ops.ERROR_BOUND[dtype] * reference.norm(dim=1)).all()


@pytest.mark.parametrize("format", FORMATS)
def test_the_largest_finite_weights_are_kept(format, generator):
    # float32 often: whether two roundings make the largest scale infinite is chance.
    for dtype in (*DTYPES, *[FP32] * 10):
        most = torch.finfo(dtype).max
        w = (torch.rand(8, 64, generator=generator) * 2 - 1).double() * most
        w[0, 0], w[0, 1] = -most, most
        weight = FORMATS[format](w.to(dtype))
        kept = meaning(weight)
        assert kept.isfinite().all()
        assert (kept - w).norm() <= 1.5 * largest_loss(format) * w.norm()


@pytest.mark.parametrize("size", [1e-33, 1e-37, 1e-38, 1e-40])
@pytest.mark.parametrize("format", FORMATS)
def test_the_smallest_weights_get_scales_as_good_as_there_are(format, size, generator):
    w = size * randn(generator, 40, 64, dtype=FP32)
    weight = FORMATS[format](w)
    # Scales have steps where their dtype ends: exponents at 2^-127, of what codes are, at most halved.
    fields = dict(weight.named_fields())
    scale = fields.get("global_scale", fields["scale"])
    step = 2.0**-127 if scale.dtype in EXPONENT_DTYPES else torch.finfo(scale.dtype).smallest_normal
    step *= 1 if scale.dtype in EXPONENT_DTYPES else torch.finfo(scale.dtype).eps
    limit = {**LARGEST_CODES, "int8": 127, "float8": 448, "mxfp8": 1, "fp4": 6, "nf4": 1}
    codes = next(limit[kind] for kind in limit if kind in format)
    error = (meaning(weight) - w.double()).norm()
    assert error <= largest_loss(format) * w.double().norm() + codes * step * w.numel() ** 0.5
    x = randn(generator, 5, 64, dtype=FP32)
    assert_close(linear(x, weight), product(x, weight))


@pytest.mark.parametrize("M", [2, 8, 40])
@pytest.mark.parametrize("N", [9, 64])
@pytest.mark.parametrize("groups", [1, 2])
def test_far_zero_points_of_rows_that_cancel(groups, N, M, generator):
    """A group's sum of x is rounded once: what is left of it is what the zero point is multiplied by."""
    K = 1024 * groups
    x = randn(generator, M, K, dtype=FP32)
    x = x.view(M, groups, -1)
    x[..., 512:] = -x[..., :512]
    x = x.view(M, K)
    weight = torch.randint(-128, 128, (N, K // 2), generator=generator, dtype=torch.int8)
    scale = torch.rand(groups, N, generator=generator) + 0.5
    zero_point = 1000 * scale * randn(generator, groups, N, dtype=FP32)
    y = torch.ops.ao.bf16i4bf16_rowwise(x, weight, scale, zero_point)
    assert_close(y, x.double() @ aoext.reference.int4_float64(weight, scale, zero_point).t())


def test_an_exponent_of_127_meets_zeros_of_x(generator):
    """2^127 · 6 is no float, 0 times it is 0, and a small x makes a float of it."""
    ao = torch.ops.ao
    scale = torch.full((40, 4), 254, dtype=torch.uint8)
    table = torch.tensor(aoext.formats.lookup_tables.E2M1)
    lut4 = torch.randint(0, 256, (40, 64), generator=generator, dtype=torch.uint8)
    int8 = torch.randint(-128, 128, (40, 128), generator=generator, dtype=torch.int8)
    float8 = randn(generator, 40, 128, dtype=FP32).to(torch.float8_e4m3fn)
    x = 2.0**-20 * randn(generator, 8, 128, dtype=FP32)
    x[:, ::2] = 0
    for M in (1, 8):
        for code, weight, codes in (
            (Code.LUT4, lut4, values.lut4_float64(lut4, table)),
            (Code.INT8, int8, int8.double()),
            (Code.E4M3, float8, float8.double()),
        ):
            options = {"table": table} if code is Code.LUT4 else {}
            y = ao.weight_only_linear(x[:M], weight, scale, code, None, [1, 32], **options)
            assert_close(y, x[:M].double() @ (codes * 2.0**127).t())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(bad, generator):
    """Beside weights whose results are computed once more."""
    for format in FORMATS:
        w = 1e36 * randn(generator, 40, 256, dtype=FP32)
        weight = FORMATS[format](w)
        x = randn(generator, 5, 256, dtype=FP32)
        good = linear(x, weight)
        x[2, 7] = bad
        y = linear(x, weight)
        assert not y[2].isfinite().all()
        assert torch.equal(y[[0, 1, 3, 4]], good[[0, 1, 3, 4]])


@pytest.fixture
def flushed() -> Iterator[None]:
    """Arithmetic of this thread with 0 in place of subnormal numbers."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU flushes no subnormal numbers")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("format", FORMATS)
def test_small_weights_are_finite_where_subnormal_numbers_are_flushed(format, flushed, generator):
    for size in (1e-35, 1e-37, 1e-38, 1e-40, 1e-44):
        weight = FORMATS[format](size * randn(generator, 40, 64, dtype=FP32))
        assert weight.dequantize().abs().amax() <= max(8 * size, 1e-36)
        assert linear(randn(generator, 5, 64, dtype=FP32), weight).isfinite().all()
