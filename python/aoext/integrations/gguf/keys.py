"""The keys of a GGUF file's metadata, asked for one by one: what nobody asks for must change no result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from aoext.checkpoints.gguf_file import ARCHITECTURE, GGUF, Array

# Keys without the architecture's name that no logits depend on.
_WITHOUT_EFFECT = frozenset(
    (
        "attention.sliding_window_pattern",  # of a window that is as long as the context
        "pooling_type",  # of embeddings, which llama.cpp makes of the last layer's output
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",  # and the next three, of scaling that is not YaRN's
        "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    )
)
# Values that are as if the key were not there.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.head_count": (0,),
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
    "rope.scaling.yarn_log_multiplier": (0,),
    "ssm.dt_b_c_rms": (False,),
    "tensor_data_layout": ("Meta AI original pth",),  # rows of q and k in pairs
    "use_parallel_residual": (False,),
}
# The same of keys with their whole names; all others that are no architecture's change no result.
_NEUTRAL_ELSEWHERE: dict[str, tuple[Any, ...]] = {
    "general.type": ("model",),
    "general.quantization_version": (2,),
}

LARGEST = 2**31 - 1  # of any size


def changes_no_result(key: str, value: Any) -> bool:
    """Whether a key, without its architecture, may be left unread."""
    return key in _WITHOUT_EFFECT or value in _NEUTRAL.get(key, ())


class Keys:
    """The metadata of a file's architecture. What nobody has asked for when it is closed is refused."""

    def __init__(self, file: GGUF) -> None:
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
                name = f"{self.architecture}.{key}"
                raise self.file.source.error(f"{name} is not known, and may change results")
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
