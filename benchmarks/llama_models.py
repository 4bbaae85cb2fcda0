"""transformers' Llama and Qwen3-MoE with random weights, quantised by a scheme, and their decoding."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    StaticCache,
)

from schemes import Scheme

# Sizes by name: of Llama, or with experts of Qwen3-MoE. "small" and "experts-small" are what the CPU figures
# are of; "tiny" and "experts-tiny" are for tests.
_8B: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
_30B_A3B: dict[str, Any] = {
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 192,
    },
    "small": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
    },
    "0.5b": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 64000,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "8b-16-layers": {**_8B, "num_hidden_layers": 16},
    "8b": _8B,
    "experts-tiny": {
        "hidden_size": 128,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 192,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "experts-small": {
        "hidden_size": 1024,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 32000,
        "num_experts": 32,
        "num_experts_per_tok": 4,
    },
    "30b-a3b-8-layers": {**_30B_A3B, "num_hidden_layers": 8},
    "30b-a3b": _30B_A3B,
}
POSITIONS = 4096  # that a model knows


def make(
    size: str, scheme: Scheme, device: torch.device, dtype: torch.dtype, seed: int, **changes: Any
) -> Any:
    """A model with random weights, quantised; `changes` are of its size."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(scheme.dtype or dtype)
    try:
        with torch.device(device):
            sizes = {**SIZES[size], "max_position_embeddings": POSITIONS, **changes}
            model: Any
            if "num_experts" in sizes:
                model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, norm_topk_prob=True))
            else:
                model = LlamaForCausalLM(LlamaConfig(**sizes))
            model.eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    if scheme.quantise:
        scheme.quantise(model)
    return model


# transformers 5.24 calls a forward's cache by another name.
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"


class Decoding:
    """Greedy decoding with a static cache: one step a call, the positions one after the other."""

    def __init__(self, model: Any, batch: int, prompt: int, context: int) -> None:
        self.model, self.batch = model, batch
        self.device = next(model.parameters()).device
        self.cache = StaticCache(config=model.config, max_cache_len=context)
        ids = torch.randint(model.config.vocab_size, (batch, prompt), device=self.device)
        self.tokens = self.step(ids, torch.arange(prompt, device=self.device)).clone()
        self.position = torch.tensor([prompt], device=self.device)

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """The likeliest next tokens [B, 1] behind tokens [B, T] at `position` [T]."""
        out = self.model(
            input_ids=tokens,
            cache_position=position,
            position_ids=position[None].expand(self.batch, -1),
            use_cache=True,
            logits_to_keep=1,
            **{CACHE: self.cache},
        )
        return out.logits[:, -1].argmax(-1, keepdim=True)

    def advance(self, step: Callable[[Tensor, Tensor], Tensor]) -> None:
        """One step by `step`, which is self.step or what it was compiled to."""
        torch.compiler.cudagraph_mark_step_begin()
        self.tokens = step(self.tokens, self.position).clone()
        self.position = self.position + 1


def prefill(model: Any, batch: int, length: int) -> Callable[[], Any]:
    """A call that computes the last token's logits of random prompts."""
    ids = torch.randint(model.config.vocab_size, (batch, length), device=next(model.parameters()).device)
    return lambda: model(input_ids=ids, logits_to_keep=1, use_cache=False)
