"""A Llama-shaped decoder over bytes, small enough to ship inside the wheel.

Shapes are named B (batch), T (positions), C = dim, H = heads, D = head_dim, V = 256 (byte values).

    x = embedding[tokens]                                    [B, T, C]
    for each block:  x += attention(rms_norm(x));  x += mlp(rms_norm(x))
    logits = rms_norm(x) @ embedding.T                       [B, T, V]

Quantisers replace the weight of an nn.Linear by a tensor subclass, so the model only ever calls its
linears and never reads their weights. The output head shares the embedding's matrix and is computed
by nn.functional.linear: it is not an nn.Linear, and quantisers leave it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

BYTE_VALUES = 256

# Stands before and between documents in training, so that it also means "a file begins here".
# No Python source contains it.
SEPARATOR = b"\0"


@dataclass(frozen=True)
class TinyLMConfig:
    """The sizes of a TinyLM. Linears have multiples of 128, the usual group size of int4."""

    dim: int = 256
    hidden: int = 640
    layers: int = 5
    heads: int = 4
    context: int = 512  # positions that the model is trained on, and the length of its KV cache
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("dim", "hidden"):
            if getattr(self, name) % 128:
                raise ValueError(f"TinyLMConfig: {name} must be a multiple of 128, got {getattr(self, name)}")
        if self.dim % (2 * self.heads):
            raise ValueError(
                f"TinyLMConfig: dim = {self.dim} must split into {self.heads} heads of even size"
            )

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


@dataclass
class KVCache:
    """Keys (already rotated) and values of the positions seen so far.

    keys, values: [layers, B, H, context, D] in the model's dtype, allocated once.
    length: how many positions are filled; decoding writes the next one in place.
    """

    keys: Tensor
    values: Tensor
    length: int = 0

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store key and value [B, H, T, D] behind `length`; return views of all up to their end."""
        end = self.length + key.shape[2]
        self.keys[layer, :, :, self.length : end] = key
        self.values[layer, :, :, self.length : end] = value
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


def rope_tables(config: TinyLMConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position · base^(-2i/D), each [context, D], float32.

    RoFormer, arXiv 2104.09864.
    """
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(config.context, dtype=torch.float32), config.rope_base**-half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + D/2) of x [B, H, T, D] by the angles in cos and sin [T, D]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, config: TinyLMConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.heads
        self.q_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.k_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.v_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.o_proj = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None) -> Tensor:
        query, key, value = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if cache is not None:
            key, value = cache.append(self.layer, key, value)
        # One new position sees all of the cache; several come only at the start, where the usual
        # mask is right. Without a cache it always is, so that export need not ask how many there are.
        causal = cache is None or x.shape[1] > 1
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x)) (arXiv 2002.05202)."""

    def __init__(self, config: TinyLMConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.dim, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream [B, T, C]."""

    def __init__(self, config: TinyLMConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.attention = Attention(config, layer)
        self.mlp_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, cache)
        return x + self.mlp(self.mlp_norm(x))


class TinyLM(nn.Module):
    """A language model over bytes.

    >>> model = TinyLM(TinyLMConfig())
    >>> model(torch.randint(256, (2, 64))).shape
    torch.Size([2, 64, 256])
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: TinyLMConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(BYTE_VALUES, config.dim)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._init_weights()

    def _init_weights(self) -> None:
        # GPT-2's scheme: the 2 · layers matrices that write to the residual stream start smaller,
        # so that the stream's variance does not grow with depth.
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                writes_residual = name.endswith(("o_proj", "down_proj"))
                nn.init.normal_(module.weight, std=0.02 / (2 * self.config.layers) ** (0.5 * writes_residual))

    def new_cache(self, batch: int) -> KVCache:
        """An empty cache for `batch` sequences of up to config.context positions."""
        config, like = self.config, self.embedding.weight
        shape = (config.layers, batch, config.heads, config.context, config.head_dim)
        return KVCache(like.new_empty(shape), like.new_empty(shape))

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Logits [B, T, 256] of the byte after each of tokens [B, T] (int64), in the model's dtype.

        With a cache the tokens stand behind those it holds: any number while it is empty, then one
        at a time.
        """
        begin = cache.length if cache is not None else 0
        end = begin + tokens.shape[1]
        if end > self.config.context:
            raise ValueError(f"TinyLM: {end} positions, but the context is {self.config.context}")
        if begin and tokens.shape[1] != 1:
            raise ValueError(f"TinyLM: a filled cache takes one token at a time, got {tokens.shape[1]}")
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos[begin:end], self.sin[begin:end], cache)
        if cache is not None:
            cache.length = end
        return nn.functional.linear(self.norm(x), self.embedding.weight)

    @torch.no_grad()
    def prefill(self, tokens: Tensor) -> tuple[Tensor, KVCache]:
        """Logits [B, T, 256] of a prompt [B, T] (int64, T ≥ 1), and the cache to go on from."""
        cache = self.new_cache(tokens.shape[0])
        return self(tokens, cache), cache

    @torch.no_grad()
    def decode_step(self, token: Tensor, cache: KVCache) -> Tensor:
        """Logits [B, 256] after one more token [B] (int64); the cache grows in place."""
        return self(token[:, None], cache)[:, 0]

    def generate(
        self,
        prompt: bytes,
        max_new_tokens: int,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> bytes:
        """Continue `prompt` by max_new_tokens bytes; return the new bytes only.

        temperature 0 takes the likeliest byte; above it, bytes are drawn by `generator` (on the
        model's device). Only the last `context` bytes of text count: when the cache is full, its
        younger half is read anew, so that text of any length comes at a bounded cost per byte.
        """
        device = self.embedding.weight.device
        text = bytearray(prompt or SEPARATOR)
        begin = len(text)
        cache = None
        for _ in range(max_new_tokens):
            if cache is None or cache.length == cache.capacity:
                keep = self.config.context if cache is None else self.config.context // 2
                logits, cache = self.prefill(torch.tensor([list(text[-keep:])], device=device))
                logits = logits[:, -1]
            else:
                logits = self.decode_step(torch.tensor([text[-1]], device=device), cache)
            text.append(_pick(logits[0], temperature, generator))
        return bytes(text[begin:])


def _pick(logits: Tensor, temperature: float, generator: torch.Generator | None) -> int:
    """One byte value from logits [256]: the likeliest at temperature 0, else a draw."""
    if temperature == 0.0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))
