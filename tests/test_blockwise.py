"""Weights with a scale a block: every block, every dtype of scales, and what NaN among scales touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aoext
from aoext.formats.table import FORMATS, Code, code_of
from aoext.reference import (
    CALLS,
    EIGHT_BIT,
    HIGH_PRECISION,
    Problem,
    Stored,
    assert_close,
    call_of,
    moved,
    op,
    quantized_blocks,
    randn,
    subject,
)
from aoext.reference.stored import E2M1
from aoext.reference.values import block_scales, scales_float64

BF16, FP16, FP32 = HIGH_PRECISION
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
BLOCKS = [
    (1, 16),
    (1, 32),
    (1, 64),
    (1, 128),
    (1, 1024),
    (128, 128),
    (32, 64),
    (3, 7),
    (1, 1),
    (7, 1),
    (64, 1),
    (200, 2000),
]
CODES = {
    "int8": Code.INT8,
    "e4m3": Code.E4M3,
    "e5m2": Code.E5M2,
    "lut4": Code.LUT4,
    "e2m1": Code.LUT4,
}


@pytest.fixture(params=["own", "generic"])
def kernel_of(request: pytest.FixtureRequest) -> Callable[[str], Callable[..., Any]]:
    return aoext.ops.generic if request.param == "generic" else op


def stored_as(code: str, block: tuple[int, int] | None = None, scale: torch.dtype | None = None) -> Stored:
    table = E2M1 if code == "e2m1" else None
    return Stored(code, CODES[code], block, scale, table, has_global_scale=CODES[code] is Code.LUT4)


def run(stored: Stored, p: Problem, device, kernel_of, generator) -> None:
    """A weight-only product against float64."""
    call = call_of(subject("weight_only_linear", stored), p, generator)
    assert_close(call.run(device, kernel_of(call.operator)), call.reference, call.terms)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("M", [1, 3, 16, 40])
@pytest.mark.parametrize("code", CODES)
def test_every_block_of_a_weight_is_right(code, M, block, device, kernel_of, generator):
    p = Problem(M, 200, 1024, 1, BF16, BF16)
    run(stored_as(code, block, FP32), p, device, kernel_of, generator)


@pytest.mark.parametrize("block", [(1, 32), (128, 128), (5, 24), (1, 7)], ids=str)
@pytest.mark.parametrize(
    ("M", "N", "K"), [(1, 33, 130), (5, 1, 34), (17, 130, 258), (70, 515, 322), (4, 7, 2)]
)
@pytest.mark.parametrize("code", CODES)
def test_the_last_blocks_may_be_partial(code, M, N, K, block, device, kernel_of, generator):
    run(
        stored_as(code, block, FP32),
        Problem(M, N, K, 1, FP32, FP32),
        device,
        kernel_of,
        generator,
    )


@pytest.mark.parametrize("scale", [FP32, BF16, FP16, E8M0, E4M3], ids=str)
@pytest.mark.parametrize("dtype", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("M", [1, 6, 33])
@pytest.mark.parametrize("code", CODES)
def test_every_dtype_of_scales_and_inputs(code, M, dtype, scale, device, kernel_of, generator):
    if scale is E4M3 and CODES[code] is not torch.uint8:
        pytest.skip("its smallest number is too large for weights of 8 bits under results in float16")
    run(
        stored_as(code, (1, 32), scale),
        Problem(M, 72, 256, 1, dtype, FP32),
        device,
        kernel_of,
        generator,
    )


@pytest.mark.parametrize("dtype", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("M", [1, 5])
@pytest.mark.parametrize("K", [16, 48, 272])
def test_an_odd_number_of_short_groups_of_e2m1(K, M, dtype, device, kernel_of, generator):
    """A vector of codes then has one group and nothing behind it; nor is there a row behind the last."""
    stored = Stored("e2m1", Code.LUT4, (1, 16), E4M3, E2M1, has_global_scale=True)
    run(stored, Problem(M, 43, K, 1, dtype, FP32), device, kernel_of, generator)


@pytest.mark.parametrize("dtype", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("M", [1, 3, 12])
@pytest.mark.parametrize("group", [16, 32, 64, 128])
def test_an_outlier_keeps_the_bound_of_its_row_of_e2m1(group, M, dtype, device, kernel_of, generator):
    """One activation 1000 times its group: it meets random weights, and weights of zero."""
    product = subject("weight_only_linear", Stored("e2m1", Code.LUT4, (1, group), FP32, E2M1))
    p = Problem(M, 64, 256, 1, dtype, FP32)
    (x,), w = product.inputs(p, generator), product.rotated(p, generator)
    x[0, 37] *= 1000
    w[0][:32, 37 // 2] &= 0x0F  # an odd k lies in the high nibble
    kernel = kernel_of(product.operator)
    result = product.call(kernel, p, (x.to(device),), tuple(t.to(device) for t in w))
    assert_close(result, product.reference(p, (x,), w))


@pytest.mark.parametrize(
    "blocks",
    [
        ((1, 128), (128, 128)),
        ((1, 32), (1, 32)),
        ((1, 64), (1, 128)),
        ((1, 10), (3, 7)),
        ((1, 4096), (200, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", EIGHT_BIT, ids=str)
@pytest.mark.parametrize("M", [1, 5, 40, 130])
def test_every_pair_of_blocks_is_right(M, dtype, blocks, device, kernel_of, generator):
    N, K = 200, 640
    (_, input_k), block = blocks
    limit = torch.iinfo(dtype).max if dtype is torch.int8 else torch.finfo(dtype).max
    x, w = (randn(generator, rows, K).mul(limit / 6).clamp(-limit, limit).to(dtype) for rows in (M, N))
    x_scale = block_scales(M, -(-K // input_k), FP32, 1 / limit, generator)
    w_scale = block_scales(-(-N // block[0]), -(-K // block[1]), FP32, 1 / limit, generator)
    expected = (x.double() * x_scale.double().repeat_interleave(input_k, 1)[:, :K]) @ (
        w.double() * w_scale.double().repeat_interleave(block[0], 0)[:N].repeat_interleave(block[1], 1)[:, :K]
    ).t()
    args = [moved(a, device) for a in (x, w, x_scale, w_scale)]
    blocks = [1, input_k], list(block)
    result = kernel_of("scaled_mm")(*args, code_of(dtype), None, *blocks, out_dtype=FP32)
    assert_close(result, expected)


def poisoned(scales: Tensor) -> Tensor:
    """A NaN in the first row and second column of scales."""
    scales = scales.clone()
    if scales.dtype is E8M0:
        scales.view(torch.uint8)[0, 1] = 255
    else:
        scales[0, 1] = torch.nan
    return scales


@pytest.mark.parametrize("scale", [FP32, BF16, E8M0, E4M3], ids=str)
@pytest.mark.parametrize("block_n", [1, 16])
@pytest.mark.parametrize("M", [1, 4, 40])
@pytest.mark.parametrize("code", CODES)
def test_a_scale_that_is_nan_touches_its_block_alone(code, M, block_n, scale, device, kernel_of, generator):
    product = subject("weight_only_linear", stored_as(code, (block_n, 32), scale))
    p = Problem(M, 64, 128, 1, BF16, BF16)
    x, w = product.inputs(p, generator), product.rotated(p, generator)
    spoilt = tuple(poisoned(t) if t.dim() == 2 and t.shape == (64 // block_n, 4) else t for t in w)
    results = [
        product.call(
            kernel_of(product.operator),
            p,
            tuple(t.to(device) for t in x),
            tuple(t.to(device) for t in tensors),
        ).cpu()
        for tensors in (w, spoilt)
    ]
    assert results[1][:, :block_n].isnan().all()
    assert torch.equal(results[0][:, block_n:], results[1][:, block_n:])


def test_exponents_are_those_of_float32(device, kernel_of):
    """0 is 2^−127, a subnormal number, 254 the largest power; as uint8 and as float8_e8m0fnu."""
    exponents = torch.arange(255, dtype=torch.uint8)[:, None]
    weight = torch.ones(255, 2, dtype=torch.int8)
    expected = torch.exp2(torch.arange(255).double() - 127)
    assert torch.equal(scales_float64(exponents)[:, 0], expected)
    for scale in (exponents, exponents.view(E8M0)):
        args = weight.to(device), scale.to(device), Code.INT8, [1, 2]
        result = kernel_of("dequantize")(*args, dtype=FP32)
        assert torch.equal(result.cpu().double(), expected[:, None].expand(-1, 2))


@pytest.mark.parametrize("M", [1, 4, 20])
@pytest.mark.parametrize("code", CODES)
def test_products_by_the_smallest_and_largest_exponents_are_right(code, M, device, kernel_of, generator):
    """An exponent of 0 is a subnormal number, which no kernel may take for zero."""
    N, K = 40, 128
    x = randn(generator, M, K).to(BF16) * 2.0**30
    codes = torch.randint(0, 255, (N, K // 2), generator=generator, dtype=torch.uint8)
    table = torch.tensor(E2M1)
    looks_up = CODES[code] is Code.LUT4
    storage = FORMATS[CODES[code]].storage
    weight = codes if looks_up else randn(generator, N, K).mul(40).clamp(-127, 127).to(storage)
    values = torch.stack([table[codes.long() & 15], table[codes.long() >> 4]], -1).flatten(1)
    values = values.double() if looks_up else weight.double()
    extra = {"table": table.to(device)} if looks_up else {}
    for exponent in (0, 1, 200):
        scale = torch.full((N, K // 32), exponent, dtype=torch.uint8)
        args = x.to(device), weight.to(device), scale.to(device), CODES[code], None, [1, 32]
        result = kernel_of("weight_only_linear")(*args, **extra)
        assert_close(result, x.double() @ values.t() * 2.0 ** (exponent - 127))


def test_every_code_looks_its_value_up(device, kernel_of, generator):
    table = torch.tensor(E2M1)
    codes = torch.arange(256, dtype=torch.uint8)[None].to(device)
    scale = torch.ones(1, 1, device=device)
    args = (codes, scale, Code.LUT4, [1, 512], None, table.to(device))
    result = kernel_of("dequantize")(*args).cpu()[0]
    byte = torch.arange(256)
    assert torch.equal(result, torch.stack([table[byte % 16], table[byte // 16]], -1).flatten())


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("block_k", [1, 16, 32, 100, 128, 1000])
@pytest.mark.parametrize("dtype", EIGHT_BIT, ids=str)
@pytest.mark.parametrize("input", HIGH_PRECISION, ids=str)
def test_blocks_are_quantised_to_the_bit(input, dtype, block_k, power_of_two, device, kernel_of, generator):
    x = randn(generator, 2, 9, 328).mul(2.0 ** randn(generator, 2, 9, 1).mul(6)).to(input)
    x[0, 0, :130] = 0
    x[0, 1, 3], x[0, 2, 5], x[1, 3, -1] = torch.nan, torch.inf, -torch.inf
    x[1, 4] = 2.0**-24 if input is FP16 else 2.0**-130
    q, scale = kernel_of("quantize")(x.to(device), dtype, [1, block_k], power_of_two=power_of_two)
    expected = quantized_blocks(x, dtype, block_k, power_of_two)
    assert torch.equal(q.cpu().view(torch.uint8), expected[0].view(torch.uint8))
    assert torch.equal(scale.cpu().view(torch.int32), expected[1].view(torch.int32))


def test_a_whole_row_is_one_block(device, generator):
    x = randn(generator, 5, 96).to(device)
    rows = op("quantize")(x, torch.int8)
    blocks = op("quantize")(x, torch.int8, [1, 4096])
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(rows, blocks, strict=True))


@pytest.mark.parametrize("scale", [FP32, E8M0], ids=str)
@pytest.mark.parametrize("M", [1, 7, 40])
@pytest.mark.parametrize("dtype", EIGHT_BIT, ids=str)
def test_a_linear_layer_is_its_two_operators_bit_for_bit(dtype, M, scale, device, generator):
    limit = 127 if dtype is torch.int8 else torch.finfo(dtype).max
    w = randn(generator, 72, 256).mul(limit / 6).clamp(-limit, limit).to(dtype).to(device)
    w_scale = block_scales(72, 8, scale, 1 / limit, generator).to(device)
    x, bias = randn(generator, M, 256, dtype=BF16).to(device), randn(generator, 72).to(device)
    code = code_of(dtype)
    others = code, bias, [1, 32], [1, 32]
    whole = op("scaled_linear")(x, w, w_scale, *others)
    q, x_scale = op("quantize")(x, dtype, [1, 32], power_of_two=scale is E8M0)
    assert torch.equal(whole, op("scaled_mm")(q, w, x_scale, w_scale, *others, out_dtype=BF16))


@pytest.mark.parametrize("input", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("dtype", [torch.int8, E4M3], ids=str)
@pytest.mark.parametrize(("M", "N", "K"), [(3, 40, 256), (130, 264, 640), (301, 128, 200), (600, 1024, 512)])
def test_a_linear_layer_of_large_blocks_is_its_two_operators_bit_for_bit(
    M, N, K, dtype, input, device, generator
):
    limit = 127 if dtype is torch.int8 else torch.finfo(dtype).max
    w = randn(generator, N, K).mul(limit / 6).clamp(-limit, limit).to(dtype).to(device)
    w_scale = block_scales(-(-N // 128), -(-K // 128), FP32, 1 / limit, generator).to(device)
    x, blocks = randn(generator, M, K).to(input).to(device), ([1, 128], [128, 128])
    code = code_of(dtype)
    whole = op("scaled_linear")(x, w, w_scale, code, None, *blocks)
    q, x_scale = op("quantize")(x, dtype, blocks[0])
    parts = op("scaled_mm")(q, w, x_scale, w_scale, code, None, *blocks, out_dtype=input)
    assert torch.equal(whole, parts)


@pytest.mark.parametrize("dtype", [torch.int8, E4M3], ids=str)
@pytest.mark.parametrize("group_size", [2, 16, 32, 64, 128, 512])
@pytest.mark.parametrize(("M", "N"), [(1, 40), (2, 7), (5, 72), (16, 33), (70, 130)])
def test_int4_under_8_bits_with_groups_of_every_size(M, N, group_size, dtype, device, kernel_of, generator):
    for kind in ("scaled_mm int4", "scaled_linear int4"):
        call = CALLS[kind](Problem(M, N, 512, group_size, FP32, BF16, dtype), generator)
        assert_close(call.run(device, kernel_of(call.operator)), call.reference)


@pytest.mark.parametrize("input", HIGH_PRECISION, ids=str)
@pytest.mark.parametrize("dtype", [torch.int8, E4M3], ids=str)
@pytest.mark.parametrize(
    ("M", "N", "K"), [(1, 40, 512), (5, 72, 384), (16, 33, 84), (33, 64, 992), (70, 136, 416), (200, 264, 96)]
)
def test_a_linear_layer_of_int4_is_its_two_operators_bit_for_bit(M, N, K, dtype, input, device, generator):
    group_size = 32 if K % 32 == 0 else 42
    codes = torch.randint(-128, 128, (N, K // 2), dtype=torch.int8, generator=generator).to(device)
    scale, zero = (randn(generator, K // group_size, N).abs().to(BF16).to(device) for _ in range(2))
    x, bias = randn(generator, M, K).to(input), randn(generator, N).to(device)
    x[0, 3] = 1000
    if M > 1:
        x[-1, 5] = torch.inf
    x = x.to(device)
    fields = {"zero_point": zero, "bias": bias, "code": Code.INT4}
    whole = op("scaled_linear")(x, codes, scale, **fields, input_dtype=dtype)
    q, x_scale = op("quantize")(x, dtype)
    parts = op("scaled_mm")(q, codes, x_scale, scale, **fields, out_dtype=input)
    torch.testing.assert_close(whole, parts, rtol=0, atol=0, equal_nan=True)
    assert whole.isfinite().all(-1).tolist() == [True] * (M - (M > 1)) + [False] * (M > 1)
