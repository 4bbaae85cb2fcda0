"""What a GGUF file says of its model, as a config of transformers.

Every key of the architecture's is applied here, changes no result (the tables of keys.py), or is
refused. Names, defaults and meanings are llama.cpp's; those of keys that it writes and does not read,
transformers'.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, PreTrainedConfig

from aoext.checkpoints.gguf_file import GGUF, Array
from aoext.integrations.gguf.keys import Keys

ROPE_FREQUENCIES = "rope_freqs.weight"
# Llama 3's scaling of frequencies, all but its factor.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class _Windows(NamedTuple):
    """What llama.cpp knows of an architecture with layers of which some have a window."""

    period: int  # of which the last is a layer without
    window: int  # where the file names none; 0: none
    base: float | None  # of the layers with a window, where the file names none; None: as of the others
    layers_of_27b: int  # of the one model whose scores have a scale of their own
    caps: tuple[float, float]  # of the output's logits and the attention's


_WINDOWS = {
    "gemma2": _Windows(2, 4096, None, 46, (30.0, 50.0)),
    "gemma3": _Windows(6, 0, 10000.0, 62, (0.0, 0.0)),
}


class _ExpertSizes(NamedTuple):
    """What transformers calls the numbers of experts of a model_type, and the width of one."""

    experts: str
    used: str
    between: str


EXPERT_SIZES = {
    "mixtral": _ExpertSizes("num_local_experts", "num_experts_per_tok", "intermediate_size"),
    "qwen3_moe": _ExpertSizes("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
}


def config_of(file: GGUF, model_type: str) -> PreTrainedConfig:
    """The config, of transformers' model_type, of the model in a file; ValueError names what it cannot be."""
    keys = Keys(file)
    layers, context = keys.size("block_count"), keys.size("context_length")
    hidden, heads = keys.size("embedding_length"), keys.size("attention.head_count")
    shared = keys.size("attention.head_count_kv", heads)
    head = keys.size("attention.key_length", hidden // heads)
    right = heads % shared == 0
    keys.expect("attention.head_count_kv", shared, right, f"a divisor of attention.head_count, {heads}")
    right = hidden % heads == 0 or model_type.startswith("qwen")  # as transformers wants it
    keys.expect("attention.head_count", heads, right, f"a divisor of embedding_length, {hidden}")
    keys.expect("attention.key_length", head, head % 2 == 0, "even")
    for key in ("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"):
        keys.must_be(key, head)
    for key in ("rope.dimension_count", "rope.dimension_count_swa"):
        keys.must_be(key, head)
    if "token_embd.weight" not in file.tensors:
        raise file.source.error("has no token_embd.weight")
    rows, width = file.tensors["token_embd.weight"].shape[0], file.tensors["token_embd.weight"].shape[-1]
    keys.must_be("vocab_size", rows)
    keys.expect("embedding_length", hidden, hidden == width, f"{width}, the width of token_embd.weight")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Array) and tokens.length != rows:
        raise keys.refusal(
            "tokenizer.ggml.tokens", f"as many as token_embd.weight has rows, {rows}", tokens.length
        )
    values: dict[str, Any] = {
        "vocab_size": rows,
        "hidden_size": hidden,
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "head_dim": head,
        "max_position_embeddings": context,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **keys.token_ids(rows),
    }
    names = [name for name in file.tensors if name.endswith(".bias")]
    if model_type != "qwen2":  # which always has those of q, k and v
        values["attention_bias"] = any(".attn_" in name for name in names)
    if model_type == "llama":
        values["mlp_bias"] = any(".ffn_" in name for name in names)
    values |= _experts(keys, model_type)
    values["rope_parameters"] = rope = _rope(keys, head, context)
    scale_of = head
    windows = _WINDOWS.get(keys.architecture)
    if windows is not None:
        scale_of = hidden // heads if layers == windows.layers_of_27b else head
        values |= _windowed(keys, windows, layers, context, rope)
        values["query_pre_attn_scalar"] = scale_of
    else:
        window = keys.whole("attention.sliding_window", 0)
        keys.expect("attention.sliding_window", window, not 0 < window < context, f"0 or {context} and more")
    scale = keys.number("attention.scale", 0.0)
    right = math.isclose(scale * math.sqrt(scale_of), 1, rel_tol=1e-5)
    keys.expect("attention.scale", scale, scale == 0 or right, f"1/sqrt({scale_of})")
    keys.close()
    try:
        return AutoConfig.for_model(model_type, **values)
    except Exception as error:  # its validation has errors of its own
        raise file.source.error(f"is no model of transformers: {error}") from error


def _experts(keys: Keys, model_type: str) -> dict[str, Any]:
    """How many experts there are, how many a token has, and how wide they are."""
    names = EXPERT_SIZES.get(model_type)
    if names is None:
        return {}
    count, used = keys.size("expert_count"), keys.size("expert_used_count")
    keys.expect("expert_used_count", used, used <= count, f"at most expert_count, {count}")
    keys.must_be("expert_gating_func", 1)  # softmax
    values: dict[str, Any] = {names.experts: count, names.used: used}
    if model_type == "qwen3_moe":
        values |= {names.between: keys.size("expert_feed_forward_length"), "norm_topk_prob": True}
    return values


def _windowed(
    keys: Keys, windows: _Windows, layers: int, context: int, rope: dict[str, Any]
) -> dict[str, Any]:
    """Which layers have windows, and what goes with them: Gemma's."""
    window = keys.whole("attention.sliding_window", windows.window)
    pattern = keys.pattern("attention.sliding_window_pattern", windows.period, layers)
    base = rope["rope_theta"]
    swa_base = keys.number("rope.freq_base_swa", windows.base or base)
    final, scores = (
        keys.number(f"{key}_logit_softcapping", cap)
        for key, cap in zip(("final", "attn"), windows.caps, strict=True)
    )
    values: dict[str, Any] = {
        # No layer has one where the file has none; transformers makes its mask all the same.
        "sliding_window": window or context,
        "layer_types": ["sliding_attention" if window and slides else "full_attention" for slides in pattern],
        "final_logit_softcapping": final or None,
        "attn_logit_softcapping": scores or None,
    }
    if windows.base is None:
        keys.expect("rope.freq_base_swa", swa_base, swa_base == base, f"rope.freq_base, {base}")
        return values
    keys.expect("attn_logit_softcapping", scores, scores == 0, "0")
    scaling = rope["rope_type"]
    keys.expect("rope.scaling.type", scaling, scaling in ("default", "linear"), "none or linear")
    local = {"rope_type": "default", "rope_theta": swa_base}
    return {**values, "rope_parameters": {"full_attention": rope, "sliding_attention": local}}


def _rope(keys: Keys, head: int, context: int) -> dict[str, Any]:
    """How positions turn queries and keys."""
    base = keys.number("rope.freq_base", 10000.0)
    keys.expect("rope.freq_base", base, base > 0, "greater than 0")
    scaling = keys.text("rope.scaling.type", "linear")
    keys.expect("rope.scaling.type", scaling, scaling in ("none", "linear", "yarn"), "none, linear or yarn")
    older = keys.number("rope.scale_linear", 0.0)
    factor = keys.number("rope.scaling.factor", older) or 1.0
    attention = keys.number("rope.scaling.attn_factor", 1.0)
    extrapolation = keys.number("rope.scaling.yarn_ext_factor", -1.0)
    usual = extrapolation in (-1, scaling == "yarn")
    keys.expect("rope.scaling.yarn_ext_factor", extrapolation, usual, f"-1 or {scaling == 'yarn':d}")
    frequencies = _frequencies(keys.file, head)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    if scaling == "yarn":
        keys.expect("rope.scaling.factor", factor, factor >= 1, "1 or greater")
        rope |= {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": keys.size("rope.scaling.original_context_length", context),
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
            "attention_factor": attention
            * keys.number("rope.scaling.yarn_attn_factor", 0.1 * math.log(factor) + 1),
        }
    else:
        keys.expect(
            "rope.scaling.attn_factor", attention, attention == 1, "1 where rope.scaling.type is not yarn"
        )
        if scaling == "linear" and factor != 1:
            keys.expect("rope.scaling.factor", factor, factor > 0, "greater than 0")
            rope |= {"rope_type": "linear", "factor": factor}
    if frequencies is None:
        return rope
    if rope["rope_type"] != "default":
        raise keys.file.source.error(f"{ROPE_FREQUENCIES} beside rope.scaling of {factor} is not served")
    return {**rope, **_scaled_frequencies(frequencies, base, head, context)}


def _frequencies(file: GGUF, head: int) -> torch.Tensor | None:
    """What the file divides the frequencies by, float32 [head/2]; None where that is nothing."""
    place = file.tensors.get(ROPE_FREQUENCIES)
    if place is None:
        return None
    if place.kind != "F32" or place.shape != (head // 2,):
        got = f"{place.kind} {list(place.shape)}"
        raise file.source.error(f"{ROPE_FREQUENCIES} must be F32 [{head // 2}], got {got}")
    factors = file.read(ROPE_FREQUENCIES).view(torch.float32)
    if not bool((factors.isfinite() & (factors > 0)).all()):
        raise file.source.error(f"{ROPE_FREQUENCIES} must be finite and greater than 0")
    return None if bool((factors == 1).all()) else factors


def _scaled_frequencies(factors: torch.Tensor, base: float, head: int, context: int) -> dict[str, Any]:
    """Llama 3's scaling where it gives these factors; else that which takes them as they are."""
    scale = float(factors.max())
    llama3 = {"rope_type": "llama3", "rope_theta": base, "factor": scale, **_LLAMA3}
    if torch.allclose(factors_of(llama3, head), factors, rtol=1e-4):
        return {"rope_type": "llama3", "factor": scale, **_LLAMA3}
    both = factors.tolist()
    return {
        "rope_type": "longrope",
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
        "short_factor": both,
        "long_factor": both,
    }


def factors_of(rope: dict[str, Any], head: int) -> torch.Tensor:
    """By what Llama 3's scaling divides each frequency, float32 [head/2]."""
    frequencies = rope["rope_theta"] ** (-torch.arange(0, head, 2, device="cpu").double() / head)
    rotations = frequencies * rope["original_max_position_embeddings"] / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    share = ((rotations - low) / (high - low)).clamp(0, 1)
    return (1 / ((1 - share) / rope["factor"] + share)).float()
