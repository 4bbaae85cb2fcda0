"""Checkpoints of GPTQ (AutoGPTQ, GPTQModel) and AWQ: w = (u - zero)·scale, exact.

Both pack codes into words of 32 bits: GPTQ along K, of 2 to 8 bits; AWQ along N in an order of its own, of 4
and 8.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aoext.checkpoints.base import (
    Reader,
    Writer,
    exactly,
    in_whole_groups,
    order_of_groups,
    refuse_what_is_aoexts_own,
    take,
)
from aoext.checkpoints.blocks import by_blocks
from aoext.checkpoints.codes import codes_in_whole_words, from_planes, packed, unpacked
from aoext.checkpoints.expressions import Expression
from aoext.checkpoints.groups import integers, of_codes, of_pairs
from aoext.checkpoints.settings import Settings
from aoext.formats.checks import describe, has_values
from aoext.formats.dtypes import dtype_name
from aoext.tensors import BlockwiseTensor, Int8Tensor, QuantizedTensor
from aoext.tensors.fields import ceil_div

_SCALES = (torch.float16, torch.bfloat16, torch.float32)

# GPTQ's first format keeps zeros minus one: each word as one number where it holds whole codes, so that the
# highest code carries into the next; other codes one by one.
_ONE_EACH = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}

# What GPTQModel long took from words of 3 bits in place of that, and added again.
_ONES_OF_GPTQMODEL = (0x24924924, 0x92492492, 0x49249249)

# Codes that GPTQModel has in planes alone; others lie so where the checkpoint's format is gptq_p.
_PLANES = (5, 6, 7)

# What codes and zeros of 8 bits have to those of int8, and so the zero of symmetric weights.
_MIDDLE = 0x80

# By the bits: of the columns of one of AWQ's words, the one in each of its parts, the lowest first.
_AWQ_ORDER = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 2, 1, 3)}


class _Packing(NamedTuple):
    """How a layer is packed."""

    widths: Sequence[int]  # what bits may be
    bits: int
    group_size: int  # -1 for whole rows
    ordered: bool | None  # whether groups may hold columns that lie apart; None if the tensors show that

    def with_own(self, own: Settings) -> _Packing:
        """Another layer's, whose own settings go before these."""
        return _Packing(
            self.widths,
            own.choice("bits", self.widths, self.bits),
            own.group_size("group_size", self.group_size),
            own.flag("desc_act", bool(self.ordered)) if "desc_act" in own else self.ordered,
        )


# What tells names that settings have from regular expressions.
_SIGNS = frozenset(r"*+?^$()[]{}|\\")


class _OwnSettings:
    """Settings of single layers: by their names, else by the first expression that fits."""

    def __init__(self, settings: Mapping[str, Settings]) -> None:
        self._names = {key: own for key, own in settings.items() if _SIGNS.isdisjoint(key)}
        self._expressions = [
            (Expression(own.who, key), own)
            for key, own in settings.items()
            if own and not _SIGNS.isdisjoint(key)
        ]

    def of(self, layer: str, packing: _Packing) -> _Packing:
        own = self._names.get(layer)
        if own is None:
            own = next((own for expression, own in self._expressions if expression.search(layer)), None)
        return packing if own is None else packing.with_own(Settings(layer, own.values))


class GptqReader(Reader):
    """qweight int32 [K·bits/32, N], qzeros int32 [groups, N·bits/32], scales [groups, N], g_idx int32 [K],
    for as many groups as hold K columns; the last may be partial.

    Groups whose columns lie apart (act-order: a g_idx that does not rise) become a weight with k_order; where
    desc_act is false, nothing is read of g_idx.
    """

    names = ("qweight", "qzeros", "scales", "g_idx")
    telling = ("g_idx",)

    def __init__(
        self,
        settings: Settings,
        own: Mapping[str, Settings] | None = None,
        zeros_minus_one: bool | None = None,
        widths: Sequence[int] = range(2, 9),
    ) -> None:
        """own: settings of layers; zeros_minus_one: None where checkpoint_format says it; widths: what bits
        may be
        """
        bits = settings.choice("bits", widths)
        ordered = settings.flag("desc_act", False) if "desc_act" in settings else None
        self.packing = _Packing(widths, bits, settings.group_size("group_size", 128), ordered)
        self.own = _OwnSettings(own or {})
        made = settings.choice("checkpoint_format", ("gptq", "gptq_v2", "gptq_p"), "gptq")
        self.zeros_minus_one = made == "gptq" if zeros_minus_one is None else zeros_minus_one
        self.in_planes = made == "gptq_p"
        self.symmetric = settings.flag("sym", False)
        # What other settings layers have, by regular expressions that begin their names.
        self.dynamic = [
            (Expression(own.who, key.removeprefix("-:").removeprefix("+:")), key.startswith("-:"), own)
            for key, own in settings.objects("dynamic").items()
        ]

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        packing = self._packing(layer)
        bits = packing.bits
        qweight = take(layer, tensors, "qweight", (torch.int32,), (-1, -1))
        rows, columns = qweight.shape[1], 32 * qweight.shape[0] // bits
        if bits not in _ONE_EACH and qweight.shape[0] % bits:
            raise ValueError(
                f"{layer}: qweight must be int32 [K·{bits}/32, N] with K a multiple of 32, "
                f"got {describe(qweight)}"
            )
        group_size = _size_of_groups(packing, columns)
        groups = ceil_div(columns, group_size)
        scale = take(layer, tensors, "scales", _SCALES, (groups, rows))
        qzeros = take(layer, tensors, "qzeros", (torch.int32,), (groups, ceil_div(rows * bits, 32)))
        zero = self._zeros(qzeros, bits)[:, :rows]
        order = None
        if packing.ordered is not False:
            order = order_of_groups(layer, tensors, "g_idx", columns, group_size)
        words = qweight.t().contiguous()
        if bits == 8:
            return _eight_bits(layer, unpacked(words, 8), scale, zero, group_size, dtype, order)
        scale, zero = in_whole_groups(columns, group_size, scale, zero)
        in_middle = self.symmetric and (not has_values(zero) or bool((zero == 1 << (bits - 1)).all()))
        zeros = None if in_middle else zero
        if bits == 4 and order is None:
            return of_pairs(layer, words.view(torch.uint8), scale, zeros, dtype)
        codes = self._unpacked(words, bits)
        return of_codes(layer, codes if order is None else codes[:, order], bits, scale, zeros, dtype, order)

    def _unpacked(self, words: Tensor, bits: int) -> Tensor:
        return (from_planes if self.in_planes or bits in _PLANES else unpacked)(words, bits)

    def _zeros(self, words: Tensor, bits: int) -> Tensor:
        if not self.zeros_minus_one:
            return self._unpacked(words, bits)
        if bits in _ONE_EACH:
            return unpacked(words + _ONE_EACH[bits], bits)
        highest = (1 << bits) - 1
        zero = (self._unpacked(words, bits) + 1) & highest
        if bits == 3 and self.symmetric and has_values(zero) and bool((zero != 4).any()):
            ones = torch.tensor(_ONES_OF_GPTQMODEL, device=words.device).to(torch.int32)
            zero = unpacked(words + ones.repeat(ceil_div(words.shape[1], 3))[: words.shape[1]], 3)
        return zero

    def _packing(self, layer: str) -> _Packing:
        packing = self.own.of(layer, self.packing)
        for expression, left_alone, own in self.dynamic:  # the first that matches, as GPTQModel takes it
            if expression.match(layer):
                if left_alone:
                    raise ValueError(f"{layer}: dynamic leaves it alone, and the file has it quantised")
                return packing.with_own(Settings(layer, own.values))
        return packing


def _size_of_groups(packing: _Packing, columns: int) -> int:
    """Never more than there are columns."""
    return columns if packing.group_size == -1 else min(packing.group_size, columns)


def _eight_bits(
    layer: str,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor,
    group_size: int,
    dtype: torch.dtype,
    order: Tensor | None = None,
) -> QuantizedTensor:
    """codes: uint8 [N, K]; scale and zero, which is uint8: [⌈K/group_size⌉, N]"""
    codes = codes if order is None else codes[:, order]
    qdata, zero_point = ((t.contiguous() ^ _MIDDLE).view(torch.int8) for t in (codes, zero.t()))
    return by_blocks(layer, qdata, scale.t(), (1, group_size), dtype, zero_point=zero_point, k_order=order)


class GptqWriter(Writer):
    """The same four tensors, of 2, 3, 4 and 8 bits, scales in float16. Zeros minus one where the checkpoint
    is symmetric, else version 2.
    """

    scale_dtype = torch.float16

    def write(self, layer: str, weight: QuantizedTensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if weight.quantizes_input_to is not None:
            raise ValueError(f"{layer}: activations that are quantised have no place in the format")
        if isinstance(weight, (Int8Tensor, BlockwiseTensor)):
            return self._eight_bits(layer, weight)
        made = integers(layer, weight)
        bits, (rows, columns) = made.bits, weight.shape
        if bits in _PLANES:
            raise ValueError(f"{layer}: the format has 2, 3, 4 and 8 bits, got {bits}")
        if rows % (whole := codes_in_whole_words(bits)):
            raise ValueError(f"{layer}: N must be a multiple of {whole}, got {rows}")
        if self.symmetric and not made.symmetric:
            raise ValueError(
                f"{layer}: its zeros must be {1 << (bits - 1)}, for the checkpoint is said to be symmetric"
            )
        tensors = {
            "qweight": made.words(layer).t().contiguous(),
            "qzeros": packed(made.zero - 1 if self.symmetric else made.zero, bits),
            "scales": exactly(layer, made.scale, self.scale_dtype),
            "g_idx": made.group.to(torch.int32),
        }
        group_size = weight.block_size[1]
        facts = {"group_size": group_size, "columns": columns, "ordered": made.ordered}
        return tensors, {"bits": bits, **facts}

    def _eight_bits(
        self, layer: str, weight: Int8Tensor | BlockwiseTensor
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        refuse_what_is_aoexts_own(layer, weight)
        (rows, columns), group_size = weight.shape, weight.block_size[1]
        if weight.qdata.dtype is not torch.int8:
            raise ValueError(f"{layer}: the format has integers alone, got {dtype_name(weight.qdata.dtype)}")
        if rows % 4 or columns % 4 or columns % group_size or weight.block_size[0] != 1:
            raise ValueError(
                f"{layer}: N and K must be multiples of 4, and K of the group size, got {[rows, columns]} "
                f"with blocks of {weight.block_size}"
            )
        zero_point, order = getattr(weight, "zero_point", None), getattr(weight, "k_order", None)
        if self.symmetric and zero_point is not None:
            raise ValueError(f"{layer}: it has zero points, and the checkpoint is said to be symmetric")
        codes = weight.qdata.contiguous().view(torch.uint8) ^ _MIDDLE
        zeros = codes.new_full((columns // group_size, rows), _MIDDLE)
        if zero_point is not None:
            zeros.copy_(zero_point.t().contiguous().view(torch.uint8) ^ _MIDDLE)
        group = torch.arange(columns, dtype=torch.int32, device=codes.device) // group_size
        if order is not None:
            back = order.argsort()
            codes, group = codes[:, back].contiguous(), group[back]
        tensors = {
            "qweight": codes.view(torch.int32).t().contiguous(),
            "qzeros": zeros.view(torch.int32) - (_ONE_EACH[8] if self.symmetric else 0),
            "scales": exactly(layer, weight.scale.t(), self.scale_dtype),
            "g_idx": group,
        }
        facts = {"group_size": group_size, "columns": columns, "ordered": order is not None}
        return tensors, {"bits": 8, **facts}

    def settings(self, layers: Mapping[str, Mapping[str, Any]], left_alone: Sequence[str]) -> dict[str, Any]:
        kinds = {
            layer: {"bits": facts["bits"], "group_size": facts["group_size"]}
            for layer, facts in layers.items()
        }
        whole = all(facts["group_size"] == facts["columns"] for facts in layers.values())
        if whole:
            kinds = {layer: {**kind, "group_size": -1} for layer, kind in kinds.items()}
        ((most, _),) = Counter(tuple(kind.items()) for kind in kinds.values()).most_common(1)
        others = {
            f"+:^{re.escape(layer)}$": dict(kind.items() - set(most))
            for layer, kind in kinds.items()
            if kind != dict(most)
        }
        return {
            "quant_method": "gptq",
            **dict(most),
            "desc_act": any(facts["ordered"] for facts in layers.values()),
            "sym": self.symmetric,
            "lm_head": "lm_head" in layers,
            "checkpoint_format": "gptq" if self.symmetric else "gptq_v2",
            "pack_dtype": "int32",
            "dynamic": {**{f"-:^{re.escape(layer)}$": {} for layer in left_alone}, **others},
        }


class AwqReader(Reader):
    """qweight int32 [K, N·bits/32], qzeros int32 [groups, N·bits/32], scales [groups, N].

    8 bits are vLLM's kind of AWQ; AutoAWQ has 4 alone.
    """

    names = ("qweight", "qzeros", "scales")

    def __init__(self, settings: Settings, own: Mapping[str, Settings] | None = None) -> None:
        """own: settings of layers"""
        widths = (4, 8)
        bits = settings.choice("bits" if "bits" in settings else "w_bit", widths)
        settings.choice("version", ("gemm", "GEMM"), "gemm")
        size = "group_size" if "group_size" in settings else "q_group_size"
        self.packing = _Packing(widths, bits, settings.group_size(size, 128), None)
        self.own = _OwnSettings(own or {})

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        packing = self.own.of(layer, self.packing)
        in_word = 32 // packing.bits
        qweight = take(layer, tensors, "qweight", (torch.int32,), (-1, -1))
        columns, rows = qweight.shape[0], in_word * qweight.shape[1]
        group_size = _size_of_groups(packing, columns)
        groups = ceil_div(columns, group_size)
        scale = take(layer, tensors, "scales", _SCALES, (groups, rows))
        qzeros = take(layer, tensors, "qzeros", (torch.int32,), (groups, rows // in_word))
        codes, zero = (_in_order(words, packing.bits) for words in (qweight, qzeros))
        if packing.bits == 8:
            return _eight_bits(layer, codes.t(), scale, zero, group_size, dtype)
        scale, zero = in_whole_groups(columns, group_size, scale, zero)
        return of_codes(layer, codes.t(), 4, scale, zero, dtype)


def _in_order(words: Tensor, bits: int) -> Tensor:
    """AWQ's int32 [A, N·bits/32] to uint8 [A, N]."""
    order = torch.tensor(_AWQ_ORDER[bits], device=words.device)
    columns = unpacked(words, bits).unflatten(1, (-1, len(order)))
    return torch.empty_like(columns).index_copy_(2, order, columns).flatten(1)
