"""What a subject is: an operator of torch.ops.ao in one number format, how to draw its arguments and to know
its result.

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

from . import values
from .values import randn

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
    # The dtype of a weight-only operator's scales and of biases; None: as quantize_ makes them, float32 for
    # scales of 8-bit weights, the input's dtype for all others.
    scale_dtype: torch.dtype | None = torch.bfloat16
    eight_bit: torch.dtype = torch.int8  # which format CALLS take
    leading: tuple[int, ...] | None = None  # instead of (M,)
    bias: bool = True  # whether operators that take one or none get one
    block_n: int = 1  # rows of a weight that share a scale, where a format does not say
    experts: int = 4  # of a grouped product, and
    offsets: tuple[int, ...] | None = None  # where the rows of each end; by chance if None

    @property
    def rows(self) -> tuple[int, ...]:
        return (self.M,) if self.leading is None else self.leading

    @property
    def bias_dtype(self) -> torch.dtype:
        return self.scale_dtype or self.dtype

    @property
    def T(self) -> int:
        """The rows of all experts."""
        return self.M

    @property
    def tiles(self) -> int:
        """How many times 8 rows the weight has, as the tinygemm layout has them."""
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
    # What a product adds up in place of rows, where these are sums themselves.
    addends: Callable[[Problem, Tensors, Index], Tensors] | None = None


def full_name(operator: str, format: str) -> str:
    """An operator in a number format; int4 operators have no other."""
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
    # What tests go through: the operator, and behind a space what its weights have in common; the operator
    # alone where that is all.
    kind: str = ""

    @property
    def name(self) -> str:
        return full_name(self.operator, self.format)

    @property
    def is_linear(self) -> bool:
        """Whether it multiplies with a weight: F.linear or F.grouped_mm is its twin in high precision."""
        return self.by_expert or self.result == ("M", "N")

    @property
    def by_expert(self) -> bool:
        return self.result == ("T", "N")

    @property
    def depends_on_rows_of_the_weight(self) -> bool:
        return not {"N", "tiles"}.isdisjoint(self.result)

    @property
    def multiplies_in_high_precision(self) -> bool:
        """Whether its products are of the input's dtype, so that the ceiling for those binds it."""
        return self.is_linear and self.operator.startswith(("bf16", "weight_"))

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

    def arguments(
        self, problem: Problem, inputs: Tensors, rotated: Tensors
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, by position and by name."""
        return self.call(lambda *args, **kwargs: (args, kwargs), problem, inputs, rotated)

    def reference(
        self, p: Problem, inputs: Tensors, rotated: Tensors, rows: Index = ALL, columns: Index = ALL
    ) -> Tensor:
        """What the result must be there, in float64."""
        return self.expected(p, inputs, rotated, rows, columns)[0]


def float_input(p: Problem, g: Generator) -> Tensors:
    return (randn(g, *p.rows, p.K, dtype=p.dtype),)


def stored_values(x: Tensors, rows: Index) -> Tensor:
    return x[0][rows].double()


def scaled_values(stored: Tensors, index: Index) -> Tensor:
    return stored[0][index].double() * stored[1][index].double()


def linear(
    operator: str,
    format: str,
    weight: Weight,
    dense_input: Callable[[Problem, Tensors, Index], Tensor] = lambda p, x, rows: stored_values(x, rows),
    inputs: Callable[[Problem, Generator], Tensors] = float_input,
    call: Callable[[Callable[..., Any], Problem, Tensors, Tensors], Any] | None = None,
    adds_bias: Callable[[Problem], bool] = lambda p: False,
    exact: bool = False,
    grouped: bool = False,
    serves: Callable[[Problem], bool] = lambda p: True,
    typical: bool = True,
    kind: str = "",
) -> Subject:
    """A subject that multiplies; dense_input gives rows of its input in float64."""

    def random(p: Problem, g: Generator) -> Tensors:
        bias = (randn(g, p.N, dtype=p.bias_dtype),) if adds_bias(p) else ()
        return *weight.random(p, g), *bias

    def expected(
        p: Problem, x: Tensors, w: Tensors, rows: Index, columns: Index
    ) -> tuple[Tensor, Tensor | None]:
        bias = w[-1][columns] if adds_bias(p) else None
        addends = weight.addends(p, w, columns) if weight.addends else (weight.rows(p, w, columns),)
        return values.product(dense_input(p, x, rows), addends, bias)

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
        kind=kind or operator,
    )


def dequantization(
    operator: str,
    format: str,
    weight: Weight,
    call: Callable[[Callable[..., Any], Problem, Tensors, Tensors], Any] | None = None,
    grouped: bool = False,
    typical: bool = True,
    serves: Callable[[Problem], bool] = lambda p: True,
    kind: str = "",
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
        serves=serves,
        kind=kind or operator,
    )
