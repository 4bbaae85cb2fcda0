"""What from_pretrained does beside quantising: the work of loading, names of the file, and warnings."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import aoext
import checkpoint_packers as pack
from aoext.convert import convert_checkpoint
from aoext.tensors import QuantizedTensor
from models import quantized_names
from test_checkpoints import exactly

transformers = pytest.importorskip("transformers")

from test_transformers import FOREIGN, GPTQ, HIDDEN, foreign_checkpoint, llama, same_bits  # noqa: E402

AoextConfig = aoext.AoextConfig
load = transformers.AutoModelForCausalLM.from_pretrained


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


@pytest.mark.parametrize("of", ["aoext", "another library"])
def test_what_the_quantiser_knows_is_copied_for_no_tensor(tmp_path, monkeypatch, of):
    from aoext.integrations.transformers import AoextQuantizer

    if of == "aoext":
        llama().save_pretrained(tmp_path / "plain")
        load(tmp_path / "plain", quantization_config=AoextConfig("int4")).save_pretrained(tmp_path / "ours")
    else:
        foreign_checkpoint(tmp_path / "ours", *FOREIGN["gptq"])
    copies: list[Any] = []
    monkeypatch.setattr(AoextQuantizer, "__deepcopy__", lambda self, memo: copies.append(self), raising=False)
    options = {} if of == "aoext" else {"quantization_config": AoextConfig.keep()}
    assert len(quantized_names(load(tmp_path / "ours", **options))) == 14
    assert copies == []


def test_the_name_of_a_scheme_takes_groups_that_divide_each_layer(tmp_path, caplog):
    llama().save_pretrained(tmp_path)
    for name, kind in (("int4", None), ("int4_int8", torch.int8), ("int4_float8", torch.float8_e4m3fn)):
        model = load(tmp_path, quantization_config=AoextConfig(name))
        layer = model.model.layers[0]
        assert layer.self_attn.q_proj.weight.block_size == [1, 64]  # of K = 64
        assert layer.mlp.down_proj.weight.block_size == [1, 128]  # of K = 128
        assert layer.mlp.down_proj.weight.activation is kind
    assert "are quantised; the other" not in caplog.text


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("aoext")]


def test_one_line_says_how_many_layers_and_bytes_a_config_leaves_out(tmp_path, caplog):
    llama().save_pretrained(tmp_path / "plain")
    config = aoext.Int4WeightOnlyConfig(group_size=128)
    # q, o: 64 x 64, k, v: 32 x 64, gate, up: 128 x 64, in two layers of bfloat16
    left, down = 2 * 2 * (2 * 64 * 64 + 2 * 32 * 64 + 2 * 128 * 64), 2 * 2 * 64 * 128
    line = (
        f"AoextConfig: 2 of 14 layers are quantised; the other 12, {left / 1e6:.2f} MB of "
        f"{(left + down) / 1e6:.2f} MB, stay as they are"
    )
    load(tmp_path / "plain", quantization_config=AoextConfig(config))
    assert said(caplog).count(line) == 1
    caplog.clear()
    convert_checkpoint(tmp_path / "plain", tmp_path / "ours", config)
    assert said(caplog).count(line) == 1


@pytest.mark.parametrize("tied", [False, True])
def test_what_stays_is_said_where_it_is_much(tmp_path, caplog, tied):
    config = transformers.MixtralConfig(
        vocab_size=1024,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        tie_word_embeddings=tied,
    )
    plain = transformers.MixtralForCausalLM(config).to(torch.bfloat16)
    plain.save_pretrained(tmp_path / "plain")
    load(tmp_path / "plain", quantization_config=AoextConfig("int8"))
    (first,) = said(caplog)
    caplog.clear()
    convert_checkpoint(tmp_path / "plain", tmp_path / "ours", aoext.Int8WeightOnlyConfig())
    assert said(caplog) == [first]
    values = {name: p.numel() for name, p in plain.named_parameters()}
    quantised = ("self_attn", "experts")
    stay = sum(count for name, count in values.items() if not any(part in name for part in quantised))
    stay /= sum(values.values())
    lines = first.splitlines()
    assert lines[0] == (
        f"AoextConfig: 12 weights quantised, 0 skipped; {stay:.0%} of the model's values stay unquantised"
    )
    assert "model.embed_tokens.weight ([1024, 64], 0.13 MB): an embedding (quantize_embeddings=True)" in first
    assert ("lm_head.weight ([1024, 64], 0.13 MB): the config leaves it as it is" in first) != tied
    caplog.clear()
    load(tmp_path / "ours")
    assert said(caplog) == []


def regrouped(folder: Path) -> Any:
    """A GPTQ checkpoint whose first MLP has groups of 64, as its setting for names of single layers says."""
    sizes = iter([32, 32, 32, 32, 64, 64, 64, *[32] * 7])
    dynamic = {r"+:^model\.layers\.0\.mlp\..*$": {"group_size": 64}}
    return foreign_checkpoint(folder, lambda n, k: pack.gptq(n, k, next(sizes)), {**GPTQ, "dynamic": dynamic})


def test_a_base_model_is_read_by_the_names_of_the_file(tmp_path):
    expected = regrouped(tmp_path / "gptq")
    model = transformers.AutoModel.from_pretrained(
        tmp_path / "gptq", quantization_config=AoextConfig.keep(), dtype=torch.float32
    )
    assert len(quantized_names(model)) == 14
    for name in quantized_names(model):
        wanted = expected.get_parameter(f"model.{name}").double()
        assert (exactly(model.get_parameter(name)) - wanted).abs().max() <= 1e-6 * wanted.abs().max(), name
    # Exact names, which convert writes.
    llama().save_pretrained(tmp_path / "plain")
    config = aoext.Int4WeightOnlyConfig("auto", symmetric=True)
    for form in ("gptq", "compressed-tensors"):
        convert_checkpoint(tmp_path / "plain", tmp_path / form / "auto", config, format=form)
        whole, base = (
            kind.from_pretrained(tmp_path / form / "auto", quantization_config=AoextConfig.keep())
            for kind in (transformers.AutoModelForCausalLM, transformers.AutoModel)
        )
        same_bits(whole.model, base)


def test_a_file_without_the_prefix_of_its_model_is_converted(tmp_path):
    """As GPT-2's own checkpoint, which names a model with a head and has the names of the base model."""
    model = llama(tie_word_embeddings=True)
    model.model.save_pretrained(tmp_path / "plain")
    written = json.loads((tmp_path / "plain" / "config.json").read_text())
    written["architectures"] = ["LlamaForCausalLM"]
    (tmp_path / "plain" / "config.json").write_text(json.dumps(written))
    kept = {"quantization_config": AoextConfig.keep()}
    for form, options in (("aoext", {}), ("compressed-tensors", kept)):
        convert_checkpoint(tmp_path / "plain", tmp_path / form, aoext.Int8WeightOnlyConfig(), format=form)
        converted = load(tmp_path / form, dtype=torch.bfloat16, **options)
        same_bits(converted, load(tmp_path / "plain", quantization_config=AoextConfig("int8")))


@pytest.mark.parametrize("module", ["config", "weights", "hooks"])
def test_every_module_can_be_imported_first(module):
    program = f"""
import warnings
warnings.simplefilter("error", UserWarning)
import aoext.integrations.transformers.{module}
print(aoext.AoextConfig("int4").scheme)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "Int4WeightOnlyConfig(group_size='auto', symmetric=False)\n", done.stderr


def test_another_librarys_weights_of_gpt2s_layers(tmp_path):
    from aoext.integrations.conv1d import Conv1D, QuantizedConv1D

    config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=96, n_positions=64)
    ids = torch.arange(12)[None]
    for name, (make, settings) in {
        "gptq": (lambda n, k: pack.gptq(n, k, 32), GPTQ),
        "bitsandbytes": FOREIGN["bitsandbytes"],
        "compressed-tensors": FOREIGN["float-quantized, blocks"],
    }.items():
        if "config_groups" in settings:  # by the layers' class, which is no Linear
            (group,) = settings["config_groups"].values()
            settings = {**settings, "config_groups": {"all": {**group, "targets": ["Conv1D"]}}}
        model = transformers.GPT2LMHeadModel(config).eval()
        state = {key: tensor.clone() for key, tensor in model.state_dict().items() if key != "lm_head.weight"}
        for path, module in model.named_modules():
            if isinstance(module, Conv1D):
                rows = module.weight.t()
                tensors, exact = make(*rows.shape)
                module.weight.data = exact.float().t().contiguous()
                del state[f"{path}.weight"]
                state.update({f"{path}.{leaf}": tensor for leaf, tensor in tensors.items()})
        folder = tmp_path / name
        model.config.architectures = ["GPT2LMHeadModel"]
        model.config.save_pretrained(folder)
        written = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**written, "quantization_config": settings}))
        importlib.import_module("safetensors.torch").save_file(state, folder / "model.safetensors")
        kept = load(folder, quantization_config=AoextConfig.keep(), dtype=torch.float32)
        assert type(kept.transformer.h[0].mlp.c_fc) is QuantizedConv1D
        wanted = model(ids).logits
        assert (kept(ids).logits - wanted).norm() <= 1e-3 * wanted.norm(), name
        convert_checkpoint(folder, tmp_path / f"{name} ours")
        converted = load(tmp_path / f"{name} ours", dtype=torch.float32)
        weights = [p for p in converted.parameters() if isinstance(p, QuantizedTensor)]
        assert len(weights) == 4
        same_bits(converted, kept)
