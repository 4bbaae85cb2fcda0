"""Quantised weights in other libraries' formats: exactly what they were, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import aoext
from aoext.checkpoints import WRITERS, reader_for
from aoext.formats.lookup_tables import E2M1
from aoext.tensors import (
    BlockwiseTensor,
    Float8Tensor,
    Int4Tensor,
    Int8Tensor,
    Lut4Tensor,
    NestedLut4Tensor,
    QuantizedTensor,
)
from aoext.tensors.nested import with_float_scales
from test_checkpoints import CASES, GROUP, K, N, exactly

# What of CASES each format can say.
IN_GROUPS = {
    name for name in CASES if name.startswith(("gptq", "awq", "pack-quantized")) and "8 bits" not in name
}
FOUR_BITS = {name for name in IN_GROUPS if "bits" not in name}
TWO_OR_THREE_BITS = {name for name in IN_GROUPS if "2 bits" in name or "3 bits" in name}
EIGHT_BITS = {
    "int-quantized",
    "float-quantized",
    "float-quantized, one scale",
    "bitsandbytes",
    "fp8, one scale",
}
INTEGERS_IN_ROWS = {"gptq, 8 bits, whole rows", "pack-quantized, 8 bits, whole rows"}
ZEROS_OF_8_BITS = {name for name in CASES if "zero" in name and ("8 bits" in name or "int-" in name)} | {
    "awq, 8 bits"
}
# Those whose scales float16 does not hold, or whose N or K is no multiple of 4.
NOT_GPTQS = {name for name in ZEROS_OF_8_BITS if name.startswith("int-")} | {
    "pack-quantized, 8 bits, zeros",
    "pack-quantized, 8 bits, zeros, whole rows",
}
INTEGERS_IN_GROUPS = {
    "gptq, 8 bits",
    "gptq, 8 bits, version 2",
    "gptq, 8 bits, act-order",
    "int-quantized, groups",
    "pack-quantized, 8 bits",
}
BY_BLOCKS = {name for name in CASES if name.startswith(("fp8", "mxfp8", "float-", "int-"))} - EIGHT_BITS
SAYS = {
    "gptq": FOUR_BITS - {"pack-quantized, zeros"}  # whose N is odd
    | {
        name
        for name in IN_GROUPS - FOUR_BITS
        if ("2 bits" in name or "3 bits" in name) and "zeros" not in name
    }
    - {"gptq, 3 bits, version 2"}
    | INTEGERS_IN_GROUPS
    | {"gptq, 8 bits, whole rows"}
    | ZEROS_OF_8_BITS - NOT_GPTQS,
    "compressed-tensors": IN_GROUPS
    | EIGHT_BITS
    | INTEGERS_IN_ROWS
    | INTEGERS_IN_GROUPS
    | BY_BLOCKS
    | ZEROS_OF_8_BITS
    | {name for name in CASES if name.startswith("gemma")}
    | {"nvfp4-pack-quantized", "mxfp4-pack-quantized", "modelopt, nvfp4"},
    "torchao": EIGHT_BITS
    | {name for name in INTEGERS_IN_GROUPS | ZEROS_OF_8_BITS if not name.endswith(("act-order", "blocks"))}
    | {name for name in IN_GROUPS - FOUR_BITS if "act-order" not in name and name != "gptq, 6 bits, planes"}
    | INTEGERS_IN_ROWS
    | {"gemma, 8 bits", "gemma, an embedding", "gemma, groups of 8 bits"}
    | {"mxfp8", "mxfp8-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "modelopt, nvfp4"},
    "bitsandbytes": set(),  # whose 4 bits have other tables in CASES than its own
}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def there_and_back(form: str, weight: QuantizedTensor, *, symmetric: bool = False) -> QuantizedTensor:
    """A weight through a format's tensors, settings and metadata, all of them through JSON."""
    writer = WRITERS[form](symmetric=symmetric)
    tensors, facts = writer.write("model.q", weight)
    layers = json.loads(json.dumps({"model.q": facts}))
    reader = reader_for(json.loads(json.dumps(writer.settings(layers, ["model.other"]))))
    reader.read_metadata(writer.metadata(layers, ["model.norm"]))
    assert all(tensor.is_contiguous() for tensor in tensors.values())
    assert set(tensors) <= set(reader.names)
    return reader.weight("model.q", tensors, weight.dtype)


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("name", CASES)
def test_weights_of_files_go_back_exactly(device, form, name):
    if form == "torchao":
        pytest.importorskip("torchao")
    make, settings, _ = CASES[name]
    tensors, _ = make()
    weight = reader_for(settings).weight(
        "model.q", {key: tensor.to(device) for key, tensor in tensors.items()}, torch.float16
    )
    sayable = name in SAYS[form]
    if form == "torchao" and name in FOUR_BITS:  # which has no other order, and scales and zeros in one dtype
        halves = (weight.scale.half(), weight.zero_point.half())
        same = torch.equal(halves[0].float(), weight.scale) and torch.equal(
            halves[1].float(), weight.zero_point
        )
        sayable = same and weight.k_order is None
    if not sayable:
        with pytest.raises(ValueError, match=r"^model\.q: "):
            there_and_back(form, weight)
        return
    back = there_and_back(form, weight)
    assert type(back) is type(weight)
    assert back.device == weight.device
    assert torch.equal(exactly(back), exactly(weight))
    for attribute in ("dynamic_activation", "input_block"):
        assert getattr(back, attribute, None) == getattr(weight, attribute, None)


@pytest.mark.parametrize("form", WRITERS)
def test_weights_that_aoext_has_quantised_go_back_exactly(device, form):
    if form == "torchao":
        pytest.importorskip("torchao")
    plain = (torch.randn(N, K) / 8).to(device, torch.bfloat16)
    weights: list[QuantizedTensor] = [
        Int4Tensor.from_hp(plain, [1, size], symmetric=True) for size in (GROUP, K)
    ]
    if form == "bitsandbytes":
        weights = [Lut4Tensor.from_hp(plain, "nf4", block_size=[1, size]) for size in (GROUP, 64, K)]
    elif form != "gptq":
        weights += [
            made(plain, dynamic_activation=dynamic)
            for made in (Int8Tensor.from_hp, Float8Tensor.from_hp)
            for dynamic in (False, True)
        ]
    if form == "torchao":  # whose zero points are floats as well
        weights.append(Int4Tensor.from_hp(plain, [1, GROUP]))
    for weight in weights:
        back = there_and_back(form, weight, symmetric=form != "torchao")
        assert type(back) is type(weight)
        assert torch.equal(exactly(back), exactly(weight))
        assert getattr(back, "dynamic_activation", None) == getattr(weight, "dynamic_activation", None)


BF16 = torch.bfloat16


def lut4(
    table: Any, scale: torch.Tensor | None = None, group: int = 32, whole: torch.Tensor | None = None
) -> Lut4Tensor:
    codes = torch.zeros(N, K // 2, dtype=torch.uint8)
    scale = torch.ones(N, K // group) if scale is None else scale
    return Lut4Tensor(codes, torch.tensor(table), scale, [1, group], BF16, whole)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_scales_of_8_bits_are_near_those_that_they_stand_for(device, kind):
    plain = torch.randn(64, 320).to(device, BF16)
    weight = Lut4Tensor.from_hp(plain, kind)
    writer = WRITERS["bitsandbytes"](symmetric=False, **{"double_quantization": True})
    tensors, facts = writer.write("model.q", weight)
    assert tensors["weight.absmax"].dtype is torch.uint8
    assert tensors["weight.nested_absmax"].shape == (2,)  # of 320 scales
    settings = writer.settings({"model.q": facts}, [])
    assert settings["bnb_4bit_use_double_quant"]
    back = reader_for(settings).weight("model.q", tensors, BF16)
    assert torch.equal(back.qdata, weight.qdata)
    spread = (weight.scale - weight.scale.mean()).abs().max()
    assert isinstance(back, NestedLut4Tensor)
    again = WRITERS["bitsandbytes"](symmetric=False)
    rewritten, _ = again.write("model.q", back)
    assert rewritten.keys() == tensors.keys()
    assert all(torch.equal(rewritten[name], tensors[name]) for name in tensors)
    assert again.settings({"model.q": facts}, []) == settings
    scale = with_float_scales(back).scale
    assert (scale - weight.scale).abs().max() <= 0.04 * spread  # half of the widest step of the table
    with pytest.raises(ValueError, match=rf"^other: a checkpoint is nf4 or fp4, and this one has {kind}"):
        writer.write("other", Lut4Tensor.from_hp(plain, "fp4" if kind == "nf4" else "nf4"))


def test_nvfp4s_one_scale_is_divided_by_and_rounds_once():
    """Not every float32 is the inverse of one; then the nearest is written."""
    scale = torch.ones(N, K // 16).to(torch.float8_e4m3fn)
    exact = 0
    for whole in torch.rand(50) + 1:
        weight = lut4(E2M1, scale, 16, whole.view(1))
        back = there_and_back("compressed-tensors", weight)
        assert (back.global_scale - whole).abs() <= 2**-23
        exact += int(back.global_scale == whole)
    assert 0 < exact < 50
    without = there_and_back("compressed-tensors", lut4(E2M1, scale, 16))
    assert without.global_scale == 1


def refused() -> dict[str, tuple[str, QuantizedTensor, str]]:
    plain = torch.randn(N, K, dtype=torch.bfloat16)
    symmetric = Int4Tensor.from_hp(plain, [1, GROUP], symmetric=True)
    float32 = Int4Tensor.from_hp(torch.randn(N, K), [1, GROUP], symmetric=True)
    scaled = Int4Tensor(
        symmetric.qdata,
        symmetric.scale,
        symmetric.zero_point,
        [1, GROUP],
        [N, K],
        torch.ones(K, dtype=torch.bfloat16),
    )
    far = Int4Tensor(symmetric.qdata, symmetric.scale, symmetric.scale * 16, [1, GROUP], [N, K])
    return {
        "float zeros": ("gptq", Int4Tensor.from_hp(plain, [1, GROUP]), "zero points are no multiples of its"),
        "float zeros, packed": (
            "compressed-tensors",
            Int4Tensor.from_hp(plain, [1, GROUP]),
            "zero points are no multiples of its scales",
        ),
        "zeros out of range": ("gptq", far, r"its zeros must be in 0\.\.15, got -8\.\."),
        "scales in float32": ("gptq", float32, "its scales and zero points are not exact in float16"),
        "scales of 8 bits": (
            "gptq",
            Int8Tensor.from_hp(torch.randn(N, K)),
            "its scales and zero points are not exact in float16",
        ),
        "float8": ("gptq", Float8Tensor.from_hp(plain), "a weight of integers is needed, got Float8Tensor"),
        "activations": (
            "gptq",
            Int8Tensor.from_hp(plain, dynamic_activation=True),
            "activations that are quantised have no place",
        ),
        "blocks of several rows": (
            "gptq",
            BlockwiseTensor(plain.to(torch.int8), torch.ones(3, 4), [8, 32], BF16),
            "N and K must be multiples of 4, and K of the group size",
        ),
        "nf4": ("compressed-tensors", lut4([0.0] * 16), "the format has no table of 16 values but e2m1's"),
        "e2m1 in other groups": (
            "compressed-tensors",
            lut4(E2M1),
            "the format has e2m1 with exponents for groups of 32, or .* got float32 for blocks",
        ),
        "int4 under activations of 8 bits": (
            "gptq",
            Int4Tensor.from_hp(plain, [1, GROUP], symmetric=True, activation=torch.int8),
            "activations that are quantised have no place",
        ),
        "groups that do not divide K": (
            "compressed-tensors",
            BlockwiseTensor(plain.to(torch.int8), torch.ones(N, 3), [1, 48], BF16),
            "group_size = 48 does not divide K = 128",
        ),
        "e5m2 by blocks": (
            "compressed-tensors",
            BlockwiseTensor(plain.to(torch.float8_e5m2), torch.ones(3, 4), [8, 32], BF16),
            "the format has no float8_e5m2",
        ),
        "int4 under activations of 8 bits, torchao": (
            "torchao",
            Int4Tensor.from_hp(plain, [1, GROUP], activation=torch.int8),
            "torchao's int4 weights have no activations of 8 bits",
        ),
        "blocks": (
            "torchao",
            BlockwiseTensor(plain.to(torch.int8), torch.ones(3, 4), [8, 32], BF16),
            "torchao has float8 with float32 scales or exponents",
        ),
        "nf4 by other blocks": (
            "bitsandbytes",
            Lut4Tensor.from_hp(plain, "nf4", block_size=[8, 64]),
            "the format has one float32 for each 32, 64",
        ),
        "int4": ("bitsandbytes", Int4Tensor.from_hp(plain, [1, GROUP]), "the format has nf4 and fp4 alone"),
        "odd N": (
            "gptq",
            Int4Tensor.from_hp(plain[:9], [1, GROUP], symmetric=True),
            "N must be a multiple of 8",
        ),
        "act_pre_scale": ("compressed-tensors", scaled, "act_pre_scale has no place in the format"),
        "e5m2": (
            "compressed-tensors",
            Float8Tensor.from_hp(plain, torch.float8_e5m2),
            "the format has no float8_e5m2",
        ),
        "transposed": (
            "compressed-tensors",
            Int8Tensor.from_hp(plain).t(),
            "a transposed weight has no place",
        ),
    }


@pytest.mark.parametrize("name", refused())
def test_what_a_format_cannot_say_is_refused_by_name(name):
    form, weight, message = refused()[name]
    if form == "torchao":
        pytest.importorskip("torchao")
    with pytest.raises(ValueError, match=rf"^model\.q: .*{message}"):
        WRITERS[form](symmetric=False).write("model.q", weight)


def test_gptq_zeros_of_all_values_and_both_versions():
    q = torch.randint(-8, 8, (16, K))
    scale = (torch.rand(K // GROUP, 16) + 0.5).bfloat16()
    zero = torch.arange(64).remainder(16).view(4, 16)  # each of 0..15
    weight = Int4Tensor(
        aoext.packing.pack_int4(q.to(torch.int8)),
        scale.float(),
        (8 - zero) * scale.float(),
        [1, GROUP],
        [16, K],
        dtype=torch.bfloat16,
    )
    assert torch.equal(exactly(there_and_back("gptq", weight)), exactly(weight))
    assert WRITERS["gptq"](symmetric=False).settings({"q": facts()}, [])["checkpoint_format"] == "gptq_v2"
    assert WRITERS["gptq"](symmetric=True).settings({"q": facts()}, [])["checkpoint_format"] == "gptq"
    with pytest.raises(ValueError, match=r"^model\.q: its zeros must be 8, for the checkpoint is said to be"):
        there_and_back("gptq", weight, symmetric=True)


def facts(**changes: Any) -> dict[str, Any]:
    return {"bits": 4, "group_size": 32, "columns": 128, "ordered": False, **changes}


def test_gptq_settings_name_layers_that_differ():
    layers = {"a.0": facts(), "a.1": facts(), "b": facts(group_size=64, ordered=True)}
    settings = WRITERS["gptq"](symmetric=True).settings(layers, ["head"])
    assert (settings["group_size"], settings["desc_act"]) == (32, True)
    assert settings["dynamic"] == {"-:^head$": {}, "+:^b$": {"group_size": 64}}
    mixed = WRITERS["gptq"](symmetric=True).settings({"a": facts(), "b": facts(bits=8)}, [])
    assert (mixed["bits"], mixed["dynamic"]) == (4, {"+:^b$": {"bits": 8}})
    whole = WRITERS["gptq"](symmetric=True).settings({"a": facts(group_size=128)}, [])
    assert (whole["group_size"], whole["desc_act"], whole["dynamic"]) == (-1, False, {})


def test_compressed_tensors_has_a_group_for_each_kind():
    plain = torch.randn(N, K, dtype=torch.bfloat16)
    weights: dict[str, QuantizedTensor] = {
        "a": Int4Tensor.from_hp(plain, [1, 32], symmetric=True),
        "b": Int4Tensor.from_hp(plain, [1, 64], symmetric=True),
        "c": Int8Tensor.from_hp(plain, dynamic_activation=True),
        "d": Int8Tensor.from_hp(plain, dynamic_activation=True),
        "e": BlockwiseTensor(plain.to(torch.float8_e4m3fn), torch.ones(3, 4), [8, 32], BF16, [1, 32]),
        "g": Int4Tensor.from_hp(plain, [1, 32], symmetric=True, activation=torch.int8),
        "h": Int4Tensor.from_hp(plain, [1, 32], symmetric=True, activation=torch.float8_e4m3fn),
        "f": lut4(E2M1, torch.full((N, K // 32), 120, dtype=torch.uint8)),
    }
    writer = WRITERS["compressed-tensors"](symmetric=True)
    written = {layer: writer.write(layer, weight) for layer, weight in weights.items()}
    settings = writer.settings({layer: facts for layer, (_, facts) in written.items()}, ["head"])
    assert settings["format"] == "mixed-precision"
    assert [group["targets"] for group in settings["config_groups"].values()] == [
        ["a"],
        ["b"],
        ["c", "d"],
        ["e"],
        ["g"],
        ["h"],
        ["f"],
    ]
    reader = reader_for(settings)
    for layer, (tensors, _) in written.items():
        back = reader.weight(layer, tensors, torch.bfloat16)
        assert torch.equal(exactly(back), exactly(weights[layer]))
        assert back.quantizes_input_to == weights[layer].quantizes_input_to
        assert getattr(back, "input_block", None) == getattr(weights[layer], "input_block", None)
    with pytest.raises(ValueError, match="head: no group of the checkpoint's config has it"):
        reader.weight("head", written["a"][0], torch.bfloat16)
