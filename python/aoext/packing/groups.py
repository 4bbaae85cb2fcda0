"""Integers in groups along K with a scale and a float zero point; the formulas stand in the package."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from aoext.formats.checks import check_dense, check_matrix, describe, has_values
from aoext.formats.dtypes import FLOAT_DTYPES, one_of
from aoext.formats.table import Format
from aoext.packing.scales import held, in_dtype, require_finite, row_blocks

# The group_size that means a whole row.
WHOLE_ROW = -1

# Takes groups [n, K/G, G] in float32, which it may overwrite, the dtype that scales are kept in and the
# format; gives q of that shape, and float32 [n, K/G, 1] scales and zero points.
GroupRule = Callable[[Tensor, torch.dtype, Format], tuple[Tensor, Tensor, Tensor]]


def columns_of(format: Format) -> str:
    """What K must be, for an error message."""
    return "K even" if format.values == 2 else f"K a multiple of {format.values}"


def planes(format: Format) -> list[tuple[int, int]]:
    """Bits and run of each plane, the lowest bits first; csrc/common/layout.h says what these are."""
    if format.bytes == 1:
        return [(format.bits, 1)]
    return [(bits, {4: 16, 2: 8, 1: 1}[bits]) for bits in (4, 2, 1) if format.bits & bits]


@torch.no_grad()
def pack(who: str, q: Tensor, format: Format) -> Tensor:
    """Codes int8 [N, K] as bytes [N, K/values], or [N, K/values, bytes] where several bytes hold them."""
    check_matrix(who, "q", q, (torch.int8,), f"[N, K] with {columns_of(format)}")
    if q.shape[1] % format.values:
        raise ValueError(f"{who}: q must be int8 [N, K] with {columns_of(format)}, got {describe(q)}")
    if q.numel() and has_values(q):
        low, high = int(q.amin()), int(q.amax())
        if low < format.lowest or high > format.highest:
            raise ValueError(
                f"{who}: q must lie in {format.lowest}..{format.highest}, got values in {low}..{high}"
            )
    blocks = q.reshape(len(q), q.shape[1] // format.values, format.values)
    packed_planes: list[Tensor] = []
    low = 0
    for bits, run in planes(format):
        parts = blocks.unflatten(2, (-1, 8 // bits, run)).unbind(3)
        mask = (1 << bits) - 1
        plane = parts[0] >> low & mask
        for i, part in enumerate(parts[1:], 1):
            plane = plane.bitwise_or_((part >> low & mask) << (bits * i))
        packed_planes.append(plane.flatten(2))
        low += bits
    packed = packed_planes[0] if len(packed_planes) == 1 else torch.cat(packed_planes, 2)
    packed = packed.squeeze(2) if format.bytes == 1 else packed
    return packed if format.storage is torch.int8 else packed.view(format.storage)


@torch.no_grad()
def unpack(who: str, packed: Tensor, format: Format) -> Tensor:
    """The inverse of pack: int8 [N, K]."""
    shape = f"[N, K/{format.values}]" if format.bytes == 1 else f"[N, K/{format.values}, {format.bytes}]"
    check_dense(who, "packed", packed, (format.storage,), shape, 2 + (format.bytes > 1))
    blocks = packed.view(torch.uint8).view(len(packed), packed.shape[1], format.bytes)
    codes, low, at = None, 0, 0
    for bits, run in planes(format):
        plane = blocks.narrow(2, at, format.values * bits // 8).unflatten(2, (-1, 1, run))
        parts = torch.cat([plane >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)], 3)
        codes = parts.flatten(2) if codes is None else codes | parts.flatten(2) << low
        low, at = low + bits, at + format.values * bits // 8
    assert codes is not None
    q = codes.flatten(1).view(torch.int8)
    return q if format.lowest == 0 else (q ^ -format.lowest) + format.lowest


def asymmetric(groups: Tensor, dtype: torch.dtype, format: Format) -> tuple[Tensor, Tensor, Tensor]:
    low, high = groups.amin(dim=-1, keepdim=True), groups.amax(dim=-1, keepdim=True)
    # The divisor is a tensor, because by a Python number some devices multiply with the reciprocal,
    # which can differ in the last bit.
    steps = format.highest - format.lowest
    divisor = torch.full_like(high, steps)
    spread = high - low
    wide = spread.isinf()
    scale = held(torch.where(wide, high / divisor - low / divisor, spread / divisor), dtype)
    flat = spread == 0
    scale = scale.masked_fill_(flat, 0)
    zero_point = low - format.lowest * scale
    step = scale.masked_fill(flat, 1)
    if has_values(wide) and bool(wide.any()):  # an eighth of it all, which is exact, has its differences
        groups, low, step = groups.mul_(0.125), low * 0.125, step * 0.125
        zero_point = torch.where(wide, (low - format.lowest / 8 * scale) * 8, zero_point)
    lowest = torch.full_like(low, format.lowest).masked_fill_(flat, 0)
    q = groups.sub_(low).div_(step).round_().clamp_(0, steps).add_(lowest)
    return q, scale, zero_point


def symmetric(groups: Tensor, dtype: torch.dtype, format: Format) -> tuple[Tensor, Tensor, Tensor]:
    half = 1 << (format.bits - 1)
    low, high = groups.amin(dim=-1, keepdim=True), groups.amax(dim=-1, keepdim=True)
    largest = torch.maximum(high, -low)
    # The divisor is a power of two, so that a Python number divides alike on every device.
    magnitude = held(largest / half, dtype)
    scale = torch.where(high > -low, -magnitude, magnitude)
    q = groups.div_(scale).round_().clamp_(-half, half - 1).add_(middle(format))
    scale = scale.masked_fill_(largest == 0, 0)
    return q, scale, symmetric_zero_point(scale, format)


def middle(format: Format) -> int:
    """The code that stands for zero in symmetric weights."""
    return format.lowest + (1 << (format.bits - 1))


def symmetric_zero_point(scale: Tensor, format: Format) -> Tensor:
    return scale * -middle(format) if middle(format) else torch.zeros_like(scale)


@torch.no_grad()
def quantize_groups(
    who: str, x: Tensor, group_size: int, dtype: torch.dtype | None, format: Format, rule: GroupRule
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply `rule` to every group of x: q int8 [N, K], scales and zero points [K/G, N] in `dtype` or x's."""
    check_matrix(who, "x", x, FLOAT_DTYPES, f"[N, K] with {columns_of(format)}")
    dtype = x.dtype if dtype is None else dtype
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"{who}: dtype must be {one_of(FLOAT_DTYPES)}, got {dtype}")
    if x.shape[1] == 0 or x.shape[1] % format.values:
        raise ValueError(
            f"{who}: x must be {one_of(FLOAT_DTYPES)} [N, K] with {columns_of(format)} and not 0, "
            f"got {describe(x)}"
        )
    check_group_size(who, group_size, x.shape[1])
    if group_size == WHOLE_ROW:
        group_size = x.shape[1]
    q = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    parameters: list[tuple[Tensor, ...]] = []
    for rows in row_blocks(x):
        # copy=True, because the rule overwrites its groups and a float32 x must stay as it is.
        block = x[rows].to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        values, *rest = rule(block.unflatten(1, (-1, group_size)), dtype, format)
        q[rows] = values.flatten(1)
        parameters.append(tuple(parameter.squeeze(-1) for parameter in rest))
    scale, zero_point = (torch.cat(blocks).t().contiguous() for blocks in zip(*parameters, strict=True))
    require_finite(who, "x", scale)
    return q, in_dtype(who, "x", scale, dtype), in_dtype(who, "x", zero_point, dtype)


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
