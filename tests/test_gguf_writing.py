"""`aoext convert --format gguf`: what is written is what transformers and load_gguf read."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import aoext
from aoext.cli.commands import cli
from aoext.tensors import GGUF_TYPES, QuantizedTensor

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from aoext.checkpoints import gguf_quantize  # noqa: E402

H, V = 256, 96
IDS = torch.arange(4, 14)[None]
BITS = {"Q4_0": 4.5, "Q4_K": 4.5, "Q8_0": 8.5}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


SIZES = {
    "hidden_size": H,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": V,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 256}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {"rope_parameters": LLAMA3, "tie_word_embeddings": True},
    "Mistral": {"sliding_window": None},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2": {"rope_parameters": YARN},
    "Qwen3": {"attention_bias": True},
    "Qwen3Moe": {"num_experts": 4, "norm_topk_prob": True, **MOE},
    "Gemma2": {"query_pre_attn_scalar": 64, "sliding_window": 4},
    "Gemma3": {"query_pre_attn_scalar": 64, "sliding_window": 4},
}


def folder_of(path: Path, name: str, **settings: Any) -> Any:
    """A model of random weights, with a byte-level tokenizer beside it."""
    text = "Text" if name == "Gemma3" else ""
    config = getattr(transformers, f"{name}{text}Config")(**{**SIZES, **MODELS[name], **settings})
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    for key, tensor in model.state_dict().items():
        if tensor.dim() == 1 or "experts" in key:
            tensor.add_(torch.randn_like(tensor) * 0.1)
    model.save_pretrained(path)
    letters = ["<pad>", "<s>", "</s>", *"abcdefgh", "\u0120", "ab", "cd", "abcd", "\u0120ab"]
    merges = [("a", "b"), ("c", "d"), ("ab", "cd"), ("\u0120", "ab")]
    bpe = tokenizers.models.BPE({token: i for i, token in enumerate(letters)}, merges)
    backend = tokenizers.Tokenizer(bpe)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(path)
    return model


def convert(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, ["convert", *map(str, arguments)])


def differs(result: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((result - wanted).norm() / wanted.norm())


@torch.no_grad()
@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("name", MODELS)
def test_models(tmp_path, name, kind):
    model = folder_of(tmp_path / "plain", name)
    done = convert(tmp_path / "plain", tmp_path / "out" / "model.gguf", "--format", "gguf", "--scheme", kind)
    assert done.exit_code == 0, done.output
    ours = aoext.load_gguf(tmp_path / "out" / "model.gguf", dtype=torch.float32)
    most = 0.1 if kind != "Q8_0" else 0.01
    for key, weight in ours.named_parameters():
        wanted = model.get_parameter(key)
        if not isinstance(weight, QuantizedTensor):
            assert (weight - wanted).abs().max() <= 2e-7  # as norms of Gemma, which the file has plus one
            continue
        is_head = key == "lm_head.weight" or model.get_parameter("lm_head.weight") is wanted
        assert type(weight) is GGUF_TYPES["Q8_0" if is_head else kind]
        assert differs(weight.dequantize(), wanted) <= most
        wanted.copy_(weight.dequantize())
    assert differs(ours(IDS).logits, model(IDS).logits) <= 1e-3
    if name == "Mistral":  # of the others transformers reads less than the file says
        theirs = type(model).from_pretrained(tmp_path / "out", gguf_file="model.gguf", dtype=torch.float32)
        assert differs(theirs(IDS).logits, model(IDS).logits) <= 1e-5
    if importlib.util.find_spec("transformers.integrations.gguf") is None:
        assert "no tokenizer: ModuleNotFoundError" in done.output
        return
    assert "no tokenizer" not in done.output
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "plain")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", gguf_file="model.gguf")
    for text in ("abcd abc", "hg ab"):
        assert read(text).input_ids == tokenizer(text).input_ids
    assert read.chat_template == tokenizer.chat_template


@torch.no_grad()
def test_a_checkpoint_in_blocks_keeps_its_bytes(tmp_path):
    folder_of(tmp_path / "plain", "Llama")
    convert(tmp_path / "plain", tmp_path / "one.gguf", "--format", "gguf", "--scheme", "Q4_K")
    assert convert(tmp_path / "one.gguf", tmp_path / "blocks", "--dtype", "float32").exit_code == 0
    done = convert(tmp_path / "blocks", tmp_path / "two.gguf", "--format", "gguf")
    assert done.exit_code == 0, done.output
    one, two = (
        {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors}
        for name in ("one", "two")
    )
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert tensor.tensor_type == two[name].tensor_type
        assert (tensor.data == two[name].data).all()


@pytest.mark.parametrize("kind", BITS)
def test_rounding(kind):
    """As near as the format allows, and no worse than rounding between the ends of each group."""
    weight = torch.randn(64, 1024) * torch.rand(64, 1).exp()
    raw, kind_of = gguf_quantize.quantized(weight, kind)
    assert raw.nbytes * 8 == BITS[kind] * weight.numel()
    back = torch.from_numpy(gguf.quants.dequantize(raw, kind_of))
    groups = weight.view(64, -1, 32)
    low, high = groups.aminmax(dim=-1, keepdim=True)
    step = (high - low) / (255 if kind == "Q8_0" else 15)
    plain = ((groups - low) / step).round() * step + low
    assert differs(back, weight) <= (1.1 if kind == "Q4_K" else 1.3) * differs(plain.view_as(weight), weight)


def test_weights_that_are_all_the_same():
    for value in (0.0, 1.0, -2.0):
        raw, kind = gguf_quantize.quantized(torch.full((2, 256), value), "Q4_K")
        back = torch.from_numpy(gguf.quants.dequantize(raw, kind))
        assert (back - value).abs().max() <= 0.02 * abs(value)
    with pytest.raises(ValueError, match="Q4_K takes finite values"):
        gguf_quantize.quantized(torch.full((2, 256), torch.nan), "Q4_K")


def test_what_a_file_cannot_say(tmp_path):
    folder_of(tmp_path / "plain", "Mistral", sliding_window=8)
    out = tmp_path / "model.gguf"
    for arguments, message in (
        (("--format", "gguf", "--scheme", "int4"), "--format gguf has --scheme Q4_0, Q4_K, Q8_0, got int4"),
        (("--scheme", "Q4_0"), "--scheme Q4_0 is for --format gguf"),
        (("--format", "gguf", "--scheme", "Q4_0"), "a GGUF file of llama has no window"),
    ):
        done = convert(tmp_path / "plain", out, *arguments)
        assert done.exit_code != 0
        assert message in done.output
        assert not out.exists()
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    folder_of(tmp_path / "gemma", "Gemma2", query_pre_attn_scalar=17)
    done = convert(tmp_path / "gemma", out, "--format", "gguf", "--scheme", "Q8_0")
    assert "cannot say query_pre_attn_scalar = 17" in done.output
    (tmp_path / "plain" / "config.json").write_text(json.dumps({**config, "model_type": "opt"}))
    assert convert(tmp_path / "plain", out, "--format", "gguf", "--scheme", "Q8_0").exit_code != 0
    assert not out.exists()
