"""Quantised weights in other libraries' formats: exactly what they were, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import aoext
from aoext.checkpoints import WRITERS, reader_for
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor, QuantizedTensor
from test_checkpoints import CASES, GROUP, K, N, exactly

# What of CASES each format can say.
FOUR_BITS = {name for name in CASES if name.startswith(("gptq", "awq", "pack-quantized"))}
EIGHT_BITS = {name for name in CASES if name.startswith(("int-", "float-", "bitsandbytes"))}
SAYS = {
    "gptq": FOUR_BITS - {"pack-quantized, zeros"},  # whose N is odd
    "compressed-tensors": FOUR_BITS | EIGHT_BITS,
    "torchao": EIGHT_BITS,
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
    assert getattr(back, "dynamic_activation", None) == getattr(weight, "dynamic_activation", None)


@pytest.mark.parametrize("form", WRITERS)
def test_weights_that_aoext_has_quantised_go_back_exactly(device, form):
    if form == "torchao":
        pytest.importorskip("torchao")
    plain = (torch.randn(N, K) / 8).to(device, torch.bfloat16)
    weights: list[QuantizedTensor] = [
        Int4Tensor.from_hp(plain, [1, size], symmetric=True) for size in (GROUP, K)
    ]
    if form != "gptq":
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
        "eight bits": ("gptq", Int8Tensor.from_hp(plain), "a weight of 4 bits is needed, got Int8Tensor"),
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
    return {"group_size": 32, "columns": 128, "ordered": False, **changes}


def test_gptq_settings_name_layers_that_differ():
    layers = {"a.0": facts(), "a.1": facts(), "b": facts(group_size=64, ordered=True)}
    settings = WRITERS["gptq"](symmetric=True).settings(layers, ["head"])
    assert (settings["group_size"], settings["desc_act"]) == (32, True)
    assert settings["dynamic"] == {"-:^head$": {}, "+:^b$": {"group_size": 64}}
    whole = WRITERS["gptq"](symmetric=True).settings({"a": facts(group_size=128)}, [])
    assert (whole["group_size"], whole["desc_act"], whole["dynamic"]) == (-1, False, {})


def test_compressed_tensors_has_a_group_for_each_kind():
    plain = torch.randn(N, K, dtype=torch.bfloat16)
    weights: dict[str, QuantizedTensor] = {
        "a": Int4Tensor.from_hp(plain, [1, 32], symmetric=True),
        "b": Int4Tensor.from_hp(plain, [1, 64], symmetric=True),
        "c": Int8Tensor.from_hp(plain, dynamic_activation=True),
        "d": Int8Tensor.from_hp(plain, dynamic_activation=True),
    }
    writer = WRITERS["compressed-tensors"](symmetric=True)
    written = {layer: writer.write(layer, weight) for layer, weight in weights.items()}
    settings = writer.settings({layer: facts for layer, (_, facts) in written.items()}, ["head"])
    assert settings["format"] == "mixed-precision"
    assert [group["targets"] for group in settings["config_groups"].values()] == [["a"], ["b"], ["c", "d"]]
    reader = reader_for(settings)
    for layer, (tensors, _) in written.items():
        assert torch.equal(exactly(reader.weight(layer, tensors, torch.bfloat16)), exactly(weights[layer]))
    with pytest.raises(ValueError, match="head: no group of the checkpoint's config has it"):
        reader.weight("head", written["a"][0], torch.bfloat16)
