"""What the quantisers share: scales that their dtype holds, and blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from aoext.formats.checks import has_values
from aoext.formats.dtypes import dtype_name

# Elements of one block: 4 MiB in float32, of which a few are alive at once; small against a layer. Elsewhere
# a block is some forty launches and two waits of the host, which take longer than a block of this size.
BLOCK_ELEMENTS = {"cpu": 1 << 20}
BLOCK_ELEMENTS_ELSEWHERE = 1 << 24

LIFT = 2.0**100  # takes the smallest subnormal number of float32 among the normal ones


def held(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Scales ≥ 0 as they are where they are normal numbers of `dtype`, smaller ones rounded up; NaN stays.

    Smaller ones are the smallest normal number where the program has them flushed to 0.
    """
    limits = torch.finfo(dtype)
    step = limits.smallest_normal * limits.eps
    # Two factors, for one would be infinite: by a Python number GPUs divide with the float32 reciprocal.
    steps = (scale * LIFT).mul_(1 / (LIFT * step))
    rounded_up = steps.ceil_().clamp_(min=1).mul_(step)
    rounded_up = torch.where(rounded_up > 0, rounded_up, limits.smallest_normal)
    return torch.where(scale < limits.smallest_normal, rounded_up, scale)


def in_dtype(who: str, argument: str, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Finite scales or zero points of a weight in the dtype that keeps them; ValueError where it cannot."""
    kept = numbers.to(dtype)
    lost = numbers.isfinite() & ~kept.isfinite()
    if has_values(kept) and bool(lost.any()):
        raise ValueError(
            f"{who}: {argument} must have scales and zero points that {dtype_name(dtype)} holds, "
            f"got {float(numbers[lost][0]):.3g}"
        )
    return kept


def require_finite(who: str, argument: str, scale: Tensor) -> None:
    """Every NaN or Inf in a weight shows in its scale."""
    if has_values(scale) and not bool(scale.isfinite().all()):
        raise ValueError(f"{who}: {argument} must be finite, got NaN or Inf")


def is_surely_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or Inf. Copies nothing."""
    low, high = tensor.detach().amin(), tensor.detach().amax()  # not aminmax, which fewer devices have
    return bool(low.isfinite() & high.isfinite())


def row_blocks(matrix: Tensor, multiple: int = 1, elements: int | None = None) -> Iterator[slice]:
    """Slices over the rows of a matrix [N, K], of about so many elements each; one if N = 0.

    All but the last are of a multiple of so many rows. Elements are those of BLOCK_ELEMENTS if not given.
    """
    rows, columns = matrix.shape
    if elements is None:
        elements = BLOCK_ELEMENTS.get(matrix.device.type, BLOCK_ELEMENTS_ELSEWHERE)
    step = max(1, elements // max(1, columns * multiple)) * multiple
    for begin in range(0, max(1, rows), step):
        yield slice(begin, begin + step)
