"""DeepSeek V2 and V3, and models of their form, which transformers has and its GGUF reader does not know."""

from __future__ import annotations

import re
from typing import Any

from aoext.checkpoints.gguf_file import GGUF

ARCHITECTURE = "deepseek2"

# Keys, and what they are in transformers' config.
SETTINGS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.value_length_mla": "v_head_dim",
    "expert_count": "n_routed_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_shared_count": "n_shared_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_weights_scale": "routed_scaling_factor",
    "leading_dense_block_count": "first_k_dense_replace",
    "rope.dimension_count": "qk_rope_head_dim",
}
# Keys that settings_of reads, or that the tensors' shapes say again.
READ_BESIDE = {
    "attention.key_length",
    "attention.key_length_mla",
    "attention.q_lora_rank",
    "expert_weights_norm",
    "rope.scaling.yarn_log_multiplier",
    "vocab_size",
}
_HALVES = re.compile(r"blk\.(\d+)\.attn_(k|v)_b\.weight")


def model_type(file: GGUF) -> str:
    """V3 has biases of experts, by which it chooses them."""
    return "deepseek_v3" if any("exp_probs_b" in name for name in file.tensors) else "deepseek_v2"


def settings_of(keys: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """What follows of several keys, and positions."""
    rotated, heads = settings["qk_rope_head_dim"], settings["num_attention_heads"]
    found: dict[str, Any] = {
        "num_key_value_heads": heads,
        "q_lora_rank": keys.get("attention.q_lora_rank"),
        "qk_nope_head_dim": keys["attention.key_length_mla"] - rotated,
        "norm_topk_prob": bool(keys.get("expert_weights_norm", False)),
    }
    groups = settings.get("n_group") or 1
    found["topk_method"] = "group_limited_greedy" if groups > 1 else "greedy"
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base", 10000.0)}
    if keys.get("rope.scaling.type") == "yarn":
        scale = keys.get("rope.scaling.yarn_log_multiplier", 0.0) / 0.1
        rope |= {
            "rope_type": "yarn",
            "factor": keys["rope.scaling.factor"],
            "original_max_position_embeddings": keys["rope.scaling.original_context_length"],
            "beta_fast": keys.get("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.get("rope.scaling.yarn_beta_slow", 1.0),
            **({"mscale": scale, "mscale_all_dim": scale} if scale else {}),
        }
    return {**found, "rope_parameters": rope}


def half_of(key: str, config: Any) -> tuple[str, int, list[int]] | None:
    """The parameter of keys and values that a tensor of one of these is a part of, as which part, and its
    shape in the file: keys are turned.
    """
    match = _HALVES.fullmatch(key)
    if match is None:
        return None
    heads, rank = config.num_attention_heads, config.kv_lora_rank
    parameter = f"model.layers.{match[1]}.self_attn.kv_b_proj.weight"
    if match[2] == "k":
        return parameter, 0, [heads, rank, config.qk_nope_head_dim]
    return parameter, 1, [heads, config.v_head_dim, rank]
