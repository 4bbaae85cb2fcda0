"""Scales of 8 bits that have scales themselves: bits, checks, and the config that asks for them."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

import aoext
from aoext.reference import assert_close, randn
from aoext.tensors import Lut4Tensor, NestedLut4Tensor
from aoext.tensors.nested import with_float_scales
from formats import meaning, nested_scales


@pytest.fixture
def weight(device, generator):
    return NestedLut4Tensor.from_hp(randn(generator, 70, 11 * 16).to(device), "nf4", block_size=[1, 16])


def test_scales_have_the_bits_of_a_product_and_a_sum_in_float32(weight, generator):
    """With 11 groups a row every block of 256 scales but the first begins within a row."""
    assert weight.global_scale.shape == (1, 11)
    fields = {name: tensor.cpu() for name, tensor in weight.named_fields()}
    codes, table = fields["scale"], fields["table"]
    scale = nested_scales(codes, table, fields["global_scale"], fields["zero_point"])
    plain = Lut4Tensor(fields["qdata"], table[:16].clone(), scale, weight.block_size, weight.dtype)
    plain = plain.to(weight.device)
    assert torch.equal(with_float_scales(weight).scale, plain.scale)
    assert torch.equal(weight.dequantize(), plain.dequantize())
    for rows in (1, 40):
        x = randn(generator, rows, weight.shape[1]).to(weight.device)
        assert torch.equal(linear(x, weight), linear(x, plain))


def test_scales_lose_little(device, generator):
    plain = randn(generator, 96, 512).to(device)
    nested, floats = (kind.from_hp(plain, "nf4") for kind in (NestedLut4Tensor, Lut4Tensor))
    assert torch.equal(nested.qdata, floats.qdata)
    assert 0 < (nested.dequantize() - floats.dequantize()).norm() < 0.01 * floats.dequantize().norm()


@pytest.mark.parametrize(
    ("argument", "spoil", "message"),
    [
        ("scale", lambda t: t.float(), r"scale must be uint8 \[N, K/block_k\] .* divide K = 176"),
        ("scale", lambda t: t[1:], r"scale must be .* = \[70, 11\], got uint8 \[69, 11\]"),
        ("table", lambda t: t[:271], r"table must be .*, or \[272\] of nested scales, got float32 \[271\]"),
        ("global_scale", lambda t: None, r"global_scale must be float32 .* = \[1, 11\] .*, got None"),
        (
            "global_scale",
            lambda t: t[:, 1:],
            r"global_scale must be .* = \[1, 11\] .*, got float32 \[1, 10\]",
        ),
        ("zero_point", lambda t: None, r"zero_point must be float32 \[1\] = \[1\] .*, got None"),
        ("zero_point", lambda t: t.double(), r"zero_point must be float32 .*, got float64 \[1\]"),
    ],
)
def test_a_bad_argument_is_named(weight, argument, spoil, message):
    given = {
        "weight": weight.qdata,
        "scale": weight.scale,
        "code": weight.code,
        "block_size": weight.block_size,
        "zero_point": weight.zero_point,
        "table": weight.table,
        "global_scale": weight.global_scale,
    }
    given[argument] = spoil(given[argument])
    with pytest.raises(RuntimeError, match=f"^ao::dequantize: {message}"):
        torch.ops.ao.dequantize(**given)


def test_a_zero_point_is_for_nested_scales_alone(device, generator):
    weight = Lut4Tensor.from_hp(randn(generator, 8, 64).to(device), "nf4")
    operands = (
        weight.qdata,
        weight.scale,
        weight.code,
        weight.block_size,
        weight.scale.new_ones(1),
        weight.table,
    )
    with pytest.raises(RuntimeError, match=r"^ao::dequantize: zero_point must be None for lut4 weights"):
        torch.ops.ao.dequantize(*operands)


@pytest.mark.parametrize("algorithm", ["rounding", "search"])
def test_the_config_quantises_twice(algorithm, device, generator):
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 384, device=device), torch.nn.Linear(384, 20, device=device)
    )
    config = aoext.NF4WeightOnlyConfig(double_quantization=True, algorithm=algorithm)
    aoext.quantize_(model, config)
    weight = model[0].weight
    assert type(weight) is NestedLut4Tensor
    # 4 bits, 8 for 64 weights and 32 for 64 · 256, beside the tables.
    tables = 8 * (weight.table.nbytes + weight.zero_point.nbytes)
    assert 8 * weight.stored_bytes - tables == weight.numel() * (4 + 8 / 64 + 32 / (64 * 256))
    x = randn(generator, 3, 512).to(device)
    assert_close(model[0](x), x.double().cpu() @ meaning(weight).t() + model[0].bias.double().cpu())
    assert type(config.form(weight.dequantize())) is NestedLut4Tensor
    assert config.obstacle(torch.zeros(4, 96)) == "K = 96 is no multiple of 64, as double_quantization needs"
