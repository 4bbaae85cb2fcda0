"""Half-Quadratic Quantization (Badri and Shaji, 2023), as the package hqq has it.

The error of a group is a norm l_p with p < 1, to which outliers matter little. It is split in two: W_e, the
part of the error that may stay, by the operator that shrinks, and the zero point that makes the rest least.
Scales stay those of rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from aoext.quality.grid import Grid

# The package's own.
NORM, BETA, GROWTH, TURNS = 0.7, 10.0, 1.01, 20


def half_quadratic(grid: Grid, x: Tensor, scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and offsets [B] of groups x [T, B], from those of rounding on.

    The package ends when the mean error of a whole weight grows, here each group keeps its best offset.
    """
    divisor = scale.masked_fill(scale == 0, 1)
    best, best_error = offset, torch.full_like(offset, torch.inf)
    beta = BETA
    for _ in range(TURNS):
        levels = grid.levels.nearest((x - offset) / divisor)
        error = x - levels * scale - offset
        mean = error.abs().mean(0)
        better = mean < best_error
        if not bool(better.any()):
            break
        best, best_error = torch.where(better, offset, best), torch.where(better, mean, best_error)
        size = error.abs()
        stays = (size - size.pow(NORM - 1) / beta).clamp_(min=0) * error.sign()
        offset = (x - stays - levels * scale).mean(0)
        beta *= GROWTH
    return scale, best
