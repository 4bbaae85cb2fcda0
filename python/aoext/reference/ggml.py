"""Weights in the blocks of GGUF files: random ones, and their float64 meaning as ggml-quants.c has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from aoext.formats.table import FORMATS, Code

from .values import rand

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

# Codes of blocks [..., bytes], int64 [..., values], then scale and zero point of groups, float64
# [..., groups, 1].
Parts = tuple[Tensor, Tensor, Tensor | float]


def _half(blocks: Tensor, at: int) -> Tensor:
    return blocks[..., at : at + 2].contiguous().view(torch.float16).double().unsqueeze(-1)


def _above(qs: Tensor, bits: int) -> Tensor:
    """int64: the lowest bits of all bytes of the last dimension, then the next ones of all."""
    mask = (1 << bits) - 1
    return torch.cat([qs.long() >> shift & mask for shift in range(0, 8, bits)], -1)


def _chunks(qs: Tensor, size: int, bits: int) -> Tensor:
    return _above(qs.unflatten(-1, (-1, size)), bits).flatten(-2)


def _fifth(blocks: Tensor, at: int) -> Tensor:
    return (blocks[..., at : at + 4, None].long() >> torch.arange(8, device=blocks.device) & 1).flatten(-2)


def _signed(bytes: Tensor) -> Tensor:
    return bytes.contiguous().view(torch.int8).double().unsqueeze(-1)


def _six_bits(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of q4_k and q5_k."""
    low, middle, high = (blocks[..., at : at + 4].long() for at in (4, 8, 12))
    scales = torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), -1)
    minima = torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), -1)
    return scales.unsqueeze(-1), minima.unsqueeze(-1)


def _q4_0(b: Tensor) -> Parts:
    return _above(b[..., 2:], 4) - 8, _half(b, 0), 0.0


def _q4_1(b: Tensor) -> Parts:
    return _above(b[..., 4:], 4), _half(b, 0), _half(b, 2)


def _q5_0(b: Tensor) -> Parts:
    return (_above(b[..., 6:], 4) | _fifth(b, 2) << 4) - 16, _half(b, 0), 0.0


def _q5_1(b: Tensor) -> Parts:
    return _above(b[..., 8:], 4) | _fifth(b, 4) << 4, _half(b, 0), _half(b, 2)


def _q8_0(b: Tensor) -> Parts:
    return b[..., 2:].contiguous().view(torch.int8).long(), _half(b, 0), 0.0


def _q2_k(b: Tensor) -> Parts:
    scales = b[..., :16, None].long()
    return _chunks(b[..., 16:80], 32, 2), _half(b, 80) * (scales & 15), -_half(b, 82) * (scales >> 4)


def _q3_k(b: Tensor) -> Parts:
    scales = _above(b[..., 96:104], 4) | _above(b[..., 104:108], 2) << 4
    codes = _chunks(b[..., 32:96], 32, 2) | _above(b[..., :32], 1) << 2
    return codes - 4, _half(b, 108) * (scales.unsqueeze(-1) - 32), 0.0


def _q4_k(b: Tensor) -> Parts:
    scales, minima = _six_bits(b)
    return _chunks(b[..., 16:], 32, 4), _half(b, 0) * scales, -_half(b, 2) * minima


def _q5_k(b: Tensor) -> Parts:
    scales, minima = _six_bits(b)
    codes = _chunks(b[..., 48:], 32, 4) | _above(b[..., 16:48], 1) << 4
    return codes, _half(b, 0) * scales, -_half(b, 2) * minima


def _q6_k(b: Tensor) -> Parts:
    codes = _chunks(b[..., :128], 64, 4) | _chunks(b[..., 128:192], 32, 2) << 4
    return codes - 32, _half(b, 208) * _signed(b[..., 192:208]), 0.0


def _looked_up(codes: Tensor) -> Tensor:
    return torch.tensor(_IQ4, device=codes.device)[codes]


def _iq4_nl(b: Tensor) -> Parts:
    return _looked_up(_above(b[..., 2:], 4)), _half(b, 0), 0.0


def _iq4_xs(b: Tensor) -> Parts:
    low, high = b[..., 4:8, None].long(), b[..., 2:4, None].long()
    lower = torch.cat((low & 15, low >> 4), -1).flatten(-2)
    upper = (high >> torch.tensor([0, 2, 4, 6], device=b.device) & 3).flatten(-2)
    scales = (lower | upper << 4).unsqueeze(-1) - 32
    return _looked_up(_chunks(b[..., 8:], 16, 4)), _half(b, 0) * scales, 0.0


def _tq2_0(b: Tensor) -> Parts:
    return _chunks(b[..., :64], 32, 2) - 1, _half(b, 64), 0.0


def _tq1_0(b: Tensor) -> Parts:
    runs = [
        (bytes.long() * 3**digit % 256) * 3 >> 8
        for bytes, digits in ((b[..., :32], 5), (b[..., 32:48], 5), (b[..., 48:52], 4))
        for digit in range(digits)
    ]
    return torch.cat(runs, -1) - 1, _half(b, 52), 0.0


class _Blocks(NamedTuple):
    halves: tuple[int, ...]  # where the float16 numbers of a block lie
    parts: Callable[[Tensor], Parts]


_FORMATS = {
    Code.Q4_0: _Blocks((0,), _q4_0),
    Code.Q4_1: _Blocks((0, 2), _q4_1),
    Code.Q5_0: _Blocks((0,), _q5_0),
    Code.Q5_1: _Blocks((0, 2), _q5_1),
    Code.Q8_0: _Blocks((0,), _q8_0),
    Code.Q2_K: _Blocks((80, 82), _q2_k),
    Code.Q3_K: _Blocks((108,), _q3_k),
    Code.Q4_K: _Blocks((0, 2), _q4_k),
    Code.Q5_K: _Blocks((0, 2), _q5_k),
    Code.Q6_K: _Blocks((208,), _q6_k),
    Code.IQ4_NL: _Blocks((0,), _iq4_nl),
    Code.IQ4_XS: _Blocks((0,), _iq4_xs),
    Code.TQ2_0: _Blocks((64,), _tq2_0),
    Code.TQ1_0: _Blocks((52,), _tq1_0),
}


def random_blocks(code: Code, N: int, K: int, g: Generator) -> Tensor:
    """A weight of random bytes, uint8 [N, K/values, bytes], whose float16 numbers are of both signs."""
    format, device = FORMATS[code], g.device
    blocks = torch.randint(
        256, (N, K // format.values, format.bytes), generator=g, dtype=torch.uint8, device=device
    )
    for at in _FORMATS[code].halves:
        sizes, signs = (rand(g, *blocks.shape[:2]) for _ in range(2))
        halves = (sizes + 0.5) * 0.01 * torch.where(signs < 0.5, -1, 1)
        blocks[..., at : at + 2] = halves.half().unsqueeze(-1).view(torch.uint8)
    return blocks


def blocks_float64(code: Code, blocks: Tensor) -> Tensor:
    """What blocks [n, K/values, bytes] stand for: [n, K]."""
    return torch.add(*blocks_terms(code, blocks))


def blocks_terms(code: Code, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scaled codes of blocks [n, K/values, bytes] and zero points, whose sums [n, K] they stand for."""
    codes, scale, zero_point = _FORMATS[code].parts(blocks)
    scaled = codes.double().unflatten(-1, (-1, FORMATS[code].group)) * scale
    return scaled.flatten(1), (torch.zeros_like(scaled) + zero_point).flatten(1)
