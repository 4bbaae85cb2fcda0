"""Weights whose activations are rounded to int8 in ranges that were fixed before."""

from __future__ import annotations

import io

import pytest
import torch
from torch.nn.functional import linear

from aoext.checkpoints.gptq import GptqWriter
from aoext.reference import assert_close, randn
from aoext.tensors import INTX_TYPES, Int4Tensor, Int8Tensor
from formats import meaning, same

N, K = 24, 64
INPUT, OUTPUT = 2.0 / 127, 6.0 / 127  # of a normally distributed input some lie beyond
KINDS = {
    "int8": lambda w: Int8Tensor.from_hp(w),
    "int4": lambda w: Int4Tensor.from_hp(w, [1, 32]),
    "int2": lambda w: INTX_TYPES[2].from_hp(w, [1, 32], symmetric=True),
}


def ranged(kind: str, generator: torch.Generator, device: torch.device, **scales: float):
    scales = scales or {"input_scale": INPUT, "output_scale": OUTPUT}
    weight = KINDS[kind](randn(generator, N, K).to(device))
    fields = {name: torch.full((1,), scale, device=device) for name, scale in scales.items()}
    return type(weight).from_fields(
        {**dict(weight.named_fields()), **fields}, weight.dtype, **weight.named_attributes()
    )


def rounded(x: torch.Tensor, scale: float) -> torch.Tensor:
    scale = torch.tensor(scale, dtype=torch.float32)
    return (x.float() / scale).round().clamp(-128, 127).double() * scale.double()


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_and_outputs_are_rounded_in_their_ranges(kind, device, generator):
    x, bias = 2 * randn(generator, 2, 5, K).to(device), randn(generator, N).to(device)
    weight = ranged(kind, generator, device, input_scale=INPUT)
    exact = rounded(x.cpu(), INPUT) @ meaning(weight).t() + bias.cpu().double()
    assert_close(linear(x, weight, bias), exact)
    both = weight.remade(
        {**dict(weight.named_fields()), "output_scale": torch.full_like(weight.input_scale, OUTPUT)}
    )
    y = linear(x, both, bias).cpu().double()
    assert torch.equal(y, rounded(linear(x, weight, bias).cpu(), OUTPUT).float().double())
    assert (y.abs() <= 128 * OUTPUT * 1.0001).all()
    assert (exact.abs() > 128 * OUTPUT).any()
    assert torch.equal(linear(x, both.t().t(), bias).cpu().double(), y)
    assert torch.equal((x @ both.t()).cpu(), linear(x, both).cpu())
    with torch.autocast(device.type, torch.bfloat16):
        assert linear(x, both).dtype is torch.bfloat16


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_ranges(kind, device, generator):
    weight = ranged(kind, generator, device, input_scale=INPUT)
    x = (2 * randn(generator, 5, K)).to(device).requires_grad_()
    upstream = randn(generator, 5, N).to(device)
    linear(x, weight).backward(upstream)
    steps = x.detach().cpu() / INPUT
    inside = (steps >= -128) & (steps <= 127)
    assert not inside.all()
    assert_close(x.grad, inside * (upstream.cpu().double() @ meaning(weight)))


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_stay_with_parts_copies_and_files(kind, device, generator):
    weight = ranged(kind, generator, device)
    x = randn(generator, 5, K).to(device)
    y = linear(x, weight)
    upper, lower = weight.split(N // 2)
    assert torch.equal(torch.cat([linear(x, upper), linear(x, lower)], 1), y)
    assert same(torch.cat([upper, lower]), weight)
    file = io.BytesIO()
    torch.save({"weight": weight}, file)
    file.seek(0)
    assert same(torch.load(file)["weight"], weight)
    assert torch.equal(linear(x, weight.clone()), y)
    layer = torch.nn.Linear(K, N, bias=False, device=device)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_close(compiled(x), y.cpu().double())
    requantized = weight.requantized(randn(generator, N, K).to(device))
    assert torch.equal(requantized.output_scale, weight.output_scale)


def test_ranges_beside_activations_that_are_quantised_are_refused(device, generator):
    scale = torch.ones(1, device=device)
    plain = Int8Tensor.from_hp(randn(generator, N, K).to(device))
    parts = (plain.qdata, plain.scale, plain.block_size, plain.dtype)
    with pytest.raises(ValueError, match="Int8Tensor: input_scale and output_scale are for activations"):
        Int8Tensor(*parts, True, input_scale=scale)
    with pytest.raises(ValueError, match=r"input_scale must be \[1\]"):
        Int8Tensor(*parts, input_scale=scale.expand(2).contiguous())
    weight = ranged("int4", generator, device)
    with pytest.raises(ValueError, match="Int4Tensor: input_scale and output_scale are for activations"):
        Int4Tensor.from_fields(
            dict(weight.named_fields()), weight.dtype, block_size=[1, 32], activation=torch.int8
        )


def test_other_formats_have_no_place_for_them(generator):
    weight = ranged("int4", generator, torch.device("cpu"))
    writer = GptqWriter(symmetric=False)
    with pytest.raises(ValueError, match="layer: input_scale has no place in the format"):
        writer.write("layer", weight)
