"""int4 in groups along K; the formulas stand in the package."""

from __future__ import annotations

import torch
from torch import Tensor

from aoext.formats.table import FORMATS, Code
from aoext.packing.groups import asymmetric, pack, quantize_groups, symmetric, unpack

_INT4 = FORMATS[Code.INT4]


def pack_int4(q: Tensor) -> Tensor:
    """Two values to a byte: int8 [N, K] in −8..7 to int8 [N, K/2], the even k in the low nibble.

    >>> pack_int4(torch.tensor([[1, -1]], dtype=torch.int8))
    tensor([[-15]], dtype=torch.int8)
    """
    return pack("pack_int4", q, _INT4)


def unpack_int4(packed: Tensor) -> Tensor:
    """The inverse of pack_int4: int8 [N, K/2] to int8 [N, K] in −8..7."""
    return unpack("unpack_int4", packed, _INT4)


def int4_row_quantize_zp(
    x: Tensor, group_size: int = 128, *, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Asymmetric int4 with a float zero point.

    x: [N, K], bfloat16, float16 or float32, K even; group_size divides K, or is −1 for the whole row.
    Returns q int8 [N, K] in −8..7 (not packed), scale and zero_point [K/group_size, N] in `dtype`, which
    is x's if it is not given, all contiguous. NaN or Inf in x raises ValueError.
    """
    return quantize_groups("int4_row_quantize_zp", x, group_size, dtype, _INT4, asymmetric)


def int4_row_quantize(
    x: Tensor, group_size: int = 128, *, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Symmetric int4, zero points of 0: arguments and results as for int4_row_quantize_zp."""
    q, scale, _ = quantize_groups("int4_row_quantize", x, group_size, dtype, _INT4, symmetric)
    return q, scale
