"""Scales in 8 bits, as bitsandbytes has them where it quantises twice.

    scale[i] = table[code[i]]·factor[i / 256] + offset, i along a matrix of scales, row by row

in float32, where the product rounds and then the sum, as bitsandbytes rounds them. factor is the largest
magnitude of 256 scales, less the offset, which is the mean of all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TOGETHER = 256  # scales that share a factor


class Nested(NamedTuple):
    """Scales in 8 bits.

    codes: uint8, of the scales' shape
    table: float32 [256]
    factors: float32 [⌈scales / TOGETHER⌉]
    offset: float32 [1]
    """

    codes: Tensor
    table: Tensor
    factors: Tensor
    offset: Tensor


@torch.no_grad()
def nested(scale: Tensor, table: Tensor | None = None) -> Nested:
    """Scales of float32 in 8 bits; by another table than bitsandbytes' where one is given."""
    table = _table(scale.device) if table is None else table
    largest = scale.amax()
    mean, of_relative = scale.mean(), (scale / largest).mean() * largest  # of which the former may overflow
    offset = mean.where(mean.isfinite(), of_relative).reshape(1)
    shifted = torch.nn.functional.pad((scale - offset).flatten(), (0, -scale.numel() % TOGETHER))
    blocks = shifted.view(-1, TOGETHER)
    factors = blocks.abs().amax(1) / table.abs().amax()
    relative = blocks / factors.where(factors > 0, 1).unsqueeze(1)
    values, order = table.sort()
    above = torch.searchsorted(values, relative.contiguous()).clamp(1, len(values) - 1)
    below = above - 1
    nearer = relative - values[below] > values[above] - relative  # of two that are as near, the lower
    places = torch.where(nearer, above, below)
    for _ in range(2):  # next to the largest number the nearest may be infinite, and by rounding the next one
        infinite = float_scales(places, values, factors.unsqueeze(1), offset).isinf() & blocks.isfinite()
        places = (places - infinite.long()).clamp_min(0)
    codes = order[places].flatten()[: scale.numel()].to(torch.uint8)
    return Nested(codes.view(scale.shape), table, factors, offset)


def float_scales(codes: Tensor, table: Tensor, factors: Tensor, offset: Tensor) -> Tensor:
    """What codes stand for in float32, by the table [256], factors of the codes' shape and the offset [1]."""
    return table[codes.int()] * factors + offset


def _table(device: torch.device) -> Tensor:
    """float32 [256]: 0, 1, and numbers of both signs, a bit of fraction more for each decimal exponent."""
    magnitudes = []
    for exponent in range(7):
        bounds = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32, device="cpu")
        magnitudes.append(10 ** (exponent - 6) * ((bounds[:-1] + bounds[1:]) / 2.0))
    several = torch.cat(magnitudes)
    return torch.cat((several, -several, several.new_tensor([0.0, 1.0]))).sort().values.to(device)
