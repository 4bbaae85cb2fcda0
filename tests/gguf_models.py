"""GGUF files of small models, written by the format's own package, and the same models in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
import transformers
from torch import Tensor

from aoext.checkpoints import gguf as blocks

HIDDEN, INNER, VOCABULARY, HEADS, KV_HEADS = 256, 512, 96, 4, 2
IDS = torch.arange(10)[None]


def random_blocks(kind: str, rows: int, columns: int) -> numpy.ndarray:
    """Blocks with random bits, but small finite scales."""
    form = blocks.FORMATS.get(kind) or blocks.BlockFormat(*gguf.GGML_QUANT_SIZES[type_of(kind)], (0,))
    raw = torch.randint(256, (rows, columns // form.values, form.bytes), dtype=torch.uint8)
    small = 0.01 if kind in ("Q4_0", "Q4_1", "Q5_1", "TQ1_0", "TQ2_0") else 0.001
    small = 0.0001 if kind == "IQ3_S" else small
    for at in form.halves:
        scale = (torch.rand(*raw.shape[:2], 1) * small).half()
        raw[..., at : at + 2] = scale.view(torch.uint8)
    if kind == "MXFP4":
        raw[..., 0] = torch.randint(110, 122, raw.shape[:2], dtype=torch.uint8)
    if kind == "NVFP4":
        raw[..., :4] = torch.randint(0x10, 0x30, (*raw.shape[:2], 4), dtype=torch.uint8)
    if kind == "TQ2_0":  # codes of 0, 1 and 2
        codes = torch.randint(3, (*raw.shape[:2], 64, 4), dtype=torch.uint8)
        raw[..., :64] = (codes << torch.tensor([0, 2, 4, 6], dtype=torch.uint8)).sum(-1, dtype=torch.uint8)
    return raw.flatten(1).numpy()


def type_of(kind: str) -> Any:
    return gguf.GGMLQuantizationType[kind]


def in_pairs(weight: Tensor, heads: int) -> Tensor:
    """Rows as the file has them, for rotations of neighbours."""
    return weight.view(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


KINDS_OF_MODELS = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma2": "Gemma2",
    "gemma3": "Gemma3Text",
}

MIXTURES = {"qwen3moe": "Qwen3Moe", "mixtral": "Mixtral"}
EXPERTS, CHOSEN, WIDTH = 4, 2, 256


def write(
    path: Path,
    architecture: str,
    kinds: dict[str, str],
    further: dict[str, numpy.ndarray] | None = None,
    keys: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Writes a model, of one layer if not asked for more; returns transformers' model of the file's values.

    kinds: the formats of matrices; float32 for those that are not named. further: more tensors, or others in
    place of the model's. keys: more metadata, without the architecture's name. settings: of the config
    """
    gemma, kind = architecture.startswith("gemma"), (KINDS_OF_MODELS | MIXTURES)[architecture]
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    both = {"full_attention": rope, "sliding_attention": rope}
    defaults = {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": gemma,
        **({"query_pre_attn_scalar": HIDDEN // HEADS} if gemma else {}),
        **({"rope_parameters": both} if kind == "Gemma3Text" else {}),
    }
    if architecture in MIXTURES:
        experts = {"num_experts": EXPERTS, "num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN}
        defaults |= experts | {
            "rope_parameters": rope,
            "moe_intermediate_size": WIDTH,
            "norm_topk_prob": True,
        }
        keys = {"expert_count": EXPERTS, "expert_used_count": CHOSEN, **(keys or {})}
        if architecture == "qwen3moe":
            keys["expert_feed_forward_length"] = WIDTH
    config = getattr(transformers, f"{kind}Config")(**{**defaults, **settings})
    model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).float().eval()
    is_turned = architecture in ("llama", "mixtral")
    architecture = {"mixtral": "llama"}.get(architecture, architecture)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    for key, value in (keys or {}).items():
        name = key if "tokenizer." in key or "general." in key or "split." in key else f"{architecture}.{key}"
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, module in modules(model, architecture).items():
        for leaf, parameter in module.named_parameters():
            value = parameter.data
            turned = heads.get(name.rpartition(".")[2]) if is_turned else None
            if name in kinds and leaf == "weight":
                made = kinds[name]
                raw = random_blocks(made, *value.shape)
                stored = torch.from_numpy(gguf.quants.dequantize(raw, type_of(made)).copy())
                if turned:  # the other way round
                    stored = stored.view(turned, -1, 2, value.shape[1]).transpose(1, 2).reshape(value.shape)
                parameter.data = stored
                writer.add_tensor(f"{name}.{leaf}", raw, raw_dtype=type_of(made))
                continue
            if leaf == "bias":
                parameter.data = value = torch.randn_like(value)
            if gemma and "norm" in name:
                parameter.data = value = torch.randn_like(value) * 0.1
                value = value + 1
            if turned:
                value = in_pairs(value, turned)
            if f"{name}.{leaf}" not in (further or {}):
                writer.add_tensor(f"{name}.{leaf}", value.numpy())
    for i, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "experts"):
            add_experts(writer, f"blk.{i}", layer.mlp.experts, kinds)
    for name, tensor in (further or {}).items():
        if tensor is not None:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def add_experts(writer: Any, path: str, experts: Any, kinds: dict[str, str]) -> None:
    """Writes the experts of a layer, and gives them the file's values."""
    gate, up = experts.gate_up_proj.data.chunk(2, 1)
    for part, values in (("gate", gate), ("up", up), ("down", experts.down_proj.data)):
        name = f"{path}.ffn_{part}_exps"
        values.copy_(torch.randn_like(values) * 0.05)
        if name not in kinds:
            writer.add_tensor(f"{name}.weight", values.contiguous().numpy())
            continue
        E, N, K = values.shape
        raw = random_blocks(kinds[name], E * N, K)
        values.copy_(torch.from_numpy(gguf.quants.dequantize(raw, type_of(kinds[name]))).view(E, N, K))
        writer.add_tensor(f"{name}.weight", raw.reshape(E, N, -1), raw_dtype=type_of(kinds[name]))


def modules(model: Any, architecture: str) -> dict[str, Any]:
    """Modules with parameters by llama.cpp's names."""
    found = {"token_embd": model.model.embed_tokens, "output_norm": model.model.norm}
    if not model.config.tie_word_embeddings:
        found["output"] = model.lm_head
    gemma = architecture.startswith("gemma")
    for i, layer in enumerate(model.model.layers):
        found |= {
            f"blk.{i}.attn_norm": layer.input_layernorm,
            **{f"blk.{i}.attn_{part}": getattr(layer.self_attn, f"{part}_proj") for part in "qkv"},
            f"blk.{i}.attn_output": layer.self_attn.o_proj,
            f"blk.{i}.ffn_norm": layer.pre_feedforward_layernorm if gemma else layer.post_attention_layernorm,
        }
        if hasattr(layer.mlp, "experts"):
            found[f"blk.{i}.ffn_gate_inp"] = layer.mlp.gate
        else:
            for part in ("gate", "up", "down"):
                found[f"blk.{i}.ffn_{part}"] = getattr(layer.mlp, f"{part}_proj")
        if gemma:
            found[f"blk.{i}.post_attention_norm"] = layer.post_attention_layernorm
            found[f"blk.{i}.post_ffw_norm"] = layer.post_feedforward_layernorm
        if architecture in ("qwen3", "qwen3moe", "gemma3"):
            found[f"blk.{i}.attn_q_norm"] = layer.self_attn.q_norm
            found[f"blk.{i}.attn_k_norm"] = layer.self_attn.k_norm
    return found


ALL = {
    f"blk.0.{name}": "Q4_0" for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up")
}
