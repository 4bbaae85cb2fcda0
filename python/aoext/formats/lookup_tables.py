"""The tables of 16 values that codes of 4 bits look up."""

from __future__ import annotations

from typing import NamedTuple

import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

# bitsandbytes' tables: quantiles of the normal distribution, and a float of 4 bits that is not e2m1.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = tuple(
    sign * value / 12 + 0.0 for sign in (1.0, -1.0) for value in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
)


class Lut4Format(NamedTuple):
    """A format of 4 bits as the field knows it."""

    table: tuple[float, ...]
    block_k: int
    scale: torch.dtype
    two_scales: bool = False  # whether there is a global one too


LUT4_FORMATS = {
    "mxfp4": Lut4Format(E2M1, 32, torch.float8_e8m0fnu),
    "nvfp4": Lut4Format(E2M1, 16, torch.float8_e4m3fn, two_scales=True),
    "nf4": Lut4Format(NF4, 64, torch.float32),
    "fp4": Lut4Format(FP4, 64, torch.float32),
}
