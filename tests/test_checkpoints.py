"""Weights of other libraries' checkpoints on aoext's layouts, against their values in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import checkpoint_packers as pack
from aoext import reference
from aoext.checkpoints import reader_for
from aoext.checkpoints.checks import refusals
from aoext.formats.table import FORMATS, Code
from aoext.tensors import (
    GROUPS_TYPES,
    BlockwiseTensor,
    Float8Tensor,
    Int8Tensor,
    Lut4Tensor,
    NestedLut4Tensor,
    QuantizedTensor,
)
from aoext.tensors.groups import GroupsTensor
from checkpoint_packers import Stored
from formats import nested_scales

N, K, GROUP = 24, 128, 32


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def weights(**settings: Any) -> dict[str, Any]:
    """A config of compressed-tensors whose weights have these settings."""
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": settings}},
    }


PACKED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
GPTQ_8 = {**GPTQ, "bits": 8}
FP8 = {"quant_method": "fp8", "activation_scheme": "static", "fmt": "e4m3"}
BLOCKS = [16, 48]  # of which the last ones are partial
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
GEMMA, TWO_BITS = {"quant_method": "gemma"}, {"num_bits": 2}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


# Codes of other widths: what is packed so, and the bits.
GPTQ_3 = {**GPTQ, "bits": 3}
WIDE = N + 8  # as many rows as fill words, whatever the bits


def packed(bits: int, **settings: Any) -> dict[str, Any]:
    return weights(**{**PACKED, "num_bits": bits, **settings})


def eight(kind: str, **settings: Any) -> dict[str, Any]:
    return weights(num_bits=8, type=kind, **settings)


def grouped(kind: str, size: int) -> dict[str, Any]:
    return eight(kind, strategy="group", group_size=size)


def asymmetric(**settings: Any) -> dict[str, Any]:
    return eight("int", symmetric=False, **settings)


# What makes the tensors, the checkpoint's config, and the largest error relative to the largest value.
CASES: dict[str, tuple[Callable[[], Stored], Mapping[str, Any], float]] = {
    "gptq": (lambda: pack.gptq(N, K, GROUP), GPTQ, 0),
    "gptq, version 2": (
        lambda: pack.gptq(N, K, GROUP, form="gptq_v2"),
        {**GPTQ, "checkpoint_format": "gptq_v2"},
        0,
    ),
    "gptq, act-order": (lambda: pack.gptq(N, K, GROUP, act_order=True), {**GPTQ, "desc_act": True}, 0),
    "gptq, whole rows": (lambda: pack.gptq(N, K, K), {**GPTQ, "group_size": -1}, 0),
    "awq": (lambda: pack.awq(N, K, GROUP), {"quant_method": "awq", "bits": 4, "group_size": GROUP}, 0),
    "pack-quantized": (lambda: pack.pack_quantized(N, K, GROUP), weights(**PACKED, symmetric=True), 0),
    "pack-quantized, zeros": (
        lambda: pack.pack_quantized(N + 3, K, GROUP, symmetric=False),
        weights(**PACKED, symmetric=False),
        0,
    ),
    "int-quantized": (
        lambda: pack.int_quantized(N, K),
        weights(num_bits=8, type="int", strategy="channel"),
        0,
    ),
    "float-quantized": (
        lambda: pack.float_quantized(N, K),
        weights(num_bits=8, type="float", strategy="channel"),
        0,
    ),
    "float-quantized, one scale": (
        lambda: pack.float_quantized(N, K, whole=True),
        weights(num_bits=8, type="float", strategy="tensor"),
        0,
    ),
    "bitsandbytes": (
        lambda: pack.bitsandbytes_int8(N, K),
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        1e-7,  # SCB/127 rounds once in float32
    ),
    "hqq": (lambda: pack.hqq(N, K, GROUP), {"quant_method": "hqq"}, 1e-7),  # so does its zero
    "gptq, 8 bits": (lambda: pack.gptq_8(N, K, GROUP), GPTQ_8, 0),
    "gptq, 8 bits, version 2": (
        lambda: pack.gptq_8(N, K, GROUP, form="gptq_v2"),
        {**GPTQ_8, "checkpoint_format": "gptq_v2"},
        0,
    ),
    "gptq, 8 bits, whole rows": (lambda: pack.gptq_8(N, K, K), {**GPTQ_8, "group_size": -1}, 0),
    "gptq, 8 bits, zeros": (lambda: pack.gptq_8(N, K, GROUP, "any"), GPTQ_8, 0),
    "gptq, 8 bits, zeros, version 2": (
        lambda: pack.gptq_8(N, K, GROUP, "any", form="gptq_v2"),
        {**GPTQ_8, "checkpoint_format": "gptq_v2"},
        0,
    ),
    "gptq, 8 bits, zeros, whole rows": (
        lambda: pack.gptq_8(N, K, K, "any"),
        {**GPTQ_8, "group_size": -1},
        0,
    ),
    "gptq, 8 bits, act-order": (
        lambda: pack.gptq_8(N, K, GROUP, act_order=True),
        {**GPTQ_8, "desc_act": True},
        0,
    ),
    "gptq, 8 bits, zeros, act-order": (
        lambda: pack.gptq_8(N, K, GROUP, "any", act_order=True),
        {**GPTQ_8, "desc_act": True},
        0,
    ),
    "awq, 8 bits": (
        lambda: pack.awq(N, K, GROUP, 8),
        {"quant_method": "awq", "bits": 8, "group_size": GROUP},
        0,
    ),
    "fp8": (lambda: pack.fp8(N + 3, K, BLOCKS), {**FP8, "weight_block_size": BLOCKS}, 0),
    "fp8, blocks that are larger": (
        lambda: pack.fp8(N, K, (128, 256)),
        {**FP8, "weight_block_size": [128, 256]},
        0,
    ),
    "fp8, powers of two": (
        lambda: pack.fp8(N, K, BLOCKS, "powers"),
        {**FP8, "weight_block_size": BLOCKS, "scale_fmt": "ue8m0"},
        0,
    ),
    "fp8, no powers of two": (
        lambda: pack.fp8(N, K, BLOCKS),
        {**FP8, "weight_block_size": BLOCKS, "scale_fmt": "ue8m0"},
        0,
    ),
    "fp8, exponents": (
        lambda: pack.fp8(N, K, BLOCKS, "e8m0"),
        {**FP8, "weight_block_size": BLOCKS, "scale_fmt": "ue8m0"},
        0,
    ),
    "fp8, one scale": (lambda: pack.fp8_whole(N, K), FP8, 0),
    "mxfp8": (
        lambda: pack.fp8(N, K, (1, 32), "bytes"),
        {"quant_method": "mxfp8", "activation_scheme": "static"},
        0,
    ),
    "float-quantized, blocks": (
        lambda: pack.quantized_by_blocks(N + 3, K, BLOCKS),
        eight("float", strategy="block", block_structure=BLOCKS),
        0,
    ),
    "float-quantized, groups": (
        lambda: pack.quantized_by_blocks(N, K, (1, GROUP)),
        grouped("float", GROUP),
        0,
    ),
    "mxfp8-quantized": (
        lambda: pack.quantized_by_blocks(N, K, (1, 32), "mxfp8"),
        grouped("float", 32),
        0,
    ),
    "int-quantized, groups": (
        lambda: pack.quantized_by_blocks(N, K, (1, GROUP), "int"),
        grouped("int", GROUP),
        0,
    ),
    "int-quantized, blocks": (
        lambda: pack.quantized_by_blocks(N, K, BLOCKS, "int"),
        eight("int", strategy="block", block_structure="16x48"),
        0,
    ),
    "pack-quantized, 8 bits": (lambda: pack.pack_quantized_8(N, K, GROUP), grouped("int", GROUP), 0),
    "pack-quantized, 8 bits, whole rows": (
        lambda: pack.pack_quantized_8(N, K - 2, K - 2),
        eight("int", strategy="channel"),
        0,
    ),
    "pack-quantized, 8 bits, zeros": (
        lambda: pack.pack_quantized_8(N + 3, K, GROUP, "any"),
        asymmetric(strategy="group", group_size=GROUP),
        0,
    ),
    "pack-quantized, 8 bits, zeros, whole rows": (
        lambda: pack.pack_quantized_8(N, K - 2, K - 2, "any"),
        asymmetric(strategy="channel"),
        0,
    ),
    "pack-quantized, 8 bits, zeros, act-order": (
        lambda: pack.pack_quantized_8(N, K, GROUP, "any", act_order=True),
        asymmetric(strategy="group", group_size=GROUP, actorder="group"),
        0,
    ),
    "int-quantized, zeros": (
        lambda: pack.int_quantized_zeros(N, K, K),
        asymmetric(strategy="channel"),
        0,
    ),
    "int-quantized, one zero": (
        lambda: pack.int_quantized_zeros(N, K, K, whole=True),
        asymmetric(strategy="tensor"),
        0,
    ),
    "int-quantized, zeros, groups": (
        lambda: pack.int_quantized_zeros(N, K, GROUP),
        asymmetric(strategy="group", group_size=GROUP),
        0,
    ),
    "int-quantized, zeros, act-order": (
        lambda: pack.int_quantized_zeros(N, K, GROUP, act_order=True),
        asymmetric(strategy="group", group_size=GROUP, actorder="group"),
        0,
    ),
    "int-quantized, zeros, blocks": (
        lambda: pack.int_quantized_blocks(N + 3, K, BLOCKS),
        asymmetric(strategy="block", block_structure=BLOCKS),
        0,
    ),
    "gptq, 2 bits": (lambda: pack.gptq(WIDE, K, GROUP, 2), {**GPTQ, "bits": 2}, 0),
    "gptq, 3 bits, act-order": (
        lambda: pack.gptq(WIDE, K, GROUP, 3, act_order=True),
        {**GPTQ_3, "desc_act": True},
        0,
    ),
    "gptq, 3 bits, symmetric, whole rows": (
        lambda: pack.gptq(WIDE, K, K, 3, symmetric=True),
        {**GPTQ_3, "group_size": -1, "sym": True},
        0,
    ),
    "gptq, 3 bits, version 2": (
        lambda: pack.gptq(N, K, GROUP, 3, form="gptq_v2"),
        {**GPTQ_3, "checkpoint_format": "gptq_v2"},
        0,
    ),
    **{
        f"gptq, {bits} bits, planes": (
            lambda bits=bits: pack.gptq(WIDE, K, GROUP, bits, form="gptq_p", act_order=bits == 6),
            {**GPTQ, "bits": bits, "checkpoint_format": "gptq_p", "desc_act": bits == 6},
            0,
        )
        for bits in (3, 5, 6, 7)
    },
    "pack-quantized, 2 bits, whole rows": (
        lambda: pack.pack_quantized(WIDE, K, K, 2),
        packed(2, strategy="channel", group_size=None),
        0,
    ),
    "pack-quantized, 3 bits, act-order": (
        lambda: pack.pack_quantized(WIDE, K, GROUP, 3, act_order=True),
        packed(3, actorder="group"),
        0,
    ),
    **{
        f"pack-quantized, {bits} bits, zeros": (
            lambda bits=bits: pack.pack_quantized(N + 3, K, GROUP, bits, symmetric=False),
            packed(bits, symmetric=False),
            0,
        )
        for bits in (3, 5, 6, 7)
    },
    "hqq, 2 bits": (lambda: pack.hqq(N, K, GROUP, 2), {"quant_method": "hqq", "nbits": 2}, 1e-7),
    "hqq, 3 bits": (lambda: pack.hqq(N, K, GROUP, 3), {"quant_method": "hqq", "nbits": 3}, 1e-7),
    "hqq, 5 bits": (lambda: pack.hqq(N, K, GROUP, 5), {"quant_method": "hqq"}, 1e-7),  # as the tensors say
    "nvfp4-pack-quantized": (
        lambda: pack.nvfp4(N, K, divided=True),
        weights(**NVFP4),
        1e-7,  # 1/weight_global_scale rounds once in float32
    ),
    "mxfp4-pack-quantized": (lambda: pack.mxfp4(N, K), weights(**MXFP4), 0),
    "modelopt, nvfp4": (
        lambda: pack.nvfp4(N, K),
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        0,
    ),
    "nf4": (lambda: pack.bitsandbytes_4(N, K), NF4, 0),
    "nf4, blocks across rows": (lambda: pack.bitsandbytes_4(N, K - 32, 128), NF4, 0),
    "nf4, nested": (lambda: pack.bitsandbytes_4(3 * N, 4 * K, 16, nested=True), NF4, 2e-7),
    "fp4": (
        lambda: pack.bitsandbytes_4(N, K, kind="fp4"),
        {**NF4, "bnb_4bit_quant_type": "fp4"},
        0,
    ),
    "gemma, 2 bits": (lambda: pack.gemma(N, K, 2), {**GEMMA, "module_quant_configs": {"ye.$": TWO_BITS}}, 0),
    "gemma, 4 bits": (lambda: pack.gemma(N, K, 4), GEMMA, 0),
    "gemma, 8 bits": (lambda: pack.gemma(N, K, 8), GEMMA, 0),
    "gemma, an embedding": (lambda: pack.gemma(N, K, 2, embedding=True), {**GEMMA, **TWO_BITS}, 0),
    "gemma, groups": (lambda: pack.gemma(N, K, 4, embedding=True, groups=4), GEMMA, 0),
    "gemma, groups of 8 bits": (lambda: pack.gemma(N, K, 8, embedding=True, groups=4), GEMMA, 0),
}


def exactly(weight: QuantizedTensor) -> Tensor:
    """The weight in float64, of its fields, on the CPU."""
    fields = {name: tensor.cpu() for name, tensor in weight.named_fields()}
    scale = reference.values.scales_float64(fields["scale"])
    if isinstance(weight, GroupsTensor):
        values = reference.values.groups_float64(codes_of(weight), scale, fields["zero_point"])
    elif isinstance(weight, Lut4Tensor):
        codes = torch.stack((fields["qdata"] & 15, fields["qdata"] >> 4), -1).flatten(1)
        whole = fields.get("global_scale", torch.ones(1)).double()
        if isinstance(weight, NestedLut4Tensor):
            beside = fields["table"], fields["global_scale"], fields["zero_point"]
            scale, whole = nested_scales(fields["scale"], *beside), torch.ones(1)
        values = fields["table"].double()[codes.long()] * spread(weight, scale) * whole
    elif isinstance(weight, BlockwiseTensor):
        zero_point = fields.get("zero_point", torch.zeros(scale.shape))
        values = (fields["qdata"].double() - spread(weight, zero_point)) * spread(weight, scale)
    else:
        values = fields["qdata"].double() * scale
    return values[:, fields["k_order"].argsort()] if "k_order" in fields else values


def codes_of(weight: GroupsTensor) -> Tensor:
    """The codes of integers in groups [N, K], on the CPU."""
    qdata, bits = weight.qdata.cpu(), FORMATS[Code(weight.code)].bits
    if bits == 4:
        return reference.values.unpack_int4(qdata)
    return (
        reference.values.unpack_unsigned(qdata, 4)
        if bits == 2
        else reference.values.unpack_planes(qdata, bits)
    )


def spread(weight: QuantizedTensor, of_blocks: Tensor) -> Tensor:
    """What there is for each block, in float64 for each value [N, K]."""
    (rows, columns), (block_n, block_k) = weight.shape, weight.block_size
    return of_blocks.double().repeat_interleave(block_n, 0)[:rows].repeat_interleave(block_k, 1)[:, :columns]


@pytest.mark.parametrize("name", CASES)
def test_every_value_of_the_file_survives(device, name):
    make, settings, error = CASES[name]
    tensors, expected = make()
    weight = reader_for(settings).weight(
        "layer", {key: tensor.to(device) for key, tensor in tensors.items()}, torch.bfloat16
    )
    assert weight.dtype == torch.bfloat16
    assert weight.device.type == device.type
    difference = (exactly(weight) - expected).abs().max()
    assert difference <= error * expected.abs().max()

    x = torch.randn(3, expected.shape[1], dtype=torch.bfloat16)
    y = F.linear(x.to(device), weight).double().cpu()
    wanted = x.double() @ expected.t()
    assert (y - wanted).norm() <= 5e-3 * wanted.norm()


@pytest.mark.parametrize(
    "name", [name for name in CASES if any(f"{b} bits" in name for b in (2, 3, 5, 6, 7))]
)
def test_weights_keep_their_bits(name):
    make, settings, _ = CASES[name]
    weight = reader_for(settings).weight("layer", make()[0], torch.bfloat16)
    assert type(weight) is GROUPS_TYPES[next(bits for bits in GROUPS_TYPES if f"{bits} bits" in name)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "scales"),
    [
        ("gptq, 3 bits, symmetric, whole rows", "scales"),
        ("gptq, 2 bits", "scales"),
        ("pack-quantized, 3 bits, act-order", "weight_scale"),
        ("pack-quantized", "weight_scale"),
    ],
)
def test_scales_keep_the_dtype_of_the_weight_where_that_is_exact(name, scales, dtype):
    """That is without zeros, and as long as float16 holds 2ᵇ⁻¹·scale."""
    make, settings, _ = CASES[name]
    tensors, expected = make()
    symmetric = name != "gptq, 2 bits"
    for factor in (1, 2**18):
        larger = {**tensors, scales: tensors[scales] * factor}
        weight = reader_for(settings).weight("layer", larger, dtype)
        kept = dtype is torch.float16 and symmetric and (factor == 1 or name == "pack-quantized")
        assert weight.scale.dtype is (torch.float16 if kept else torch.float32)
        assert torch.equal(exactly(weight), expected * factor)


def test_zeros_of_3_bits_as_gptqmodel_once_shifted_them():
    """It took these ones from words, and what was symmetric tells that."""
    settings = {**GPTQ_3, "sym": True}
    tensors, expected = pack.gptq(WIDE, K, GROUP, 3, form="gptq_v2", symmetric=True)
    ones = [0b00100100100100100100100100100100, 0b10010010010010010010010010010010]
    ones.append(0b01001001001001001001001001001001)
    shifted = (tensors["qzeros"].long() - torch.tensor(ones)).to(torch.int32)
    weight = reader_for(settings).weight("layer", {**tensors, "qzeros": shifted}, torch.float16)
    assert torch.equal(exactly(weight), expected)


@pytest.mark.parametrize(
    ("tensors", "settings"),
    [
        (lambda: pack.pack_quantized(N, 72, 24, 3), packed(3, group_size=24)),
        (lambda: pack.hqq(N, 72, 24, 6), {"quant_method": "hqq"}),
    ],
)
def test_columns_that_fill_no_blocks_are_refused(tensors, settings):
    with pytest.raises(
        ValueError, match=r"^a\.q: K must be a multiple of 32 for weights of [36] bits .* got 72"
    ):
        reader_for(settings).weight("a.q", tensors()[0], torch.bfloat16)


def test_act_order_is_kept_as_a_permutation_where_there_is_one(device):
    for act_order in (False, True):
        tensors, _ = pack.gptq(N, K, GROUP, act_order=act_order)
        weight = reader_for(GPTQ).weight("layer", tensors, torch.float16)
        assert (weight.k_order is not None) == act_order


@pytest.mark.parametrize("zeros", pack.ZEROS)
@pytest.mark.parametrize("group", [GROUP, K])
def test_zeros_of_8_bits_go_into_the_codes_where_int8_has_room(zeros, group):
    """All of them, and the weight has none; or as far as it goes. Its values stay what they are."""
    settings = asymmetric(strategy="group", group_size=group)
    tensors, expected = pack.int_quantized_zeros(N, K, group, zeros)
    weight = reader_for(settings).weight("layer", tensors, torch.bfloat16)
    assert torch.equal(exactly(weight), expected)
    zero_point = getattr(weight, "zero_point", None)
    assert (zero_point is not None) == (zeros == "any")
    if zero_point is None:
        assert type(weight) is (Int8Tensor if group == K else BlockwiseTensor)
        return
    stored = tensors["weight_zero_point"]
    assert bool((zero_point.abs().short() <= stored.short().abs()).all())
    differences = weight.qdata.view(N, -1, group).short() - zero_point[..., None]
    fits = (differences.amax(-1) <= 127) & (differences.amin(-1) >= -128)
    assert torch.equal(fits, zero_point == 0)


def with_activations(settings: dict[str, Any], **activations: Any) -> dict[str, Any]:
    group = settings["config_groups"]["group_0"]
    group["input_activations"] = {"num_bits": 8, "type": "int", "dynamic": True, **activations}
    return settings


@pytest.mark.parametrize("name", ["int-quantized, zeros", "int-quantized, zeros, groups"])
def test_activations_are_quantised_over_weights_with_zeros(device, name):
    """y = Σ s_x·q_x·(q_w − z_w)·s_w, with symmetric q_x of whole rows, or of the weight's groups."""
    make, settings, _ = CASES[name]
    tensors, expected = make()
    groups = "groups" in name
    kind = {"strategy": "group", "group_size": GROUP} if groups else {"strategy": "token"}
    reader = reader_for(with_activations(copy.deepcopy(settings), **kind))
    assert not reader.notes
    tensors = {key: tensor.to(device) for key, tensor in tensors.items()}
    weight = reader.weight("layer", tensors, torch.float32)
    block = GROUP if groups else K
    assert weight.input_block == [1, block]
    x = torch.randn(5, K) + 3
    q, scale = reference.values.quantized_blocks(x, torch.int8, block)
    wanted = (q.double() * reference.values.spread(scale, block, K).double()) @ expected.t()
    got = F.linear(x.to(device), weight).double().cpu()
    assert (got - wanted).norm() <= 2e-5 * wanted.norm()


@pytest.mark.parametrize("name", ["int-quantized", "int-quantized, zeros", "pack-quantized"])
def test_activations_with_zero_points_stay_as_they_are_and_that_is_said(name):
    make, settings, _ = CASES[name]
    settings = with_activations(copy.deepcopy(dict(settings)), strategy="token", symmetric=False)
    reader = reader_for(settings)
    assert reader.notes == (
        "activations stay as they are, where the checkpoint has them in 8 bits, int with zero points",
    )
    tensors, expected = make()
    weight = reader.weight("layer", tensors, torch.float32)
    assert weight.quantizes_input_to is None
    x = torch.randn(5, K) + 3
    wanted = x.double() @ expected.t()
    assert (F.linear(x, weight).double() - wanted).norm() <= 2e-5 * wanted.norm()


def test_activations_that_the_checkpoint_quantises_are_quantised():
    settings = weights(num_bits=8, type="int", strategy="channel")
    tensors, _ = pack.int_quantized(N, K)
    assert not reader_for(settings).weight("layer", tensors, torch.bfloat16).dynamic_activation
    tokens = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
    settings["config_groups"]["group_0"]["input_activations"] = tokens
    assert reader_for(settings).weight("layer", tensors, torch.bfloat16).dynamic_activation


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gptq, 8 bits", BlockwiseTensor),
        ("gptq, 8 bits, whole rows", Int8Tensor),
        ("gptq, 8 bits, zeros, whole rows", BlockwiseTensor),
        ("int-quantized, zeros", BlockwiseTensor),
        ("fp8", BlockwiseTensor),
        ("fp8, one scale", Float8Tensor),
        ("pack-quantized, 8 bits, whole rows", Int8Tensor),
        ("mxfp4-pack-quantized", Lut4Tensor),
        ("nf4", Lut4Tensor),
    ],
)
def test_rows_are_rows_and_blocks_are_blocks(name, kind):
    make, settings, _ = CASES[name]
    assert type(reader_for(settings).weight("layer", make()[0], torch.bfloat16)) is kind


@pytest.mark.parametrize(
    ("name", "exponents"),
    [
        ("fp8", False),
        ("fp8, powers of two", True),
        ("fp8, no powers of two", False),
        ("fp8, exponents", True),
        ("mxfp8", True),
    ],
)
def test_float8_under_dynamic_activations(name, exponents):
    """As the checkpoint says: along K in blocks of the weight's, powers of two where its scales are."""
    make, settings, _ = CASES[name]
    tensors, expected = make()
    weight = reader_for({**settings, "activation_scheme": "dynamic"}).weight("layer", tensors, torch.float32)
    assert (weight.scale.dtype is torch.uint8) == exponents
    assert weight.input_block == [1, weight.block_size[1]]
    x = torch.randn(5, K)
    q, scale = reference.values.quantized_blocks(x, torch.float8_e4m3fn, weight.block_size[1], exponents)
    exact_x = q.double() * reference.values.spread(scale, weight.block_size[1], K).double()
    wanted = exact_x @ expected.t()
    assert (F.linear(x, weight).double() - wanted).norm() <= 2e-5 * wanted.norm()


def test_float8_by_rows_under_dynamic_activations():
    tensors, _ = pack.fp8_whole(N, K)
    for scheme in ("static", "dynamic"):
        weight = reader_for({**FP8, "activation_scheme": scheme}).weight("layer", tensors, torch.bfloat16)
        assert weight.dynamic_activation == (scheme == "dynamic")
    tokens = {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}
    rows = {"weight": tensors["weight"], "weight_scale": torch.rand(N)}
    assert reader_for(tokens).weight("layer", rows, torch.bfloat16).dynamic_activation


@pytest.mark.parametrize("size", [GROUP, 2 * GROUP])
def test_activations_in_groups_are_quantised_where_the_groups_are_the_weights(size):
    settings = grouped("float", GROUP)
    group = settings["config_groups"]["group_0"]
    group["input_activations"] = {**group["weights"], "group_size": size, "dynamic": True}
    tensors, _ = pack.quantized_by_blocks(N, K, (1, GROUP))
    weight = reader_for(settings).weight("layer", tensors, torch.bfloat16)
    assert weight.input_block == ([1, GROUP] if size == GROUP else None)


def test_activations_of_4_bits_stay_as_they_are_and_that_is_said():
    settings = weights(**NVFP4)
    settings["config_groups"]["group_0"]["input_activations"] = {**NVFP4, "dynamic": "local"}
    assert reader_for(settings).notes == (
        "activations stay as they are, where the checkpoint has them in 4 bits, float",
    )
    assert "activations stay" in reader_for({"quant_method": "modelopt", "quant_algo": "NVFP4"}).notes[0]
    static = {"quant_method": "modelopt", "quant_algo": "FP8"}
    for eight_bits in (FP8, static):
        assert "in 8 bits" in reader_for(eight_bits).notes[0]
    for others in (
        {**FP8, "activation_scheme": "dynamic"},
        weights(**NVFP4),
        {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"},
        NF4,
    ):
        assert not reader_for(others).notes


@pytest.mark.parametrize(
    ("shape", "block"),
    [((N, 1, K // 32, 1), (1, 32)), ((2, 1, 3, 1), (128, 128))],
)
def test_modelopts_float8_by_blocks(shape, block):
    """Exponents for groups of 32, or a float for blocks of 128, in a tensor of two or four dimensions."""
    rows, columns = (N, K) if block[0] == 1 else (200, 300)
    q = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scale = torch.rand(shape) + 0.1
    if block[0] == 1:
        scale = torch.randint(120, 130, (N, K // 32), dtype=torch.uint8)
    algorithm = "MXFP8" if block[0] == 1 else "FP8_PB_WO"
    reader = reader_for({"quant_method": "modelopt", "quant_algo": algorithm})
    weight = reader.weight("layer", {"weight": q, "weight_scale": scale}, torch.bfloat16)
    assert weight.block_size == list(block)
    values = torch.exp2(scale.double() - 127) if block[0] == 1 else scale.double()
    wanted = pack.in_blocks(q, values.reshape(weight.scale.shape), block)
    assert torch.equal(exactly(weight), wanted)


def test_modelopts_layers_that_differ_and_those_that_change_the_activation():
    settings = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"a": {"quant_algo": "NVFP4"}, "b": {"quant_algo": "W4A8_AWQ"}},
    }
    reader = reader_for(settings)
    tensors, expected = pack.nvfp4(N, K)
    assert torch.equal(exactly(reader.weight("a", tensors, torch.bfloat16)), expected)
    with pytest.raises(ValueError, match=r"b: quant_algo must be one of 'NVFP4'.* got 'W4A8_AWQ'"):
        reader.weight("b", tensors, torch.bfloat16)
    with pytest.raises(ValueError, match="a: a weight with pre_quant_scale does not run on aoext"):
        reader.weight("a", {**tensors, "pre_quant_scale": torch.ones(K)}, torch.bfloat16)


@pytest.mark.parametrize("columns", [66, 96, 100])
def test_nf4_whose_blocks_are_no_parts_of_rows(device, columns):
    tensors, expected = pack.bitsandbytes_4(N, columns)
    on_device = {key: tensor.to(device) for key, tensor in tensors.items()}
    weight = reader_for(NF4).weight("layer", on_device, torch.bfloat16)
    assert weight.block_size == [1, math.gcd(columns, 64)]
    assert torch.equal(exactly(weight), expected)


def test_nf4_with_an_odd_number_of_columns_is_refused():
    with pytest.raises(ValueError, match=r"model\.q: K must be even for weights of 4 bits .* got 65"):
        reader_for(NF4).weight("model.q", pack.bitsandbytes_4(N, 65)[0], torch.bfloat16)


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32])
def test_nf4_in_the_storage_of_floats(storage):
    tensors, expected = pack.bitsandbytes_4(N, K)
    tensors["weight"] = tensors["weight"].view(-1).view(storage).view(-1, 1)
    assert torch.equal(exactly(reader_for(NF4).weight("layer", tensors, torch.bfloat16)), expected)


def put(name: str, change: Callable[[Tensor], Tensor | None]) -> Callable[[dict[str, Tensor]], None]:
    """Changes one tensor of a checkpoint; None takes it away."""

    def damage(tensors: dict[str, Tensor]) -> None:
        changed = change(tensors.pop(name))
        if changed is not None:
            tensors[name] = changed

    return damage


def with_nan(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[3] = float("nan")
    return tensor


def with_nan_of_8_bits(tensor: Tensor) -> Tensor:
    """NaN of float8_e4m3fn, float8_e8m0fnu and of exponents in uint8 has all bits."""
    numbers = tensor.clone().view(torch.uint8)
    numbers[1, 2] = 255
    return numbers.view(tensor.dtype)


NF4_STATE = "weight.quant_state.bitsandbytes__nf4"


def without_sizes(tensor: Tensor) -> Tensor:
    text = bytes(tensor.tolist()).replace(b'"blocksize": 64', b'"blocksize": -1')
    return torch.tensor(list(text), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("gptq", put("qzeros", lambda t: None), "model.q: the checkpoint lacks model.q.qzeros"),
        (
            "gptq",
            put("qzeros", lambda t: t[:1]),
            r"model.q: qzeros must be int32 \[4, 3\], got int32 \[1, 3\]",
        ),
        ("gptq", put("scales", lambda t: t[:, :8]), r"model.q: scales must be float16.*\[4, 24\], got"),
        ("gptq", put("scales", with_nan), "model.q: scales must be finite, got NaN or Inf"),
        ("gptq", put("qweight", lambda t: t.long()), r"model.q: qweight must be int32 \[\*, \*\], got int64"),
        ("gptq", put("qweight", lambda t: t[:-1]), r"model.q: g_idx must be .* \[120\], got int32"),
        ("gptq", put("g_idx", lambda t: t + 1), "model.q: g_idx must name each of the 4 groups 32 times"),
        ("gptq", put("g_idx", lambda t: t - 9), "model.q: g_idx must name each of the 4 groups 32 times"),
        ("gptq", put("g_idx", lambda t: t * 0), "model.q: g_idx must name each of the 4 groups 32 times"),
        ("awq", put("scales", with_nan), "model.q: scales must be finite"),
        ("awq", put("qzeros", lambda t: t[:, :1]), r"model.q: qzeros must be int32 \[4, 3\]"),
        ("pack-quantized", put("weight_shape", lambda t: t * 2), r"weight_packed must be int32 \[48, 32\]"),
        (
            "pack-quantized",
            put("weight_scale", lambda t: t[:, :3]),
            r"weight_scale must be .* \[24, 4\], got",
        ),
        (
            "pack-quantized, zeros",
            put("weight_zero_point", lambda t: None),
            "lacks model.q.weight_zero_point",
        ),
        ("int-quantized", put("weight_scale", lambda t: t[:5]), r"weight_scale must be a float \[24, 1\]"),
        ("int-quantized", put("weight", lambda t: t.float()), "weight must be int8 or float8_e4m3fn"),
        ("bitsandbytes", put("SCB", lambda t: t[:-1]), r"model.q: SCB must be float32 \[24\]"),
        (
            "gptq, 3 bits, act-order",
            put("qweight", lambda t: t[1:]),
            r"model.q: qweight must be int32 \[K·3/32, N",
        ),
        (
            "gptq, 3 bits, act-order",
            put("qzeros", lambda t: t[:, :2]),
            r"model.q: qzeros must be int32 \[4, 3\], got int32 \[4, 2\]",
        ),
        (
            "pack-quantized, 5 bits, zeros",
            put("weight_zero_point", lambda t: t[:4]),
            r"model.q: weight_zero_point must be int32 \[5, 4\]",
        ),
        (
            "hqq, 3 bits",
            put("W_q", lambda t: t[1:]),
            r"W_q must be \[24·128/g/10, g\], got \[9, 32\]",
        ),
        ("hqq, 3 bits", put("nbits", lambda t: t + 5), "model.q: nbits must be one of .* got 8"),
        ("hqq", put("shape", lambda t: t + 1), r"model.q: W_q must be \[25·129/g/2, g\]"),
        (
            "gptq, 8 bits, zeros",
            put("qzeros", lambda t: t[:, :3]),
            r"model.q: qzeros must be int32 \[4, 6\], got int32 \[4, 3\]",
        ),
        ("gptq, 8 bits, zeros", put("qzeros", lambda t: None), "the checkpoint lacks model.q.qzeros"),
        ("gptq, 8 bits, act-order", put("g_idx", lambda t: t + 1), "must name each of the 4 groups 32 times"),
        ("gptq, 8 bits, act-order", put("g_idx", lambda t: t[1:]), r"g_idx must be int32 or int64 \[128\]"),
        ("awq, 8 bits", put("qzeros", lambda t: t[:, :3]), r"model.q: qzeros must be int32 \[4, 6\]"),
        ("awq, 8 bits", put("scales", with_nan), "model.q: scales must be finite"),
        *(
            (name, put("weight_zero_point", damage), message)
            for name, size in (
                ("pack-quantized, 8 bits, zeros", r"int32 \[7, 4\]"),
                ("int-quantized, zeros", r"int8 \[24, 1\]"),
                ("int-quantized, zeros, groups", r"int8 \[24, 4\]"),
                ("int-quantized, zeros, blocks", r"int8 \[2, 3\]"),
            )
            for damage, message in (
                (lambda t: None, "lacks model.q.weight_zero_point"),
                (lambda t: t[1:], rf"model.q: weight_zero_point must be {size}, got"),
                (lambda t: t.float(), r"model.q: weight_zero_point must be int8 .*, got float32"),
            )
        ),
        (
            "int-quantized, zeros, act-order",
            put("weight_g_idx", lambda t: t * 0),
            "weight_g_idx must name each of the 4 groups 32 times",
        ),
        (
            "float-quantized",
            lambda tensors: tensors.update(weight_zero_point=torch.ones(N, 1)),
            "weights of 8 bits, float, with zero points do not run on aoext",
        ),
        ("gptq, 8 bits", put("scales", with_nan), "model.q: scales must be finite, got NaN or Inf"),
        ("fp8", put("weight_scale_inv", lambda t: None), "the checkpoint lacks model.q.weight_scale_inv"),
        (
            "fp8",
            put("weight_scale_inv", lambda t: t[:, :2]),
            r"weight_scale_inv must be .* \[2, 3\], got float32 \[2, 2\]",
        ),
        (
            "fp8",
            put("weight_scale_inv", with_nan),
            "model.q: weight_scale_inv must be finite, got NaN or Inf",
        ),
        ("fp8", put("weight", lambda t: t.view(torch.int8)), "weight must be float8_e4m3fn .*got int8"),
        ("fp8", put("weight", lambda t: t[None].expand(8, -1, -1)), "weight has several weights, such as"),
        ("fp8", put("weight", with_nan_of_8_bits), "model.q: weight must be finite, got NaN or Inf"),
        ("fp8, exponents", put("weight_scale_inv", with_nan_of_8_bits), "weight_scale_inv must be finite"),
        (
            "fp8, one scale",
            put("weight_scale", lambda t: t.expand(5)),
            r"weight_scale must be a float \[24, 1\]",
        ),
        (
            "mxfp8",
            put("weight_scale_inv", with_nan_of_8_bits),
            "model.q: weight_scale_inv must be finite, got the exponent 255",
        ),
        ("mxfp8", put("weight_scale_inv", lambda t: t.long()), "weight_scale_inv must be .* got int64"),
        (
            "float-quantized, blocks",
            put("weight_scale", lambda t: t.t()),
            r"weight_scale must be .* \[2, 3\], got bfloat16 \[3, 2\]",
        ),
        (
            "pack-quantized, 8 bits",
            put("weight_packed", lambda t: t[:, :8]),
            r"weight_packed must be int32 \[24, 32\] for a weight \[24, 128\], got int32 \[24, 8\]",
        ),
        ("pack-quantized, 8 bits", put("weight_shape", lambda t: t[:1]), r"weight_shape must be .* \[2\]"),
        ("nvfp4-pack-quantized", put("weight_global_scale", lambda t: None), "lacks model.q.weight_global"),
        ("nvfp4-pack-quantized", put("weight_global_scale", lambda t: t * 0), "divides, and must not be 0"),
        (
            "nvfp4-pack-quantized",
            put("weight_global_scale", lambda t: t.expand(2)),
            r"weight_global_scale must be one number of .* got float32 \[2\]",
        ),
        (
            "nvfp4-pack-quantized",
            put("weight_scale", lambda t: t.float()),
            r"weight_scale must be float8_e4m3fn \[24, 8\], got float32",
        ),
        ("nvfp4-pack-quantized", put("weight_scale", with_nan_of_8_bits), "weight_scale must be finite"),
        (
            "nvfp4-pack-quantized",
            put("weight_packed", lambda t: t.int()),
            r"weight_packed must be uint8 \[\*, \*\]",
        ),
        (
            "mxfp4-pack-quantized",
            put("weight_scale", with_nan_of_8_bits),
            "must be finite, got the exponent 255",
        ),
        ("mxfp4-pack-quantized", put("weight_scale", lambda t: t[:3]), r"weight_scale must be .* \[24, 4\]"),
        ("modelopt, nvfp4", put("weight_scale_2", lambda t: None), "lacks model.q.weight_scale_2"),
        ("modelopt, nvfp4", put("weight_scale_2", lambda t: t / 0), "weight_scale_2 must be finite"),
        ("modelopt, nvfp4", put("weight", lambda t: t[:, 1:]), r"weight_scale must be .*\[24, 7\], got"),
        ("nf4", put("weight", lambda t: t[1:]), r"weight must be uint8 \[24·128/2, 1\] for a weight"),
        ("nf4", put("weight.absmax", lambda t: t[1:]), r"weight.absmax must be float32 \[48\], got"),
        ("nf4", put("weight.absmax", with_nan), "weight.absmax must be finite"),
        ("nf4", put("weight.quant_map", lambda t: t[1:]), r"weight.quant_map must be float32 \[16\]"),
        ("nf4", put(NF4_STATE, lambda t: None), "lacks model.q.weight.quant_state.bitsandbytes__nf4"),
        ("nf4", put(NF4_STATE, lambda t: t[1:]), "must be JSON with a shape and a blocksize"),
        ("nf4", put(NF4_STATE, without_sizes), "blocksize must be a positive integer, got -1"),
        ("nf4, nested", put("weight.nested_absmax", lambda t: None), "lacks model.q.weight.nested_absmax"),
        ("nf4, nested", put("weight.absmax", lambda t: t.float()), r"weight.absmax must be uint8 \[2304\]"),
        ("gemma, 4 bits", put("weight_scale", lambda t: t.t()), r"weight_scale must be .* \[24, \*\], got"),
        ("gemma, 4 bits", put("weight_scale", with_nan), "weight_scale must be finite"),
        ("gemma, 4 bits", put("weight", lambda t: t.int()), r"weight must be int8 or uint8 \[\*, \*\], got"),
        ("gemma, an embedding", put("embedding_scale", lambda t: None), "lacks model.q.embedding_scale"),
        ("gemma, groups", put("embedding_scale", lambda t: t[:, :1].expand(-1, 7)), "must divide a row of K"),
    ],
)
def test_damaged_checkpoints_are_refused_by_name(name, damage, message):
    make, settings, _ = CASES[name]
    tensors, _ = make()
    damage(tensors)
    with pytest.raises(ValueError, match=message):
        reader_for(settings).weight("model.q", tensors, torch.bfloat16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "quip"}, "quant_method must be one of gptq, awq, .* got 'quip'"),
        ({**GPTQ, "bits": 9}, "gptq: bits must be one of 2, 3, 4, 5, 6, 7, 8 to run on aoext, got 9"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "gptq: checkpoint_format must be one of .* got 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "exllama"}, "awq: version must be .* got 'exllama'"),
        ({**NF4, "bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type must be one of 'nf4', 'fp4' .*'int4'"),
        ({**FP8, "weight_block_size": [128]}, r"fp8: weight_block_size must be two positive .* got \[128\]"),
        ({**FP8, "fmt": "e3m4"}, "fp8: fmt must be one of 'e4m3', 'e5m2', None .* got 'e3m4'"),
        ({**FP8, "activation_scheme": "local"}, "fp8: activation_scheme must be .* got 'local'"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "quant_algo must be one of .* 'NVFP4_AWQ'"),
        (eight("float", strategy="block"), "block_structure must be two positive integers, got None"),
        (grouped("int", 0), "group_size must be a positive integer, got 0"),
        (
            eight("float", strategy="group", group_size=32, symmetric=False),
            "group_0: weights of 8 bits, float, with zero points do not run on aoext",
        ),
        (
            {**weights(**PACKED), "transform_config": {"config_groups": {"v": {}}}},
            "activations that are transformed do not run",
        ),
        ({"quant_method": "compressed-tensors"}, "config has no config_groups"),
        (packed(1), "group_0: no kernel for weights of 1 bits, int"),
        (
            weights(num_bits=8, type="int", strategy="token"),
            "by channel or tensor or group or block to run on aoext, got 'token'",
        ),
        ({**GEMMA, "num_bits": 3}, "gemma: num_bits must be one of 2, 4, 8 to run on aoext, got 3"),
        ({"quant_method": "hqq", "axis": 0}, "hqq: axis must be one of 1 to run on aoext, got 0"),
        (
            {"quant_method": "hqq", "nbits": 8},
            "hqq: nbits must be one of 1.58, 2, .* 6 to run .* got 8",
        ),
    ],
)
def test_what_has_no_kernel_is_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        reader_for(settings)


def test_a_weight_of_8_bits_with_nothing_beside_it_is_refused():
    """Its scales are gone, or it was left out of the config; other layers without scales are plain."""
    forms = {
        "a.weight": torch.empty(N, K, dtype=torch.float8_e4m3fn, device="meta"),
        "b.weight": torch.empty(N, K, dtype=torch.bfloat16, device="meta"),
    }
    assert refusals(reader_for(FP8), forms, torch.bfloat16) == ["a: the checkpoint lacks a.weight_scale_inv"]
