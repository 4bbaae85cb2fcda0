"""Checkpoints of GPTQ (AutoGPTQ, GPTQModel) and AWQ, 4-bit: w = (u - zero)·scale, exact in float32.

Both pack eight codes to an int32; GPTQ along K, AWQ along N in an order of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aoext.checkpoints.base import (
    Reader,
    group_count,
    int4,
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

    def __init__(self, settings: Mapping[str, Any]) -> None:
        setting("gptq", settings, "bits", (4,))
        made = setting("gptq", settings, "checkpoint_format", ("gptq", "gptq_v2", "gptq_p"), "gptq")
        self.zeros_minus_one = made == "gptq"
        self.group_size: int = settings.get("group_size", 128)

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        qweight = take(layer, tensors, "qweight", (torch.int32,), (-1, -1))
        columns, rows = 8 * qweight.shape[0], qweight.shape[1]
        groups = group_count(layer, columns, self.group_size)
        scale = take(layer, tensors, "scales", _SCALES, (groups, rows))
        qzeros = take(layer, tensors, "qzeros", (torch.int32,), (groups, -(-rows // 8)))
        zero = nibbles(qzeros + _ONE_EACH if self.zeros_minus_one else qzeros)[:, :rows]
        pairs = qweight.t().contiguous().view(torch.uint8)  # little-endian words: the even k low
        order = order_of_groups(layer, tensors, "g_idx", columns, groups)
        if order is not None:
            pairs = packed_pairs(nibbles(pairs.view(torch.int32))[:, order])
        return int4(layer, pairs, scale, zero, dtype, order)


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
