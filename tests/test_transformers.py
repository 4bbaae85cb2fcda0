"""from_pretrained and save_pretrained of transformers, with aoext as the quantiser."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import aoext
import checkpoint_packers as pack
from aoext.configs.schemes import SCHEMES
from aoext.convert import convert_checkpoint
from aoext.models.layers import QuantizedEmbedding
from aoext.tensors import QuantizedTensor
from checkpoint_packers import Stored
from models import assert_same_state as same_bits
from models import quantized_names
from test_checkpoints import exactly

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

AoextConfig = aoext.AoextConfig

HIDDEN, INNER, VOCABULARY = 64, 128, 96
IDS = torch.arange(12)[None]


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def llama(**options: Any) -> Any:
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        **options,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantise_save_and_load_again(tmp_path, scheme, tied):
    plain = llama(tie_word_embeddings=tied)
    plain.save_pretrained(tmp_path / "plain", max_shard_size="30KB")
    config = {"scheme": scheme, "group_size": 32} if scheme in ("int4", "int4_float8") else scheme
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=AoextConfig(config), dtype=torch.bfloat16
    )
    assert len(quantized_names(model)) == 14
    assert not isinstance(model.lm_head.weight, QuantizedTensor)
    assert not any(p.requires_grad for p in model.parameters() if isinstance(p, QuantizedTensor))
    # The same as quantize_ makes of the same weights.
    chosen = aoext.quantize_(
        plain, model.quantization_method and AoextConfig(config).scheme, lambda m, n: "proj" in n
    )
    assert len(chosen.layers) == 14
    same_bits(model, plain)

    model.save_pretrained(tmp_path / "quantised", max_shard_size="30KB")
    assert len(list((tmp_path / "quantised").glob("*.safetensors"))) > 1
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "quantised")
    same_bits(model, again)
    again.save_pretrained(tmp_path / "third")
    same_bits(model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "third"))
    generated = [m.generate(IDS, max_new_tokens=4, do_sample=False) for m in (model, again)]
    assert torch.equal(*generated)
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied


def test_modules_are_chosen_by_name(tmp_path):
    llama().save_pretrained(tmp_path)
    config = AoextConfig(
        "int8",
        modules_to_not_convert=["o_proj"],
        per_module={r"layers\.0\.": None, "down_proj$": aoext.Int4WeightOnlyConfig(group_size=32)},
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config)
    assert not any("layers.0." in name or "o_proj" in name for name in quantized_names(model))
    assert isinstance(model.lm_head.weight, aoext.Int8Tensor)  # nothing said of it
    assert isinstance(model.model.layers[1].mlp.down_proj.weight, aoext.Int4Tensor)
    assert isinstance(model.model.layers[1].mlp.up_proj.weight, aoext.Int8Tensor)
    stored = AoextConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert stored.to_dict() == config.to_dict()
    assert stored.per_module == config.per_module


def test_layers_whose_own_forward_refuses_a_quantised_weight_are_left_alone():
    from aoext.integrations.transformers import AoextQuantizer

    class Scaled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(input, self.weight.as_strided((64, 64), (1, 64)))

    quantizer = AoextQuantizer(AoextConfig("int8"))
    quantizer.left_alone = []
    model = nn.ModuleDict({"plain": nn.Linear(64, 64), "scaled": Scaled(64, 64)})
    assert quantizer.param_needs_quantization(model, "plain.weight")
    assert not quantizer.param_needs_quantization(model, "scaled.weight")


def test_a_model_that_was_quantised_in_place_is_saved(tmp_path):
    model = llama()
    aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=32))
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig())  # finds nothing left
    model.save_pretrained(tmp_path)
    same_bits(model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path))


def test_a_base_model_and_one_with_a_head_share_a_checkpoint(tmp_path):
    llama().save_pretrained(tmp_path / "plain")
    whole = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=AoextConfig("int8")
    )
    whole.save_pretrained(tmp_path / "whole")
    base = transformers.AutoModel.from_pretrained(tmp_path / "whole")
    same_bits(whole.model, base)
    base.save_pretrained(tmp_path / "base")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    same_bits(whole.model, back.model)


def test_casts_and_the_way_back(tmp_path):
    llama().save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=AoextConfig("int8")
    )
    wanted = {name: model.get_parameter(name).dequantize() for name in quantized_names(model)}
    assert model.half().dtype == torch.float16
    assert model(IDS).logits.dtype == torch.float16
    assert model.float()(IDS).logits.dtype == torch.float32
    model.dequantize(torch.bfloat16)
    for name, weight in wanted.items():
        assert torch.equal(model.get_parameter(name), weight)
        assert type(model.get_submodule(name.removesuffix(".weight"))) is nn.Linear


def test_a_scheme_alone_says_what_from_pretrained_takes(tmp_path):
    llama().save_pretrained(tmp_path)
    scheme = aoext.Int4WeightOnlyConfig(group_size=32)
    with pytest.raises(AttributeError, match=r"aoext\.AoextConfig\(Int4WeightOnlyConfig\(group_size=32, "):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=scheme)


@pytest.mark.parametrize("scheme", ["int8", {"scheme": "int4", "group_size": 32}])
def test_a_checkpoint_loads_in_another_dtype(tmp_path, scheme):
    llama().save_pretrained(tmp_path / "plain")
    load = transformers.AutoModelForCausalLM.from_pretrained
    load(tmp_path / "plain", quantization_config=AoextConfig(scheme)).save_pretrained(tmp_path / "ours")
    for dtype in (torch.float16, torch.float32):
        assert load(tmp_path / "ours", dtype=dtype)(IDS).logits.dtype == dtype


def test_embeddings_get_their_class_back(tmp_path):
    model = llama(tie_word_embeddings=True)
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig(), quantize_embeddings=True)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    same_bits(model, again)
    assert isinstance(again.model.embed_tokens, QuantizedEmbedding)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert torch.equal(again.model.embed_tokens(IDS), model.model.embed_tokens(IDS))


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_are_quantised_where_that_is_asked_for(tmp_path, tied):
    plain = llama(tie_word_embeddings=tied)
    plain.save_pretrained(tmp_path / "plain")
    load = transformers.AutoModelForCausalLM.from_pretrained
    config = AoextConfig("int8", quantize_embeddings=True)
    model = load(tmp_path / "plain", quantization_config=config)
    aoext.quantize_(plain, config.scheme, lambda m, n: "lm_head" not in n or tied, quantize_embeddings=True)
    same_bits(model, plain)
    assert type(model.model.embed_tokens) is QuantizedEmbedding
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    model.save_pretrained(tmp_path / "ours")
    again = load(tmp_path / "ours")
    same_bits(model, again)
    assert again.config.quantization_config.quantize_embeddings
    options = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(model.generate(IDS, **options), again.generate(IDS, **options))
    # A head that is to stay as it is keeps the weight that it shares.
    config = AoextConfig("int8", ["lm_head"], quantize_embeddings=True)
    model = load(tmp_path / "plain", quantization_config=config)
    assert isinstance(model.model.embed_tokens.weight, QuantizedTensor) != tied
    assert not isinstance(model.lm_head.weight, QuantizedTensor)


def test_a_warning_tells_what_is_not_quantised_and_which_names_fit_nothing(tmp_path, caplog):
    llama().save_pretrained(tmp_path)
    load = transformers.AutoModelForCausalLM.from_pretrained
    per_module = {r"layers\.7\.": "int8", "up_proj": None, "down_proj": "int8"}
    config = AoextConfig(aoext.Int4WeightOnlyConfig(group_size=128), ["lm_haed"], per_module)
    load(tmp_path, quantization_config=config)
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("aoext")]
    assert messages[:2] == [
        "AoextConfig: modules_to_not_convert has 'lm_haed', which fits no module",
        r"AoextConfig: per_module has 'layers\\.7\\.', which fits no module",
    ]
    wrong = "not quantised: group_size = 128 does not divide K = 64 (64 or group_size='auto' would)"
    assert f"AoextConfig: model.layers.*.mlp.gate_proj (2): {wrong}" in messages
    refused = [message for message in messages if "not quantised: " in message]
    assert not any("down_proj" in message or "up_proj" in message for message in refused)
    caplog.clear()
    load(tmp_path, quantization_config=AoextConfig("int8", per_module={"proj": None}))
    assert "LlamaForCausalLM has no layer that is quantised" in caplog.text


def test_files_of_save_model_beside_a_config_that_does_not_know_of_them(tmp_path):
    model = llama()
    model.config.save_pretrained(tmp_path)
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig())
    aoext.save_model(model, tmp_path / "model.safetensors", max_shard_size="30KB")
    load = transformers.AutoModelForCausalLM.from_pretrained
    with pytest.raises(
        ValueError, match=r"its config\.json says nothing: load it with .*AoextConfig\.keep\(\)"
    ):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"quantised by aoext already; AoextConfig\.keep\(\) loads it"):
        load(tmp_path, quantization_config=AoextConfig("int8"))
    again = load(tmp_path, quantization_config=AoextConfig.keep(), dtype=torch.bfloat16)
    same_bits(model, again)
    again.save_pretrained(tmp_path / "again")
    same_bits(model, load(tmp_path / "again"))


def test_a_compiled_model_generates_with_a_static_cache(tmp_path):
    llama().save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=AoextConfig("int8"), dtype=torch.float32
    )
    options = {"max_new_tokens": 6, "do_sample": False}  # whose choices in bfloat16 hang on rounding
    eager = model.generate(IDS, **options)
    assert torch.equal(model.generate(IDS, cache_implementation="static", **options), eager)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: AoextConfig("int9"), ValueError, "scheme must be one of int4, int8, .* got 'int9'"),
        (lambda: AoextConfig(4), TypeError, "scheme must be a config of aoext or one of int4"),
        (lambda: AoextConfig({"scheme": "int8", "bits": 3}), ValueError, "int8 takes algorithm, got bits"),
        (lambda: AoextConfig(schema="int4"), TypeError, "unknown arguments schema"),
        (
            lambda: AoextConfig(group_size=32),
            TypeError,
            r"arguments group_size; .*\(Int4WeightOnlyConfig\(",
        ),
        (lambda: AoextConfig(per_module={"(": "int4"}), ValueError, r"regular expressions as keys, got '\('"),
        (lambda: AoextConfig(quantize_embeddings=1), TypeError, "must be a bool, got 1"),
        (lambda: AoextConfig(modules_to_not_convert="lm_head"), TypeError, "must be a list of names"),
    ],
)
def test_configs_that_cannot_be(make: Callable[[], Any], error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_report_of_loading_names_a_weight_with_nan(tmp_path, caplog):
    model = llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] = float("nan")
    model.save_pretrained(tmp_path)
    logging.getLogger("transformers").addHandler(caplog.handler)
    with pytest.raises(RuntimeError, match="CONVERSION"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=AoextConfig("int8"))
    assert "layers.1.mlp.up_proj.weight: int8_row_quantize: w must be finite" in caplog.text


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
TOKENS = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
COMPRESSED: dict[str, Any] = {"quant_method": "compressed-tensors", "format": "int-quantized"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def compressed(
    form: str, weights: dict[str, Any], activations: dict[str, Any] | None = None
) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"a": group}}


FOREIGN: dict[str, tuple[Callable[[int, int], Stored], dict[str, Any]]] = {
    "gptq, 8 bits": (lambda n, k: pack.gptq_8(n, k, 32), {**GPTQ, "bits": 8}),
    "gptq, 8 bits, zeros": (lambda n, k: pack.gptq_8(n, k, 32, "any"), {**GPTQ, "bits": 8}),
    "gptq, 8 bits, act-order": (
        lambda n, k: pack.gptq_8(n, k, 32, "any", act_order=True),
        {**GPTQ, "bits": 8, "desc_act": True},
    ),
    "awq, 8 bits": (
        lambda n, k: pack.awq(n, k, 32, 8),
        {"quant_method": "awq", "bits": 8, "group_size": 32},
    ),
    "fp8": (
        lambda n, k: pack.fp8(n, k, (128, 128)),
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]},
    ),
    "fp8, exponents": (
        lambda n, k: pack.fp8(n, k, (48, 48), "e8m0"),
        {
            "quant_method": "fp8",
            "activation_scheme": "static",
            "weight_block_size": [48, 48],
            "scale_fmt": "ue8m0",
        },
    ),
    "mxfp8": (
        lambda n, k: pack.fp8(n, k, (1, 32), "bytes"),
        {"quant_method": "mxfp8", "activation_scheme": "static"},
    ),
    "modelopt, nvfp4": (pack.nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "nvfp4-pack-quantized": (
        lambda n, k: pack.nvfp4(n, k, divided=True),
        compressed(
            "nvfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
            {
                "num_bits": 4,
                "type": "float",
                "strategy": "tensor_group",
                "group_size": 16,
                "dynamic": "local",
            },
        ),
    ),
    "mxfp4-pack-quantized": (
        pack.mxfp4,
        compressed(
            "mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
        ),
    ),
    "float-quantized, blocks": (
        lambda n, k: pack.quantized_by_blocks(n, k, (48, 48)),
        compressed(
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [48, 48]},
        ),
    ),
    "pack-quantized, 8 bits": (
        lambda n, k: pack.pack_quantized_8(n, k, 32),
        compressed("pack-quantized", {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 32}),
    ),
    "pack-quantized, 8 bits, zeros": (
        lambda n, k: pack.pack_quantized_8(n, k, 32, "any"),
        compressed(
            "pack-quantized",
            {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False},
        ),
    ),
    "int-quantized, zeros": (
        lambda n, k: pack.int_quantized_zeros(n, k, k),
        compressed(
            "int-quantized",
            {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False},
            {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": False, "dynamic": True},
        ),
    ),
    "nf4": (pack.bitsandbytes_4, NF4),
    "nf4, nested": (lambda n, k: pack.bitsandbytes_4(n, k, nested=True), NF4),
    "gptq": (lambda n, k: pack.gptq(n, k, 32), GPTQ),
    "gptq, act-order": (lambda n, k: pack.gptq(n, k, 32, act_order=True), GPTQ),
    "awq": (lambda n, k: pack.awq(n, k, 32), {"quant_method": "awq", "bits": 4, "group_size": 32}),
    "hqq": (lambda n, k: pack.hqq(n, k, 32), {"quant_method": "hqq"}),
    "bitsandbytes": (pack.bitsandbytes_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "int-quantized": (
        pack.int_quantized,
        {
            **COMPRESSED,
            "config_groups": {
                "a": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
            },
        },
    ),
    "float-quantized": (
        pack.float_quantized,
        {
            **COMPRESSED,
            "config_groups": {
                "a": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                }
            },
        },
    ),
}


SMALLER = 2.0**-4  # what random codes and scales are multiplied with, so that a model of them has finite sums


def smaller(tensors: dict[str, torch.Tensor]) -> None:
    """Multiplies the scales, each kind as it is stored."""
    if "weight_global_scale" in tensors:
        tensors["weight_global_scale"] = tensors["weight_global_scale"] / SMALLER
        return
    known = (
        "weight_scale_2",
        "weight.quant_map",
        "scales",
        "scale",
        "weight_scale",
        "weight_scale_inv",
        "SCB",
    )
    key = next(key for key in known if key in tensors)
    scale = tensors[key]
    if scale.itemsize == 1:
        tensors[key] = (scale.view(torch.uint8) - 4).view(scale.dtype)
    else:
        tensors[key] = scale * SMALLER


def foreign_checkpoint(folder: Path, make: Callable[[int, int], Stored], settings: dict[str, Any]) -> Any:
    """Writes a checkpoint of another library; returns the model that it stands for, in float32."""
    model = llama().float()
    # Frequencies that were bfloat16 would turn positions by what growing activations make visible.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            tensors, exact = make(*module.weight.shape)
            module.weight.data = exact.float() * SMALLER
            smaller(tensors)
            del state[f"{name}.weight"]
            state.update({f"{name}.{key}": tensor for key, tensor in tensors.items()})
    folder.mkdir()
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    written["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(written))
    safetensors_torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    return model


@pytest.mark.parametrize("name", FOREIGN)
def test_checkpoints_of_other_libraries(tmp_path, name):
    make, settings = FOREIGN[name]
    expected = foreign_checkpoint(tmp_path / "foreign", make, settings)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "foreign", quantization_config=AoextConfig.keep(), dtype=torch.float32
    )
    names = quantized_names(model)
    assert len(names) == 14
    for weight_name in names:
        weight = expected.get_parameter(weight_name).double()  # float32 of it
        difference = exactly(model.get_parameter(weight_name)) - weight
        assert difference.abs().max() <= 2e-7 * weight.abs().max()
    wanted, got = expected(IDS).logits, model(IDS).logits
    assert (got - wanted).norm() <= 1e-3 * wanted.norm()  # its activations grow from layer to layer
    model.save_pretrained(tmp_path / "ours")
    same_bits(model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours"))


def test_what_cannot_be_kept_says_what_to_do(tmp_path):
    llama().save_pretrained(tmp_path / "plain")
    load = transformers.AutoModelForCausalLM.from_pretrained
    with pytest.raises(ValueError, match=r"keep\(\) is for checkpoints that are quantised already; this one"):
        load(tmp_path / "plain", quantization_config=AoextConfig.keep())
    foreign_checkpoint(tmp_path / "gptq", *FOREIGN["gptq"])
    with pytest.raises(ValueError, match=r"quantised by gptq already; AoextConfig\.keep\(\) runs it"):
        load(tmp_path / "gptq", quantization_config=AoextConfig("int4"))
    foreign_checkpoint(tmp_path / "one", FOREIGN["gptq"][0], {**GPTQ, "bits": 1})
    with pytest.raises(ValueError, match=r"gptq: bits must be one of 2, .*, 8 to run on aoext, got 1"):
        load(tmp_path / "one", quantization_config=AoextConfig.keep())


def mixed_checkpoint(folder: Path, name: str, damage: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """A checkpoint of another library with one layer left alone, and what `damage` does to its tensors."""
    foreign_checkpoint(folder, *FOREIGN[name])
    state = safetensors_torch.load_file(folder / "model.safetensors")
    for key in [key for key in state if key.startswith(f"{LEFT_ALONE}.")]:
        del state[key]
    state[f"{LEFT_ALONE}.weight"] = torch.randn(HIDDEN, HIDDEN)
    damage(state)
    safetensors_torch.save_file(state, folder / "model.safetensors", {"format": "pt"})


LEFT_ALONE = "model.layers.0.self_attn.o_proj"
SCALES = {"scales", "scale", "weight_scale", "weight_scale_inv", "SCB", "absmax"}


@pytest.mark.parametrize("name", FOREIGN)
def test_layers_that_the_checkpoint_leaves_alone_stay_plain(tmp_path, name):
    mixed_checkpoint(tmp_path / "foreign", name, lambda state: None)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(tmp_path / "foreign", quantization_config=AoextConfig.keep(), dtype=torch.float32)
    assert len(quantized_names(model)) == 13
    stored = safetensors_torch.load_file(tmp_path / "foreign" / "model.safetensors")
    assert torch.equal(model.get_parameter(f"{LEFT_ALONE}.weight"), stored[f"{LEFT_ALONE}.weight"])


@pytest.mark.parametrize("name", FOREIGN)
def test_all_layers_that_cannot_be_served_are_named_before_anything_is_loaded(tmp_path, name):
    bad = ("model.layers.0.mlp.down_proj", "model.layers.1.mlp.up_proj")

    def damage(state: dict[str, torch.Tensor]) -> None:
        for key in list(state):
            damaged = key.startswith(tuple(f"{layer}." for layer in bad))
            if damaged and key.rpartition(".")[2] in SCALES:
                state[key] = torch.cat((state[key], state[key]))

    mixed_checkpoint(tmp_path / "foreign", name, damage)
    load = transformers.AutoModelForCausalLM.from_pretrained
    with pytest.raises(
        ValueError, match="2 layers of the checkpoint cannot run on aoext, so nothing"
    ) as raised:
        load(tmp_path / "foreign", quantization_config=AoextConfig.keep(), dtype=torch.float32)
    lines = str(raised.value).splitlines()[1:]
    assert sorted(line.partition(":")[0] for line in lines) == list(bad)
    with pytest.raises(ValueError, match="2 layers of the checkpoint cannot run on aoext"):
        convert_checkpoint(tmp_path / "foreign", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_gptq_settings_of_single_layers(tmp_path):
    """GPTQModel's `dynamic`: other group sizes are read, other bits are named."""
    layer = "model.layers.0.mlp.down_proj"
    dynamic = {r"+:.*\.0\.mlp\.down_proj": {"group_size": 64}, f"-:^{LEFT_ALONE}$": {}}

    def regroup(state: dict[str, torch.Tensor]) -> None:
        tensors, _ = pack.gptq(HIDDEN, INNER, 64)
        state.update({f"{layer}.{key}": tensor for key, tensor in tensors.items()})

    mixed_checkpoint(tmp_path / "foreign", "gptq", regroup)
    file = tmp_path / "foreign" / "config.json"
    written = json.loads(file.read_text())
    written["quantization_config"]["dynamic"] = dynamic
    file.write_text(json.dumps(written))
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(tmp_path / "foreign", quantization_config=AoextConfig.keep())
    assert model.get_submodule(layer).weight.block_size == [1, 64]
    written["quantization_config"]["dynamic"] = {r".*mlp": {"bits": 1}}
    file.write_text(json.dumps(written))
    with pytest.raises(ValueError, match="6 layers of the checkpoint cannot") as raised:
        load(tmp_path / "foreign", quantization_config=AoextConfig.keep())
    assert f"{layer}: bits must be one of 2, 3, 4, 5, 6, 7, 8 to run on aoext, got 1" in str(raised.value)


def test_a_method_that_transformers_does_not_know_is_refused_without_keep(tmp_path):
    """Where transformers alone would warn, and load random weights."""
    foreign_checkpoint(tmp_path / "theirs", *FOREIGN["modelopt, nvfp4"])
    load = transformers.AutoModelForCausalLM.from_pretrained
    with pytest.raises(
        ValueError, match=r"no quantiser for modelopt: quantization_config=aoext.AoextConfig.keep"
    ):
        load(tmp_path / "theirs")
    with pytest.raises(ValueError, match="quantised by modelopt already"):
        load(tmp_path / "theirs", quantization_config=AoextConfig("int8"))


@pytest.mark.parametrize("name", ["nvfp4-pack-quantized", "modelopt, nvfp4"])
def test_a_warning_tells_of_activations_that_stay_as_they_are(tmp_path, caplog, name):
    foreign_checkpoint(tmp_path / "theirs", *FOREIGN[name])
    load = transformers.AutoModelForCausalLM.from_pretrained
    load(tmp_path / "theirs", quantization_config=AoextConfig.keep())
    messages = [r.getMessage() for r in caplog.records if "activations stay as they are" in r.getMessage()]
    assert len(messages) == 1
    assert "activations stay as they are" in str(convert_checkpoint(tmp_path / "theirs", tmp_path / "ours"))


def test_dynamic_activations_of_a_checkpoint_are_saved_and_loaded_again(tmp_path):
    settings = {**FOREIGN["fp8"][1], "activation_scheme": "dynamic"}
    foreign_checkpoint(tmp_path / "theirs", FOREIGN["fp8"][0], settings)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(tmp_path / "theirs", quantization_config=AoextConfig.keep())
    weights = [p for p in model.parameters() if isinstance(p, QuantizedTensor)]
    assert {tuple(weight.input_block) for weight in weights} == {(1, 128)}
    model.save_pretrained(tmp_path / "ours")
    same_bits(model, load(tmp_path / "ours"))


def test_a_release_that_aoext_does_not_know_can_still_be_imported(tmp_path):
    package = tmp_path / "transformers" / "quantizers"
    package.mkdir(parents=True)
    for file in (package.parent / "__init__.py", package / "__init__.py", package / "auto.py"):
        file.write_text("")
    program = "import aoext, transformers.quantizers.auto; print('goes on')"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "goes on\n"
    assert "aoext: transformers cannot quantise by aoext: " in done.stderr
