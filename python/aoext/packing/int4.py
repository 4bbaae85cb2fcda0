"""int4 in groups along K; the formulas stand in the package."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from aoext.formats.checks import check_matrix, describe, has_values
from aoext.formats.dtypes import FLOAT_DTYPES, one_of
from aoext.packing.scales import held, in_dtype, require_finite, row_blocks

# The group_size that means a whole row.
WHOLE_ROW = -1

# Takes groups [n, K/G, G] in float32, which it may overwrite, and the dtype that scales are kept in; gives q
# of that shape, and float32 [n, K/G, 1] tensors: the scale, and the zero point where there is one.
GroupRule = Callable[[Tensor, torch.dtype], tuple[Tensor, ...]]


@torch.no_grad()
def pack_int4(q: Tensor) -> Tensor:
    """Two values to a byte: int8 [N, K] in −8..7 to int8 [N, K/2], the even k in the low nibble.

    >>> pack_int4(torch.tensor([[1, -1]], dtype=torch.int8))
    tensor([[-15]], dtype=torch.int8)
    """
    check_matrix("pack_int4", "q", q, (torch.int8,), "[N, K] with K even")
    if q.shape[1] % 2:
        raise ValueError(f"pack_int4: q must be int8 [N, K] with K even, got {describe(q)}")
    if q.numel() and has_values(q):
        low, high = int(q.amin()), int(q.amax())
        if low < -8 or high > 7:
            raise ValueError(f"pack_int4: q must lie in -8..7, got values in {low}..{high}")
    return (q[:, 1::2] << 4).bitwise_or_(q[:, ::2] & 0x0F)


@torch.no_grad()
def unpack_int4(packed: Tensor) -> Tensor:
    """The inverse of pack_int4: int8 [N, K/2] to int8 [N, K] in −8..7."""
    check_matrix("unpack_int4", "packed", packed, (torch.int8,), "[N, K/2]")
    # On int8 a left shift drops the high nibble, and right shifts repeat the sign.
    return torch.stack(((packed << 4) >> 4, packed >> 4), dim=-1).flatten(1)


def int4_row_quantize_zp(
    x: Tensor, group_size: int = 128, *, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Asymmetric int4 with a float zero point.

    x: [N, K], bfloat16, float16 or float32, K even; group_size divides K, or is −1 for the whole row.
    Returns q int8 [N, K] in −8..7 (not packed), scale and zero_point [K/group_size, N] in `dtype`, which
    is x's if it is not given, all contiguous. NaN or Inf in x raises ValueError.
    """
    q, scale, zero_point = _quantize_groups("int4_row_quantize_zp", x, group_size, dtype, _asymmetric)
    return q, scale, zero_point


def int4_row_quantize(
    x: Tensor, group_size: int = 128, *, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Symmetric int4, zero points of 0: arguments and results as for int4_row_quantize_zp."""
    q, scale = _quantize_groups("int4_row_quantize", x, group_size, dtype, _symmetric)
    return q, scale


def _asymmetric(groups: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    low, high = groups.amin(dim=-1, keepdim=True), groups.amax(dim=-1, keepdim=True)
    # The divisor is a tensor, because by a Python number some devices multiply with the reciprocal,
    # which can differ in the last bit.
    fifteen = torch.full_like(high, 15)
    spread = high - low
    wide = spread.isinf()
    scale = held(torch.where(wide, high / fifteen - low / fifteen, spread / fifteen), dtype)
    flat = spread == 0
    scale = scale.masked_fill_(flat, 0)
    zero_point = low + 8 * scale
    step = scale.masked_fill(flat, 1)
    if has_values(wide) and bool(wide.any()):  # an eighth of it all, which is exact, has its differences
        groups, low, step = groups.mul_(0.125), low * 0.125, step * 0.125
        zero_point = torch.where(wide, (low + scale) * 8, zero_point)
    middle = torch.full_like(low, 8).masked_fill_(flat, 0)
    q = groups.sub_(low).div_(step).round_().clamp_(0, 15).sub_(middle)
    return q, scale, zero_point


def _symmetric(groups: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    low, high = groups.amin(dim=-1, keepdim=True), groups.amax(dim=-1, keepdim=True)
    largest = torch.maximum(high, -low)
    # An eighth is exact in binary, so a Python number divides alike on every device.
    magnitude = held(largest / 8, dtype)
    scale = torch.where(high > -low, -magnitude, magnitude)
    q = groups.div_(scale).round_().clamp_(-8, 7)
    return q, scale.masked_fill_(largest == 0, 0)


@torch.no_grad()
def _quantize_groups(
    who: str, x: Tensor, group_size: int, dtype: torch.dtype | None, rule: GroupRule
) -> tuple[Tensor, ...]:
    """Apply `rule` to every group of x: q int8 [N, K], and the rest [K/G, N] in `dtype` or x's."""
    check_matrix(who, "x", x, FLOAT_DTYPES, "[N, K] with K even")
    dtype = x.dtype if dtype is None else dtype
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"{who}: dtype must be {one_of(FLOAT_DTYPES)}, got {dtype}")
    if x.shape[1] == 0 or x.shape[1] % 2:
        raise ValueError(
            f"{who}: x must be {one_of(FLOAT_DTYPES)} [N, K] with K even and not 0, got {describe(x)}"
        )
    check_group_size(who, group_size, x.shape[1])
    if group_size == WHOLE_ROW:
        group_size = x.shape[1]
    q = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    parameters: list[tuple[Tensor, ...]] = []
    for rows in row_blocks(x):
        # copy=True, because the rule overwrites its groups and a float32 x must stay as it is.
        block = x[rows].to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        values, *rest = rule(block.unflatten(1, (-1, group_size)), dtype)
        q[rows] = values.flatten(1)
        parameters.append(tuple(parameter.squeeze(-1) for parameter in rest))
    columns = [torch.cat(blocks).t().contiguous() for blocks in zip(*parameters, strict=True)]
    require_finite(who, "x", columns[0])
    return q, *(in_dtype(who, "x", column, dtype) for column in columns)


def check_group_size(who: str, group_size: int, columns: int | None = None) -> None:
    """Raise unless group_size is −1, or a positive int that divides `columns`, where that is given."""
    if not isinstance(group_size, int) or isinstance(group_size, bool):
        raise TypeError(f"{who}: group_size must be an int, got {describe(group_size)}")
    if group_size == WHOLE_ROW:
        return
    if group_size < 1 or (columns is not None and columns % group_size):
        divide = "" if columns is None else f" and divide K = {columns}"
        raise ValueError(
            f"{who}: group_size must be positive{divide}, or {WHOLE_ROW} for the whole row, got {group_size}"
        )
