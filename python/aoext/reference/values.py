"""Random tensors as the operators take them, drawn where the generator is, and their float64 meanings."""

from __future__ import annotations

import functools
import itertools

import torch
from torch import Generator, Tensor

HIGH_PRECISION = (torch.bfloat16, torch.float16, torch.float32)
EIGHT_BIT = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)


def randn(g: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float32, device=g.device).to(dtype)


def rand(g: Generator, *shape: int) -> Tensor:
    """Uniform in 0..1, float32."""
    return torch.rand(*shape, generator=g, dtype=torch.float32, device=g.device)


def product(x: Tensor, addends: tuple[Tensor, ...], bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x · wᵀ + bias, where w is the sum of addends, and the same of magnitudes; float64."""
    w, magnitudes = (functools.reduce(torch.add, part) for part in (addends, [a.abs() for a in addends]))
    y, terms = x @ w.t(), x.abs() @ magnitudes.t()
    return (y, terms) if bias is None else (y + bias.double(), terms + bias.double().abs())


def unpack_int4(packed: Tensor) -> Tensor:
    """int64 [N, K] from bytes, by arithmetic alone: the even k in the low nibble, two's complement."""
    unsigned = packed.to(torch.int64) % 256
    nibbles = torch.stack([unsigned % 16, unsigned // 16], -1).flatten(-2)
    return torch.where(nibbles > 7, nibbles - 16, nibbles)


def unpack_unsigned(packed: Tensor, codes_a_byte: int) -> Tensor:
    """int64 [N, K] from bytes, the lowest k in the lowest bits."""
    base = 2 ** (8 // codes_a_byte)
    places = base ** torch.arange(codes_a_byte, device=packed.device)
    return (packed.long().unsqueeze(-1) // places % base).flatten(-2)


def unpack_planes(packed: Tensor, bits: int) -> Tensor:
    """int64 [N, K] from blocks [N, K/32, 4·bits] of 32 codes: a plane of 4, one of 2, one of 1 bit each."""
    codes, low, at = torch.zeros(1, dtype=torch.int64, device=packed.device), 0, 0
    for width in (4, 2, 1):
        if bits & width:
            bytes = packed[..., at : at + 4 * width].long()
            if width == 1:  # bit by bit, else byte by byte
                parts = (bytes.unsqueeze(-1) // 2 ** torch.arange(8, device=packed.device) % 2).flatten(-2)
            else:
                parts = torch.cat([bytes // 2**shift % 2**width for shift in range(0, 8, width)], -1)
            codes = codes + parts * 2**low
            low, at = low + width, at + 4 * width
    return codes.flatten(1)


def int4_float64(weight: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    return groups_float64(unpack_int4(weight), scale, zero_point)


def groups_float64(codes: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """What codes [N, K] stand for with scales and zero points [K/group_size, N]."""
    return torch.add(*groups_terms(codes, scale, zero_point))


def groups_terms(codes: Tensor, scale: Tensor, zero_point: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [N, K] by their scales, and zero points, whose sums they stand for."""
    group_size = codes.shape[1] // scale.shape[0]
    per_k = [t.double().t().repeat_interleave(group_size, 1) for t in (scale, zero_point)]
    return codes.double() * per_k[0], per_k[1]


def int4_weight(
    N: int, K: int, group_size: int, dtype: torch.dtype, g: Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Weight, scale and zero point, the latter two of this dtype."""
    weight = random_bytes((N, K // 2), torch.int8, g)
    return weight, *scales_of_groups(N, K // group_size, dtype, g)


def random_bytes(shape: tuple[int, ...], dtype: torch.dtype, g: Generator) -> Tensor:
    """uint8 or int8 that hold codes of fewer bits."""
    return torch.randint(0, 256, shape, generator=g, dtype=torch.uint8, device=g.device).view(dtype)


def scales_of_groups(N: int, groups: int, dtype: torch.dtype, g: Generator) -> tuple[Tensor, Tensor]:
    """Scales and zero points [groups, N]."""
    return scales_of_both_signs(groups, N, g).to(dtype), randn(g, groups, N, dtype=dtype)


def scales_of_both_signs(groups: int, N: int, g: Generator) -> Tensor:
    """As symmetric int4 weights have them."""
    signs = torch.randint(0, 2, (groups, N), generator=g, device=g.device) * 2 - 1
    return (rand(g, groups, N) + 0.1) * signs


def expert_offsets(rows: int, experts: int, g: Generator) -> Tensor:
    """int32: where the rows of each expert end. Some may have none, and rows may be left behind the last."""
    ends = torch.randint(0, rows + 1, (experts,), generator=g, device=g.device)
    return ends.sort().values.to(torch.int32)


def routed(tokens: int, k: int, experts: int, g: Generator) -> Tensor:
    """int64 [tokens, k]: an expert for each pair, some outside 0 … experts − 1."""
    return torch.randint(-1, experts + 2, (tokens, k), generator=g, device=g.device)


def sorted_by_expert(expert: Tensor, experts: int) -> tuple[list[int], list[int], list[int]]:
    """The order of the flattened pairs, the place of each in it, and for each expert where its pairs end."""
    ids = expert.flatten().tolist()
    own = [[i for i, e in enumerate(ids) if e == one] for one in range(experts)]
    others = [i for i, e in enumerate(ids) if not 0 <= e < experts]
    ends = itertools.accumulate(map(len, own))
    order = [*itertools.chain(*own), *others]
    return order, sorted(range(len(order)), key=order.__getitem__), list(ends)


def rowwise_values(rows: tuple[int, ...], K: int, dtype: torch.dtype, g: Generator) -> tuple[Tensor, Tensor]:
    """8-bit values over their whole finite range, and float32 scales [..., 1]."""
    limit = quantized_max(dtype)
    scales = (rand(g, *rows, 1) + 0.5) / limit  # so that results fit float16
    if dtype is torch.int8:
        return torch.randint(-128, 128, (*rows, K), generator=g, dtype=dtype, device=g.device), scales
    values = randn(g, *rows, K).mul_(limit / 6)
    return values.clamp_(-limit, limit).to(dtype), scales


def quantized_max(dtype: torch.dtype) -> float:
    return 127.0 if dtype is torch.int8 else torch.finfo(dtype).max


def quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The contract's formula of quantize_rowwise in float32: values [..., K] and scales [..., 1]."""
    limit = quantized_max(dtype)
    x = x.float()
    absmax = x.abs().amax(-1, keepdim=True)
    scale = torch.where(absmax > 0, absmax / torch.full_like(absmax, limit), 1.0)
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
    sound = absmax.isfinite()
    q = torch.where(sound, (x / scale).clamp(-limit, limit), 0.0)
    return (q.round() if dtype is torch.int8 else q).to(dtype), torch.where(sound, scale, torch.nan)


def quantized_blocks(
    x: Tensor, dtype: torch.dtype, block_k: int, power_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """The same of quantize_blockwise: values [..., K] and scales [..., ceil(K / block_k)]."""
    K = x.shape[-1]
    blocks = -(-K // block_k)
    padded = torch.nn.functional.pad(x.float(), (0, blocks * block_k - K)).unflatten(-1, (blocks, block_k))
    q, scale = quantized(padded, dtype)
    if power_of_two:
        mantissa, exponent = scale.frexp()
        above = torch.where(mantissa == 0.5, scale, torch.ldexp(torch.ones_like(scale), exponent))
        scale = torch.where(scale.isfinite(), above, scale)
        limit = quantized_max(dtype)
        q = torch.where(scale.isfinite(), (padded / scale).clamp(-limit, limit), 0.0)
        q = (q.round() if dtype is torch.int8 else q).to(dtype)
    return q.flatten(-2)[..., :K], scale.squeeze(-1)


def spread(scales: Tensor, block: int, length: int) -> Tensor:
    """Scales [..., ceil(length / block)] as one for each of `length` elements."""
    return scales.repeat_interleave(block, -1)[..., :length]


def block_scales(rows: int, columns: int, dtype: torch.dtype, size: float, g: Generator) -> Tensor:
    """Positive scales of half to one and a half times `size`, or the powers of two near it."""
    scales = (rand(g, rows, columns) + 0.5) * size
    if dtype is not torch.float8_e8m0fnu:
        return scales.to(dtype)
    return (scales.log2().floor() + 127).to(torch.uint8).view(dtype)


def scales_float64(scales: Tensor) -> Tensor:
    if scales.dtype not in (torch.uint8, torch.float8_e8m0fnu):
        return scales.double()
    exponents = scales.view(torch.uint8).double()
    return torch.where(exponents == 255, torch.nan, torch.exp2(exponents - 127))


def lut4_float64(packed: Tensor, table: Tensor) -> Tensor:
    """Values [n, K] of codes [n, K/2], the even k in the low nibble."""
    codes = torch.stack([packed % 16, packed // 16], -1).flatten(-2)
    return table.double()[codes.long()]


def blockwise_float64(values: Tensor, scales: Tensor, block: list[int], rows: Tensor | slice) -> Tensor:
    """Values [n, K] of these rows of a weight times their scales."""
    index = torch.arange(scales.shape[0], device=scales.device).repeat_interleave(block[0])
    index = index[: index.numel() if isinstance(rows, Tensor) else values.shape[0]][rows]
    return values * spread(scales_float64(scales)[index], block[1], values.shape[1])


def nested_float64(codes: Tensor, table: Tensor, factors: Tensor, offset: Tensor) -> Tensor:
    """Scales [N, G] of 8 bits that look 256 values up; each 256 of them, row by row, have a factor."""
    of_each = factors.double().flatten().repeat_interleave(256)[: codes.numel()].view(codes.shape)
    return table.double()[codes.long()] * of_each + offset.double()


def inner_k_tiles(K: int) -> int:
    """The widest that divides K."""
    return next(n for n in (8, 4, 2) if K % (16 * n) == 0)


def tinygemm_bytes(N: int, K: int, g: Generator) -> Tensor:
    """What convert_weight_to_int4pack takes: uint8 [N, K/2], the even k in the high nibble."""
    return torch.randint(0, 256, (N, K // 2), generator=g, dtype=torch.uint8, device=g.device)


def tinygemm_words(N: int, K: int, inner: int, g: Generator) -> Tensor:
    """A weight in that layout; any word is one."""
    sizes = (N // 8, K // (16 * inner), 32, inner // 2)
    return torch.randint(-(2**31), 2**31, sizes, generator=g, dtype=torch.int32, device=g.device)


def tinygemm_pack(weight: Tensor, inner: int) -> Tensor:
    """Word by word: lane 4g + t, words of 32 k, nibbles k = 0, 8, 16, 24, then 1, 9, 17, 25, from 2t on."""
    N, K = weight.shape[0], 2 * weight.shape[1]
    u = torch.stack([weight // 16, weight % 16], -1).flatten(1).to(torch.int64)
    words = u.view(N // 8, 8, K // (16 * inner), inner // 2, 4, 4, 2)  # tile, g, outer, word, p, t, parity
    words = words.permute(0, 2, 1, 5, 3, 6, 4).flatten(-2)  # tile, outer, g, t, word, nibbles
    values = (words << torch.arange(0, 32, 4, device=weight.device)).sum(-1)
    values = torch.where(values >= 2**31, values - 2**32, values)
    return values.to(torch.int32).view(N // 8, K // (16 * inner), 32, inner // 2)


def tinygemm_rows(packed: Tensor, rows: Tensor | slice) -> Tensor:
    """Rows [n, K] of a packed weight, values 0..15: what tinygemm_pack has packed."""
    index = torch.arange(8 * packed.shape[0], device=packed.device)[rows]
    words = packed.unflatten(2, (8, 4))[index // 8, :, index % 8].long()  # n, outer, t, word
    nibbles = torch.stack([(words >> shift) & 15 for shift in range(0, 32, 4)], -1).unflatten(-1, (2, 4))
    return nibbles.permute(0, 1, 3, 5, 2, 4).flatten(1)  # n, outer, word, p, t, parity


def tinygemm_float64(weight: Tensor, scale_and_zero: Tensor) -> Tensor:
    """What the bytes of tinygemm_bytes stand for."""
    u = torch.stack([weight // 16, weight % 16], -1).flatten(1)
    return tinygemm_values_float64(u, scale_and_zero)


def tinygemm_values_float64(values: Tensor, scale_and_zero: Tensor) -> Tensor:
    """What values 0..15 [n, K] stand for, with scales and zero points [K/group_size, n, 2]."""
    group_size = values.shape[1] // scale_and_zero.shape[0]
    scale, zero = (t.double().t().repeat_interleave(group_size, 1) for t in scale_and_zero.unbind(-1))
    return (values.double() - 8) * scale + zero
