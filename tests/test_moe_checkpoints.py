"""Mixtures of experts that other libraries have quantised: keep() and convert give what they mean."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import transformers
from safetensors.torch import load_file
from transformers.integrations import finegrained_fp8
from transformers.integrations.moe import use_experts_implementation

import aoext
import checkpoint_packers as pack
import moe_checkpoints
from aoext.configs.schemes import as_config
from aoext.convert import convert_checkpoint
from aoext.ops import ERROR_BOUND
from aoext.tensors import QuantizedTensor
from models import assert_same_state
from moe_models import IDS, build, experts_module


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def small(stored: pack.Stored, *scales: str) -> pack.Stored:
    """Scales as weights of a model have them, not as numbers of a test of layers."""
    tensors, exact = stored
    return {k: t / 8 if k in scales else t for k, t in tensors.items()}, exact / 8


def weights(**given: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": given}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "static"}

MODELOPT = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}


class InOrder:
    """GPTQ's act-order: gate and up of an expert have the same input, and so one order."""

    def __init__(self) -> None:
        self.groups: dict[str, torch.Tensor] = {}

    def __call__(self, name: str, N: int, K: int) -> pack.Stored:
        group_of = (torch.arange(K) // 32)[torch.randperm(K)]
        expert, _, leaf = name.rpartition(".")
        if leaf in ("gate_proj", "up_proj"):
            group_of = self.groups.setdefault(expert, group_of)
        return small(pack.gptq(N, K, 32, act_order=group_of), "scales")


def modelopt(stored: pack.Stored) -> pack.Stored:
    tensors, exact = stored
    tensors["weight_scale_2"] = tensors["weight_scale_2"] / 8
    return tensors, exact / 8


class OneScale:
    """nvfp4 whose gate and up have one scale, but for those of one expert of the first layer."""

    def __init__(self, apart: int | None) -> None:
        self.apart = "" if apart is None else f"layers.0.mlp.experts.{apart}."
        self.scales: dict[str, torch.Tensor] = {}

    def __call__(self, name: str, N: int, K: int) -> pack.Stored:
        tensors, exact = modelopt(pack.nvfp4(N, K))
        expert, _, leaf = name.rpartition(".")
        if leaf not in ("gate_proj", "up_proj") or (self.apart and self.apart in name):
            return tensors, exact
        own = tensors["weight_scale_2"]
        tensors["weight_scale_2"] = self.scales.setdefault(expert, own).clone()
        return tensors, exact / own.double() * tensors["weight_scale_2"].double()


# By name: the model, how layers are packed, and what config.json says of it.
LAYOUTS: dict[str, tuple[str, moe_checkpoints.Pack, dict[str, Any]]] = {
    "fp8": (
        "qwen3",
        lambda _, N, K: small(pack.fp8(N, K, (32, 32)), "weight_scale_inv"),
        BLOCKS,
    ),
    "fp8 in blocks of more rows": (
        "deepseek",
        lambda _, N, K: small(pack.fp8(N, K, (128, 128)), "weight_scale_inv"),
        {**BLOCKS, "weight_block_size": [128, 128]},
    ),
    "int4": (
        "mixtral",
        lambda _, N, K: small(pack.pack_quantized(N, K, 32, symmetric=False), "weight_scale"),
        weights(num_bits=4, type="int", strategy="group", group_size=32, symmetric=False),
    ),
    "int8": (
        "qwen3",
        lambda _, N, K: small(pack.int_quantized(N, K), "weight_scale"),
        weights(num_bits=8, type="int", strategy="channel"),
    ),
    "float8": (
        "qwen3",
        lambda _, N, K: small(pack.float_quantized(N, K, whole=True), "weight_scale"),
        weights(num_bits=8, type="float", strategy="tensor"),
    ),
    "gptq": ("qwen3", lambda _, N, K: small(pack.gptq(N, K, 32), "scales"), {**GPTQ, "desc_act": False}),
    "gptq with columns in another order": (
        "qwen3",
        InOrder(),
        GPTQ,
    ),
    "gptq with 3 bits": (
        "qwen3",
        lambda _, N, K: small(pack.gptq(N, K, 32, 3), "scales"),
        {**GPTQ, "bits": 3, "desc_act": False},
    ),
    "int6": (
        "mixtral",
        lambda _, N, K: small(pack.pack_quantized(N, K, 32, 6, symmetric=False), "weight_scale"),
        weights(num_bits=6, type="int", strategy="group", group_size=32, symmetric=False),
    ),
    "nvfp4": ("qwen3", lambda _, N, K: modelopt(pack.nvfp4(N, K)), MODELOPT),
    "awq": ("mixtral", lambda _, N, K: small(pack.awq(N, K, 32), "scales"), AWQ),
}


def quantised(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if isinstance(p, QuantizedTensor)]


def load(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=aoext.AoextConfig.keep(), dtype=torch.float32
    ).eval()


def assert_means(model: nn.Module, meant: nn.Module) -> None:
    """The weights of the model that is meant, and its logits."""
    expected = dict(meant.named_parameters())
    for name in quantised(model):
        weight = model.get_parameter(name).dequantize()
        torch.testing.assert_close(weight, expected[name], rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        logits, reference = model(IDS).logits, meant(IDS).logits
    assert (logits - reference).norm() / reference.norm() < 1e-4


def stack(state: dict[str, torch.Tensor], layer: str, leaf: str) -> torch.Tensor:
    """A tensor of each expert, taken from a checkpoint's, in one."""
    path, name = layer.split("experts")
    keys = sorted(
        k for k in state if re.fullmatch(rf"{re.escape(path)}experts\.\d+{re.escape(name)}\.{leaf}", k)
    )
    return torch.stack([state.pop(key) for key in keys])


@pytest.mark.parametrize("name", LAYOUTS)
def test_experts_that_are_stored_one_by_one(name, tmp_path, generator):
    kind, packed, settings = LAYOUTS[name]
    meant = moe_checkpoints.write(tmp_path / "theirs", build(kind, generator), packed, settings)
    model = load(tmp_path / "theirs")
    experts = [path for path in quantised(model) if "experts.gate_up_proj" in path]
    assert len(experts) == (1 if kind == "deepseek" else 2)
    assert_means(model, meant)
    model.save_pretrained(tmp_path / "saved")
    assert_same_state(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved"), model)
    convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    again = load(tmp_path / "ours")
    assert quantised(again) == quantised(model)
    assert_means(again, meant)


@pytest.mark.parametrize(
    ("apart", "dtype"),
    [(None, torch.float8_e4m3fn), (0, torch.float32), (5, torch.float32)],
    ids=["all alike", "first apart", "one apart"],
)
def test_nvfp4_keeps_its_scales_where_gate_and_up_of_experts_share_one(apart, dtype, tmp_path, generator):
    meant = moe_checkpoints.write(tmp_path / "theirs", build("qwen3", generator), OneScale(apart), MODELOPT)
    model = load(tmp_path / "theirs")
    assert_means(model, meant)
    for layer, expected in ((0, dtype), (1, torch.float8_e4m3fn)):
        experts = model.model.layers[layer].mlp.experts
        assert experts.gate_up_proj.scale.dtype is expected
        assert experts.down_proj.scale.dtype is torch.float8_e4m3fn
        assert experts.down_proj.global_scale.shape == (len(experts.down_proj), 1)


@pytest.mark.parametrize("form", ["gate_up_proj_scale_inv", "gate_proj.weight_scale_inv"])
def test_experts_in_tensors_of_three_dimensions(form, tmp_path, generator):
    """As transformers saves them, gate and up in one, or as others do."""

    def change(state: dict[str, torch.Tensor]) -> None:
        for i in range(2):
            path = f"model.layers.{i}.mlp.experts"
            parts = {
                f"{name}.{leaf}": stack(state, f"{path}.{name}", leaf)
                for name in ("gate_proj", "up_proj", "down_proj")
                for leaf in ("weight", "weight_scale_inv")
            }
            if form.startswith("gate_proj"):
                state |= {f"{path}.{name}": tensor for name, tensor in parts.items()}
                continue
            for leaf, behind in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
                gate, up = parts[f"gate_proj.{leaf}"], parts[f"up_proj.{leaf}"]
                bits = torch.cat([gate.view(torch.uint8), up.view(torch.uint8)], 1)
                state[f"{path}.gate_up_proj{behind}"] = bits.view(gate.dtype)
                state[f"{path}.down_proj{behind}"] = parts[f"down_proj.{leaf}"]

    _, packed, settings = LAYOUTS["fp8"]
    theirs = build("qwen3", generator)
    meant = moe_checkpoints.write(tmp_path / "theirs", theirs, packed, settings, change)
    model = load(tmp_path / "theirs")
    assert len([path for path in quantised(model) if "experts" in path]) == 4
    assert_means(model, meant)


def in_transformers_class(plain: nn.Module, packed: moe_checkpoints.Pack, **options: Any) -> Any:
    """Experts as transformers' own quantiser keeps them; `plain` gets their values."""
    interface = finegrained_fp8.ALL_FP8_EXPERTS_FUNCTIONS
    decorated = use_experts_implementation(
        type("Experts", (finegrained_fp8.FP8Experts,), {}), experts_interface=interface
    )
    known: Any = plain
    known.config.hidden_act = "silu"
    module = decorated(known.config, **options)
    for name in ("gate_up_proj", "down_proj"):
        weight, scale = getattr(module, name), getattr(module, f"{name}_scale_inv")
        values = known.get_parameter(name).data
        for e in range(len(values)):
            tensors, exact = packed("", *values.shape[1:])
            stored, scales = tensors.values()
            weight.data[e] = stored.view(torch.int8).view(weight.dtype)
            scale.data[e] = scales.view(scale[e].dtype)
            values[e] = exact.float()
    return module


@pytest.mark.parametrize("form", ["blocks", "dynamic", "fp4"])
def test_transformers_own_class_of_float8_experts(form, generator):
    layer = experts_module("qwen3", generator)
    if form == "fp4":
        options = {"expert_dtype": "fp4", "scale_fmt": "ue8m0"}
        module = in_transformers_class(layer, lambda _, N, K: small_exponents(pack.mxfp4(N, K)), **options)
    else:
        options = {"block_size": (32, 32), "activation_scheme": "static" if form == "blocks" else form}
        module = in_transformers_class(layer, LAYOUTS["fp8"][1], **options)
    x = torch.randn(20, 64)
    weights, ids = torch.randn(20, module.num_experts).softmax(-1).topk(2)
    module.config._experts_implementation = "aoext"
    with torch.no_grad():
        result = module(x, ids, weights)
        layer.config._experts_implementation = "eager"
        expected = layer(x, ids, weights)
    # Each of two products may be off by a kernel's bound.
    bound = 0.1 if form == "dynamic" else 2 * ERROR_BOUND[torch.float32]
    assert (result - expected).norm() / expected.norm() < bound


def small_exponents(stored: pack.Stored) -> pack.Stored:
    tensors, exact = stored
    return {**tensors, "weight_scale": tensors["weight_scale"] - 4}, exact / 16


def test_gpt_oss(tmp_path, generator):
    """Blocks of all experts, biases, gate and up in turns."""
    theirs = build("gpt_oss", generator)
    theirs.save_pretrained(tmp_path / "theirs")
    state = load_file(tmp_path / "theirs" / "model.safetensors")
    meant = copy.deepcopy(theirs)
    for name, parameter in meant.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        E, K, N = parameter.shape
        stored = [pack.mxfp4(N, K) for _ in range(E)]
        del state[name]
        state[f"{name}_blocks"] = torch.stack([t["weight_packed"] for t, _ in stored]).unflatten(2, (-1, 16))
        state[f"{name}_scales"] = torch.stack([t["weight_scale"] - 5 for t, _ in stored])
        parameter.data = torch.stack([exact.float().t() for _, exact in stored]) / 32
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    moe_checkpoints.finish(tmp_path / "theirs", state, settings)
    convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    meant.config._experts_implementation = "eager"
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        model = load(folder)
        assert len(quantised(model)) == 4
        assert_means(model, meant)
    fewer = {name: t[:3] if name.endswith(("_blocks", "_scales")) else t for name, t in state.items()}
    moe_checkpoints.finish(tmp_path / "theirs", fewer, settings)
    with pytest.raises(ValueError, match=r"gate_up_proj: the model has 4 experts, and the checkpoint 3"):
        load(tmp_path / "theirs")


def test_experts_of_gpt_oss_one_by_one(tmp_path, generator):
    """As compressed-tensors has them: gate and up apart."""
    theirs = build("gpt_oss", generator)
    theirs.save_pretrained(tmp_path / "theirs")
    state = load_file(tmp_path / "theirs" / "model.safetensors")
    meant = copy.deepcopy(theirs)
    for name, parameter in meant.named_parameters():
        path, _, leaf = name.rpartition(".")
        if leaf not in ("gate_up_proj", "down_proj"):
            continue
        del state[name]
        names = ["gate_proj", "up_proj"] if leaf == "gate_up_proj" else ["down_proj"]
        for e, of_expert in enumerate(parameter.data):
            for i, part in enumerate(names):
                rows = of_expert.t()[i :: len(names)]
                tensors, exact = small(pack.int_quantized(*rows.shape), "weight_scale")
                rows.copy_(exact)
                state |= {f"{path}.{e}.{part}.{key}": tensor for key, tensor in tensors.items()}
    moe_checkpoints.finish(tmp_path / "theirs", state, weights(num_bits=8, type="int", strategy="channel"))
    meant.config._experts_implementation = "eager"
    model = load(tmp_path / "theirs")
    assert len(quantised(model)) == 4
    assert_means(model, meant)


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("scheme", ["int4", "nvfp4"])
def test_a_plain_checkpoint_is_converted_as_it_is_quantised(kind, scheme, tmp_path, generator):
    config = as_config("test", {"scheme": scheme, **({"group_size": 32} if scheme == "int4" else {})})
    model = build(kind, generator)
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(tmp_path / "plain", max_shard_size="100KB")
    convert_checkpoint(tmp_path / "plain", tmp_path / "ours", config)
    aoext.quantize_(model, config, lambda _, name: name != "lm_head" and "router" not in name)
    again = load(tmp_path / "ours")
    assert quantised(again) == quantised(model)
    for name in quantised(model):
        one, other = again.get_parameter(name), model.get_parameter(name)
        assert one.shape == other.shape
        assert torch.equal(one.dequantize(), other.dequantize())


def _without_an_expert(state: dict[str, torch.Tensor]) -> None:
    for key in [key for key in state if "layers.1.mlp.experts.5.up_proj" in key]:
        del state[key]


def _of_an_unknown_name(state: dict[str, torch.Tensor]) -> None:
    for key in [key for key in state if "layers.1.mlp.experts.5.up_proj" in key]:
        state[key.replace("up_proj", "lifting")] = state.pop(key)


def _of_another_shape(state: dict[str, torch.Tensor]) -> None:
    key = "model.layers.1.mlp.experts.5.up_proj"
    state |= {f"{key}.{leaf}": t for leaf, t in pack.gptq(64, 64, 32)[0].items()}


def _in_an_order_of_its_own(state: dict[str, torch.Tensor]) -> None:
    key = "model.layers.1.mlp.experts.5.up_proj"
    order = torch.arange(64).roll(1) // 32
    state |= {f"{key}.{leaf}": t for leaf, t in pack.gptq(32, 64, 32, act_order=order)[0].items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_an_expert, r"layers\.1\.mlp\.experts\.gate_up_proj: the model has 8 experts, and the .* 7"),
        (_of_an_unknown_name, r"layers\.1\.mlp\.experts\.5\.lifting: .* none that this layer is known to be"),
        (
            _of_another_shape,
            r"experts\.gate_up_proj: expert \d: the checkpoint has \[96, 64\], and the model \[64",
        ),
    ],
)
def test_what_makes_no_weight_is_refused_by_name(change, message, tmp_path, generator):
    moe_checkpoints.write(tmp_path / "theirs", build("qwen3", generator), InOrder(), GPTQ, change)
    for tried in (load, lambda folder: convert_checkpoint(folder, tmp_path / "ours")):
        with pytest.raises(ValueError, match=message):
            tried(tmp_path / "theirs")


def test_gate_and_up_in_orders_of_their_own_are_refused(tmp_path, generator):
    """What only the values show."""
    change = _in_an_order_of_its_own
    moe_checkpoints.write(tmp_path / "theirs", build("qwen3", generator), InOrder(), GPTQ, change)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.experts\.gate_up_proj: .* needs the same k_order"):
        convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")


def test_formats_that_have_no_experts(tmp_path, generator):
    """Theirs and ours, where it is another library's format that is asked for."""
    kind, packed, settings = LAYOUTS["int4"]
    moe_checkpoints.write(tmp_path / "theirs", build(kind, generator), packed, settings)
    convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    for source in ("theirs", "ours"):
        with pytest.raises(ValueError, match=r"gate_up_proj.*: only linear layers have a quantised weight"):
            convert_checkpoint(tmp_path / source, tmp_path / "gptq", format="gptq")


def test_layers_that_the_model_has_not_and_plain_experts(tmp_path, generator):
    """Files of DeepSeek have one more layer, which predicts further tokens, and no model has it."""

    def change(state: dict[str, torch.Tensor]) -> None:
        for key in [key for key in state if key.startswith("model.layers.1.")]:
            state[key.replace("layers.1", "layers.2")] = state[key].clone()

    def packed(name: str, N: int, K: int) -> pack.Stored:
        if name.endswith("down_proj"):
            exact = torch.randn(N, K) / 8
            return {"weight": exact.clone()}, exact.double()
        return small(pack.fp8(N, K, (32, 32)), "weight_scale_inv")

    meant = moe_checkpoints.write(tmp_path / "theirs", build("qwen3", generator), packed, BLOCKS, change)
    model = load(tmp_path / "theirs")
    assert [path for path in quantised(model) if "experts" in path] == [
        f"model.layers.{i}.mlp.experts.gate_up_proj" for i in range(2)
    ]
    assert_means(model, meant)
