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
    rows: Callable[[Tensors, Index], Tensor]


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


def _rowwise(dtype: torch.dtype, weight_only: bool) -> Weight:
    def random(p: Problem, g: Generator) -> Tensors:
        weight, scale = values.rowwise_values((p.N,), p.K, dtype, g)
        return weight, scale.to((p.scale_dtype if weight_only else None) or torch.float32)

    return Weight(random, _scaled)


def _random_int4(p: Problem, g: Generator) -> Tensors:
    return values.int4_weight(p.N, p.K, p.group_size, p.bias_dtype, g)


def _int4_rows(stored: Tensors, index: Index) -> Tensor:
    return values.int4_float64(stored[0][index], stored[1][:, index], stored[2][:, index])


INT4 = Weight(_random_int4, _int4_rows)


def _linear(
    operator: str,
    format: str,
    weight: Weight,
    dense_input: Callable[[Tensors, Index], Tensor] = _dense,
    inputs: Callable[[Problem, Generator], Tensors] = _float_input,
    call: Callable[[Callable[..., Any], Problem, Tensors, Tensors], Any] | None = None,
    adds_bias: Callable[[Problem], bool] = lambda p: False,
    exact: bool = False,
    serves: Callable[[Problem], bool] = lambda p: True,
) -> Subject:
    """A subject that multiplies; dense_input gives rows of its input in float64."""

    def random(p: Problem, g: Generator) -> Tensors:
        bias = (randn(g, p.N, dtype=p.bias_dtype),) if adds_bias(p) else ()
        return *weight.random(p, g), *bias

    def expected(
        p: Problem, x: Tensors, w: Tensors, rows: Index, columns: Index
    ) -> tuple[Tensor, Tensor | None]:
        bias = w[-1][columns] if adds_bias(p) else None
        return values.product(dense_input(x, rows), weight.rows(w, columns), bias)

    return Subject(
        operator,
        format,
        inputs,
        random,
        call or (lambda kernel, p, x, w: kernel(*x, *w)),
        expected,
        exact=exact,
        grouped=format == "int4",
        adds_bias=adds_bias,
        serves=serves,
    )


def _scaled_mm(dtype: torch.dtype) -> Subject:
    return _linear(
        "scaled_mm_rowwise",
        dtype_name(dtype),
        _rowwise(dtype, weight_only=False),
        _scaled,
        inputs=lambda p, g: values.rowwise_values(p.rows, p.K, dtype, g),
        call=lambda kernel, p, x, w: kernel(x[0], w[0], x[1], w[1], *w[2:], out_dtype=p.dtype),
        adds_bias=lambda p: p.bias,
    )


def _scaled_linear(dtype: torch.dtype) -> Subject:
    return _linear(
        "scaled_linear_rowwise",
        dtype_name(dtype),
        _rowwise(dtype, weight_only=False),
        lambda x, rows: _scaled(values.quantized(x[0][rows], dtype), ALL),
        adds_bias=lambda p: p.bias,
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
    )


def _int8_mm() -> Subject:
    return _linear(
        "int8_mm",
        "int8",
        Weight(lambda p, g: values.rowwise_values((p.N,), p.K, torch.int8, g)[:1], _dense),
        inputs=lambda p, g: values.rowwise_values(p.rows, p.K, torch.int8, g)[:1],
        exact=True,
    )


def _dequantize(operator: str, format: str, weight: Weight) -> Subject:
    return Subject(
        operator,
        format,
        lambda p, g: (),
        weight.random,
        lambda kernel, p, x, w: kernel(*w, dtype=p.dtype),
        lambda p, x, w, rows, columns: (weight.rows(w, rows)[:, columns], None),
        ("N", "K"),
        grouped=format == "int4",
    )


def _dequantize_rowwise(dtype: torch.dtype) -> Subject:
    return _dequantize("dequantize_rowwise", dtype_name(dtype), _rowwise(dtype, weight_only=True))


def _dequantize_int4() -> Subject:
    return _dequantize("dequantize_int4", "int4", INT4)


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

    def rows(stored: Tensors, index: Index) -> Tensor:
        return values.tinygemm_values_float64(values.tinygemm_rows(stored[0], index), stored[1][:, index])

    return _linear(
        "weight_int4pack_mm",
        "int4",
        Weight(random, rows),
        call=lambda kernel, p, x, w: kernel(x[0], w[0], p.group_size, w[1]),
        serves=_takes_tinygemm,
    )


def _weight_only(dtype: torch.dtype) -> Subject:
    operator = "bf16i8bf16_rowwise" if dtype is torch.int8 else "bf16f8bf16_rowwise"
    weight = _rowwise(dtype, weight_only=True)
    return _linear(operator, dtype_name(dtype), weight, adds_bias=lambda p: p.bias)


def _all() -> list[Subject]:
    subjects = [
        _linear("bf16i4bf16_rowwise", "int4", INT4),
        _linear("bf16i4bf16_rowwise_bias", "int4", INT4, adds_bias=lambda p: True),
        _int8_mm(),
    ]
    for make in (_weight_only, _scaled_mm, _scaled_linear, _quantize, _dequantize_rowwise):
        subjects += [make(dtype) for dtype in EIGHT_BIT]
    return [*subjects, _dequantize_int4(), _tinygemm_convert(), tinygemm_mm()]


SUBJECTS = _all()
