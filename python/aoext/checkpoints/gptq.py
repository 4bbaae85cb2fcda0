"""Checkpoints of GPTQ (AutoGPTQ, GPTQModel) and AWQ, 4-bit: w = (u - zero)·scale, exact in float32.

Both pack eight codes to an int32; GPTQ along K, AWQ along N in an order of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aoext.checkpoints.base import (
    Reader,
    Writer,
    exactly,
    group_count,
    int4,
    int32_words,
    integers,
    nibbles,
    order_of_groups,
    packed_pairs,
    setting,
    take,
)
from aoext.tensors import QuantizedTensor

_SCALES = (torch.float16, torch.bfloat16, torch.float32)

# GPTQ's first format keeps zeros minus one, each word as one number, so that 15 + 1 carries.
_ONE_EACH = 0x11111111

# Of the eight columns of one of AWQ's words, the one in each nibble.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class GptqReader(Reader):
    """qweight int32 [K/8, N], qzeros int32 [K/group_size, N/8], scales [K/group_size, N], g_idx int32 [K].

    Groups whose columns lie apart (act-order: a g_idx that does not rise) become a weight with k_order.
    """

    names = ("qweight", "qzeros", "scales", "g_idx")
    telling = ("g_idx",)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        setting("gptq", settings, "bits", (4,))
        made = setting("gptq", settings, "checkpoint_format", ("gptq", "gptq_v2", "gptq_p"), "gptq")
        self.zeros_minus_one = made == "gptq"
        self.group_size: int = settings.get("group_size", 128)
        # What other settings layers have, by regular expressions that begin their names.
        self.dynamic: Mapping[str, Mapping[str, Any]] = settings.get("dynamic") or {}

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        own = self._own_settings(layer)
        setting(layer, own, "bits", (4,), 4)
        qweight = take(layer, tensors, "qweight", (torch.int32,), (-1, -1))
        columns, rows = 8 * qweight.shape[0], qweight.shape[1]
        groups = group_count(layer, columns, own.get("group_size", self.group_size))
        scale = take(layer, tensors, "scales", _SCALES, (groups, rows))
        qzeros = take(layer, tensors, "qzeros", (torch.int32,), (groups, -(-rows // 8)))
        zero = nibbles(qzeros + _ONE_EACH if self.zeros_minus_one else qzeros)[:, :rows]
        pairs = qweight.t().contiguous().view(torch.uint8)  # little-endian words: the even k low
        order = order_of_groups(layer, tensors, "g_idx", columns, groups)
        if order is not None:
            pairs = packed_pairs(nibbles(pairs.view(torch.int32))[:, order])
        return int4(layer, pairs, scale, zero, dtype, order)

    def _own_settings(self, layer: str) -> Mapping[str, Any]:
        for pattern, own in self.dynamic.items():  # the first that matches, as GPTQModel takes it
            if not pattern.startswith("-:") and re.match(pattern.removeprefix("+:"), layer):
                return own
        return {}


class GptqWriter(Writer):
    """The same four tensors, scales in float16. Zeros minus one where all are 8, else version 2."""

    def write(self, layer: str, weight: QuantizedTensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        codes, scale, zero, group, ordered = integers(layer, weight)
        if weight.shape[0] % 8:
            raise ValueError(f"{layer}: N must be a multiple of 8, got {weight.shape[0]}")
        if self.symmetric and bool((zero != 8).any()):
            raise ValueError(f"{layer}: its zeros must be 8, for the checkpoint is said to be symmetric")
        tensors = {
            "qweight": int32_words(codes).t().contiguous(),
            "qzeros": int32_words(zero) - (_ONE_EACH if self.symmetric else 0),
            "scales": exactly(layer, scale, torch.float16),
            "g_idx": group.to(torch.int32),
        }
        columns = weight.shape[1]
        return tensors, {"group_size": columns // scale.shape[0], "columns": columns, "ordered": ordered}

    def settings(self, layers: Mapping[str, Mapping[str, Any]], left_alone: Sequence[str]) -> dict[str, Any]:
        if all(facts["group_size"] == facts["columns"] for facts in layers.values()):
            most = -1
        else:
            ((most, _),) = Counter(facts["group_size"] for facts in layers.values()).most_common(1)
        others = {layer: facts["group_size"] for layer, facts in layers.items()}
        return {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": most,
            "desc_act": any(facts["ordered"] for facts in layers.values()),
            "sym": self.symmetric,
            "lm_head": "lm_head" in layers,
            "checkpoint_format": "gptq" if self.symmetric else "gptq_v2",
            "pack_dtype": "int32",
            "dynamic": {
                **{f"-:^{re.escape(layer)}$": {} for layer in left_alone},
                **{
                    f"+:^{re.escape(layer)}$": {"group_size": size}
                    for layer, size in others.items()
                    if most not in (-1, size)
                },
            },
        }


class AwqReader(Reader):
    """qweight int32 [K, N/8], qzeros int32 [K/group_size, N/8], scales [K/group_size, N]."""

    names = ("qweight", "qzeros", "scales")

    def __init__(self, settings: Mapping[str, Any]) -> None:
        setting("awq", settings, "bits" if "bits" in settings else "w_bit", (4,))
        setting("awq", settings, "version", ("gemm", "GEMM"), "gemm")
        self.group_size: int = settings.get("group_size", settings.get("q_group_size", 128))

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        qweight = take(layer, tensors, "qweight", (torch.int32,), (-1, -1))
        columns, rows = qweight.shape[0], 8 * qweight.shape[1]
        groups = group_count(layer, columns, self.group_size)
        scale = take(layer, tensors, "scales", _SCALES, (groups, rows))
        qzeros = take(layer, tensors, "qzeros", (torch.int32,), (groups, rows // 8))
        pairs = packed_pairs(_in_order(qweight).t())
        return int4(layer, pairs, scale, _in_order(qzeros), dtype)


def _in_order(words: Tensor) -> Tensor:
    """AWQ's int32 [A, N/8] to uint8 [A, N]."""
    order = torch.tensor(_AWQ_ORDER, device=words.device)
    columns = nibbles(words).unflatten(1, (-1, 8))
    return torch.empty_like(columns).index_copy_(2, order, columns).flatten(1)
