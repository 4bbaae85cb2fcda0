"""Checkpoints of others whose config.json or shapes speak of the model, by from_pretrained and convert."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import aoext
import checkpoint_packers as pack
from aoext.convert import convert_checkpoint
from aoext.tensors import GROUPS_TYPES
from models import quantized_names
from test_checkpoints import GPTQ, exactly, weights

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

PARTS = ("self_attn.q_proj", "mlp.gate_proj")
HIDDEN, INNER, HEADS, KEYS = 64, 128, 4, 2


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def checkpoint(
    folder: Path,
    make: Callable[[str, int, int], tuple[dict[str, Tensor], Tensor]],
    changes: dict[str, Any],
    family: str = "Llama",
) -> dict[str, Tensor]:
    """Writes a tiny model with linear layers as `make` packs them; what these stand for, by layer."""
    config = getattr(transformers, f"{family}Config")(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KEYS,
        vocab_size=96,
        pad_token_id=0,
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).float()
    model.config.architectures = [f"{family}ForCausalLM"]
    model.save_pretrained(folder)
    state, meant = safetensors_torch.load_file(folder / "model.safetensors"), {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            tensors, meant[name] = make(name, *module.weight.shape)
            del state[f"{name}.weight"]
            state |= {f"{name}.{key}": tensor for key, tensor in tensors.items()}
    safetensors_torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, **changes}))
    return meant


def load(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=aoext.AoextConfig.keep(), dtype=torch.float32
    )


def test_weights_of_another_shape_than_the_models_are_refused_by_name(tmp_path):
    """Packed tensors that fit each other, and not the model."""

    def make(name: str, rows: int, columns: int) -> pack.Stored:
        if name.endswith("k_proj"):
            return pack.gptq(2 * rows, columns, 32)
        return pack.gptq(rows, columns, 32)

    checkpoint(tmp_path / "theirs", make, {"quantization_config": GPTQ})
    message = r"1 layers .*\nmodel\.layers\.0\.self_attn\.k_proj: the checkpoint has a weight \[64, 64\], and"
    for tried in (load, lambda folder: convert_checkpoint(folder, tmp_path / "ours")):
        with pytest.raises(ValueError, match=rf"{message} the model one \[32, 64\]"):
            tried(tmp_path / "theirs")


@pytest.mark.parametrize("method", ["gptq", "auto-round", "compressed-tensors", "hqq"])
def test_layers_of_2_3_and_6_bits(tmp_path, method):
    """They load, are converted as they are, and generate. AutoRound has no 6 bits."""
    widths = {"q_proj": 2, "gate_proj": 4 if method == "auto-round" else 6}

    def make(name: str, N: int, K: int) -> pack.Stored:
        bits = widths.get(name.rpartition(".")[2], 3)
        packed = {"compressed-tensors": pack.pack_quantized, "hqq": pack.hqq}.get(method)
        if packed is not None:
            return packed(N, K, 32, bits)
        return pack.gptq(N, K, 32, bits, form="gptq_p" if method == "gptq" else "gptq")

    settings: dict[str, Any] = {**GPTQ, "quant_method": method, "bits": 3}
    if method == "gptq":
        own = {rf".*\.{name}$": {"bits": bits} for name, bits in widths.items()}
        settings |= {"checkpoint_format": "gptq_p", "dynamic": own}
    elif method == "auto-round":
        own = {f"model.layers.0.{part}": {"bits": widths[part.rpartition(".")[2]]} for part in PARTS}
        settings |= {"packing_format": "auto_round:auto_gptq", "extra_config": own}
    elif method == "compressed-tensors":
        groups = {
            f"group_{bits}": {
                "targets": [f"re:.*{name}" if name else "Linear"],
                "weights": {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 32},
            }
            for name, bits in {**widths, "": 3}.items()
        }
        settings = {"quant_method": method, "format": "pack-quantized", "config_groups": groups}
    else:
        settings = {"quant_method": method}
    meant = checkpoint(tmp_path / "theirs", make, {"quantization_config": settings})
    convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    for folder in ("theirs", "ours"):
        model = load(tmp_path / folder)
        for name, exact in meant.items():
            weight = model.get_submodule(name).weight
            assert type(weight) is GROUPS_TYPES[widths.get(name.rpartition(".")[2], 3)]
            difference = (exactly(weight) - exact).abs().max()
            assert difference <= (1e-7 if method == "hqq" else 0) * exact.abs().max()
        assert model.generate(torch.tensor([[3, 14, 15]]), max_new_tokens=3).shape == (1, 6)


def test_a_config_of_compressed_tensors_first_releases(tmp_path):
    """config.json says compression_config, and in it quantization_config."""
    channel = weights(num_bits=8, type="int", strategy="channel")
    first = {
        "quantization_config": {**channel, "quant_method": "sparseml"},
        "sparsity_config": {"format": "dense"},
    }
    meant = checkpoint(
        tmp_path / "theirs", lambda name, *shape: pack.int_quantized(*shape), {"compression_config": first}
    )
    convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    for model in (load(tmp_path / "theirs"), load(tmp_path / "ours")):
        assert len(quantized_names(model)) == len(meant)
        for name, exact in meant.items():
            assert torch.equal(exactly(model.get_submodule(name).weight), exact)


def test_a_model_that_transformers_does_not_have_is_converted_all_the_same(tmp_path):
    changes = {"quantization_config": GPTQ, "architectures": ["OfAnotherProgram"]}
    meant = checkpoint(tmp_path / "theirs", lambda name, *shape: pack.gptq(*shape, 32), changes)
    convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    for name, exact in meant.items():
        assert torch.equal(exactly(load(tmp_path / "ours").get_submodule(name).weight), exact)


def test_fused_weights_with_a_scale_for_each_part(tmp_path):
    """Queries, keys and values have the rows that config.json says."""
    size = HIDDEN // HEADS
    rows = {"qkv_proj": [HEADS * size, KEYS * size, KEYS * size], "gate_up_proj": [INNER, INNER]}

    def make(name: str, N: int, K: int) -> pack.Stored:
        sizes = rows.get(name.rpartition(".")[2], [N])
        q, scale = torch.randn(N, K).to(torch.float8_e4m3fn), torch.rand(len(sizes))
        exact = q.double() * scale.double().repeat_interleave(torch.tensor(sizes))[:, None]
        return {"weight": q, "weight_scale": scale}, exact

    settings = {"quant_method": "fp8", "activation_scheme": "static"}
    meant = checkpoint(tmp_path / "theirs", make, {"quantization_config": settings}, "Phi3")
    model = load(tmp_path / "theirs")
    for name, exact in meant.items():
        assert torch.equal(exactly(model.get_submodule(name).weight), exact)


@pytest.mark.parametrize("method", ["gptq", "auto-round"])
def test_biases_of_packed_layers(tmp_path, method):
    """Those of the model arrive; GPTQ writes zeros for all other layers, which nothing asks for."""
    biases: dict[str, Tensor] = {}

    def make(name: str, N: int, K: int) -> pack.Stored:
        tensors, exact = pack.gptq(N, K, 32)
        has = name.rpartition(".")[2] in ("q_proj", "k_proj", "v_proj")
        tensors["bias"] = biases[name] = (torch.randn(N) if has else torch.zeros(N)).half()
        return tensors, exact

    settings = {**GPTQ, "quant_method": method, "desc_act": False, "sym": False}
    meant = checkpoint(tmp_path / "theirs", make, {"quantization_config": settings}, "Qwen2")
    model = load(tmp_path / "theirs")
    x = torch.randn(3, HIDDEN)
    for name in meant:
        layer = model.get_submodule(name)
        assert torch.equal(exactly(layer.weight), meant[name])
        assert layer.bias is None or torch.equal(layer.bias, biases[name].float())
    q_proj = "model.layers.0.self_attn.q_proj"
    wanted = x.double() @ meant[q_proj].t() + biases[q_proj].double()
    assert (model.get_submodule(q_proj)(x).double() - wanted).norm() <= 2e-5 * wanted.norm()
