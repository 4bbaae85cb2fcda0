"""Plain weights as blocks of GGUF. `gguf` rounds to most of the formats; Q4_K is rounded here."""

from __future__ import annotations

from typing import Any

import gguf
import torch
from torch import Tensor

# What a weight gets whose rows are no whole number of its format's blocks.
_NEXT = {"Q4_K": "Q5_0", "Q5_0": "F16", "Q4_0": "F16", "Q8_0": "F16"}

# Blocks of Q4_K that are rounded together, within a few of their own size in a cache.
_BLOCKS_AT_ONCE = 1024


def fitting(kind: str, columns: int) -> str:
    """A format for rows of so many columns: `kind`, or what comes near it."""
    while kind in _NEXT and columns % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]:
        kind = _NEXT[kind]
    return kind


def quantized(weight: Tensor, kind: str) -> tuple[Any, Any]:
    """A float32 tensor [..., K] as an array for a writer of `gguf`, and its type."""
    raw_type = gguf.GGMLQuantizationType[kind]
    if weight.numel() and not bool(torch.stack(weight.aminmax()).isfinite().all()):
        raise ValueError(f"{kind} takes finite values, got NaN or Inf")
    if kind == "Q4_K":
        groups = weight.reshape(-1, 8, 32).float()
        blocks = torch.cat([_q4_k(part) for part in groups.split(_BLOCKS_AT_ONCE)])
        return blocks.view(*weight.shape[:-1], -1).numpy(), raw_type
    return gguf.quants.quantize(weight.numpy(), raw_type), raw_type


def _q4_k(groups: Tensor) -> Tensor:
    """Blocks uint8 [blocks, 144] of float32 [blocks, 8, 32].

    w = d·s·q - m·t in groups of 32, s and t of 6 bits, d and m float16 for eight. Each group's step and least
    value are refined by least squares of its rounding, and kept where they err less.
    """
    step, least = _fitted(groups)
    d, m = ((part.amax(1, keepdim=True) / 63).half().float() for part in (step, least))
    s, t = ((part * _inverse(unit)).round_().clamp_(0, 63) for part, unit in ((step, d), (least, m)))
    codes = _codes(groups, d * s, m * t).to(torch.uint8)
    s, t = s.to(torch.uint8), t.to(torch.uint8)
    scales = torch.cat(
        (
            (s[:, :4] & 63) | (s[:, 4:] >> 4 << 6),
            (t[:, :4] & 63) | (t[:, 4:] >> 4 << 6),
            (s[:, 4:] & 15) | ((t[:, 4:] & 15) << 4),
        ),
        1,
    )
    pairs = codes.view(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).flatten(1)
    halves = torch.cat((d, m), 1).half().view(torch.uint8)
    return torch.cat((halves, scales, nibbles), 1)


def _inverse(step: Tensor) -> Tensor:
    """1/step, and 0 where that is 0."""
    return torch.where(step > 0, 1 / step, 0)


def _codes(groups: Tensor, step: Tensor, least: Tensor) -> Tensor:
    return (groups + least[..., None]).mul_(_inverse(step)[..., None]).round_().clamp_(0, 15)


def _fitted(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Steps and negated least values, [blocks, 8], none of them negative."""
    least = (-groups.amin(-1)).clamp_min(0)
    step = (groups.amax(-1) + least).clamp_min(0) / 15
    mean = groups.mean(-1)
    codes = _codes(groups, step, least)
    best = _error(groups, codes, step, least)
    for _ in range(3):
        mean_code = codes.mean(-1)
        spread = codes.square().mean(-1) - mean_code * mean_code
        slope = ((codes * groups).mean(-1) - mean_code * mean) / spread.clamp_min(1e-20)
        offset = slope * mean_code - mean
        codes = _codes(groups, slope, offset)
        error = _error(groups, codes, slope, offset)
        better = (error < best) & (spread > 0) & (slope > 0) & (offset >= 0)
        step, least = torch.where(better, slope, step), torch.where(better, offset, least)
        best = torch.where(better, error, best)
    return step, least


def _error(groups: Tensor, codes: Tensor, step: Tensor, least: Tensor) -> Tensor:
    back = (codes * step[..., None]).sub_(least[..., None])
    return back.sub_(groups).square_().sum(-1)
