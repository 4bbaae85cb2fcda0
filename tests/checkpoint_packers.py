"""Weights as other libraries store them, packed value by value, and what they stand for in float64.

Each function makes random codes, scales and zeros of a weight [N, K], and returns the tensors that a
checkpoint has of it, by their names behind the layer's, with the weight in float64. Nothing here is shared
with what reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Stored = tuple[dict[str, Tensor], Tensor]


def int32_words(rows: Sequence[Sequence[int]]) -> Tensor:
    """Eight codes of 4 bits to a word, the first one lowest, along the last dimension."""
    words = []
    for row in rows:
        assert len(row) % 8 == 0
        packed = [sum(int(row[8 * i + j]) << (4 * j) for j in range(8)) for i in range(len(row) // 8)]
        words.append([word - (1 << 32) if word >= 1 << 31 else word for word in packed])
    return torch.tensor(words, dtype=torch.int32)


def _grouped(rows: int, columns: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [N, K], scales float16 [N, K/g] and integer zeros [N, K/g]."""
    codes = torch.randint(16, (rows, columns))
    scales = (torch.rand(rows, columns // group) * 0.1 + 0.001).half()
    zeros = torch.randint(1, 16, (rows, columns // group))
    return codes, scales, zeros


def _exact(codes: Tensor, scales: Tensor, zeros: Tensor, group_of: Tensor) -> Tensor:
    """(code - zero)·scale, with the group of each column."""
    return (codes - zeros[:, group_of]).double() * scales[:, group_of].double()


def gptq(rows: int, columns: int, group: int, *, form: str = "gptq", act_order: bool = False) -> Stored:
    codes, scales, zeros = _grouped(rows, columns, group)
    group_of = torch.arange(columns) // group
    if act_order:
        group_of = group_of[torch.randperm(columns)]
    stored_zeros = zeros.t().tolist()
    if form == "gptq":
        stored_zeros = [[zero - 1 for zero in row] for row in stored_zeros]
    tensors = {
        "qweight": int32_words(codes.tolist()).t().contiguous(),
        "qzeros": int32_words(stored_zeros),
        "scales": scales.t().contiguous(),
        "g_idx": group_of.int(),
    }
    return tensors, _exact(codes, scales, zeros, group_of)


def awq(rows: int, columns: int, group: int) -> Stored:
    codes, scales, zeros = _grouped(rows, columns, group)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def mixed(lines: list[list[int]]) -> list[list[int]]:
        return [[line[8 * (i // 8) + order[i % 8]] for i in range(len(line))] for line in lines]

    tensors = {
        "qweight": int32_words(mixed(codes.t().tolist())),
        "qzeros": int32_words(mixed(zeros.t().tolist())),
        "scales": scales.t().contiguous(),
    }
    return tensors, _exact(codes, scales, zeros, torch.arange(columns) // group)


def hqq(rows: int, columns: int, group: int) -> Stored:
    codes, scales, _ = _grouped(rows, columns, group)
    zeros = (torch.rand(rows, columns // group) * 15).half()
    matrix = codes.view(-1, group)
    half = matrix.shape[0] // 2
    tensors = {
        "W_q": (matrix[:half] << 4 | matrix[half:]).to(torch.uint8),
        "scale": scales.view(-1, 1),
        "zero": zeros.view(-1, 1),
        "shape": torch.tensor([rows, columns]),
        "nbits": torch.tensor(4),
    }
    return tensors, _exact(codes, scales, zeros.double(), torch.arange(columns) // group)


def pack_quantized(rows: int, columns: int, group: int, *, symmetric: bool = True) -> Stored:
    codes, scales, zeros = _grouped(rows, columns, group)
    tensors = {
        "weight_packed": int32_words(codes.tolist()),
        "weight_scale": scales,
        "weight_shape": torch.tensor([rows, columns]),
    }
    if symmetric:
        zeros = torch.full_like(zeros, 8)
    else:  # along N, filled up with zeros
        lines = [line + [0] * (-len(line) % 8) for line in zeros.t().tolist()]
        tensors["weight_zero_point"] = int32_words(lines).t().contiguous()
    return tensors, _exact(codes, scales, zeros, torch.arange(columns) // group)


def int_quantized(rows: int, columns: int) -> Stored:
    q = torch.randint(-128, 128, (rows, columns)).to(torch.int8)
    scale = torch.rand(rows, 1) * 0.1
    return {"weight": q, "weight_scale": scale}, q.double() * scale.double()


def float_quantized(rows: int, columns: int, *, whole: bool = False) -> Stored:
    q = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scale = torch.rand(1) if whole else torch.rand(rows, 1)
    return {"weight": q, "weight_scale": scale}, q.double() * scale.double()


def bitsandbytes_int8(rows: int, columns: int) -> Stored:
    q = torch.randint(-127, 128, (rows, columns)).to(torch.int8)
    largest = torch.rand(rows) + 0.1
    tensors = {"weight": q, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, q.double() * (largest.double()[:, None] / 127)
