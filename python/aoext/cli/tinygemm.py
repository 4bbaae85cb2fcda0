"""Weights in the layout of PyTorch's tinygemm as plain tensor code, for what `aoext bench` draws and checks.

A weight [N, K] of values 0..15 is int32 [N/8, K/(16·inner), 32, inner/2]. The word of lane 4·g + t, in row g
of a tile of 8, holds for d, h, e in {0, 1} the value at k = 16·h + 8·e + 2·t + d of its 32 columns, as nibble
4·d + 2·h + e from below.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from aoext.layouts import GROUP_SIZES, INNER_K_TILES


def inner_k_tiles(K: int) -> int:
    """The largest that divides K in tiles."""
    return next(inner for inner in reversed(INNER_K_TILES) if K % (16 * inner) == 0)


def fits(N: int, K: int, group_size: int) -> bool:
    """Whether a weight has this layout and its operator takes it."""
    return N % 8 == 0 and K % 32 == 0 and group_size in GROUP_SIZES and K % group_size == 0


def random_stored(N: int, K: int, g: Generator) -> Tensor:
    """What is packed: uint8 [N, K/2], the even k in the high nibble."""
    return torch.randint(0, 256, (N, K // 2), generator=g, dtype=torch.uint8, device=g.device)


def random_packed(N: int, K: int, g: Generator) -> Tensor:
    """A packed weight; any word is one."""
    inner = inner_k_tiles(K)
    sizes = (N // 8, K // (16 * inner), 32, inner // 2)
    return torch.randint(-(2**31), 2**31, sizes, generator=g, dtype=torch.int32, device=g.device)


def packed_rows(stored: Tensor, tiles: Tensor) -> Tensor:
    """The words of some tiles of 8 rows, each in a row [K], in float64."""
    K = 2 * stored.shape[1]
    rows = stored.view(-1, 8, K // 2)[tiles].long()
    values = torch.stack([rows >> 4, rows & 15], dim=-1).view(len(tiles), 8, -1, 2, 2, 4, 2)  # …, h, e, t, d
    weights = 16 ** torch.tensor([[[4 * d + 2 * h + e for d in (0, 1)] for e in (0, 1)] for h in (0, 1)])
    words = torch.einsum("ngjhetd,hed->ngjt", values, weights)
    words = torch.where(words >= 2**31, words - 2**32, words)  # as int32
    inner = inner_k_tiles(K)
    by_lane = words.view(len(tiles), 8, -1, inner // 2, 4).permute(0, 2, 1, 4, 3)  # tile, outer, g, t, block
    return by_lane.reshape(len(tiles), -1).double()


def unpacked_rows(packed: Tensor, rows: Tensor) -> Tensor:
    """Some rows [n, K] of the values 0..15 of a packed weight, in float64."""
    lanes = packed.unflatten(2, (8, 4))[rows // 8, :, rows % 8]  # n, outer, t, block
    words = lanes.permute(0, 1, 3, 2).long()  # n, outer, block, t
    nibbles = torch.stack([(words >> 4 * i) & 15 for i in range(8)], dim=-1)
    values = nibbles.view(*words.shape, 2, 2, 2)  # …, t, d, h, e
    return values.permute(0, 1, 2, 5, 6, 3, 4).reshape(len(rows), -1).double()  # …, h, e, t, d
