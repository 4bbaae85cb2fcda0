"""Weights in the blocks of GGUF files, of every type, held against the package `gguf`."""

from __future__ import annotations

import io

import pytest
import torch
from torch.nn import functional as F

from aoext.formats.table import FORMATS
from aoext.reference import assert_close, randn
from aoext.reference.ggml import blocks_float64, random_blocks
from aoext.tensors import GGUF_TYPES
from aoext.tensors.products import linear
from formats import HIGH_PRECISION, same

gguf = pytest.importorskip("gguf")

BF16, FP16, FP32 = HIGH_PRECISION
N, K = 37, 512
BLOCKS_OF_INPUT = (None, [1, 32], [1, 256])


@pytest.fixture(params=GGUF_TYPES)
def kind(request):
    return GGUF_TYPES[request.param]


def blocks(kind, generator, device, rows=N, columns=K):
    return random_blocks(kind.codes[0], rows, columns, generator).to(device)


def in_int8(x, block):
    """What int8 activations stand for, as float64."""
    values, scale = torch.ops.ao.quantize(x, torch.int8, [1, block])
    return values.cpu().double() * scale.cpu().double().repeat_interleave(block, -1)


def test_rows_are_what_the_package_gguf_makes_of_them(kind, device, generator):
    qdata = blocks(kind, generator, device)
    name = kind.codes[0].name
    theirs = gguf.quants.dequantize(qdata.cpu().flatten(1).numpy(), gguf.GGMLQuantizationType[name])
    expected = torch.from_numpy(theirs.copy())
    assert torch.equal(kind(qdata, FP32).dequantize().cpu(), expected)
    doubled = kind(qdata, FP32, torch.full((1,), 2.0, device=device))
    assert torch.equal(doubled.dequantize().cpu(), 2 * expected)
    assert torch.equal(blocks_float64(kind.codes[0], qdata.cpu()).float(), expected)
    rows = torch.tensor([5, 0, 36], device=device)
    assert torch.equal(F.embedding(rows, kind(qdata, BF16)).cpu(), expected[[5, 0, 36]].bfloat16())
    assert torch.equal(kind(qdata, FP32)[36].cpu(), expected[36])


@pytest.mark.parametrize("M", [1, 5, 40])
def test_products_of_every_type(kind, M, device, generator):
    weight = blocks(kind, generator, device)
    for dtype in HIGH_PRECISION:
        x, bias = randn(generator, M, K, dtype=dtype), randn(generator, N, dtype=dtype)
        expected = x.double() @ blocks_float64(kind.codes[0], weight.cpu()).t() + bias.double()
        assert_close(F.linear(x.to(device), kind(weight, dtype), bias.to(device)), expected)
    for dtype in (torch.int8, torch.float8_e4m3fn):
        for block in BLOCKS_OF_INPUT:
            quantized = kind(weight, BF16, activation=dtype, input_block=block)
            x = randn(generator, M, K, dtype=BF16).to(device)
            values, scale = torch.ops.ao.quantize(x, dtype, block)
            length = K if block is None else block[1]
            rounded = values.cpu().double() * scale.cpu().double().repeat_interleave(length, -1)
            expected = rounded @ blocks_float64(kind.codes[0], weight.cpu()).t()
            assert_close(F.linear(x, quantized), expected)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 21])
def test_rows_of_any_number_of_blocks(kind, count, device, generator):
    """Kernels take several blocks at once, and what is left over."""
    values = FORMATS[kind.codes[0]].values
    weight = blocks(kind, generator, device, columns=count * values)
    plain = blocks_float64(kind.codes[0], weight.cpu()).t()
    for M in (1, 2):
        for dtype in HIGH_PRECISION:
            x = randn(generator, M, count * values, dtype=dtype)
            assert_close(F.linear(x.to(device), kind(weight, dtype)), x.double() @ plain)
        x = randn(generator, M, count * values, dtype=BF16).to(device)
        quantized = kind(weight, BF16, activation=torch.int8, input_block=[1, values])
        assert_close(F.linear(x, quantized), in_int8(x, values) @ plain)


@pytest.mark.parametrize("wide", [0, 1])
def test_a_row_whose_scales_are_far_apart_leaves_others_in_their_place(kind, wide, device, generator):
    values = FORMATS[kind.codes[0]].values
    weight = blocks(kind, generator, device)
    x = randn(generator, 2, K, dtype=BF16)
    x[wide, :values] *= 1e12
    x[wide, values:] *= 1e-12
    quantized = kind(weight, BF16, activation=torch.int8, input_block=[1, values])
    expected = in_int8(x.to(device), values) @ blocks_float64(kind.codes[0], weight.cpu()).t()
    assert_close(F.linear(x.to(device), quantized), expected)


def test_experts_of_every_type(kind, device, generator):
    qdata = torch.stack([blocks(kind, generator, device) for _ in range(3)])
    weight = kind(qdata, BF16, torch.tensor([[1.0], [0.5], [2.0]], device=device))
    x = randn(generator, 9, K, dtype=BF16).to(device)
    y = linear(x, weight, None, False, torch.tensor([4, 4, 7], dtype=torch.int32, device=device))
    for expert, rows in ((0, slice(0, 4)), (2, slice(4, 7))):
        expected = x[rows].cpu().double() @ weight[expert].dequantize().cpu().double().t()
        assert_close(y[rows], expected, slack=2)  # the plain weight is rounded
    assert not y[7:].any()


def test_slices_files_and_graphs(kind, device, generator):
    weight = kind(blocks(kind, generator, device), BF16)
    step = FORMATS[kind.codes[0]].values
    assert torch.equal(weight[3:9, :step].dequantize(), weight.dequantize()[3:9, :step])
    assert same(torch.cat(weight.split(step, 1), 1), weight)
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    assert same(torch.load(file, weights_only=True), weight)
    assert weight.stored_bytes == weight.qdata.numel() + 4


def test_gradients_reach_the_input(kind, device, generator):
    weight = kind(blocks(kind, generator, device), FP32)
    x = randn(generator, 3, K).to(device).requires_grad_()
    grad = randn(generator, 3, N).to(device)
    F.linear(x, weight).backward(grad)
    assert x.grad is not None
    assert_close(x.grad, grad.cpu().double() @ blocks_float64(kind.codes[0], weight.qdata.cpu()))
