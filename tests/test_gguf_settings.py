"""What a GGUF file says of its model is applied, as transformers' own model with it shows, or refused."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy
import pytest
import torch

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from aoext.integrations.gguf.loading import load_gguf  # noqa: E402
from gguf_models import IDS, VOCABULARY, write  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
GEMMA = {"query_pre_attn_scalar": 16}


def rope(kind: str, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
}

# An architecture, keys of its file, and the settings of transformers' config that say the same.
APPLIED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "rope base": ("qwen2", {"rope.freq_base": 500.0}, rope("default", 500.0)),
    "linear rope": (
        "llama",
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        rope("linear", factor=4.0),
    ),
    "linear rope without a type": ("qwen3", {"rope.scaling.factor": 2.0}, rope("linear", factor=2.0)),
    "linear rope of old files": ("llama", {"rope.scale_linear": 2.0}, rope("linear", factor=2.0)),
    "yarn": ("qwen2", YARN_KEYS, rope("yarn", **YARN)),
    "yarn with all settings": (
        "llama",
        {
            **YARN_KEYS,
            "rope.scaling.yarn_beta_fast": 8.0,
            "rope.scaling.yarn_beta_slow": 0.5,
            "rope.scaling.attn_factor": 1.5,
        },
        rope("yarn", **YARN, beta_fast=8.0, beta_slow=0.5, attention_factor=1.5 * (0.1 * math.log(4) + 1)),
    ),
    "yarn with its own factor": (
        "qwen3",
        {**YARN_KEYS, "rope.scaling.yarn_attn_factor": 2.0},
        rope("yarn", **YARN, attention_factor=2.0),
    ),
    "head size": ("qwen2", {}, {"head_dim": 32}),
    "heads of keys": ("llama", {"attention.head_count_kv": [1, 1]}, {"num_key_value_heads": 1}),
    "epsilon": ("llama", {}, {"rms_norm_eps": 0.5}),
    "shared output": ("qwen3", {}, {"tie_word_embeddings": True}),
    "biases of attention": ("qwen3", {}, {"attention_bias": True}),
    "biases": ("llama", {}, {"attention_bias": True, "mlp_bias": True}),
    "caps": (
        "gemma2",
        {"attn_logit_softcapping": 0.25, "final_logit_softcapping": 0.5},
        {**GEMMA, "attn_logit_softcapping": 0.25, "final_logit_softcapping": 0.5},
    ),
    "window": ("gemma2", {"attention.sliding_window": 4}, {**GEMMA, "sliding_window": 4}),
    "pattern of windows": (
        "gemma3",
        {"attention.sliding_window": 4, "attention.sliding_window_pattern": [False, True]},
        {**GEMMA, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "two bases": (
        "gemma3",
        {
            "attention.sliding_window": 4,
            "attention.sliding_window_pattern": 2,
            "rope.freq_base": 5e5,
            "rope.freq_base_swa": 3e3,
            "rope.scaling.factor": 8.0,
            "final_logit_softcapping": 0.5,
        },
        {
            **GEMMA,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": GEMMA3_ROPE,
            "final_logit_softcapping": 0.5,
        },
    ),
    "scale of the largest gemma": (
        "gemma2",
        {},
        {"num_hidden_layers": 46, "query_pre_attn_scalar": 16, "head_dim": 8},
    ),
}


# Settings without which a model of the same shapes can be made, to show that they matter.
OF_RESULTS = (
    "rope_parameters",
    "rms_norm_eps",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "sliding_window",
    "layer_types",
    "query_pre_attn_scalar",
    "attention_bias",
    "mlp_bias",
)


def differs(result: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((result - wanted).norm() / wanted.norm())


@torch.no_grad()
@pytest.mark.parametrize("case", APPLIED)
def test_settings_are_applied(tmp_path, case):
    architecture, keys, settings = APPLIED[case]
    settings = {**SMALL, **settings}
    expected = write(tmp_path / "model.gguf", architecture, {}, keys=keys, **settings)
    wanted = expected(IDS).logits
    model = load_gguf(tmp_path / "model.gguf", dtype=torch.float32)
    assert differs(model(IDS).logits, wanted) <= 1e-5
    others = {name: value for name, value in settings.items() if name not in OF_RESULTS}
    if others != settings:
        config = type(expected.config)(vocab_size=VOCABULARY, tie_word_embeddings=False, **others)
        other = type(expected)(config).float().eval()
        other.load_state_dict(expected.state_dict(), strict=False)
        assert differs(other(IDS).logits, wanted) > 1e-3


def llama3_factors(factor: float, low: float, high: float, context: int) -> numpy.ndarray:
    """What llama.cpp's converter writes for Llama 3's scaling, after its formula."""
    frequencies = 10000.0 ** (-numpy.arange(0, SMALL["head_dim"], 2) / SMALL["head_dim"])
    lengths = 2 * math.pi / frequencies
    smooth = (context / lengths - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    return numpy.where(
        lengths < context / high, 1.0, numpy.where(lengths > context / low, factor, between)
    ).astype(numpy.float32)


@torch.no_grad()
@pytest.mark.parametrize("low", [1.0, 2.0])
def test_frequencies_of_llama_3_are_scaled(tmp_path, low):
    """Of Llama 3's own settings the config has their names, of others the factors."""
    own = {"factor": 8.0, "low_freq_factor": low, "high_freq_factor": 4.0}
    own["original_max_position_embeddings"] = 8192
    factors = {"rope_freqs.weight": llama3_factors(8.0, low, 4.0, 8192)}
    expected = write(tmp_path / "model.gguf", "llama", {}, factors, **{**SMALL, **rope("llama3", **own)})
    model = load_gguf(tmp_path / "model.gguf", dtype=torch.float32)
    far = torch.arange(10)[None] * 900
    wanted = expected(IDS, position_ids=far).logits
    assert differs(model(IDS, position_ids=far).logits, wanted) <= 1e-3
    inverse = model.model.rotary_emb.inv_freq
    torch.testing.assert_close(inverse, expected.model.rotary_emb.inv_freq, rtol=1e-5, atol=0)
    assert model.config.rope_parameters["rope_type"] == ("llama3" if low == 1 else "longrope")
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(IDS, position_ids=far).logits, model(IDS, position_ids=far).logits)


@torch.no_grad()
def test_biases_that_only_some_matrices_have(tmp_path):
    settings = {**SMALL, "attention_bias": True, "mlp_bias": True}
    left = ("attn_output.bias", "ffn_up.bias", "ffn_gate.bias")
    without = {f"blk.{i}.{name}": None for i in range(2) for name in left}
    expected = write(tmp_path / "model.gguf", "llama", {}, without, **settings)
    for layer in expected.model.layers:
        for module in (layer.self_attn.o_proj, layer.mlp.up_proj, layer.mlp.gate_proj):
            module.bias.zero_()
    model = load_gguf(tmp_path / "model.gguf", dtype=torch.float32)
    assert differs(model(IDS).logits, expected(IDS).logits) <= 1e-5
    write(tmp_path / "model.gguf", "llama", {}, {"blk.1.attn_q.bias": None}, **settings)
    with pytest.raises(ValueError, match=r"model\.gguf: has no blk\.1\.attn_q\.bias"):
        load_gguf(tmp_path / "model.gguf")


def test_special_tokens_are_the_files(tmp_path):
    ids = {"bos": 5, "eos": 7, "eot": 9, "eom": 7, "padding": -1}  # -1: none
    keys = {f"tokenizer.ggml.{name}_token_id": number for name, number in ids.items()}
    write(tmp_path / "model.gguf", "llama", {}, keys=keys, **SMALL)
    generation = load_gguf(tmp_path / "model.gguf").generation_config
    assert (generation.bos_token_id, generation.eos_token_id) == (5, [7, 9])
    assert generation.pad_token_id is None


# Values that llama.cpp's keys may have and that no model of transformers serves, or that are wrong.
REFUSED: dict[str, list[tuple[str, Any, str]]] = {
    "llama": [
        ("rope.scaling.type", "longrope", "must be none, linear or yarn, got 'longrope'"),
        ("rope.scaling.factor", math.nan, "a number that is not negative, got nan"),
        ("rope.scaling.attn_factor", 1.5, r"1 where rope\.scaling\.type is not yarn, got 1\.5"),
        ("rope.scaling.yarn_ext_factor", 0.5, "must be -1 or 0, got 0.5"),
        ("rope.freq_base", 0.0, "must be greater than 0"),
        ("rope.dimension_count", 8, "must be 16, got 8"),
        ("attention.value_length", 32, "must be 16, got 32"),
        ("attention.head_count_kv", [2, 4], "must be the same in all layers"),
        ("attention.head_count_kv", 3, "a divisor of attention.head_count, 4, got 3"),
        ("attention.head_count", 0, "must be greater than 0, got 0"),
        ("attention.sliding_window", 512, "must be 0 or 2048 and more, got 512"),
        ("attention.scale", 0.5, r"must be 1/sqrt\(16\), got 0\.5"),
        ("attention.causal", False, "must be True"),
        ("expert_shared_count", 1, "must be 0"),
        ("expert_count", 8, "must be 0"),
        ("logit_scale", 0.25, "must be 0 or 1"),
        ("final_logit_softcapping", 30.0, "must be 0"),
        ("vocab_size", 97, "must be 96, got 97"),
        ("tokenizer.ggml.eos_token_id", 96, "must be the number of one of 96 tokens, got 96"),
        ("tokenizer.ggml.tokens", ["a"], "must be as many as token_embd.weight has rows, 96, got 1"),
        ("general.type", "adapter", "must be 'model'"),
        ("general.quantization_version", 1, "must be 2"),
        ("split.count", 1001, "must be a number up to 1000, got 1001"),
    ],
    "gemma3": [
        ("rope.scaling.type", "yarn", "must be none or linear, got 'yarn'"),
        ("attn_logit_softcapping", 50.0, "must be 0, got 50.0"),
        ("attention.sliding_window_pattern", [1, 0, 1], "a number, or 2 of 0 and 1"),
    ],
    "gemma2": [("rope.freq_base_swa", 5.0, r"must be rope\.freq_base, 10000")],
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_settings_that_no_model_has_are_refused_by_name(tmp_path, architecture):
    settings = {**SMALL, **(GEMMA if architecture != "llama" else {})}
    for key, value, message in REFUSED[architecture]:
        write(tmp_path / "model.gguf", architecture, {}, keys={key: value}, **settings)
        name = key if key.startswith(("tokenizer", "general", "split")) else f"{architecture}.{key}"
        with pytest.raises(ValueError, match=rf"load_gguf: .*model\.gguf: {re.escape(name)} .*{message}"):
            load_gguf(tmp_path / "model.gguf")


# What may be in any file and changes no logits, or is held to the tensors' shapes by another test.
HARMLESS = {
    "attention.sliding_window_pattern",
    "context_length",
    "pooling_type",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
}
# Applied: see above.
NUMBERS = {"rope.scaling.factor", "rope.freq_base", "attention.layer_norm_rms_epsilon"}


@torch.no_grad()
def test_every_key_of_llama_cpp_changes_the_logits_or_is_refused_or_harmless(tmp_path):
    lists = (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope, gguf.Keys.Split)
    known = [key for keys in lists for name, key in vars(keys).items() if name.isupper()]
    keys = [key.removeprefix("{arch}.") for key in known if isinstance(key, str)]
    assert len(keys) > 90
    write(tmp_path / "model.gguf", "llama", {}, **SMALL)
    plain = load_gguf(tmp_path / "model.gguf", dtype=torch.float32)
    state = plain.state_dict()
    for key in keys:
        torch.manual_seed(1)
        write(tmp_path / "model.gguf", "llama", {}, keys={key: 3.0 if key in NUMBERS else 3}, **SMALL)
        refused = ""
        try:
            model = load_gguf(tmp_path / "model.gguf", dtype=torch.float32)
        except ValueError as error:
            refused = str(error)
        if refused:
            assert "model.gguf" in refused, key
            assert key in refused or (key == "feed_forward_length" and "ffn_" in refused), key
        elif key in NUMBERS:
            model.load_state_dict(state)
            assert differs(model(IDS).logits, plain(IDS).logits) > 1e-4, key
        else:
            assert key in HARMLESS or key.startswith("split."), key
