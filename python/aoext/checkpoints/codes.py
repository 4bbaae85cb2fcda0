"""Codes of a few bits as other libraries pack them into words of 32 bits, and back."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def codes_in_whole_words(bits: int) -> int:
    """The least number of codes that fill words."""
    return 32 // math.gcd(32, bits)


def unpacked(words: Tensor, bits: int) -> Tensor:
    """int32 [A, B] to uint8 [A, ·]: one stream of codes of so many bits, the lowest first, across words.

    Where codes do not end with the last word, zeros follow them.
    """
    bytes, size = words.contiguous().view(torch.uint8), bits // math.gcd(8, bits)
    if bits == 8:
        return bytes
    blocks = F.pad(bytes, (0, -bytes.shape[1] % size)).unflatten(1, (-1, size)).unbind(2)
    codes: list[Tensor] = []
    for low in range(0, 8 * size, bits):  # those that are in so many bytes
        byte, shift = divmod(low, 8)
        code = blocks[byte] >> shift
        if shift + bits > 8:
            code |= blocks[byte + 1] << (8 - shift)
        codes.append(code & ((1 << bits) - 1))
    return torch.stack(codes, -1).flatten(1)


def packed(codes: Tensor, bits: int) -> Tensor:
    """uint8 [A, n] to int32 [A, ⌈n·bits/32⌉]: the way back from `unpacked`."""
    blocks = F.pad(codes, (0, -codes.shape[1] % 32)).unflatten(1, (-1, 8)).unbind(2)
    bytes = codes.new_zeros((*blocks[0].shape, bits))
    for i, code in enumerate(blocks):
        byte, shift = divmod(bits * i, 8)
        bytes[..., byte] |= code << shift
        if shift + bits > 8:
            bytes[..., byte + 1] |= code >> (8 - shift)
    words = bytes.flatten(1).view(torch.int32)
    return words[:, : -(-codes.shape[1] * bits // 32)].contiguous()


def from_planes(words: Tensor, bits: int) -> Tensor:
    """int32 [A, B] to uint8 [A, 32·B/bits]: 32 codes in so many words, in planes of 8, 4, 2 and 1 bits.

    The plane of the lowest bits comes first, and each is a stream of its own.
    """
    if words.shape[1] % bits:
        raise ValueError(
            f"planes of {bits} bits are in {bits} words for 32 codes, got {words.shape[1]} words"
        )
    blocks = words.unflatten(1, (-1, bits))
    codes, low = torch.zeros((), dtype=torch.uint8, device=words.device), 0
    for width in (8, 4, 2, 1):
        if bits & width:
            plane = blocks[..., low : low + width].flatten(1)
            codes = codes | unpacked(plane, width) << low
            low += width
    return codes


def packed_pairs(values: Tensor) -> Tensor:
    """uint8 [N, K] of 0..15 to uint8 [N, K/2], the even k low."""
    return values[:, ::2] | (values[:, 1::2] << 4)
