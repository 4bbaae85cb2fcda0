"""Weights of other libraries' checkpoints on aoext's layouts, against their values in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import checkpoint_packers as pack
from aoext.checkpoints import reader_for
from aoext.packing import unpack_int4
from aoext.tensors import Int4Tensor, QuantizedTensor
from checkpoint_packers import Stored

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
}


def exactly(weight: QuantizedTensor) -> Tensor:
    """The weight in float64, of its fields, on the CPU."""
    fields = {name: tensor.cpu() for name, tensor in weight.named_fields()}
    scale = fields["scale"].double()
    if not isinstance(weight, Int4Tensor):
        return fields["qdata"].double() * scale
    group = torch.arange(weight.shape[1]) // weight.block_size[1]
    values = (
        unpack_int4(fields["qdata"]).double() * scale[group].t() + fields["zero_point"].double()[group].t()
    )
    if "k_order" in fields:
        values = values[:, fields["k_order"].argsort()]
    return values


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

    x = torch.randn(3, K, dtype=torch.bfloat16)
    y = F.linear(x.to(device), weight).double().cpu()
    wanted = x.double() @ expected.t()
    assert (y - wanted).norm() <= 5e-3 * wanted.norm()


def test_act_order_is_kept_as_a_permutation_where_there_is_one(device):
    for act_order in (False, True):
        tensors, _ = pack.gptq(N, K, GROUP, act_order=act_order)
        weight = reader_for(GPTQ).weight("layer", tensors, torch.float16)
        assert (weight.k_order is not None) == act_order


def test_activations_that_the_checkpoint_quantises_are_quantised():
    settings = weights(num_bits=8, type="int", strategy="channel")
    tensors, _ = pack.int_quantized(N, K)
    assert not reader_for(settings).weight("layer", tensors, torch.bfloat16).dynamic_activation
    tokens = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
    settings["config_groups"]["group_0"]["input_activations"] = tokens
    assert reader_for(settings).weight("layer", tensors, torch.bfloat16).dynamic_activation


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
        ("gptq", put("qweight", lambda t: t[:-1]), "model.q: group_size = 32 does not divide K = 120"),
        ("gptq", put("g_idx", lambda t: t + 1), "model.q: g_idx must name each of the 4 groups 32 times"),
        ("gptq", put("g_idx", lambda t: t - 9), "model.q: g_idx must name each of the 4 groups 32 times"),
        ("gptq", put("g_idx", lambda t: t * 0), "model.q: g_idx must name each of the 4 groups 32 times"),
        ("awq", put("scales", with_nan), "model.q: scales must be finite"),
        ("awq", put("qzeros", lambda t: t[:, :1]), r"model.q: qzeros must be int32 \[4, 3\]"),
        ("pack-quantized", put("weight_shape", lambda t: t * 2), r"weight_packed must be int32 \[48, 32\]"),
        ("pack-quantized", put("weight_scale", lambda t: t[:, :3]), r"weight_scale must be \[24, 128/32\]"),
        (
            "pack-quantized, zeros",
            put("weight_zero_point", lambda t: None),
            "lacks model.q.weight_zero_point",
        ),
        ("int-quantized", put("weight_scale", lambda t: t[:5]), r"weight_scale must be a float \[24, 1\]"),
        ("int-quantized", put("weight", lambda t: t.float()), "weight must be int8 or float8_e4m3fn"),
        ("bitsandbytes", put("SCB", lambda t: t[:-1]), r"model.q: SCB must be float32 \[24\]"),
        ("hqq", put("shape", lambda t: t + 1), r"model.q: W_q must be \[25·129/g/2, g\]"),
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
        ({**GPTQ, "bits": 3}, "gptq: bits must be one of 4 to run on aoext, got 3"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "gptq: checkpoint_format must be one of .* got 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "exllama"}, "awq: version must be .* got 'exllama'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "weights of 4 bits .* do not run"),
        ({"quant_method": "compressed-tensors"}, "config has no config_groups"),
        (weights(num_bits=3, type="int"), "group_0: no kernel for weights of 3 bits, int"),
        (
            weights(num_bits=8, type="int", strategy="group"),
            "by channel or tensor to run on aoext, got 'group'",
        ),
        ({"quant_method": "hqq", "axis": 0}, "hqq: axis must be one of 1 to run on aoext, got 0"),
    ],
)
def test_what_has_no_kernel_is_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        reader_for(settings)
