"""Weights to small numbers with a scale for each block [block_n, block_k], by the rules of the field.

A block's scale comes from the largest magnitude in it, amax, and from the largest number that its codes have,
the limit: 127 of int8, 448 and 57344 of float8, 6 of e2m1, 1 of NF4. In float32:

    float scales        s = held(amax / limit), rounded to its dtype when the codes are chosen; 1 for zeros
    exponents, "rceil"  s = 2^⌈log2(amax / limit)⌉       OCP MX as NVIDIA scales it, which never saturates
    exponents, "floor"  s = 2^(⌊log2 amax⌋ − ⌊log2 limit⌋)    as OCP's text has it
    float8_e4m3fn       s = amax / limit / g in 2⁻⁶..448; g = amax of the weight / (448·limit), or 1 (nvfp4)
    absmax              s = amax, for limits of 1 (NF4 and fp4 of bitsandbytes)
    int8 with zeros     s = held((max − min) / 255) with 0 in min..max; z = −128 − min / s, rounded; 1 and 0
                        for zeros

Codes are x / s, or x / s + z, rounded to nearest: of int8, float8 and e2m1 with ties to even, of other tables
with ties to the smaller value. float8 and e2m1 saturate. `held` is that of scales.py. For NF4 and nvfp4 the
field's own quantisers multiply by a reciprocal, and so does this: values are theirs to the last bit, but for
those so small that float32 has no such reciprocal, which are multiplied by 2⁶⁴ first.

Large weights pass through float32 in blocks of rows. Errors are those of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from aoext.formats.checks import check_dense, check_matrix, describe, has_values, shown
from aoext.formats.dtypes import BLOCK_SCALE_DTYPES, EXPONENT_DTYPES, FLOAT8_DTYPES, FLOAT_DTYPES, one_of
from aoext.formats.table import TABLE_SIZE
from aoext.packing.scales import held, in_dtype, require_finite, row_blocks

Scaling = Literal["rceil", "floor"]

E4M3_MAX, E4M3_TINY = 448.0, 2.0**-6  # of normal numbers
SMALLEST_ABSMAX = 1e-38  # whose reciprocal float32 has
SMALLEST_LARGEST = 2.0**-64  # of a weight whose global scale, and what comes of it, are normal numbers
LIFT = 2.0**64  # meets what is smaller first
SMALLEST_SCALE = 2.0**-149  # of float32


def check_scaling(who: str, argument: str, scaling: str) -> None:
    if scaling not in get_args(Scaling):
        raise ValueError(f"{who}: {argument} must be one of {', '.join(get_args(Scaling))}, got {scaling!r}")


# What the largest magnitudes of blocks give: their scales as they are stored, and what values become by them.
_Rule = Callable[[Tensor], tuple[Tensor, Callable[[Tensor], Tensor]]]


@torch.no_grad()
def blockwise_quantize(
    w: Tensor,
    block_size: Sequence[int],
    dtype: torch.dtype = torch.float8_e4m3fn,
    *,
    scale_dtype: torch.dtype = torch.float32,
    scaling: Scaling = "rceil",
) -> tuple[Tensor, Tensor]:
    """Codes of 8 bits: w [N, K] to q [N, K] of `dtype` and a scale for each block.

    w: bfloat16, float16 or float32. NaN or Inf in it raises ValueError.
    scale_dtype: float32, bfloat16, float16, float8_e4m3fn, float8_e8m0fnu, or uint8 for its exponents.
    scaling: how exponents round, "rceil" or "floor"; other scales know no such choice.
    """
    who = "blockwise_quantize"
    check_matrix(who, "w", w, FLOAT_DTYPES)
    if dtype not in (torch.int8, *FLOAT8_DTYPES):
        raise ValueError(f"{who}: dtype must be {one_of((torch.int8, *FLOAT8_DTYPES))}, got {shown(dtype)}")
    _check(who, w, scale_dtype, scaling)
    largest = 127.0 if dtype is torch.int8 else torch.finfo(dtype).max
    limit = torch.tensor(largest, dtype=torch.float32, device=w.device)

    def encode(values: Tensor) -> Tensor:
        values = values.round_() if dtype is torch.int8 else values
        return values.clamp_(-largest, largest).to(dtype)

    def floats(amax: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        scale = torch.where(amax > 0, held(amax / limit, scale_dtype), 1.0)
        return in_dtype(who, "w", scale, scale_dtype), lambda values: values / scale

    q = torch.empty_like(w, dtype=dtype, memory_format=torch.contiguous_format)
    rule = _rule(limit, scale_dtype, scaling, None) or floats
    return q, _quantize(who, w, block_size, rule, encode, q)


@torch.no_grad()
def blockwise_quantize_zp(
    w: Tensor, block_size: Sequence[int], *, scale_dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """int8 with an integer zero point: w [N, K] ≈ (q − z)·s, with s and z int8 for each block; 0 is exact.

    w: bfloat16, float16 or float32. NaN or Inf in it raises ValueError.
    scale_dtype: float32, bfloat16 or float16.
    """
    who = "blockwise_quantize_zp"
    check_matrix(who, "w", w, FLOAT_DTYPES)
    if scale_dtype not in FLOAT_DTYPES:
        raise ValueError(f"{who}: scale_dtype must be {one_of(FLOAT_DTYPES)}, got {shown(scale_dtype)}")
    _check(who, w, scale_dtype, "rceil")
    q = torch.empty_like(w, dtype=torch.int8, memory_format=torch.contiguous_format)
    scales, zeros, extremes = [], [], []
    for rows in row_blocks(w, block_size[0]):
        tiles, count = in_tiles(w[rows].to(torch.float32), block_size), len(w[rows])
        low = tiles.amin((1, 3), keepdim=True).clamp_(max=0)
        high = tiles.amax((1, 3), keepdim=True).clamp_(min=0)
        step = high / 255 - low / 255  # NaN, or Inf, where the weight has that
        scale = torch.where(step == 0, 1.0, held(step, scale_dtype))
        zero = (-128 - low / scale).round_().clamp_(-128, 127).masked_fill_(step == 0, 0)
        codes = (tiles / scale).round_().add_(zero).clamp_(-128, 127).to(torch.int8)
        q[rows] = codes.flatten(2).flatten(0, 1)[:count, : w.shape[1]]
        scales.append(in_dtype(who, "w", scale.flatten(1), scale_dtype))
        zeros.append(zero.flatten(1).to(torch.int8))
        extremes.append(scale.flatten())
    require_finite(who, "w", torch.cat(extremes))
    return q, torch.cat(scales), torch.cat(zeros)


def in_blocks(values: Tensor, block_k: int) -> Tensor:
    """[..., K] as [..., ⌈K/block_k⌉, block_k], no wider than K; zeros fill a last block that is partial."""
    block_k = min(block_k, values.shape[-1])
    missing = -values.shape[-1] % block_k
    return (pad(values, (0, missing)) if missing else values).unflatten(-1, (-1, block_k))


def in_tiles(values: Tensor, block_size: Sequence[int], beyond: float = 0) -> Tensor:
    """[N, K] as [⌈N/block_n⌉, block_n, ⌈K/block_k⌉, block_k]; `beyond` fills the last blocks."""
    block_n, block_k = block_size
    rows, columns = values.shape
    values = pad(values, (0, -columns % block_k, 0, -rows % block_n), value=beyond)
    return values.unflatten(0, (-1, block_n)).unflatten(2, (-1, block_k))


@torch.no_grad()
def lut4_quantize(
    w: Tensor,
    table: Tensor,
    block_size: Sequence[int],
    *,
    scale_dtype: torch.dtype = torch.float32,
    scaling: Scaling = "rceil",
    two_scales: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes of 4 bits into a table: w [N, K] to q uint8 [N, K/2], scales of blocks, and a global one or None.

    w, scale_dtype, scaling: as in blockwise_quantize; K even
    table: float32 [16]
    two_scales: float8_e4m3fn for blocks and a float32 for the weight
    """
    who = "lut4_quantize"
    check_matrix(who, "w", w, FLOAT_DTYPES, "[N, K] with K even")
    _check(who, w, scale_dtype, scaling)
    if w.shape[1] % 2:
        raise ValueError(f"{who}: w must be [N, K] with K even, got {list(w.shape)}")
    check_dense(who, "table", table, (torch.float32,), f"[{TABLE_SIZE}]", 1)
    if len(table) != TABLE_SIZE:
        raise ValueError(f"{who}: table must be float32 [{TABLE_SIZE}], got {describe(table)}")
    if table.device != w.device:
        raise ValueError(f"{who}: table must be on w's device {w.device}, got {table.device}")
    limit = table.abs().amax()

    def floats(amax: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        lift = torch.ones_like(amax).masked_fill_(amax < SMALLEST_ABSMAX, LIFT)
        factor = limit / (amax * lift).clamp(min=SMALLEST_ABSMAX)
        scale = in_dtype(who, "w", amax / limit, scale_dtype)
        return scale, lambda values: values * lift * factor

    global_scale = None
    if two_scales:
        largest = torch.maximum(-w.amin().float(), w.amax().float()).reshape(1)  # copies nothing
        require_finite(who, "w", largest)
        lift = torch.ones_like(largest).masked_fill_(largest < SMALLEST_LARGEST, LIFT)
        global_scale = (largest * lift / (E4M3_MAX * limit) / lift).clamp_(min=SMALLEST_SCALE)
        global_scale = global_scale.masked_fill_(largest == 0, 1)
    codes = torch.empty_like(w, dtype=torch.uint8, memory_format=torch.contiguous_format)
    whole = None if global_scale is None else (global_scale, lift)
    rule = _rule(limit, scale_dtype, scaling, whole) or floats
    encode = TableCodes(table, scale_dtype not in FLOAT_DTYPES).codes
    scale = _quantize(who, w, block_size, rule, encode, codes)
    return (codes[:, 1::2] << 4).bitwise_or_(codes[:, ::2]), scale, global_scale


def _check(who: str, w: Tensor, scale_dtype: torch.dtype, scaling: str) -> None:
    if w.numel() == 0:
        raise ValueError(f"{who}: w must be [N, K], neither of them 0, got {describe(w)}")
    if scale_dtype not in BLOCK_SCALE_DTYPES:
        raise ValueError(f"{who}: scale_dtype must be {one_of(BLOCK_SCALE_DTYPES)}, got {shown(scale_dtype)}")
    check_scaling(who, "scaling", scaling)


class TableCodes:
    """A table's values in order: where between two of them the border lies, and which codes they have."""

    def __init__(self, table: Tensor, ties_to_even: bool) -> None:
        order = torch.argsort(table, stable=True)
        if ties_to_even:  # −0 before 0
            by_sign = torch.argsort((~table.signbit()).to(torch.uint8), stable=True)
            order = by_sign[torch.argsort(table[by_sign], stable=True)]
        values = table[order]
        self.ties_to_even = ties_to_even
        self.order = order.to(torch.uint8)
        self.borders = (values[:-1] + values[1:]) / 2

    def codes(self, values: Tensor) -> Tensor:
        by_comparing = values.device.type == "cpu" and has_values(values) and has_values(self.borders)
        return self._by_comparing(values) if by_comparing else self._by_searching(values)

    def _by_comparing(self, values: Tensor) -> Tensor:
        """A CPU compares many values at once with a border, and searches for one after the other."""
        place, beyond = torch.zeros_like(values), torch.empty_like(values)
        odd = (self.order & 1).tolist()
        for border, below, above in zip(self.borders.tolist(), odd[:-1], odd[1:], strict=True):
            if self.ties_to_even and below == above:  # 0 and −0
                beyond.copy_(values.signbit()).neg_().add_(1)
            elif self.ties_to_even and below:
                torch.ge(values, border, out=beyond)
            else:
                torch.gt(values, border, out=beyond)
            place.add_(beyond)
        return self.order.index_select(0, place.flatten().to(torch.int32)).view(values.shape)

    def _by_searching(self, values: Tensor) -> Tensor:
        place = torch.bucketize(values.contiguous(), self.borders, out_int32=True)
        codes = self.order[place]
        if not self.ties_to_even:
            return codes
        last = len(self.borders) - 1
        on_border = values == self.borders[place.clamp(max=last)]
        above = self.order[(place + 1).clamp_(max=last + 1)]
        # 0 and −0 are both even: the one with the value's sign.
        up = torch.where((codes & 1) == (above & 1), ~values.signbit(), (codes & 1) > (above & 1))
        return torch.where(on_border & up, above, codes)


def _rule(
    limit: Tensor, scale_dtype: torch.dtype, scaling: Scaling, whole: tuple[Tensor, Tensor] | None
) -> _Rule | None:
    """The rule of scales that are no floats of 16 or 32 bits; None for these.

    whole: the scale of all of the weight, and by what it and the weight are lifted to be normal numbers
    """

    def exponents(amax: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        if scaling == "floor":
            u = (amax.view(torch.int32) >> 23) - torch.frexp(limit).exponent + 1
        else:
            bits = (amax / limit).view(torch.int32)
            # Rounded up; of what is no more than 2^-127, to that.
            u = torch.where(bits <= 1 << 22, 0, (bits + (1 << 23) - 1) >> 23)
        u = u.clamp_(0, 254)
        scale = torch.where(u > 0, u << 23, 1 << 22).view(torch.float32)
        flushed = scale == 0  # 2^-127, where the program has subnormal numbers flushed
        u, scale = u + flushed, scale.masked_fill(flushed, 2.0**-126)
        return u.to(torch.uint8).view(scale_dtype), lambda values: values / scale

    def e4m3(amax: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        global_scale, lift = whole or (torch.ones_like(limit), torch.ones_like(limit))
        global_scale = global_scale * lift
        wanted = amax * lift / limit / global_scale
        scale = wanted.clamp(E4M3_TINY, E4M3_MAX).to(torch.float8_e4m3fn)
        factor = 1.0 / global_scale / scale.to(torch.float32)
        return scale, lambda values: values * lift * factor

    if scale_dtype in EXPONENT_DTYPES:
        return exponents
    return e4m3 if scale_dtype is torch.float8_e4m3fn else None


def _quantize(
    who: str,
    w: Tensor,
    block_size: Sequence[int],
    rule: _Rule,
    encode: Callable[[Tensor], Tensor],
    codes: Tensor,
) -> Tensor:
    """Write the codes of w; gives the scales of all blocks."""
    scales, largest = [], []
    for rows in row_blocks(w, block_size[0]):
        part = w[rows].to(torch.float32)
        count, columns = part.shape
        tiles = in_tiles(part, block_size)
        amax = tiles.abs().amax((1, 3), keepdim=True)
        scale, scaled = rule(amax)
        codes[rows] = encode(scaled(tiles)).flatten(2).flatten(0, 1)[:count, :columns]
        scales.append(scale.flatten(1))
        largest.append(amax.flatten())
    require_finite(who, "w", torch.cat(largest))
    return torch.cat([scale.view(torch.uint8) if scale.itemsize == 1 else scale for scale in scales]).view(
        scales[0].dtype
    )
