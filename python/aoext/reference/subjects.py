"""Every operator of torch.ops.ao in every number format: how to draw its arguments and to know its result.

Arguments fall into two parts. `rotated` ones (the weight with its scales) exist in many copies where an
operator is timed, so that no call finds them in a cache; `inputs` are the activations. References are
computed for all of the result, or for some rows and columns of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.layouts import GROUP_SIZES
from aoext.packing import dtype_name

from . import values
from .values import EIGHT_BIT, randn

Tensors = tuple[Tensor, ...]
Index = Tensor | slice
ALL = slice(None)


@dataclass(frozen=True)
class Problem:
    """The sizes and dtypes of one call."""

    M: int
    N: int
    K: int
    group_size: int
    dtype: torch.dtype = torch.bfloat16  # of the input and the result
    # Of a weight-only operator's scales and of biases; None: as quantize_ makes them, float32 scales for
    # 8-bit weights, the input's dtype for all others.
    scale_dtype: torch.dtype | None = torch.bfloat16
    eight_bit: torch.dtype = torch.int8  # which format CALLS take
    leading: tuple[int, ...] | None = None  # instead of (M,)
    bias: bool = True  # whether operators that take one or none get one
    block_n: int = 1  # rows of a weight that share a scale, where a format does not say

    @property
    def rows(self) -> tuple[int, ...]:
        return (self.M,) if self.leading is None else self.leading

    @property
    def bias_dtype(self) -> torch.dtype:
        return self.scale_dtype or self.dtype

    @property
    def tiles(self) -> int:
        """Of 8 rows of the weight, as the tinygemm layout has them."""
        return self.N // 8

    def __str__(self) -> str:
        names = "-".join(
            str(d).removeprefix("torch.") for d in (self.dtype, self.scale_dtype, self.eight_bit)
        )
        return f"M{self.M}-N{self.N}-K{self.K}-G{self.group_size}-{names}"


@dataclass(frozen=True)
class Weight:
    """A way to store weights [N, K]: random ones, and rows of them in float64."""

    random: Callable[[Problem, Generator], Tensors]
    rows: Callable[[Problem, Tensors, Index], Tensor]


def full_name(operator: str, format: str) -> str:
    """Of an operator in a number format; int4 operators have no other."""
    return operator if format == "int4" else f"{operator} [{format}]"


# (problem, inputs, rotated, rows, columns) -> float64 values that result[rows][:, columns] must have, and of
# products the sums of the terms' magnitudes.
Reference = Callable[[Problem, Tensors, Tensors, Index, Index], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Subject:
    """An operator of torch.ops.ao in one number format."""

    operator: str
    format: str  # of the weight, or of what the operator makes
    inputs: Callable[[Problem, Generator], Tensors]
    rotated: Callable[[Problem, Generator], Tensors]
    # Runs a kernel of the operator: (kernel, problem, inputs, rotated) -> result.
    call: Callable[[Callable[..., Any], Problem, Tensors, Tensors], Any]
    expected: Reference
    # The dimensions of the result, by names of the sizes of a problem.
    result: tuple[str, str] = ("M", "N")
    exact: bool = False  # whether the result is int32
    grouped: bool = False  # whether group_size matters
    adds_bias: Callable[[Problem], bool] = lambda p: False  # a tensor [N], the last that rotates
    serves: Callable[[Problem], bool] = lambda p: True  # whether the operator takes such a problem at all
    weight: Weight | None = None  # of the operators that take a quantised one
    block_k: Callable[[Problem], int] = lambda p: p.K  # columns of values that share a scale, of an input
    typical: bool = True  # whether it stands for the others of its operator where time or space is short

    @property
    def name(self) -> str:
        return full_name(self.operator, self.format)

    @property
    def is_linear(self) -> bool:
        """Whether it multiplies with a weight, so that F.linear is its twin in high precision."""
        return self.result == ("M", "N")

    @property
    def depends_on_rows_of_the_weight(self) -> bool:
        return not {"N", "tiles"}.isdisjoint(self.result)

    @property
    def multiplies_in_high_precision(self) -> bool:
        """Whether its products are of the input's dtype, so that the ceiling for those binds it."""
        return self.is_linear and self.operator.startswith(("bf16", "weight_int4"))

    @property
    def multiplies_in_8_bit(self) -> bool:
        """Whether both operands of its products are 8 bits wide."""
        return self.is_linear and not self.multiplies_in_high_precision

    def dense(self, p: Problem, result: Any) -> Tensor:
        """A result as one tensor: values times scales where it is both."""
        if not isinstance(result, tuple):
            return result
        quantized, scales = result
        return quantized.double() * values.spread(scales.double(), self.block_k(p), p.K)

    def arguments(self, problem: Problem, inputs: Tensors, rotated: Tensors) -> tuple[Any, ...]:
        """The positional arguments of a call."""
        return self.call(lambda *args, **kwargs: args, problem, inputs, rotated)

    def reference(
        self, p: Problem, inputs: Tensors, rotated: Tensors, rows: Index = ALL, columns: Index = ALL
    ) -> Tensor:
        """What the result must be there, in float64."""
        return self.expected(p, inputs, rotated, rows, columns)[0]


def _float_input(p: Problem, g: Generator) -> Tensors:
    return (randn(g, *p.rows, p.K, dtype=p.dtype),)


def _dense(x: Tensors, rows: Index) -> Tensor:
    return x[0][rows].double()


def _scaled(stored: Tensors, index: Index) -> Tensor:
    return stored[0][index].double() * stored[1][index].double()


def _scaled_rows(p: Problem, stored: Tensors, index: Index) -> Tensor:
    return _scaled(stored, index)


def _rowwise(dtype: torch.dtype, weight_only: bool) -> Weight:
    def random(p: Problem, g: Generator) -> Tensors:
        weight, scale = values.rowwise_values((p.N,), p.K, dtype, g)
        return weight, scale.to((p.scale_dtype if weight_only else None) or torch.float32)

    return Weight(random, _scaled_rows)


def _random_int4(p: Problem, g: Generator) -> Tensors:
    return values.int4_weight(p.N, p.K, p.group_size, p.bias_dtype, g)


def _int4_rows(p: Problem, stored: Tensors, index: Index) -> Tensor:
    return values.int4_float64(stored[0][index], stored[1][:, index], stored[2][:, index])


INT4 = Weight(_random_int4, _int4_rows)


def _is_typical(dtype: torch.dtype) -> bool:
    return dtype is not torch.float8_e5m2


def _linear(
    operator: str,
    format: str,
    weight: Weight,
    dense_input: Callable[[Problem, Tensors, Index], Tensor] = lambda p, x, rows: _dense(x, rows),
    inputs: Callable[[Problem, Generator], Tensors] = _float_input,
    call: Callable[[Callable[..., Any], Problem, Tensors, Tensors], Any] | None = None,
    adds_bias: Callable[[Problem], bool] = lambda p: False,
    exact: bool = False,
    grouped: bool = False,
    serves: Callable[[Problem], bool] = lambda p: True,
    typical: bool = True,
) -> Subject:
    """A subject that multiplies; dense_input gives rows of its input in float64."""

    def random(p: Problem, g: Generator) -> Tensors:
        bias = (randn(g, p.N, dtype=p.bias_dtype),) if adds_bias(p) else ()
        return *weight.random(p, g), *bias

    def expected(
        p: Problem, x: Tensors, w: Tensors, rows: Index, columns: Index
    ) -> tuple[Tensor, Tensor | None]:
        bias = w[-1][columns] if adds_bias(p) else None
        return values.product(dense_input(p, x, rows), weight.rows(p, w, columns), bias)

    return Subject(
        operator,
        format,
        inputs,
        random,
        call or (lambda kernel, p, x, w: kernel(*x, *w)),
        expected,
        exact=exact,
        grouped=grouped,
        adds_bias=adds_bias,
        serves=serves,
        weight=weight,
        typical=typical,
    )


def _scaled_mm(dtype: torch.dtype) -> Subject:
    return _linear(
        "scaled_mm_rowwise",
        dtype_name(dtype),
        _rowwise(dtype, weight_only=False),
        _scaled_rows,
        inputs=lambda p, g: values.rowwise_values(p.rows, p.K, dtype, g),
        call=lambda kernel, p, x, w: kernel(x[0], w[0], x[1], w[1], *w[2:], out_dtype=p.dtype),
        adds_bias=lambda p: p.bias,
        typical=_is_typical(dtype),
    )


def _scaled_linear(dtype: torch.dtype) -> Subject:
    return _linear(
        "scaled_linear_rowwise",
        dtype_name(dtype),
        _rowwise(dtype, weight_only=False),
        lambda p, x, rows: _scaled(values.quantized(x[0][rows], dtype), ALL),
        adds_bias=lambda p: p.bias,
        typical=_is_typical(dtype),
    )


def _quantize(dtype: torch.dtype) -> Subject:
    # Its input is what rotates; the result that is checked is values · scale.
    return Subject(
        "quantize_rowwise",
        dtype_name(dtype),
        lambda p, g: (),
        _float_input,
        lambda kernel, p, x, w: kernel(w[0], dtype),
        lambda p, x, w, rows, columns: (
            _scaled(values.quantized(w[0][rows], dtype), ALL)[..., columns],
            None,
        ),
        ("M", "K"),
        typical=_is_typical(dtype),
    )


def _int8_mm() -> Subject:
    return _linear(
        "int8_mm",
        "int8",
        Weight(
            lambda p, g: values.rowwise_values((p.N,), p.K, torch.int8, g)[:1],
            lambda p, w, rows: _dense(w, rows),
        ),
        inputs=lambda p, g: values.rowwise_values(p.rows, p.K, torch.int8, g)[:1],
        exact=True,
    )


def _dequantize(
    operator: str,
    format: str,
    weight: Weight,
    call: Callable[[Callable[..., Any], Problem, Tensors, Tensors], Any] | None = None,
    grouped: bool = False,
    typical: bool = True,
) -> Subject:
    return Subject(
        operator,
        format,
        lambda p, g: (),
        weight.random,
        call or (lambda kernel, p, x, w: kernel(*w, dtype=p.dtype)),
        lambda p, x, w, rows, columns: (weight.rows(p, w, rows)[:, columns], None),
        ("N", "K"),
        grouped=grouped,
        weight=weight,
        typical=typical,
    )


def _dequantize_rowwise(dtype: torch.dtype) -> Subject:
    weight = _rowwise(dtype, weight_only=True)
    return _dequantize("dequantize_rowwise", dtype_name(dtype), weight, typical=_is_typical(dtype))


def _dequantize_int4() -> Subject:
    return _dequantize("dequantize_int4", "int4", INT4, grouped=True)


def _takes_tinygemm(p: Problem) -> bool:
    fits = p.N % 8 == 0 and p.K % 32 == 0 and p.group_size in GROUP_SIZES and p.K % p.group_size == 0
    return fits and p.dtype is torch.bfloat16


def _tinygemm_convert() -> Subject:
    def expected(
        p: Problem, x: Tensors, w: Tensors, rows: Index, columns: Index
    ) -> tuple[Tensor, Tensor | None]:
        tiles = w[0].unflatten(0, (-1, 8))[rows].flatten(0, 1)
        packed = values.tinygemm_pack(tiles, values.inner_k_tiles(p.K)).double()
        return (packed if columns is ALL else packed.flatten(1)[:, columns]), None

    return Subject(
        "convert_weight_to_int4pack",
        "int4",
        lambda p, g: (),
        lambda p, g: (values.tinygemm_bytes(p.N, p.K, g),),
        lambda kernel, p, x, w: kernel(w[0], values.inner_k_tiles(p.K)),
        expected,
        ("tiles", "K"),
        exact=True,
        serves=_takes_tinygemm,
    )


def tinygemm_mm(inner: Callable[[int], int] = values.inner_k_tiles) -> Subject:
    """inner: the layout's inner_k_tiles by K."""

    def random(p: Problem, g: Generator) -> Tensors:
        groups = p.K // p.group_size
        scale = values.scales_of_both_signs(groups, p.N, g)
        scale_and_zero = torch.stack([scale, randn(g, groups, p.N)], -1).bfloat16()
        return values.tinygemm_words(p.N, p.K, inner(p.K), g), scale_and_zero

    def rows(p: Problem, stored: Tensors, index: Index) -> Tensor:
        return values.tinygemm_values_float64(values.tinygemm_rows(stored[0], index), stored[1][:, index])

    return _linear(
        "weight_int4pack_mm",
        "int4",
        Weight(random, rows),
        call=lambda kernel, p, x, w: kernel(x[0], w[0], p.group_size, w[1]),
        grouped=True,
        serves=_takes_tinygemm,
    )


def _weight_only(dtype: torch.dtype) -> Subject:
    operator = "bf16i8bf16_rowwise" if dtype is torch.int8 else "bf16f8bf16_rowwise"
    weight = _rowwise(dtype, weight_only=True)
    return _linear(
        operator, dtype_name(dtype), weight, adds_bias=lambda p: p.bias, typical=_is_typical(dtype)
    )


def _scaled_mm_int4(dtype: torch.dtype) -> Subject:
    return _linear(
        "scaled_mm_int4",
        dtype_name(dtype),
        INT4,
        _scaled_rows,
        inputs=lambda p, g: values.rowwise_values(p.rows, p.K, dtype, g),
        call=lambda kernel, p, x, w: kernel(x[0], w[0], x[1], *w[1:], out_dtype=p.dtype),
        adds_bias=lambda p: p.bias,
        grouped=True,
        typical=dtype is torch.int8,
    )


def _scaled_linear_int4(dtype: torch.dtype) -> Subject:
    return _linear(
        "scaled_linear_int4",
        dtype_name(dtype),
        INT4,
        lambda p, x, rows: _scaled(values.quantized(x[0][rows], dtype), ALL),
        call=lambda kernel, p, x, w: kernel(x[0], *w, input_dtype=dtype),
        adds_bias=lambda p: p.bias,
        grouped=True,
        typical=dtype is torch.int8,
    )


@dataclass(frozen=True)
class Blockwise:
    """A format of weights with a scale a block. What is None comes of the problem."""

    name: str
    code: torch.dtype  # uint8: indices of 4 bits into a table
    block: tuple[int, int] | None = None
    scale: torch.dtype | None = None
    table: tuple[float, ...] | None = None
    has_global_scale: bool = False
    typical: bool = True

    def block_of(self, p: Problem) -> list[int]:
        return list(self.block or (p.block_n, p.group_size))

    def random(self, p: Problem, g: Generator) -> Tensors:
        """Codes, the table of those that have one, scales, and the global scale where there is one."""
        block_n, block_k = self.block_of(p)
        blocks = -(-p.N // block_n), -(-p.K // block_k)
        scale_dtype = self.scale or p.scale_dtype or torch.float32
        if self.code is not torch.uint8:
            codes, _ = values.rowwise_values((p.N,), p.K, self.code, g)
            return codes, values.block_scales(*blocks, scale_dtype, 1 / values.quantized_max(self.code), g)
        codes = torch.randint(0, 256, (p.N, p.K // 2), generator=g, dtype=torch.uint8, device=g.device)
        table = randn(g, 16) if self.table is None else torch.tensor(self.table, device=g.device)
        scales = values.block_scales(*blocks, scale_dtype, 1.0, g)
        return (
            codes,
            table,
            scales,
            *([torch.rand(1, generator=g, device=g.device) + 0.5] * self.has_global_scale),
        )

    def rows(self, p: Problem, stored: Tensors, index: Index) -> Tensor:
        if self.code is not torch.uint8:
            return values.blockwise_float64(stored[0][index].double(), stored[1], self.block_of(p), index)
        looked_up = values.lut4_float64(stored[0][index], stored[1])
        rows = values.blockwise_float64(looked_up, stored[2], self.block_of(p), index)
        return rows * stored[3].double() if self.has_global_scale else rows

    def arguments(self, p: Problem, w: Tensors) -> tuple[Any, ...]:
        """The weight as the operators take it, with what comes behind it."""
        if self.code is not torch.uint8:
            return *w[:2], self.block_of(p), *w[2:]
        return *w[:3], self.block_of(p), *([] if self.has_global_scale else [None]), *w[3:]


NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E4M3 = torch.float8_e4m3fn

EIGHT_BIT_BLOCKWISE = [
    *(Blockwise(dtype_name(dtype), dtype, typical=False) for dtype in EIGHT_BIT),
    Blockwise("float8 128x128", E4M3, (128, 128), torch.float32),
    Blockwise("mxfp8", E4M3, (1, 32), torch.float8_e8m0fnu, typical=False),
]
LUT4_BLOCKWISE = [
    Blockwise("lut4", torch.uint8, has_global_scale=True, typical=False),
    Blockwise("mxfp4", torch.uint8, (1, 32), torch.float8_e8m0fnu, E2M1),
    Blockwise("nvfp4", torch.uint8, (1, 16), E4M3, E2M1, has_global_scale=True),
    Blockwise("nf4", torch.uint8, (1, 64), torch.float32, NF4),
]


def weight_only_blockwise(format: Blockwise) -> Subject:
    name = {torch.int8: "bf16i8bf16", torch.uint8: "bf16lut4bf16"}.get(format.code, "bf16f8bf16")
    return _linear(
        f"{name}_blockwise",
        format.name,
        Weight(format.random, format.rows),
        call=lambda kernel, p, x, w: kernel(x[0], *format.arguments(p, w)),
        adds_bias=lambda p: p.bias,
        grouped=format.block is None,
        typical=format.typical or format.code is torch.int8,
    )


def _dequantize_blockwise(format: Blockwise) -> Subject:
    return _dequantize(
        "dequantize_lut4" if format.code is torch.uint8 else "dequantize_blockwise",
        format.name,
        Weight(format.random, format.rows),
        lambda kernel, p, x, w: kernel(*format.arguments(p, w), dtype=p.dtype),
        grouped=format.block is None,
        typical=format.name in ("float8 128x128", "mxfp4"),
    )


def _input_block(format: Blockwise, p: Problem) -> list[int]:
    return [1, format.block_of(p)[1]]


def _scaled_mm_blockwise(format: Blockwise) -> Subject:
    def inputs(p: Problem, g: Generator) -> Tensors:
        values_, _ = values.rowwise_values(p.rows, p.K, format.code, g)
        blocks = -(-p.K // _input_block(format, p)[1])
        limit = values.quantized_max(format.code)
        return values_, (torch.rand(*p.rows, blocks, generator=g, device=g.device) + 0.5) / limit

    def dense(p: Problem, x: Tensors, rows: Index) -> Tensor:
        block_k = _input_block(format, p)[1]
        return x[0][rows].double() * values.spread(x[1][rows].double(), block_k, p.K)

    return _linear(
        "scaled_mm_blockwise",
        format.name,
        Weight(format.random, format.rows),
        dense,
        inputs=inputs,
        call=lambda kernel, p, x, w: kernel(
            x[0], w[0], x[1], w[1], _input_block(format, p), format.block_of(p), *w[2:], out_dtype=p.dtype
        ),
        adds_bias=lambda p: p.bias,
        grouped=format.block is None,
        typical=format.typical,
    )


def _scaled_linear_blockwise(format: Blockwise) -> Subject:
    def dense(p: Problem, x: Tensors, rows: Index) -> Tensor:
        power_of_two = format.scale is torch.float8_e8m0fnu
        quantized = values.quantized_blocks(x[0][rows], format.code, _input_block(format, p)[1], power_of_two)
        return quantized[0].double() * values.spread(quantized[1].double(), _input_block(format, p)[1], p.K)

    return _linear(
        "scaled_linear_blockwise",
        format.name,
        Weight(format.random, format.rows),
        dense,
        call=lambda kernel, p, x, w: kernel(
            x[0], *w[:2], _input_block(format, p), format.block_of(p), *w[2:]
        ),
        adds_bias=lambda p: p.bias,
        grouped=format.block is None,
        typical=format.typical,
    )


def _quantize_blockwise(format: Blockwise) -> Subject:
    power_of_two = format.scale is torch.float8_e8m0fnu

    def expected(
        p: Problem, x: Tensors, w: Tensors, rows: Index, columns: Index
    ) -> tuple[Tensor, Tensor | None]:
        block_k = _input_block(format, p)[1]
        q, scale = values.quantized_blocks(w[0][rows], format.code, block_k, power_of_two)
        return (q.double() * values.spread(scale.double(), block_k, p.K))[..., columns], None

    return Subject(
        "quantize_blockwise",
        format.name,
        lambda p, g: (),
        _float_input,
        lambda kernel, p, x, w: kernel(w[0], format.code, _input_block(format, p), power_of_two=power_of_two),
        expected,
        ("M", "K"),
        grouped=format.block is None,
        block_k=lambda p: _input_block(format, p)[1],
        typical=format.typical,
    )


def blockwise_subject(operator: str, format: Blockwise) -> Subject:
    """An operator of weights with a scale a block, in any such format."""
    if operator.startswith("dequantize"):
        return _dequantize_blockwise(format)
    makers = {
        "scaled_mm_blockwise": _scaled_mm_blockwise,
        "scaled_linear_blockwise": _scaled_linear_blockwise,
        "quantize_blockwise": _quantize_blockwise,
    }
    return makers.get(operator, weight_only_blockwise)(format)


def _blockwise() -> list[Subject]:
    makers = (
        weight_only_blockwise,
        _scaled_mm_blockwise,
        _scaled_linear_blockwise,
        _quantize_blockwise,
    )
    subjects = [make(format) for make in makers for format in EIGHT_BIT_BLOCKWISE]
    subjects += [weight_only_blockwise(format) for format in LUT4_BLOCKWISE]
    return subjects + [_dequantize_blockwise(format) for format in (*EIGHT_BIT_BLOCKWISE, *LUT4_BLOCKWISE)]


def _all() -> list[Subject]:
    subjects = [
        _linear("bf16i4bf16_rowwise", "int4", INT4, grouped=True),
        _linear("bf16i4bf16_rowwise_bias", "int4", INT4, adds_bias=lambda p: True, grouped=True),
        _int8_mm(),
    ]
    for make in (_weight_only, _scaled_mm, _scaled_linear, _quantize, _dequantize_rowwise):
        subjects += [make(dtype) for dtype in EIGHT_BIT]
    for dtype in (torch.int8, torch.float8_e4m3fn):
        subjects += [_scaled_mm_int4(dtype), _scaled_linear_int4(dtype)]
    return [*subjects, *_blockwise(), _dequantize_int4(), _tinygemm_convert(), tinygemm_mm()]


SUBJECTS = _all()
