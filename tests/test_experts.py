"""Models of transformers whose experts are quantised: logits, generation, files, choices, torch.compile."""

from __future__ import annotations

import copy
import inspect
import logging
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

pytest.importorskip("transformers")

import transformers

import aoext
from aoext import serialization
from aoext.cli.info_files import describe
from aoext.convert import convert_checkpoint
from aoext.operators.experts import times
from aoext.reference import randn
from aoext.tensors import BlockwiseTensor, Lut4Tensor, QuantizedTensor
from models import assert_same_state
from moe_models import IDS, MODELS, build, experts_module

CONFIGS = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=32),
    "int3": aoext.IntxWeightOnlyConfig(group_size=32, bits=3),
    "int8": aoext.Int8WeightOnlyConfig(),
    "int8_dynamic": aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": aoext.Float8WeightOnlyConfig(),
    "float8_dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(),
    "nf4": aoext.NF4WeightOnlyConfig(),
    "mxfp4": aoext.MXFP4WeightOnlyConfig(),
    "nvfp4": aoext.NVFP4WeightOnlyConfig(),
}
WEIGHT_ONLY = [name for name in CONFIGS if "dynamic" not in name]
EXPERTS = dict.fromkeys(MODELS, 4) | {"deepseek": 2, "nemotron": 2, "jetmoe": 8}


def quantised_experts(model: nn.Module) -> list[QuantizedTensor]:
    return [p for p in model.parameters() if isinstance(p, QuantizedTensor) and p.dim() == 3]


def dequantised(model: nn.Module, plain: nn.Module) -> nn.Module:
    """The plain model with the values of the quantised weights; its experts run one after the other."""
    state = {
        name: value.dequantize() if isinstance(value, QuantizedTensor) else value
        for name, value in model.state_dict().items()
    }
    twin = copy.deepcopy(plain)
    twin.load_state_dict(state)
    twin.config._experts_implementation = "eager"
    return twin


def routed(tokens: int, module: Any, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    x = randn(generator, tokens, 64)
    weights, ids = randn(generator, tokens, module.num_experts).softmax(-1).topk(2)
    return x, ids, weights


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_dequantised_model(name, device, generator):
    plain = build(name, generator).to(device)
    ids = IDS.to(device)
    for config in ("int4",) if device.type == "xpu" else WEIGHT_ONLY:
        model = copy.deepcopy(plain)
        summary = aoext.quantize_(model, CONFIGS[config])
        assert len(quantised_experts(model)) == EXPERTS[name]
        assert not any("experts" in skipped for skipped in summary.skipped)
        with torch.no_grad():
            logits, expected = model(ids).logits, dequantised(model, plain)(ids).logits
        assert (logits - expected).norm() / expected.norm() < 1e-4
        assert model.generate(ids[:, :4], max_new_tokens=2, do_sample=False).shape == (2, 6)


@pytest.mark.parametrize("config", sorted(CONFIGS.keys() - WEIGHT_ONLY))
@pytest.mark.parametrize("name", ["qwen3", "gpt_oss", "nemotron"])
def test_layers_with_quantised_activations_are_near_the_dequantised_ones(name, config, device, generator):
    """One layer each: a router behind another layer may choose other experts."""
    plain = experts_module(name, generator).to(device)
    module = copy.deepcopy(plain)
    aoext.quantize_(module, CONFIGS[config])
    arguments = [t.to(device) for t in routed(20, module, generator)]
    with torch.no_grad():
        expected = dequantised(module, plain)(*arguments)
        assert (module(*arguments) - expected).norm() / expected.norm() < 0.1


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "nemotron"])
@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_transformers_own_functions_run_quantised_experts(name, implementation, generator):
    module = experts_module(name, generator)
    aoext.quantize_(module, CONFIGS["int4"])
    arguments = routed(9, module, generator)
    with torch.no_grad():
        expected = module(*arguments)
        module.config._experts_implementation = implementation
        result = module(*arguments)
    assert (result - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss"])
def test_sentinels_of_expert_parallelism_add_nothing(name, generator):
    """Ids beyond the experts have weight 0, as MoEParamShard's dispatch leaves them."""
    module = experts_module(name, generator)
    aoext.quantize_(module, CONFIGS["int4"])
    x, ids, weights = routed(9, module, generator)
    elsewhere = torch.rand(ids.shape, generator=generator) < 0.5
    weights = weights.masked_fill(elsewhere, 0)
    with torch.no_grad():
        expected = module(x, ids, weights)
        module._is_expert_parallel = True
        result = module(x, ids.masked_fill(elsewhere, module.num_experts), weights)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def test_what_older_releases_lack(generator):
    """Attributes of the decorator, and weights of all experts in place of those of the top k."""
    for name, renamed in (("qwen3", {}), ("gpt_oss", {"experts_are_transposed": True})):
        module = experts_module(name, generator)
        x, ids, weights = routed(9, module, generator)
        aoext.quantize_(module, CONFIGS["int4"])
        with torch.no_grad():
            expected = module(x, ids, weights)
            for attribute in ("has_gate", "has_bias", "is_transposed", "is_concatenated"):
                del module.__dict__[attribute]
            module.__dict__.update(renamed)
            whole = torch.zeros(9, module.num_experts).scatter(1, ids, weights)
            assert torch.equal(module(x, ids, whole), expected)


def test_a_norm_after_each_expert(generator):
    module = experts_module("qwen3", generator)
    module.has_post_expert_norm, module.post_expert_norm = True, nn.RMSNorm(64)
    arguments = routed(9, module, generator)
    plain = copy.deepcopy(module)
    aoext.quantize_(module, CONFIGS["int8"])
    reference = dequantised(module, plain)
    reference.config._experts_implementation = "grouped_mm"  # the class itself has no such norm
    with torch.no_grad():
        result, expected = module(*arguments), reference(*arguments)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss"])
def test_gradients_reach_the_input_and_the_router(name, generator):
    module = experts_module(name, generator)
    plain = copy.deepcopy(module)
    aoext.quantize_(module, CONFIGS["int4"])
    x, ids, weights = routed(9, module, generator)
    grads = []
    for each in (module, dequantised(module, plain)):
        inputs = x.clone().requires_grad_(), weights.detach().clone().requires_grad_()
        each(inputs[0], ids, inputs[1]).square().sum().backward()
        grads.append([t.grad for t in inputs])
    for ours, theirs in zip(*grads, strict=True):
        assert (ours - theirs).norm() / theirs.norm() < 1e-4


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss", "nemotron"])
def test_one_graph_serves_all_numbers_of_tokens(name, generator):
    torch._dynamo.reset()
    module = experts_module(name, generator)
    aoext.quantize_(module, CONFIGS["int4"])
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, backend=graphs, fullgraph=True, dynamic=True)
    with torch.no_grad():
        counts = []
        for tokens in (
            7,
            1,
            2,
            33,
            64,
            1,
        ):  # for one token there is a graph of its own, as for every size of 1
            arguments = routed(tokens, module, generator)
            torch.testing.assert_close(compiled(*arguments), module(*arguments), rtol=1e-5, atol=1e-6)
            counts.append(graphs.frame_count)
    assert counts[1:] == counts[1:2] * 5


@pytest.mark.parametrize("scheme", ["int4", "int3", "int8", "nvfp4"])
@pytest.mark.parametrize("name", MODELS)
def test_quantise_while_loading_save_and_load_again(name, scheme, tmp_path, generator):
    """Also with one layer's experts left as they are, which transformers takes apart in files."""
    plain = build(name, generator, torch.bfloat16)
    plain.save_pretrained(tmp_path / "plain")
    kind = type(plain)
    for case, per_module in (("whole", {}), ("mixed", {r"layers\.0\..*experts": None})):
        config = aoext.AoextConfig(scheme, per_module=per_module)
        loaded = kind.from_pretrained(tmp_path / "plain", dtype=torch.bfloat16, quantization_config=config)
        assert case == "mixed" or len(quantised_experts(loaded)) == EXPERTS[name]
        loaded.save_pretrained(tmp_path / case)
        file = tmp_path / case / "model.safetensors"
        codes = {f"{name}.qdata" for name in serialization.descriptions_in(file)}
        assert codes == {name for name in serialization.names_in(file) if name.endswith(".qdata")}
        again = kind.from_pretrained(tmp_path / case, dtype=torch.bfloat16)
        assert_same_state(loaded, again)
        with torch.no_grad():
            assert torch.equal(loaded(IDS).logits, again(IDS).logits)


def test_a_model_that_was_quantised_in_place_is_saved(tmp_path, generator):
    model = build("mixtral", generator, torch.bfloat16)
    aoext.quantize_(model, CONFIGS["int4"])
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    aoext.save_model(model, tmp_path / "model.safetensors")
    fresh = build("mixtral", generator, torch.bfloat16)
    aoext.load_model(fresh, tmp_path / "model.safetensors")
    with torch.no_grad():
        expected = model(IDS).logits
        assert torch.equal(again(IDS).logits, expected)
        assert torch.equal(fresh(IDS).logits, expected)


def test_choices_by_the_name_of_a_module_or_a_parameter(tmp_path, generator):
    model = build("qwen3", generator)
    named = ("layers.0.mlp.experts", "layers.1.mlp.experts.down_proj")
    with pytest.warns(
        UserWarning, match=r"layers\.1\.mlp\.experts\.gate_up_proj .*filter_fn does not name it"
    ):
        summary = aoext.quantize_(model, CONFIGS["int8"], lambda _, name: name.endswith(named))
    assert [layer.name for layer in summary.layers] == [
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.mlp.experts.down_proj",
        "model.layers.1.mlp.experts.down_proj",
    ]
    assert summary.layers[0].shape == (8, 64, 64)
    model = build("qwen3", generator)
    model.save_pretrained(tmp_path)
    config = aoext.AoextConfig("int4", per_module={r"experts\.down_proj$": "int8"})
    loaded = type(model).from_pretrained(tmp_path, quantization_config=config)
    experts = loaded.model.layers[1].mlp.experts
    assert type(experts.gate_up_proj).__name__ == "Int4Tensor"
    assert type(experts.down_proj).__name__ == "Int8Tensor"
    with torch.no_grad():
        assert loaded(IDS).logits.isfinite().all()


def test_experts_that_stay_are_told_of_by_name_and_size(tmp_path, generator, caplog):
    stay = r"model\.layers\.\*\.mlp\.experts\.gate_up_proj \(2 of \[8, 64, 64\], 0\.26 MB\)"
    model = build("qwen3", generator)
    with pytest.warns(
        UserWarning, match=rf"quantize_: experts are left as they are:\n  stays    {stay}: filter_fn does"
    ) as told:
        aoext.quantize_(model, CONFIGS["int8"], lambda module, name: isinstance(module, nn.Linear))
    assert len(told) == 1
    model = build("qwen3", generator)
    with pytest.warns(UserWarning, match="experts.gate_up_proj .*group_size = 48 does not divide K = 64"):
        aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=48))
    model = build("qwen3", generator)
    model.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        config = aoext.AoextConfig("int8", per_module={"experts": None})
        type(model).from_pretrained(tmp_path, quantization_config=config)
    assert (
        "mlp.experts.gate_up_proj (2 of [8, 64, 64], 0.26 MB): the config leaves it as it is" in caplog.text
    )


def test_a_model_without_values(generator):
    with torch.device("meta"):
        model = MODELS["gpt_oss"]()
    aoext.quantize_(model, CONFIGS["int4"])
    assert len(quantised_experts(model)) == 4
    assert all(p.is_meta and p.transposed for p in quantised_experts(model))
    assert "gate_up_proj=Int4Tensor(shape=[4, 64, 128]" in str(model)


@pytest.mark.parametrize("name", MODELS)
def test_convert_puts_experts_together(name, tmp_path, generator):
    """The checkpoint has the weights that from_pretrained makes, whatever files and names it has them in."""
    plain = build(name, generator, torch.bfloat16)
    plain.save_pretrained(tmp_path / "plain", max_shard_size="50KB")
    result = convert_checkpoint(tmp_path / "plain", tmp_path / "int8", CONFIGS["int8"])
    config = aoext.AoextConfig(CONFIGS["int8"])
    loaded = type(plain).from_pretrained(tmp_path / "plain", quantization_config=config)
    again = type(plain).from_pretrained(tmp_path / "int8")
    assert_same_state(loaded, again)
    assert len(quantised_experts(again)) == EXPERTS[name]
    files = (tmp_path / "int8").glob("*.safetensors")
    described = [item for file in files for item in serialization.descriptions_in(file).items()]
    names = {name for name, description in described if len(description["shape"]) == 3}
    assert len(names) == sum(isinstance(p, QuantizedTensor) and p.dim() == 3 for p in again.parameters())
    assert names <= set(result.quantised)
    beside = {key.rpartition(".experts.")[0] for key in serialization.files_in("test", tmp_path / "plain")}
    assert {name.rpartition(".experts.")[0] for name in names} <= beside
    assert not any("experts" in note for note in result.notes)


def test_convert_and_info_tell_of_experts_that_stay(tmp_path, generator):
    plain = build("mixtral", generator, torch.bfloat16)
    plain.save_pretrained(tmp_path / "plain")
    symmetric = aoext.Int4WeightOnlyConfig(group_size=32, symmetric=True)
    notes = convert_checkpoint(tmp_path / "plain", tmp_path / "gptq", symmetric, format="gptq").notes
    name = r"model\.layers\.\*\.block_sparse_moe\.experts\.\*\.w1\.weight"
    kind = rf"stays    {name} \(8 of \[96, 64\], 0\.10 MB\)"
    assert any(re.match(f"{kind}: experts, for which this format has no place", note) for note in notes)
    aoext.quantize_(plain, CONFIGS["int8"], lambda _, name: name.endswith(("q_proj", "gate_up_proj")))
    aoext.save_model(plain, tmp_path / "model.safetensors")
    stays = r"model\.layers\.\*\.mlp\.experts\.down_proj \(2 of \[4, 64, 96\], 0\.10 MB\): plain"
    assert re.search(f"  stays    {stays}", describe(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_experts_are_offloaded_to_the_disk(name, tmp_path, generator):
    pytest.importorskip("accelerate")
    build(name, generator).save_pretrained(tmp_path / "plain")
    kind, config = transformers.AutoModelForCausalLM, aoext.AoextConfig(CONFIGS["int4"])
    whole = kind.from_pretrained(tmp_path / "plain", quantization_config=config)
    whole.save_pretrained(tmp_path / "ours")
    others = ("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head", "model.layers.0")
    places = {**dict.fromkeys(others, "cpu"), "model.layers.1": "disk"}
    for source, options in (("plain", {"quantization_config": config}), ("ours", {})):
        folder = tmp_path / f"offloaded {source}"
        model = kind.from_pretrained(tmp_path / source, device_map=places, offload_folder=folder, **options)
        with torch.no_grad():
            assert torch.equal(model(IDS).logits, whole(IDS).logits)
        model.save_pretrained(tmp_path / f"again {source}")
        assert_same_state(kind.from_pretrained(tmp_path / f"again {source}"), whole)


@pytest.mark.parametrize("kind", ["blocks", "exponents", "tensor", "fp4"])
def test_transformers_own_float8_experts(kind, device, generator):
    """Those of FP8Experts, in place of its Triton kernels."""
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    experts = fp8.use_experts_implementation(fp8.FP8Experts, experts_interface=fp8.ALL_FP8_EXPERTS_FUNCTIONS)
    config = transformers.Qwen3MoeConfig(hidden_size=64, moe_intermediate_size=96, num_experts=4)
    config._experts_implementation = "aoext"
    options = {"exponents": {"scale_fmt": "ue8m0"}, "fp4": {"expert_dtype": "fp4", "scale_fmt": "ue8m0"}}
    if options.get(kind, {}).keys() - inspect.signature(fp8.FP8Experts.__init__).parameters.keys():
        pytest.skip("this transformers has no such experts")
    block = None if kind == "tensor" else (32, 32)
    module = experts(config, block_size=block, **options.get(kind, {}))
    plain = experts_module("qwen3", generator)
    for name, shape in (("gate_up_proj", (4, 192, 64)), ("down_proj", (4, 64, 96))):
        parameter, scale = module._parameters[name], module._parameters[f"{name}_scale_inv"]
        values = randn(generator, *shape) * 0.05
        if kind == "fp4":
            weight = Lut4Tensor.from_hp(values, "mxfp4")
        else:
            of_block = block or [-(-n // s) for n, s in zip(shape[1:], scale.shape[1:], strict=True)]
            exponents = torch.float8_e8m0fnu if kind == "exponents" else torch.float32
            weight = BlockwiseTensor.from_hp(values, of_block, scale_dtype=exponents)
        parameter.data = weight.qdata.view(parameter.dtype)
        scale.data = weight.scale.view(scale.dtype)
        plain._parameters[name] = nn.Parameter(weight.dequantize())
    arguments = routed(20, module, generator)
    plain.config._experts_implementation = "eager"
    with torch.no_grad():
        expected = plain(*arguments)
        result = module.to(device)(*(t.to(device) for t in arguments)).cpu()
    assert (result - expected).norm() / expected.norm() < (1e-5 if kind == "fp4" else 0.1)


def test_plain_experts_beside_quantised_ones_have_gradients(generator):
    offsets = torch.tensor([2, 2, 7], dtype=torch.int32)
    rows, weight = (randn(generator, *size).double().requires_grad_() for size in ((9, 5), (3, 5, 4)))
    assert torch.autograd.gradcheck(
        lambda rows, weight: times(rows, weight, offsets), (rows, weight), check_forward_ad=True
    )
    (of_weight,) = torch.autograd.grad(times(rows.detach(), weight, offsets).sum(), weight)  # rows need none
    assert of_weight.abs().sum() > 0
