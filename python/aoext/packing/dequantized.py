"""Quantised values as the weight that they stand for."""

from __future__ import annotations

import torch
from torch import Tensor

from aoext.formats.checks import check_matrix, describe, shown
from aoext.formats.dtypes import FLOAT8_DTYPES, FLOAT_DTYPES, one_of
from aoext.formats.table import Code, code_of


@torch.no_grad()
def dequantize(
    qdata: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The weight [N, K] that quantised values stand for, in `dtype` (default: that of scale).

    int4: qdata int8 [N, K/2] as pack_int4 gives it, scale and zero_point [K/group_size, N], of
    one dtype; symmetric weights pass zeros. 8 bits: qdata int8 or float8 [N, K], scale [N, 1],
    no zero_point. Scales are bfloat16, float16 or float32. The result is rounded once.

    >>> q, scale = int8_row_quantize(torch.randn(4, 8))
    >>> dequantize(q, scale).shape
    torch.Size([4, 8])
    """
    if dtype is not None and dtype not in FLOAT_DTYPES:
        raise ValueError(f"dequantize: dtype must be {one_of(FLOAT_DTYPES)}, got {shown(dtype)}")
    if zero_point is not None:
        _check_int4(qdata, scale, zero_point)
        fields = (tensor.contiguous() for tensor in (qdata, scale, zero_point))
        qdata, scale, zero_point = fields
        return torch.ops.ao.dequantize(qdata, scale, Code.INT4, None, zero_point, dtype=dtype)
    _check_rows(qdata, scale)
    code = code_of(qdata.dtype)
    return torch.ops.ao.dequantize(qdata.contiguous(), scale.contiguous(), code, dtype=dtype)


def _check_int4(qdata: Tensor, scale: Tensor, zero_point: Tensor) -> None:
    """Raise unless these are the fields of an int4 weight, for dequantize."""
    check_matrix("dequantize", "qdata", qdata, (torch.int8,), "[N, K/2]")
    check_matrix("dequantize", "scale", scale, FLOAT_DTYPES, "[K/group_size, N]")
    check_matrix("dequantize", "zero_point", zero_point, (scale.dtype,), "like scale")
    rows, columns, groups = qdata.shape[0], 2 * qdata.shape[1], scale.shape[0]
    if scale.shape[1] != rows or columns == 0 or groups == 0 or columns % groups:
        raise ValueError(
            f"dequantize: scale must be [K/group_size, N] = [a divisor of {columns}, {rows}] "
            f"for a qdata {list(qdata.shape)}, got {list(scale.shape)}"
        )
    if zero_point.shape != scale.shape:
        raise ValueError(
            f"dequantize: zero_point must be {list(scale.shape)} like scale, got {list(zero_point.shape)}"
        )
    _check_device(qdata, scale=scale, zero_point=zero_point)


def _check_rows(qdata: Tensor, scale: Tensor) -> None:
    """Raise unless these are the fields of a row-scaled weight of 8 bits, for dequantize."""
    check_matrix("dequantize", "qdata", qdata, (torch.int8, *FLOAT8_DTYPES))
    if qdata.shape[1] == 0:
        raise ValueError(f"dequantize: qdata must be [N, K] with K not 0, got {describe(qdata)}")
    check_matrix("dequantize", "scale", scale, FLOAT_DTYPES, "[N, 1]")
    if scale.shape != (qdata.shape[0], 1):
        raise ValueError(
            f"dequantize: scale must be [N, 1] = [{qdata.shape[0]}, 1] for a qdata of 8 bits, "
            f"got {list(scale.shape)}"
        )
    _check_device(qdata, scale=scale)


def _check_device(qdata: Tensor, **others: Tensor) -> None:
    for name, tensor in others.items():
        if tensor.device != qdata.device:
            raise ValueError(
                f"dequantize: {name} must be on qdata's device {qdata.device}, got {tensor.device}"
            )
