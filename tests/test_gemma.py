"""Gemma's per-layer embeddings, and its makers' own checkpoints of 2, 4 and 8 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import embedding
from torch.utils._python_dispatch import TorchDispatchMode

import aoext
import checkpoint_packers as pack
from aoext.convert import convert_checkpoint
from aoext.tensors import Int2Tensor, Int4Tensor, Int8Tensor, QuantizedTensor
from models import assert_same_state, quantized_names

transformers = pytest.importorskip("transformers", minversion="5.24")
safetensors_torch = pytest.importorskip("safetensors.torch")

VOCABULARY = 300
TEXT = {
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size": 64,
    "hidden_size_per_layer_input": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_kv_shared_layers": 0,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "pad_token_id": 0,
}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
TOKENS = ("image_token_id", "video_token_id", "audio_token_id", "boi_token_id", "eoi_token_id")


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def gemma_3n() -> Any:
    config = transformers.Gemma3nTextConfig(**TEXT, activation_sparsity_pattern=[0.0, 0.0], laurel_rank=32)
    return transformers.Gemma3nForCausalLM(config)


def gemma_4(**options: Any) -> Any:
    config = transformers.Gemma4TextConfig(**TEXT, **options, global_head_dim=32)
    return transformers.Gemma4ForCausalLM(config)


def gemma_4_with_vision() -> Any:
    """Each forward asks the embedding's weight for the row of the padding."""
    vision = {
        **VISION,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "patch_size": 4,
        "position_embedding_size": 16,
    }
    tokens = {name: VOCABULARY - 1 - at for at, name in enumerate(TOKENS)}
    config = transformers.Gemma4Config(
        text_config={**TEXT, "global_head_dim": 32}, vision_config=vision, audio_config=None, **tokens
    )
    return transformers.Gemma4ForConditionalGeneration(config)


def ids() -> torch.Tensor:
    return torch.randint(3, 250, (2, 9))


class Dequantised(TorchDispatchMode):
    """The values of each result of ao.dequantize."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.ao.dequantize.default:
            self.sizes.append(result.numel())
        return result


@pytest.mark.parametrize(
    ("build", "scheme"), [(gemma_3n, "int3"), (gemma_4, "int5"), (gemma_4_with_vision, "int8")]
)
def test_per_layer_embeddings_are_quantised_and_read_by_rows(build, scheme, tmp_path):
    plain = build()
    plain.save_pretrained(tmp_path / "plain")
    load = type(plain).from_pretrained
    config = aoext.AoextConfig(scheme, quantize_embeddings=True)
    model = load(tmp_path / "plain", dtype=torch.bfloat16, quantization_config=config).eval()
    table = model.get_per_layer_input_embeddings()
    assert isinstance(table.weight, QuantizedTensor)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight

    at = ids()
    scaled = embedding(at, table.weight.dequantize()) * table.embed_scale.to(torch.bfloat16)
    assert torch.equal(table(at), scaled)
    call = {"input_ids": at, "attention_mask": torch.ones_like(at), "use_cache": False}
    with torch.no_grad(), Dequantised() as seen:
        logits = model(**call).logits
    assert max(seen.sizes) == at.numel() * table.weight.shape[1]
    plain = load(tmp_path / "plain", dtype=torch.bfloat16).eval()
    aoext.quantize_(plain, config.scheme, quantize_embeddings=True)
    assert quantized_names(plain) == quantized_names(model)
    assert torch.equal(plain(**call).logits, logits)
    model.save_pretrained(tmp_path / "ours")
    assert torch.equal(load(tmp_path / "ours")(**call).logits, logits)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(**call).logits, logits)


SETTINGS = {
    "quant_method": "gemma",
    "num_bits": 4,
    "quantize_embeddings": True,
    "module_quant_configs": {r"embed_tokens$|lm_head": {"num_bits": 8}, r"\.mlp\.": {"num_bits": 2}},
    "modules_to_not_convert": [],
}


def checkpoint(
    folder: Path, *, tied: bool, head: bool, range_of_inputs: float = 0.0, range_of_outputs: float = 0.0
) -> dict[str, torch.Tensor]:
    """Writes one of the makers' form; what its weights stand for, by layer."""
    model = gemma_4(tie_word_embeddings=tied)
    model.save_pretrained(folder)
    state, meant = safetensors_torch.load_file(folder / "model.safetensors"), {}
    for name, module in model.named_modules():
        is_embedding = isinstance(module, nn.Embedding)
        if not is_embedding and (not isinstance(module, nn.Linear) or (name == "lm_head" and not head)):
            continue
        bits = 8 if name in ("model.embed_tokens", "lm_head") else 2 if ".mlp." in name else 4
        tensors, meant[name] = pack.gemma(*module.weight.shape, bits, embedding=is_embedding)
        if not is_embedding:
            tensors["input_activation_scale"] += range_of_inputs / 127
            tensors["output_activation_scale"] += range_of_outputs / 127
        if name.endswith("k_proj"):
            state[name.replace("k_proj", "k_cache_scale")] = torch.tensor(0.5)
        state.pop(f"{name}.weight", None)
        state |= {f"{name}.{key}": tensor for key, tensor in tensors.items()}
    safetensors_torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, "quantization_config": SETTINGS}))
    return meant


def load(folder: Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)


def test_the_makers_checkpoints_run_packed_with_transformers_values(tmp_path):
    meant = checkpoint(tmp_path / "theirs", tied=False, head=True)
    keep = aoext.AoextConfig.keep()
    model, said = load(tmp_path / "theirs", quantization_config=keep, output_loading_info=True)
    assert not said["unexpected_keys"]
    assert not said["missing_keys"]
    assert quantized_names(model) == {f"{name}.weight" for name in meant}
    for name, values in meant.items():
        assert torch.equal(model.get_parameter(f"{name}.weight").dequantize(), values.float()), name
    kinds = {type(p) for p in model.parameters() if isinstance(p, QuantizedTensor)}
    assert kinds == {Int2Tensor, Int4Tensor, Int8Tensor}
    at = ids()
    with torch.no_grad():
        logits, theirs = model(at).logits, load(tmp_path / "theirs")(at).logits
    torch.testing.assert_close(logits, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))

    model.save_pretrained(tmp_path / "ours")
    convert_checkpoint(tmp_path / "theirs", tmp_path / "converted")
    for folder in ("ours", "converted"):
        again, said = load(tmp_path / folder, output_loading_info=True)
        assert not said["unexpected_keys"]
        assert_same_state(again, model)
        assert torch.equal(again(at).logits, logits)


@pytest.mark.parametrize("head", [False, True])
def test_the_makers_heads_share_the_embedding_unless_they_have_a_weight(head, tmp_path):
    checkpoint(tmp_path, tied=True, head=head)
    model = load(tmp_path, quantization_config=aoext.AoextConfig.keep())
    assert isinstance(model.lm_head.weight, Int8Tensor)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (not head)
    assert model.generate(ids(), max_new_tokens=3, do_sample=False).shape == (2, 12)


def test_the_makers_ranges_of_activations_round_as_in_transformers(tmp_path):
    checkpoint(tmp_path / "theirs", tied=False, head=True, range_of_inputs=3.0, range_of_outputs=2.0)
    model = load(tmp_path / "theirs", quantization_config=aoext.AoextConfig.keep())
    down = model.model.layers[0].mlp.down_proj
    x = 2 * torch.randn(3, 128)
    inside = (x / (3 / 127)).round().clamp(-128, 127).double() * (3 / 127)
    exact = inside @ down.weight.dequantize().double().t()
    steps = down(x) / (2 / 127)
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-3)
    assert (steps.double() * (2 / 127) - exact.clamp(-256 / 127, 2)).abs().max() < 1.01 / 127
    at = ids()
    with torch.no_grad():
        logits, theirs = model(at).logits, load(tmp_path / "theirs")(at).logits
    # A sum that lies between two steps may round to either.
    assert (logits - theirs).abs().mean() < 0.02 * theirs.abs().mean()
    model.save_pretrained(tmp_path / "ours")
    assert torch.equal(load(tmp_path / "ours")(at).logits, logits)


def test_rows_that_do_not_fit_the_model_are_refused_by_name(tmp_path):
    checkpoint(tmp_path, tied=False, head=True)
    file = tmp_path / "model.safetensors"
    state = safetensors_torch.load_file(file)
    name = "model.layers.0.mlp.up_proj.weight"
    safetensors_torch.save_file({**state, name: state[name][:, :9].contiguous()}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"up_proj: 9 bytes are no row of K = 64 values of 2 or 4 bits"):
        load(tmp_path, quantization_config=aoext.AoextConfig.keep())
