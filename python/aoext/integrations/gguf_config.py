"""What a GGUF file says of its model, as a config of transformers.

Every key of the architecture's is applied, stands in one of two tables (keys that change no result, and
values that change none), or is refused. Names, defaults and meanings are llama.cpp's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, PreTrainedConfig

from aoext.checkpoints.gguf_file import ARCHITECTURE, Array, GGUFFile

# Keys without the architecture's name that no logits depend on.
_WITHOUT_EFFECT = frozenset(
    (
        "attention.sliding_window_pattern",  # of a window that is as long as the context
        "pooling_type",  # of embeddings, which llama.cpp makes of the last layer's output
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",  # and the next two, of scaling that is not YaRN's
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    )
)
# Values that are as if the key were not there.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    "tensor_data_layout": ("Meta AI original pth",),  # rows of q and k in pairs
    "use_parallel_residual": (False,),
}
# The same of keys with their whole names; all others that are no architecture's change no result.
_NEUTRAL_ELSEWHERE: dict[str, tuple[Any, ...]] = {
    "general.type": ("model",),
    "general.quantization_version": (2,),
    "split.count": (0, 1),
}

LARGEST = 2**31 - 1  # of any size

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


def config_of(file: GGUFFile, model_type: str) -> PreTrainedConfig:
    """The config, of transformers' model_type, of the model in a file; ValueError names what it cannot be."""
    keys = _Keys(file)
    layers, context = keys.size("block_count"), keys.size("context_length")
    hidden, heads = keys.size("embedding_length"), keys.size("attention.head_count")
    shared = keys.size("attention.head_count_kv", heads)
    head = keys.size("attention.key_length", hidden // heads)
    for key, number, of, name in (
        ("attention.head_count_kv", shared, heads, "attention.head_count"),
        ("attention.head_count", heads, hidden, "embedding_length"),  # which transformers' models want
    ):
        keys.expect(key, number, of % number == 0, f"a divisor of {name}, {of}")
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
    if isinstance(tokens, Array) and tokens.count != rows:
        raise keys.refusal("tokenizer.ggml.tokens", f"as many as token_embd.weight has rows, {rows}", tokens.count)
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
    except Exception as error:  # noqa: BLE001 - its validation has errors of its own
        raise file.source.error(f"is no model of transformers: {error}") from error


def _windowed(
    keys: _Keys, windows: _Windows, layers: int, context: int, rope: dict[str, Any]
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
        # Of no layer where the file has none; transformers makes its mask all the same.
        "sliding_window": window or context,
        "layer_types": [
            "sliding_attention" if window and slides else "full_attention" for slides in pattern
        ],
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


def _rope(keys: _Keys, head: int, context: int) -> dict[str, Any]:
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
            "attention_factor": attention * (0.1 * math.log(factor) + 1),
        }
    else:
        keys.expect("rope.scaling.attn_factor", attention, attention == 1, "1 where rope.scaling.type is not yarn")
        if scaling == "linear" and factor != 1:
            keys.expect("rope.scaling.factor", factor, factor > 0, "greater than 0")
            rope |= {"rope_type": "linear", "factor": factor}
    if frequencies is None:
        return rope
    if rope["rope_type"] != "default":
        raise keys.file.source.error(f"{ROPE_FREQUENCIES} beside rope.scaling of {factor} is not served")
    return {**rope, **_scaled_frequencies(frequencies, base, head, context)}


def _frequencies(file: GGUFFile, head: int) -> torch.Tensor | None:
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
    rotations = _LLAMA3["original_max_position_embeddings"] / (2 * math.pi)
    rotations = rotations * base ** (-torch.arange(0, head, 2, device="cpu").double() / head)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    share = ((rotations - low) / (high - low)).clamp(0, 1)
    if torch.allclose(1 / ((1 - share) / scale + share), factors.double(), rtol=1e-4):
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


class _Keys:
    """The metadata of a file's architecture. What nobody has asked for when it is closed is refused."""

    def __init__(self, file: GGUFFile) -> None:
        self.file, self.architecture = file, file.metadata[ARCHITECTURE]
        prefix = f"{self.architecture}."
        self.left = {
            key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)
        }

    def refusal(self, key: str, must_be: str, got: Any) -> ValueError:
        """The error for a value of a key."""
        name = key if key.startswith(("tokenizer.", "general.", "split.")) else f"{self.architecture}.{key}"
        return self.file.source.error(f"{name} must be {must_be}, got {got!r}")

    def expect(self, key: str, got: Any, right: bool, must_be: str) -> None:
        if not right:
            raise self.refusal(key, must_be, got)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number that is not negative; -1 where that is the default."""
        value = self._taken(key, default)
        is_number = type(value) in (int, float) and math.isfinite(value)
        least = min(0.0, default or 0.0)
        self.expect(key, value, is_number and value >= least, "a number that is not negative")
        return float(value)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number from 0; of an array, the number that all layers have."""
        value = self._taken(key, default)
        if isinstance(value, Array) and value.numbers and len(set(value.numbers)) == 1:
            value = value.numbers[0]
        same = "the same in all layers" if isinstance(value, Array) else f"a whole number up to {LARGEST}"
        self.expect(key, value, type(value) is int and 0 <= value <= LARGEST, same)
        return int(value)

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1, as for whole."""
        value = self.whole(key, default)
        self.expect(key, value, value > 0, "greater than 0")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._taken(key, default)
        self.expect(key, value, isinstance(value, str), "a text")
        return str(value)

    def pattern(self, key: str, default: int, layers: int) -> Sequence[bool]:
        """Which layers have a window: all but each n-th, or as an array says."""
        value = self._taken(key, default)
        if isinstance(value, Array):
            flags = value.numbers
            right = flags is not None and len(flags) == layers and set(flags) <= {0, 1}
            self.expect(key, value, right, f"a number, or {layers} of 0 and 1")
            return [bool(flag) for flag in flags or ()]
        self.expect(key, value, type(value) is int and value >= 0, "a number, or one for each layer")
        return [value == 0 or i % value < value - 1 for i in range(layers)]

    def must_be(self, key: str, only: int) -> None:
        """Take a key that has one right value, if it is there."""
        if key in self.left:
            value = self.whole(key)
            self.expect(key, value, value == only, str(only))

    def token_ids(self, rows: int) -> dict[str, Any]:
        """The special tokens; generation ends at each that ends a text, a turn or a message."""
        known = {"bos": 1, "eos": 2} if self.file.metadata.get("tokenizer.ggml.model") == "llama" else {}
        ids: dict[str, int | None] = {}
        for name in ("bos", "eos", "eot", "eom", "padding"):
            key = f"tokenizer.ggml.{name}_token_id"
            value = self.file.metadata.get(key, known.get(name))
            if value in (-1, 2**32 - 1):  # llama.cpp's number of no token
                value = None
            right = value is None or (type(value) is int and 0 <= value < rows)
            self.expect(key, value, right, f"the number of one of {rows} tokens")
            ids[name] = value
        ends = list(dict.fromkeys(ids[name] for name in ("eos", "eot", "eom") if ids[name] is not None))
        return {
            "bos_token_id": ids["bos"],
            "eos_token_id": ends if len(ends) > 1 else ends[0] if ends else None,
            "pad_token_id": ids["padding"],
        }

    def close(self) -> None:
        """Refuse what would change results and has not been applied."""
        for key, value in self.left.items():
            if key in _WITHOUT_EFFECT:
                continue
            if key not in _NEUTRAL:
                raise self.file.source.error(f"{self.architecture}.{key} is not known, and may change results")
            only = _NEUTRAL[key]
            self.expect(key, value, value in only, f"{' or '.join(map(repr, only))}: all else is not served")
        for key, only in _NEUTRAL_ELSEWHERE.items():
            value = self.file.metadata.get(key, only[0])
            self.expect(key, value, value in only, f"{' or '.join(map(repr, only))}: all else is not served")

    def _taken(self, key: str, default: Any) -> Any:
        value = self.left.pop(key, default)
        if value is None:
            raise self.file.source.error(f"has no {self.architecture}.{key}")
        return value
