"""int8 and float8 with a scale for each row."""

from __future__ import annotations

import torch
from torch import Tensor

from aoext.formats.checks import check_matrix, describe, has_values, shown
from aoext.formats.dtypes import FLOAT8_DTYPES, FLOAT_DTYPES, one_of
from aoext.packing.scales import held, require_finite


def int8_row_quantize(w: Tensor) -> tuple[Tensor, Tensor]:
    """Row-wise int8: w [N, K] to q int8 [N, K] in ±127 and scale float32 [N, 1].

    w: bfloat16, float16 or float32. NaN or Inf in it raises ValueError.
    """
    return _quantize_rows("int8_row_quantize", w, torch.int8)


def float8_row_quantize(w: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor]:
    """Row-wise float8: w [N, K] to q [N, K] of `dtype` and scale float32 [N, 1].

    w: bfloat16, float16 or float32. NaN or Inf in it raises ValueError.
    dtype: float8_e4m3fn or float8_e5m2, else ValueError.
    """
    if dtype not in FLOAT8_DTYPES:
        raise ValueError(f"float8_row_quantize: dtype must be {one_of(FLOAT8_DTYPES)}, got {shown(dtype)}")
    return _quantize_rows("float8_row_quantize", w, dtype)


@torch.no_grad()
def _quantize_rows(who: str, w: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    check_matrix(who, "w", w, FLOAT_DTYPES)
    if w.shape[1] == 0:
        raise ValueError(f"{who}: w must be [N, K] with K not 0, got {describe(w)}")
    q, scale = torch.ops.ao.quantize(w, dtype)
    # The operator, which serves activations, takes no scale below the smallest normal number.
    normal = scale > torch.finfo(scale.dtype).smallest_normal
    if has_values(scale) and not bool(normal.all()):  # NaN is no larger: the host waits once for both
        require_finite(who, "w", scale)
        small = ~normal.flatten()
        rows = w[small].to(torch.float32)
        largest = 127.0 if dtype is torch.int8 else torch.finfo(dtype).max
        scale[small] = held(rows.abs().amax(1, keepdim=True) / largest, scale.dtype)
        values = rows / scale[small]
        values = values.round_() if dtype is torch.int8 else values
        q[small] = values.clamp_(-largest, largest).to(dtype)
    return q, scale
