"""GGUF files of the architectures that transformers reads by conversions: Qwen 3.5 and LFM2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from torch import Tensor

from gguf_models import random_blocks, type_of

H, V, L = 256, 96, 4
KEY_HEADS, PER_KEY, HEAD = 2, 2, 64  # of linear attention: heads of values for one of keys
VALUES = KEY_HEADS * PER_KEY * HEAD

COMMON = {
    "hidden_size": H,
    "num_hidden_layers": L,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": V,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "intermediate_size": 512,
}
QWEN = {
    **COMMON,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": HEAD,
    "linear_value_head_dim": HEAD,
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": KEY_HEADS * PER_KEY,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
        "partial_rotary_factor": 0.25,
    },
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
LFM2 = {
    **COMMON,
    "norm_eps": 1e-5,
    "block_auto_adjust_ff_dim": False,
    "conv_L_cache": 3,
    "conv_bias": False,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}
BASIC_KEYS = {
    "block_count": L,
    "context_length": 128,
    "embedding_length": H,
    "feed_forward_length": 512,
    "attention.head_count": 4,
}
QWEN_KEYS = {
    **BASIC_KEYS,
    "attention.head_count_kv": 2,
    "attention.key_length": 64,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "full_attention_interval": 4,
    "rope.dimension_count": 16,
    "rope.dimension_sections": [3, 3, 2, 0],
    "rope.freq_base": 10000.0,
    "ssm.conv_kernel": 4,
    "ssm.group_count": KEY_HEADS,
    "ssm.inner_size": VALUES,
    "ssm.state_size": HEAD,
    "ssm.time_step_rank": KEY_HEADS * PER_KEY,
}
EXPERT_KEYS = {
    "expert_count": 4,
    "expert_feed_forward_length": 256,
    "expert_shared_feed_forward_length": 256,
    "expert_used_count": 2,
}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen35": ("Qwen3_5", QWEN, QWEN_KEYS),
    "qwen35moe": ("Qwen3_5Moe", {**QWEN, **EXPERTS}, {**QWEN_KEYS, **EXPERT_KEYS}),
    "lfm2": (
        "Lfm2",
        LFM2,
        {
            **BASIC_KEYS,
            "attention.head_count_kv": [0, 2, 0, 2],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 5000.0,
            "shortconv.l_cache": 3,
        },
    ),
}

# Leaves of parameters, and the file's names of them.
_LEAVES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
}
_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",
}


def tiled(tensor: Tensor, size: int, dim: int = 0) -> Tensor:
    """Heads of values as files have them: the first of each head of keys, then the second ones."""
    parts = tensor.unflatten(dim, (KEY_HEADS, PER_KEY, size))
    return parts.transpose(dim, dim + 1).flatten(dim, dim + 2)


def grouped(tensor: Tensor, size: int, dim: int = 0) -> Tensor:
    parts = tensor.unflatten(dim, (PER_KEY, KEY_HEADS, size))
    return parts.transpose(dim, dim + 1).flatten(dim, dim + 2)


def reordered(name: str, tensor: Tensor, change: Any) -> Tensor:
    """A tensor of linear attention with its heads of values in another order."""
    leaf = name.partition("linear_attn.")[2].removesuffix(".weight")
    if leaf in ("in_proj_qkv", "conv1d"):
        keys = 2 * KEY_HEADS * HEAD
        return torch.cat([tensor[:keys], change(tensor[keys:], HEAD)])
    if leaf == "out_proj":
        return change(tensor, HEAD, 1)
    size = {"in_proj_z": HEAD, "in_proj_a": 1, "in_proj_b": 1, "A_log": 1, "dt_bias": 1}.get(leaf)
    return tensor if size is None else change(tensor, size)


def write_hybrid(path: Path, architecture: str, kind: str) -> Any:
    """Writes a model whose matrices are of a format; returns transformers' model of the file's values."""
    name, settings, keys = MODELS[architecture]
    text = "Text" if name.startswith("Qwen") else ""
    config = getattr(transformers, f"{name}{text}Config")(**settings)
    config._experts_implementation = "eager"
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        writer.add_key_value(f"{architecture}.{key}", value, gguf.GGUFValueType.get_type(value))
    for key, token in (("bos", 1), ("eos", 2), ("padding", 0)):
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", token)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(V)])
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight":
            continue
        if tensor.dim() == 1:
            tensor.copy_(torch.rand_like(tensor) + 0.5 if "A_log" in key else torch.randn_like(tensor) * 0.2)
        for part, values in _parts(key, tensor):
            if _is_matrix(key, values):
                raw = random_blocks(kind, values.shape[:-1].numel(), values.shape[-1])
                stored = torch.from_numpy(gguf.quants.dequantize(raw, type_of(kind)).copy())
                values.copy_(reordered(key, stored.view(values.shape), grouped))
                raw = raw.reshape(*values.shape[:-1], -1)
                writer.add_tensor(part, raw, raw_dtype=type_of(kind))
            else:
                writer.add_tensor(part, _as_file(key, values, architecture).float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _is_matrix(key: str, values: Tensor) -> bool:
    small = ("mlp.gate.", "shared_expert_gate", "in_proj_a", "in_proj_b", "conv1d", "conv.conv")
    return values.dim() > 1 and not any(part in key for part in small)


def _parts(key: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """The file's names of a parameter, and views of what they are of it."""
    if key in _WHOLE:
        return [(_WHOLE[key], tensor)]
    layer, leaf = key.removeprefix("model.layers.").split(".", 1)
    if leaf == "mlp.experts.gate_up_proj":
        gate, up = tensor.chunk(2, 1)
        return [(f"blk.{layer}.ffn_gate_exps.weight", gate), (f"blk.{layer}.ffn_up_exps.weight", up)]
    if leaf == "mlp.experts.down_proj":
        return [(f"blk.{layer}.ffn_down_exps.weight", tensor)]
    if leaf == "linear_attn.A_log":
        return [(f"blk.{layer}.ssm_a", tensor)]
    if leaf == "linear_attn.dt_bias":
        return [(f"blk.{layer}.ssm_dt.bias", tensor)]
    stem, _, last = leaf.rpartition(".")
    return [(f"blk.{layer}.{_LEAVES[stem]}.{last}", tensor)]


def _as_file(key: str, values: Tensor, architecture: str) -> Tensor:
    """Plain values as llama.cpp writes them."""
    values = reordered(key, values, tiled)
    if key.endswith("A_log"):
        return -values.exp()
    if values.dim() == 3 and values.shape[1] == 1:
        return values.squeeze(1)
    if "shared_expert_gate" in key:
        return values.squeeze(0)
    is_offset = architecture.startswith("qwen") and "norm" in key and "linear_attn" not in key
    return values + 1 if is_offset else values
