"""Every architecture of transformers' GGUF reader, against its own reading of the same file and the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aoext.tensors import QuantizedTensor

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.integrations.gguf")

from aoext.integrations.gguf.loading import load_gguf  # noqa: E402
from aoext.integrations.gguf.names import architectures, places_of  # noqa: E402
from aoext.integrations.gguf.tensors import add_tensors  # noqa: E402

H, F, L, HEADS, KV, V = 64, 96, 2, 4, 2, 96
IDS = torch.arange(3, 13)[None]

SIZES = {
    "hidden_size": H,
    "intermediate_size": F,
    "num_hidden_layers": L,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "vocab_size": V,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KEYS = {
    "block_count": L,
    "context_length": 128,
    "embedding_length": H,
    "feed_forward_length": F,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "vocab_size": V,
}
LAYER_NORM = {"attention.layer_norm_epsilon": 1e-5}
WIDE = {"feed_forward_length": 4 * H}
EPS = {"rms_norm_eps": 1e-5}
ROPE = {"rope.freq_base": 5000.0}
T5 = {"d_model": H, "num_layers": L, "d_ff": F, "num_heads": HEADS, "d_kv": 16, "vocab_size": V}
T5_KEYS = {
    **LAYER_NORM,
    "attention.key_length": 16,
    "attention.relative_buckets_count": 32,
    "decoder_start_token_id": 0,
}


def rope(theta: float = 5000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


MLA = {
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


# The architecture, transformers' model, its settings beside SIZES, the file's keys beside KEYS, and whether
# transformers' own reading of the file is right.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], bool]] = {
    "llama": (
        "llama",
        "Llama",
        {**EPS, **rope(), "head_dim": 16},
        {**ROPE, "rope.dimension_count": 16},
        True,
    ),
    "mixtral": (
        "llama",
        "Mixtral",
        {**EPS, **rope(), "num_local_experts": 4, "num_experts_per_tok": 2},
        {**ROPE, "expert_count": 4, "expert_used_count": 2},
        False,
    ),
    "qwen2": ("qwen2", "Qwen2", {**EPS, **rope()}, ROPE, True),
    "qwen2moe": (
        "qwen2moe",
        "Qwen2Moe",
        {
            **EPS,
            **rope(),
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
        },
        {
            **ROPE,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
            "expert_shared_feed_forward_length": 64,
        },
        False,
    ),
    "qwen3": (
        "qwen3",
        "Qwen3",
        {**EPS, **rope(), "head_dim": 32},
        {**ROPE, "attention.key_length": 32},
        False,
    ),
    "qwen3moe": (
        "qwen3moe",
        "Qwen3Moe",
        {
            **EPS,
            **rope(),
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
        {
            **ROPE,
            "attention.key_length": 32,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
        },
        False,
    ),
    "gpt-oss": (
        "gpt-oss",
        "GptOss",
        {**EPS, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 64, "sliding_window": 4},
        {
            "rope.freq_base": 150000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
            "attention.key_length": 64,
            "attention.sliding_window": 4,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": F,
        },
        False,
    ),
    "falcon": (
        "falcon",
        "Falcon",
        {"ffn_hidden_size": 4 * H},
        {**LAYER_NORM, **WIDE, "attention.head_count_kv": 1},
        True,
    ),
    "falcon with groups": (
        "falcon",
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": KV, "ffn_hidden_size": 4 * H},
        {**LAYER_NORM, **WIDE},
        False,
    ),
    "phi3": ("phi3", "Phi3", {**EPS, **rope()}, ROPE, True),
    "bloom": ("bloom", "Bloom", {"n_layer": L, "n_head": HEADS}, LAYER_NORM, True),
    "stablelm": (
        "stablelm",
        "StableLm",
        {"layer_norm_eps": 1e-5, **rope(10000.0, partial_rotary_factor=0.5), "use_qkv_bias": True},
        {**LAYER_NORM, "rope.dimension_count": 8, "use_parallel_residual": False},
        False,
    ),
    "gpt2": (
        "gpt2",
        "GPT2",
        {"n_layer": L, "n_head": HEADS, "n_embd": H, "n_positions": 128},
        {**LAYER_NORM, **WIDE},
        False,
    ),
    "starcoder2": (
        "starcoder2",
        "Starcoder2",
        {**rope(), "norm_epsilon": 1e-5},
        {**ROPE, **LAYER_NORM},
        False,
    ),
    "mamba": (
        "mamba",
        "Mamba",
        {
            "state_size": 8,
            "expand": 2,
            "time_step_rank": 4,
            "layer_norm_epsilon": 1e-5,
            "intermediate_size": 2 * H,
        },
        {"ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.time_step_rank": 4, "ssm.inner_size": 2 * H},
        True,
    ),
    "nemotron": (
        "nemotron",
        "Nemotron",
        {"norm_eps": 1e-5, **rope(partial_rotary_factor=0.5), "head_dim": 16},
        {**ROPE, "rope.dimension_count": 8},
        True,
    ),
    "gemma2": (
        "gemma2",
        "Gemma2",
        {**EPS, **rope(), "head_dim": 16, "query_pre_attn_scalar": 16, "tie_word_embeddings": True},
        {**ROPE, "attention.key_length": 16},
        False,
    ),
    "gemma3": (
        "gemma3",
        "Gemma3",
        {**EPS, "head_dim": 16, "query_pre_attn_scalar": 16, "tie_word_embeddings": True},
        {"rope.freq_base": 1e6, "attention.key_length": 16, "attention.sliding_window": 4096},
        False,
    ),
    "gemma4": (
        "gemma4",
        "Gemma4",
        {
            **EPS,
            "head_dim": 16,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": V,
            "sliding_window": 4,
            "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "full_attention"],
            "tie_word_embeddings": True,
        },
        {
            "attention.key_length": 32,
            "attention.key_length_swa": 16,
            "attention.sliding_window": 4,
            "attention.sliding_window_pattern": [True, False],
            "embedding_length_per_layer_input": 8,
            "final_logit_softcapping": 30.0,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
        },
        False,
    ),
    "minimax-m2": (
        "minimax-m2",
        "MiniMaxM2",
        {
            **EPS,
            **rope(partial_rotary_factor=0.5),
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
        {
            **ROPE,
            "rope.dimension_count": 8,
            "attention.key_length": 16,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": F,
            "expert_gating_func": 2,
        },
        True,
    ),
    "deepseek2": (
        "deepseek2",
        "DeepseekV3",
        {
            **EPS,
            **rope(),
            **MLA,
            "head_dim": 8,
            "num_key_value_heads": HEADS,
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.5,
            "n_group": 2,
            "topk_group": 1,
        },
        {
            **ROPE,
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": 32,
            "attention.key_length_mla": 24,
            "attention.q_lora_rank": 32,
            "attention.value_length_mla": 16,
            "rope.dimension_count": 8,
            "leading_dense_block_count": 1,
            "expert_count": 4,
            "expert_feed_forward_length": 32,
            "expert_group_count": 2,
            "expert_group_used_count": 1,
            "expert_shared_count": 1,
            "expert_used_count": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
        },
        False,
    ),
    "t5": ("t5", "T5", {**T5, "feed_forward_proj": "gated-gelu"}, T5_KEYS, False),
    "t5 without gates": ("t5", "T5", {**T5, "feed_forward_proj": "relu"}, T5_KEYS, False),
    "t5encoder": ("t5encoder", "T5Encoder", {**T5, "feed_forward_proj": "gated-gelu"}, T5_KEYS, False),
}


def build(name: str, settings: dict[str, Any]) -> Any:
    """A model of random weights; norms and biases, too."""
    if name.startswith("T5"):
        config = transformers.T5Config(**{"tie_word_embeddings": False, **settings})
        kind = transformers.T5EncoderModel if name == "T5Encoder" else transformers.T5ForConditionalGeneration
    else:
        text = "Text" if name.startswith(("Gemma3", "Gemma4", "Qwen3_5")) else ""
        config = getattr(transformers, f"{name}{text}Config")(**{**SIZES, **settings})
        head = {"GPT2": "LMHeadModel"}.get(name, "ForCausalLM")
        kind = getattr(transformers, f"{name}{head}")
    config._experts_implementation = "eager"
    model = kind(config).float().eval()
    if name == "T5":  # whose files have an output layer of its own
        model.lm_head.weight = torch.nn.Parameter(torch.randn(V, H) * 0.1)
    for key, tensor in model.state_dict().items():
        if tensor.dim() < 2 or "experts" in key or "bias" in key:
            tensor.add_(torch.randn_like(tensor) * 0.1)
    return model


def write(path: Path, architecture: str, model: Any, keys: dict[str, Any], kind: str) -> dict[str, str]:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**KEYS, **keys}.items():
        writer.add_key_value(f"{architecture}.{key}", value, gguf.GGUFValueType.get_type(value))
    for name, token in (("bos", 1), ("eos", 2), ("padding", 0)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(V)])
    formats = add_tensors(
        writer, model, places_of(architecture, model), lambda key, is_weight: kind if is_weight else "F32"
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return formats


@torch.no_grad()
def outputs(model: Any) -> torch.Tensor:
    if type(model).__name__ == "T5EncoderModel":
        return model(IDS).last_hidden_state
    if model.config.is_encoder_decoder:
        return model(input_ids=IDS, decoder_input_ids=IDS + 5).logits
    return model(IDS).logits


def differs(result: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((result - wanted).norm() / wanted.norm())


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def test_every_architecture_of_transformers_has_a_case():
    by_conversions = {"qwen35", "qwen35moe", "lfm2"}
    assert {case[0] for case in CASES.values()} == set(architectures()) - by_conversions


@pytest.mark.parametrize("case", CASES)
def test_models(tmp_path, case):
    architecture, name, settings, keys, readable = CASES[case]
    model = build(name, settings)
    write(tmp_path / "plain.gguf", architecture, model, keys, "F32")
    wanted = outputs(model)
    plain = load_gguf(tmp_path / "plain.gguf", dtype=torch.float32)
    assert type(plain) is type(model)
    assert differs(outputs(plain), wanted) <= 1e-5
    if readable:
        own = type(model).from_pretrained(tmp_path, gguf_file="plain.gguf", dtype=torch.float32)
        assert differs(outputs(own), wanted) <= 1e-5

    formats = write(tmp_path / "blocks.gguf", architecture, model, keys, "Q8_0")
    blocks = load_gguf(tmp_path / "blocks.gguf", dtype=torch.float32)
    quantised = [key for key, p in blocks.named_parameters() if isinstance(p, QuantizedTensor)]
    assert len(quantised) >= L
    for key, parameter in blocks.named_parameters():
        if key in quantised:
            plain_one = model.get_parameter(key)
            assert differs(parameter.dequantize(), plain_one) <= 0.02
            plain_one.data = parameter.dequantize().contiguous()
    assert sum(kind == "Q8_0" for kind in formats.values()) >= len(quantised)
    assert differs(outputs(blocks), outputs(model)) <= 1e-3
    blocks.save_pretrained(tmp_path / "saved")
    again = type(blocks).from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert torch.equal(outputs(again), outputs(blocks))
