"""Random calls of every operator with their float64 results: one home for all operator tests.

A reference never calls an operator: it repeats the contract's formulas in float64 on the same quantised
values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

import aoext
from aoext.ops import ERROR_BOUND, ERROR_FLOOR, ERROR_OF_SUMS, FEW_COLUMNS

HIGH_PRECISION = (torch.bfloat16, torch.float16, torch.float32)
EIGHT_BIT = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclasses.dataclass(frozen=True)
class Problem:
    M: int
    N: int
    K: int
    group_size: int
    dtype: torch.dtype = torch.bfloat16  # of the input and the result
    scale_dtype: torch.dtype = torch.bfloat16
    eight_bit: torch.dtype = torch.int8
    leading: tuple[int, ...] | None = None  # instead of (M,)

    def __str__(self) -> str:
        names = "-".join(
            str(d).removeprefix("torch.") for d in (self.dtype, self.scale_dtype, self.eight_bit)
        )
        return f"M{self.M}-N{self.N}-K{self.K}-G{self.group_size}-{names}"


@dataclasses.dataclass(frozen=True)
class Call:
    operator: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reference: Tensor  # float64, or int32 where the result is exact
    terms: Tensor | None = None  # Σ|x·w| + |bias|, of products

    def run(self, device: torch.device, kernel: Callable[..., Any]) -> Any:
        args = [a.to(device) if isinstance(a, Tensor) else a for a in self.args]
        return kernel(*args, **self.kwargs)


def product(x: Tensor, w: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x · wᵀ + bias, and the same of magnitudes; float64."""
    y, terms = x @ w.t(), x.abs() @ w.abs().t()
    return (y, terms) if bias is None else (y + bias.double(), terms + bias.double().abs())


def op(name: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.ao, name).default


def randn(g: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=g).to(dtype)


def unpack_int4(packed: Tensor) -> Tensor:
    """int64 [N, K] from bytes, by arithmetic alone: the even k in the low nibble, two's complement."""
    unsigned = packed.to(torch.int64) % 256
    nibbles = torch.stack([unsigned % 16, unsigned // 16], -1).flatten(-2)
    return torch.where(nibbles > 7, nibbles - 16, nibbles)


def int4_float64(weight: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    group_size = 2 * weight.shape[1] // scale.shape[0]
    per_k = [t.double().t().repeat_interleave(group_size, 1) for t in (scale, zero_point)]
    return unpack_int4(weight).double() * per_k[0] + per_k[1]


def int4_weight(p: Problem, g: Generator) -> tuple[Tensor, Tensor, Tensor]:
    weight = torch.randint(-128, 128, (p.N, p.K // 2), generator=g, dtype=torch.int8)
    groups = p.K // p.group_size
    scale = scales_of_both_signs(groups, p.N, g).to(p.scale_dtype)
    return weight, scale, randn(g, groups, p.N, dtype=p.scale_dtype)


def scales_of_both_signs(groups: int, N: int, g: Generator) -> Tensor:
    """As symmetric int4 weights have them."""
    signs = torch.randint(0, 2, (groups, N), generator=g) * 2 - 1
    return (torch.rand(groups, N, generator=g) + 0.1) * signs


def rowwise_values(rows: tuple[int, ...], K: int, dtype: torch.dtype, g: Generator) -> tuple[Tensor, Tensor]:
    """8-bit values over their whole finite range, and float32 scales [..., 1]."""
    limit = quantized_max(dtype)
    scales = (torch.rand(*rows, 1, generator=g) + 0.5) / limit  # so that results fit float16
    if dtype is torch.int8:
        return torch.randint(-128, 128, (*rows, K), generator=g, dtype=dtype), scales
    values = torch.randn(*rows, K, generator=g) * limit / 6
    return values.clamp(-limit, limit).to(dtype), scales


def quantized_max(dtype: torch.dtype) -> float:
    return 127.0 if dtype is torch.int8 else torch.finfo(dtype).max


def quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The contract's formula of quantize_rowwise, a row at a time in float32."""
    limit = quantized_max(dtype)
    values = torch.zeros(x.shape, dtype=dtype)
    scales = torch.empty(*x.shape[:-1], 1)
    rows, out, out_scales = (
        x.float().view(-1, x.shape[-1]),
        values.view(-1, x.shape[-1]),
        scales.view(-1),
    )
    for i, row in enumerate(rows):
        absmax = row.abs().max()
        if not torch.isfinite(absmax):
            out_scales[i] = torch.nan
            continue
        scale = absmax / torch.tensor(limit) if absmax > 0 else torch.tensor(1.0)
        scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
        out_scales[i] = scale
        q = (row / scale).clamp(-limit, limit)
        out[i] = (q.round() if dtype is torch.int8 else q).to(dtype)
    return values, scales


def _input(p: Problem, g: Generator) -> Tensor:
    return randn(g, *(p.leading if p.leading is not None else (p.M,)), p.K, dtype=p.dtype)


def _bias(p: Problem, g: Generator) -> Tensor:
    return randn(g, p.N, dtype=p.scale_dtype)


def bf16i4bf16_rowwise(p: Problem, g: Generator) -> Call:
    x, weight = _input(p, g), int4_weight(p, g)
    return Call("bf16i4bf16_rowwise", (x, *weight), {}, *product(x.double(), int4_float64(*weight)))


def bf16i4bf16_rowwise_bias(p: Problem, g: Generator) -> Call:
    x, weight, bias = _input(p, g), int4_weight(p, g), _bias(p, g)
    expected = product(x.double(), int4_float64(*weight), bias)
    return Call("bf16i4bf16_rowwise_bias", (x, *weight, bias), {}, *expected)


def dequantize_int4(p: Problem, g: Generator) -> Call:
    weight = int4_weight(p, g)
    return Call("dequantize_int4", weight, {"dtype": p.dtype}, int4_float64(*weight))


def dequantize_rowwise(p: Problem, g: Generator) -> Call:
    weight, scale = rowwise_values((p.N,), p.K, p.eight_bit, g)
    scale = scale.to(p.scale_dtype)
    reference = weight.double() * scale.double()
    return Call("dequantize_rowwise", (weight, scale), {"dtype": p.dtype}, reference)


def _weight_only(p: Problem, g: Generator, operator: str, dtype: torch.dtype) -> Call:
    x = _input(p, g)
    weight, scale = rowwise_values((p.N,), p.K, dtype, g)
    scale, bias = scale.to(p.scale_dtype), _bias(p, g)
    expected = product(x.double(), weight.double() * scale.double(), bias)
    return Call(operator, (x, weight, scale, bias), {}, *expected)


def bf16i8bf16_rowwise(p: Problem, g: Generator) -> Call:
    return _weight_only(p, g, "bf16i8bf16_rowwise", torch.int8)


def bf16f8bf16_rowwise(p: Problem, g: Generator) -> Call:
    dtype = torch.float8_e4m3fn if p.eight_bit is torch.int8 else p.eight_bit
    return _weight_only(p, g, "bf16f8bf16_rowwise", dtype)


def int8_mm(p: Problem, g: Generator) -> Call:
    rows = p.leading if p.leading is not None else (p.M,)
    x, w = (rowwise_values(r, p.K, torch.int8, g)[0] for r in (rows, (p.N,)))
    return Call("int8_mm", (x, w), {}, (x.long() @ w.long().t()).int())


def scaled_mm_rowwise(p: Problem, g: Generator) -> Call:
    rows = p.leading if p.leading is not None else (p.M,)
    (x, x_scale), (w, w_scale) = (rowwise_values(r, p.K, p.eight_bit, g) for r in (rows, (p.N,)))
    bias = _bias(p, g)
    expected = product(x.double() * x_scale.double(), w.double() * w_scale.double(), bias)
    return Call("scaled_mm_rowwise", (x, w, x_scale, w_scale, bias), {"out_dtype": p.dtype}, *expected)


def scaled_linear_rowwise(p: Problem, g: Generator) -> Call:
    x = _input(p, g)
    w, w_scale = rowwise_values((p.N,), p.K, p.eight_bit, g)
    bias = _bias(p, g)
    q, scale = quantized(x, p.eight_bit)
    expected = product(q.double() * scale.double(), w.double() * w_scale.double(), bias)
    return Call("scaled_linear_rowwise", (x, w, w_scale, bias), {}, *expected)


# Every operator with a floating point or int32 result; quantize_rowwise has tests of its own.
CALLS: dict[str, Callable[[Problem, Generator], Call]] = {
    make.__name__: make
    for make in (
        bf16i4bf16_rowwise,
        bf16i4bf16_rowwise_bias,
        dequantize_int4,
        dequantize_rowwise,
        bf16i8bf16_rowwise,
        bf16f8bf16_rowwise,
        int8_mm,
        scaled_mm_rowwise,
        scaled_linear_rowwise,
    )
}


def tinygemm_problem(p: Problem) -> Problem:
    """The nearest smaller problem that the tinygemm layout can hold, or the smallest."""
    group_size = max((G for G in (32, 64, 128, 256) if p.group_size >= G), default=32)
    K = max(p.K // group_size, 1) * group_size
    return dataclasses.replace(p, N=p.N // 8 * 8, K=K, group_size=group_size, leading=None)


def inner_k_tiles(K: int) -> int:
    """The widest that divides K."""
    return next(n for n in (8, 4, 2) if K % (16 * n) == 0)


def tinygemm_bytes(N: int, K: int, g: Generator) -> Tensor:
    """What convert_weight_to_int4pack takes: uint8 [N, K/2], the even k in the high nibble."""
    return torch.randint(0, 256, (N, K // 2), generator=g, dtype=torch.uint8)


def tinygemm_pack(weight: Tensor, inner: int) -> Tensor:
    """Word by word: lane 4g + t, words of 32 k, nibbles k = 0, 8, 16, 24, then 1, 9, 17, 25, from 2t on."""
    N, K = weight.shape[0], 2 * weight.shape[1]
    u = torch.stack([weight // 16, weight % 16], -1).flatten(1).to(torch.int64)
    words = u.view(N // 8, 8, K // (16 * inner), inner // 2, 4, 4, 2)  # tile, g, outer, word, p, t, parity
    words = words.permute(0, 2, 1, 5, 3, 6, 4).flatten(-2)  # tile, outer, g, t, word, nibbles
    values = (words << torch.arange(0, 32, 4)).sum(-1)
    values = torch.where(values >= 2**31, values - 2**32, values)
    return values.to(torch.int32).view(N // 8, K // (16 * inner), 32, inner // 2)


def tinygemm_float64(weight: Tensor, scale_and_zero: Tensor) -> Tensor:
    """What the bytes of tinygemm_bytes stand for."""
    u = torch.stack([weight // 16, weight % 16], -1).flatten(1).double()
    group_size = u.shape[1] // scale_and_zero.shape[0]
    scale, zero = (t.double().t().repeat_interleave(group_size, 1) for t in scale_and_zero.unbind(-1))
    return (u - 8) * scale + zero


def convert_weight_to_int4pack(p: Problem, g: Generator) -> Call:
    p = tinygemm_problem(p)
    weight, inner = tinygemm_bytes(p.N, p.K, g), inner_k_tiles(p.K)
    return Call("convert_weight_to_int4pack", (weight, inner), {}, tinygemm_pack(weight, inner))


def weight_int4pack_mm(p: Problem, g: Generator, inner: int | None = None) -> Call:
    p = tinygemm_problem(p)
    weight, groups = tinygemm_bytes(p.N, p.K, g), p.K // p.group_size
    scale = scales_of_both_signs(groups, p.N, g)
    scale_and_zero = torch.stack([scale, randn(g, groups, p.N)], -1).bfloat16()
    x = randn(g, p.M, p.K, dtype=torch.bfloat16)
    packed = tinygemm_pack(weight, inner or inner_k_tiles(p.K))
    reference = x.double() @ tinygemm_float64(weight, scale_and_zero).t()
    return Call("weight_int4pack_mm", (x, packed, p.group_size, scale_and_zero), {}, reference)


# The operators of the tinygemm layout, which holds few shapes and one dtype: test_tinygemm.py tests them.
TINYGEMM_CALLS: dict[str, Callable[[Problem, Generator], Call]] = {
    "convert_weight_to_int4pack": convert_weight_to_int4pack,
    "weight_int4pack_mm": weight_int4pack_mm,
}
ALL_CALLS = {**CALLS, **TINYGEMM_CALLS}

# Operators whose input is a high-precision activation, and those that have any input.
ACTIVATION_CALLS = [name for name in CALLS if name.startswith("bf16") or name == "scaled_linear_rowwise"]
DEQUANTIZE_CALLS = [name for name in CALLS if name.startswith("dequantize")]
INPUT_CALLS = [name for name in CALLS if name not in DEQUANTIZE_CALLS]
INT4_CALLS = ["bf16i4bf16_rowwise", "bf16i4bf16_rowwise_bias", "dequantize_int4"]
# Operators whose last argument is a bias, and those that can do without one.
BIAS_CALLS = [name for name in INPUT_CALLS if name not in ("bf16i4bf16_rowwise", "int8_mm")]
OPTIONAL_BIAS_CALLS = [name for name in BIAS_CALLS if name not in INT4_CALLS]


def without_bias(call: Call) -> Call:
    """A call without its bias, if it has one of OPTIONAL_BIAS_CALLS; its `terms` go then."""
    if call.operator not in OPTIONAL_BIAS_CALLS:
        return call
    *args, bias = call.args
    return dataclasses.replace(call, args=tuple(args), reference=call.reference - bias.double(), terms=None)


def zero_point_slack(x: Tensor, N: int, group_size: int, zero_over_scale: float) -> float:
    """Bounds that such zero points may cost: CUDA's kernels for many rows round them with their weights."""
    K = x.shape[1]
    weight = torch.empty(N, K // 2, dtype=torch.int8, device=x.device)
    groups = torch.empty(K // group_size, N, dtype=x.dtype, device=x.device)
    plan = aoext.explain("bf16i4bf16_rowwise", x, weight, groups, groups)
    rounds = plan.kernel in ("int4_wgmma", "int4_mma")
    return max(1, zero_over_scale / 8) if rounds else 1


def assert_close(result: Tensor, reference: Tensor, terms: Tensor | None = None, *, slack: float = 1) -> None:
    """Every row of the result within its dtype's bound, or `slack` times that; rows of zeros exact.

    terms: those of a Call, where rows have so few columns that they may cancel.
    """
    assert result.shape == reference.shape
    result = result.cpu()
    if reference.dtype is torch.int32:
        assert torch.equal(result, reference)
        return
    if reference.numel() == 0:
        return

    def rows(t: Tensor) -> Tensor:
        return t.double().reshape(-1, t.shape[-1])

    error = (rows(result) - rows(reference)).norm(dim=1)
    norm = rows(reference).norm(dim=1)
    floor = ERROR_FLOOR[result.dtype] * (rows(reference) != 0).sum(dim=1) ** 0.5
    bound = slack * ERROR_BOUND[result.dtype] * norm + floor
    if terms is not None and terms.shape[-1] < FEW_COLUMNS:
        bound += ERROR_OF_SUMS * rows(terms).norm(dim=1)
    assert torch.isfinite(rows(result)).all(), "the result is not finite"
    worst = int((error - bound).argmax())
    assert (error <= bound).all(), f"row {worst}: error {error[worst]:.3e} > bound {bound[worst]:.3e}"
