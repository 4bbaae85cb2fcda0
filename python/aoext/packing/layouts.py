"""int4 weights from one layout to another, without loss: plain tensor functions that run on any device.

plain       qdata int8 [N, K/2], the even k in the low nibble, q in −8..7; scale and zero_point
            [K/group_size, N] of one float dtype; w = q·scale + zero_point. What aoext computes with,
            torchao's Int4Tensor.
plain_int32 qdata int32 [N, K/8], the first k in the lowest nibble, u in 0..15; scale [K/group_size, N] of a
            float dtype and zero_point int8 [K/group_size, N]; w = (u − zero_point)·scale. torchao's
            Int4PlainInt32Tensor.
tinygemm    packed int32 [N/8, K/(16·inner_k_tiles), 32, inner_k_tiles/2], u in 0..15; scale_and_zero bfloat16
            [K/group_size, N, 2]; w = (u − 8)·scale + zero. `torch.ops.ao.convert_weight_to_int4pack` makes
            it, `torch.ops.ao.weight_int4pack_mm` computes with it; torchao's Int4TilePackedTo4dTensor.

The integers always convert. Scales and zero points do where the other layout can hold them exactly, and raise
ValueError where it cannot, so that a weight stands for the same real numbers in every layout it has been in.
Wrong types and dtypes raise TypeError, wrong shapes and values ValueError. Tensors on the meta device have no
values: there only shapes and dtypes are checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aoext.formats.checks import check_matrix, describe, is_dense
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name, one_of

INNER_K_TILES = (2, 4, 8)
GROUP_SIZES = (32, 64, 128, 256)  # of the tinygemm layout

# Flips the sign bit of both nibbles of a byte: u − 8 as two's complement is u XOR 8.
SIGN_BITS = 0x88


@torch.no_grad()
def tinygemm_unpack(packed: Tensor) -> Tensor:
    """The inverse of `ao::convert_weight_to_int4pack`.

    packed: int32 [N/8, K/(16·inner_k_tiles), 32, inner_k_tiles/2], inner_k_tiles 2, 4 or 8.
    Returns uint8 [N, K/2], the even k in the HIGH nibble.

    >>> weight = torch.randint(256, (8, 64), dtype=torch.uint8)
    >>> bool((tinygemm_unpack(torch.ops.ao.convert_weight_to_int4pack(weight, 8)) == weight).all())
    True
    """
    N, K, inner_k_tiles = _check_packed("tinygemm_unpack", packed)
    # A word's bytes are [parity of k][pair of p], two nibbles p each; see csrc/generic/int4pack.h.
    shape = (N // 8, K // (16 * inner_k_tiles), 8, 4, inner_k_tiles // 2, 2, 2)
    by_byte = packed.contiguous().view(torch.uint8).view(shape)
    even, odd = by_byte.unbind(5)
    p_even = ((even & 0x0F) << 4) | (odd & 0x0F)
    p_odd = (even & 0xF0) | (odd >> 4)
    # [tile, outer, g, t, block, pair, parity of p] to [tile, g, outer, block, pair, parity of p, t].
    return torch.stack((p_even, p_odd), -1).permute(0, 2, 1, 4, 5, 6, 3).reshape(N, K // 2)


@torch.no_grad()
def tinygemm_to_plain(packed: Tensor, scale_and_zero: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From tinygemm to plain: always exact.

    packed: int32 [N/8, K/(16·inner_k_tiles), 32, inner_k_tiles/2]; scale_and_zero: bfloat16
    [K/group_size, N, 2]. Returns qdata int8 [N, K/2], scale and zero_point bfloat16 [K/group_size, N].
    """
    who = "tinygemm_to_plain"
    N, K, _ = _check_packed(who, packed)
    shape = "[K/group_size, N, 2]"
    if not is_dense(scale_and_zero) or scale_and_zero.dtype is not torch.bfloat16:
        raise TypeError(f"{who}: scale_and_zero must be bfloat16 {shape}, got {describe(scale_and_zero)}")
    groups = scale_and_zero.shape[0] if scale_and_zero.dim() == 3 else 0
    if groups == 0 or scale_and_zero.shape[1:] != (N, 2) or K % groups:
        raise ValueError(
            f"{who}: scale_and_zero must be bfloat16 {shape} = [*, {N}, 2] with a group_size that divides "
            f"K = {K}, got {describe(scale_and_zero)}"
        )
    _check_device(who, "packed", packed, scale_and_zero=scale_and_zero)
    qdata = _swap_nibbles(tinygemm_unpack(packed) ^ SIGN_BITS).view(torch.int8)
    scale, zero_point = (part.contiguous() for part in scale_and_zero.unbind(-1))
    return qdata, scale, zero_point


@torch.no_grad()
def plain_to_tinygemm(
    qdata: Tensor, scale: Tensor, zero_point: Tensor, inner_k_tiles: int = 8
) -> tuple[Tensor, Tensor]:
    """From plain to tinygemm: exact, or ValueError where bfloat16 cannot hold a scale or zero point.

    qdata: int8 [N, K/2]; scale and zero_point: [K/group_size, N], bfloat16, float16 or float32. N is a
    multiple of 8, K of 16·inner_k_tiles, group_size 32, 64, 128 or 256. Returns packed int32
    [N/8, K/(16·inner_k_tiles), 32, inner_k_tiles/2] and scale_and_zero bfloat16 [K/group_size, N, 2].
    """
    who = "plain_to_tinygemm"
    _check_plain(who, qdata, scale, zero_point)
    N, K = qdata.shape[0], 2 * qdata.shape[1]
    if not isinstance(inner_k_tiles, int) or isinstance(inner_k_tiles, bool):
        raise TypeError(f"{who}: inner_k_tiles must be an int, got {describe(inner_k_tiles)}")
    if inner_k_tiles not in INNER_K_TILES:
        raise ValueError(f"{who}: inner_k_tiles must be 2, 4 or 8, got {inner_k_tiles}")
    if N % 8 or K % (16 * inner_k_tiles):
        raise ValueError(
            f"{who}: qdata must be int8 [N, K/2] with N a multiple of 8 and K one of 16·inner_k_tiles = "
            f"{16 * inner_k_tiles}, got {describe(qdata)}"
        )
    group_size = K // scale.shape[0]
    if group_size not in GROUP_SIZES:
        raise ValueError(f"{who}: group_size must be 32, 64, 128 or 256, got {group_size}")
    pair = [
        _exactly(who, name, t, torch.bfloat16) for name, t in (("scale", scale), ("zero_point", zero_point))
    ]
    rows = _swap_nibbles(qdata.contiguous().view(torch.uint8)) ^ SIGN_BITS
    packed = torch.ops.ao.convert_weight_to_int4pack(rows, inner_k_tiles)
    return packed, torch.stack(pair, -1)


@torch.no_grad()
def plain_int32_to_plain(
    qdata: Tensor, scale: Tensor, zero_point: Tensor, *, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """From plain_int32 to plain: zero_point becomes the float (8 − zero_point)·scale.

    qdata: int32 [N, K/8]; scale: [K/group_size, N], bfloat16, float16 or float32; zero_point: int8 of the
    same shape. Returns qdata int8 [N, K/2], scale and zero_point [K/group_size, N] in `dtype` (default: that
    of scale). ValueError where `dtype` cannot hold one of them exactly; float32 holds all that come of
    bfloat16 and float16 scales.
    """
    who = "plain_int32_to_plain"
    _check_plain_int32(who, qdata, scale, zero_point)
    dtype = scale.dtype if dtype is None else dtype
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"{who}: dtype must be {one_of(FLOAT_DTYPES)}, got {dtype}")
    exact_zero = (8 - float64(zero_point)) * float64(scale)
    zero = _exactly(who, "(8 - zero_point) * scale", exact_zero, dtype).to(scale.device)
    plain = (qdata.contiguous().view(torch.uint8) ^ SIGN_BITS).view(torch.int8)
    return plain, _exactly(who, "scale", scale, dtype), zero


@torch.no_grad()
def plain_to_plain_int32(qdata: Tensor, scale: Tensor, zero_point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From plain to plain_int32: exact where zero_point = (8 − i)·scale for integers i in −128..127.

    qdata: int8 [N, K/2] with K a multiple of 8; scale and zero_point: [K/group_size, N], bfloat16, float16 or
    float32. Returns qdata int32 [N, K/8], scale as it was, and zero_point int8 [K/group_size, N]. ValueError
    where no such integer stands for a zero_point.
    """
    who = "plain_to_plain_int32"
    _check_plain(who, qdata, scale, zero_point)
    if qdata.shape[1] % 4:
        raise ValueError(f"{who}: qdata must be int8 [N, K/2] with K a multiple of 8, got {describe(qdata)}")
    s, z = float64(scale), float64(zero_point)
    integer = torch.where(z == 0, 0.0, z / s).round()
    if not scale.is_meta:
        holds = (integer * s == z) & (integer >= -119) & (integer <= 136) & s.isfinite()
        _require(who, "zero_point", bool(holds.all()), "(8 - i) * scale for integers i in -128..127")
    unsigned = qdata.contiguous().view(torch.uint8) ^ SIGN_BITS
    zeros = (8 - integer).to(torch.int8).to(qdata.device)
    return unsigned.view(torch.int32), scale.clone(), zeros


def plain_int32_to_tinygemm(
    qdata: Tensor, scale: Tensor, zero_point: Tensor, inner_k_tiles: int = 8
) -> tuple[Tensor, Tensor]:
    """From plain_int32 to tinygemm; ValueError where bfloat16 cannot hold (8 − zero_point)·scale.

    Arguments as for plain_int32_to_plain, results and further errors as for plain_to_tinygemm.
    """
    plain = plain_int32_to_plain(qdata, scale, zero_point, dtype=torch.bfloat16)
    return plain_to_tinygemm(*plain, inner_k_tiles)


def tinygemm_to_plain_int32(packed: Tensor, scale_and_zero: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From tinygemm to plain_int32; ValueError where no integer zero point stands for a zero.

    Arguments as for tinygemm_to_plain, results as for plain_to_plain_int32, scale in bfloat16.
    """
    return plain_to_plain_int32(*tinygemm_to_plain(packed, scale_and_zero))


def float64(t: Tensor) -> Tensor:
    """On the CPU, for not every device has float64."""
    return (t if t.is_meta else t.cpu()).double()


def _swap_nibbles(bytes_: Tensor) -> Tensor:
    return (bytes_ << 4) | (bytes_ >> 4)


def _exactly(who: str, name: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    """`value` in `dtype`, contiguous, or ValueError where that changes it; NaN may stay NaN."""
    converted = value.to(dtype, memory_format=torch.contiguous_format, copy=True)
    if value.dtype is not dtype and not value.is_meta:
        back = converted.to(value.dtype)
        holds = bool(((back == value) | (value.isnan() & back.isnan())).all())
        _require(who, name, holds, f"exact in {dtype_name(dtype)}")
    return converted


def _require(who: str, argument: str, holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{who}: {argument} must be {what}, got values that are not")


def _check_packed(who: str, packed: Tensor) -> tuple[int, int, int]:
    """N, K and inner_k_tiles of a packed weight."""
    must = "int32 [N/8, K/(16·inner_k_tiles), 32, inner_k_tiles/2] with inner_k_tiles 2, 4 or 8"
    message = f"{who}: packed must be {must}, got {describe(packed)}"
    if not is_dense(packed) or packed.dtype is not torch.int32:
        raise TypeError(message)
    if packed.dim() != 4 or packed.shape[2] != 32 or 2 * packed.shape[3] not in INNER_K_TILES:
        raise ValueError(message)
    inner_k_tiles = 2 * packed.shape[3]
    return 8 * packed.shape[0], 16 * inner_k_tiles * packed.shape[1], inner_k_tiles


def _check_plain(who: str, qdata: Tensor, scale: Tensor, zero_point: Tensor) -> None:
    check_matrix(who, "qdata", qdata, (torch.int8,), "[N, K/2]")
    _check_groups(who, qdata, scale, zero_point, 2 * qdata.shape[1], FLOAT_DTYPES)
    if zero_point.dtype is not scale.dtype:
        raise TypeError(
            f"{who}: zero_point must be of scale's dtype, {dtype_name(scale.dtype)}, got "
            f"{describe(zero_point)}"
        )


def _check_plain_int32(who: str, qdata: Tensor, scale: Tensor, zero_point: Tensor) -> None:
    check_matrix(who, "qdata", qdata, (torch.int32,), "[N, K/8]")
    _check_groups(who, qdata, scale, zero_point, 8 * qdata.shape[1], (torch.int8,))


def _check_groups(
    who: str, qdata: Tensor, scale: Tensor, zero_point: Tensor, K: int, zero_dtypes: Sequence[torch.dtype]
) -> None:
    shape = "[K/group_size, N]"
    check_matrix(who, "scale", scale, FLOAT_DTYPES, shape)
    N, groups = qdata.shape[0], scale.shape[0]
    if K == 0 or groups == 0 or scale.shape[1] != N or K % groups:
        raise ValueError(
            f"{who}: scale must be {shape} = [*, {N}] with a group_size that divides K = {K}, got "
            f"{describe(scale)}"
        )
    check_matrix(who, "zero_point", zero_point, zero_dtypes, shape)
    if zero_point.shape != scale.shape:
        raise ValueError(
            f"{who}: zero_point must be of scale's shape {list(scale.shape)}, got {describe(zero_point)}"
        )
    _check_device(who, "qdata", qdata, scale=scale, zero_point=zero_point)


def _check_device(who: str, first_name: str, first: Tensor, **others: Tensor) -> None:
    for name, tensor in others.items():
        if tensor.device != first.device:
            raise ValueError(
                f"{who}: {name} must be on {first_name}'s device {first.device}, got {tensor.device}"
            )
