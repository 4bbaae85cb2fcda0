"""Tiny mixtures of experts of transformers, with random weights: each kind of experts that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from aoext.models.experts import expert_weights
from aoext.reference import randn

VOCABULARY = 96
IDS = torch.arange(2 * 12).view(2, 12) * 7 % VOCABULARY

_COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
}


def _mixtral() -> Any:
    options = {"intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**_COMMON, **options))


def _qwen3() -> Any:
    options = {"head_dim": 16, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**_COMMON, **options))


def _deepseek() -> Any:
    ranks = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2}
    options = {"v_head_dim": 16, "topk_group": 1, "first_k_dense_replace": 1, "intermediate_size": 96}
    config = {**_COMMON, **ranks, **experts, **options, "num_key_value_heads": 4}
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**config))


def _gpt_oss() -> Any:
    """Interleaved, transposed and biased."""
    options = {"head_dim": 16, "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2}
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(**_COMMON, **options))


def _gemma4() -> Any:
    layers = {"head_dim": 16, "global_head_dim": 16, "intermediate_size": 96}
    experts = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
    inputs = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 32}
    config = transformers.Gemma4TextConfig(**_COMMON, **layers, **experts, **inputs)
    return transformers.Gemma4ForCausalLM(config)


def _nemotron() -> Any:
    """Without a gate."""
    layers = {"layers_block_type": ["moe", "attention"], "head_dim": 16, "intermediate_size": 64}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    others = {"moe_shared_expert_intermediate_size": 32, "mamba_num_heads": 4, "mamba_head_dim": 32}
    config = transformers.NemotronHConfig(**_COMMON, **layers, **experts, **others, n_groups=2)
    return transformers.NemotronHForCausalLM(config)


def _llama4() -> Any:
    """Transposed, in a forward of its own."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1}
    sizes = {"head_dim": 16, "intermediate_size": 32, "intermediate_size_mlp": 96}
    return transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**_COMMON, **sizes, **experts))


def _jetmoe() -> Any:
    """A parameter `weight`, taken expert by expert."""
    options = {"kv_channels": 16, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2}
    return transformers.JetMoeForCausalLM(transformers.JetMoeConfig(**_COMMON, **options))


MODELS: dict[str, Callable[[], Any]] = {
    "mixtral": _mixtral,
    "qwen3": _qwen3,
    "deepseek": _deepseek,
    "gpt_oss": _gpt_oss,
    "gemma4": _gemma4,
    "nemotron": _nemotron,
    "llama4": _llama4,
    "jetmoe": _jetmoe,
}


def build(name: str, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Any:
    """A model whose weights and biases of experts are random, as transformers loads it in `dtype`."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # not model.to, which rounds the frequencies of rotary embeddings
    try:
        model = MODELS[name]()
    finally:
        torch.set_default_dtype(default)
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() > 1 or parameter_name.endswith("_bias"):
            parameter.data.copy_(randn(generator, *parameter.shape) * 0.05)
    return model.eval()


def experts_module(name: str, generator: torch.Generator) -> Any:
    """The experts of the first layer that has some."""
    return next(module for module in build(name, generator).modules() if expert_weights(module))
