"""What `aoext bench` measures: each operator of torch.ops.ao with random arguments and a float64 check.

A subject is an operator in one number format. Its arguments fall into two parts. `rotated` ones (the weight
with its scales) exist in many copies, so that no call finds them in a cache; `inputs` are the activations.
References are written out in plain float64 tensor code and call no operator of aoext.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.cli import tinygemm
from aoext.packing import FLOAT8_DTYPES, dtype_name, unpack_int4

Tensors = tuple[Tensor, ...]
EIGHT_BIT_DTYPES = (torch.int8, *FLOAT8_DTYPES)


@dataclass(frozen=True)
class Problem:
    """The sizes of one call; `dtype` is that of high precision inputs and results."""

    M: int
    N: int
    K: int
    group_size: int
    dtype: torch.dtype
    bias: bool = False  # whether operators that take one or none get one

    @property
    def tiles(self) -> int:
        """Of 8 rows of the weight, as the tinygemm layout has them."""
        return self.N // 8


@dataclass(frozen=True)
class Weight:
    """A way to store weights [N, K]: random ones, and what they stand for."""

    random: Callable[[Problem, Generator], Tensors]
    # Rows of the weight in float64 [n, K], from the stored tensors and the indices of the rows.
    rows: Callable[[Tensors, Tensor], Tensor]


def full_name(operator: str, format: str) -> str:
    """Of an operator in a number format; int4 operators have no other."""
    return operator if format == "int4" else f"{operator} [{format}]"


@dataclass(frozen=True)
class Subject:
    """An operator of torch.ops.ao in one number format."""

    operator: str
    format: str  # of the weight, or of what the operator makes
    inputs: Callable[[Problem, Generator], Tensors]
    rotated: Callable[[Problem, Generator], Tensors]
    # Runs a kernel of the operator: (kernel, problem, inputs, rotated) -> result.
    call: Callable[[Callable[..., Any], Problem, Tensors, Tensors], Any]
    # Float64 values that result[rows][:, columns] must have: (problem, inputs, rotated, rows, columns).
    reference: Callable[[Problem, Tensors, Tensors, Tensor, Tensor], Tensor]
    # The dimensions of the result, by names of the sizes of a problem.
    result: tuple[str, str] = ("M", "N")
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


def _random_int8(rows: int, columns: int, g: Generator) -> Tensor:
    return torch.randint(-127, 128, (rows, columns), generator=g, dtype=torch.int8, device=g.device)


def _rand(*sizes: int, g: Generator) -> Tensor:
    return torch.rand(*sizes, generator=g, device=g.device)


def randn(*sizes: int, g: Generator) -> Tensor:
    """Where the generator is."""
    return torch.randn(*sizes, generator=g, device=g.device)


def _random_rowwise(rows: int, K: int, dtype: torch.dtype, g: Generator) -> Tensors:
    """Values [rows, K] over the range of an 8-bit dtype, and float32 scales [rows, 1]."""
    if dtype is torch.int8:
        return _random_int8(rows, K, g), (_rand(rows, 1, g=g) + 0.5) / 127
    limit = torch.finfo(dtype).max
    values = randn(rows, K, g=g).mul_(limit / 4).clamp_(-limit, limit)
    return values.to(dtype), (_rand(rows, 1, g=g) + 0.5) / limit


def _rowwise(dtype: torch.dtype) -> Weight:
    def random(p: Problem, g: Generator) -> Tensors:
        return _random_rowwise(p.N, p.K, dtype, g)

    def rows(stored: Tensors, index: Tensor) -> Tensor:
        return stored[0][index].double() * stored[1][index].double()

    return Weight(random, rows)


def _random_int4(p: Problem, g: Generator) -> Tensors:
    nibbles = (p.N, p.K // 2)
    packed = torch.randint(-128, 128, nibbles, generator=g, dtype=torch.int8, device=g.device)
    groups = p.K // p.group_size
    scale = (_rand(groups, p.N, g=g) + 0.5) / 8
    zero_point = randn(groups, p.N, g=g) / 8
    return packed, scale.to(p.dtype), zero_point.to(p.dtype)


def _int4_rows(stored: Tensors, index: Tensor) -> Tensor:
    packed, scale, zero_point = stored[:3]
    q = unpack_int4(packed[index]).double()
    group_size = q.shape[1] // scale.shape[0]
    s, z = (t[:, index].double().t().repeat_interleave(group_size, 1) for t in (scale, zero_point))
    return q * s + z


INT4 = Weight(_random_int4, _int4_rows)


def _float_input(p: Problem, g: Generator) -> Tensors:
    return (randn(p.M, p.K, g=g).to(p.dtype),)


def quantized_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The contract of quantize_rowwise for rows without zeros, NaN or Inf, in plain tensor code."""
    limit = 127.0 if dtype is torch.int8 else torch.finfo(dtype).max
    scale = x.float().abs().amax(1, keepdim=True) / torch.tensor(limit, device=x.device)
    q = (x.float() / scale).clamp_(-limit, limit)
    return (q.round_() if dtype is torch.int8 else q).to(dtype), scale


def _linear(
    operator: str,
    format: str,
    weight: Weight,
    dense_input: Callable[[Tensors, Tensor], Tensor],
    inputs: Callable[[Problem, Generator], Tensors] = _float_input,
    call: Callable[[Callable[..., Any], Problem, Tensors, Tensors], Any] | None = None,
    adds_bias: Callable[[Problem], bool] = lambda p: False,
) -> Subject:
    """A subject that multiplies; dense_input gives rows of its input in float64."""

    def random(p: Problem, g: Generator) -> Tensors:
        bias = (randn(p.N, g=g).to(p.dtype),) if adds_bias(p) else ()
        return *weight.random(p, g), *bias

    def reference(p: Problem, x: Tensors, w: Tensors, rows: Tensor, columns: Tensor) -> Tensor:
        product = dense_input(x, rows) @ weight.rows(w, columns).t()
        return product + w[-1][columns].double() if adds_bias(p) else product

    plain = lambda kernel, p, x, w: kernel(*x, *w)  # noqa: E731
    return Subject(
        operator,
        format,
        inputs,
        random,
        call or plain,
        reference,
        grouped=weight is INT4,
        adds_bias=adds_bias,
    )


def _dense(x: Tensors, rows: Tensor) -> Tensor:
    return x[0][rows].double()


def _scaled_mm(dtype: torch.dtype) -> Subject:
    return _linear(
        "scaled_mm_rowwise",
        dtype_name(dtype),
        _rowwise(dtype),
        lambda x, rows: x[0][rows].double() * x[1][rows].double(),
        inputs=lambda p, g: _random_rowwise(p.M, p.K, dtype, g),
        call=lambda kernel, p, x, w: kernel(x[0], w[0], x[1], w[1], *w[2:], out_dtype=p.dtype),
        adds_bias=lambda p: p.bias,
    )


def _scaled_linear(dtype: torch.dtype) -> Subject:
    def dense(x: Tensors, rows: Tensor) -> Tensor:
        q, scale = quantized_rows(x[0][rows], dtype)
        return q.double() * scale.double()

    return _linear(
        "scaled_linear_rowwise", dtype_name(dtype), _rowwise(dtype), dense, adds_bias=lambda p: p.bias
    )


def _quantize(dtype: torch.dtype) -> Subject:
    # Its input is what rotates; the result that is checked is values · scale.
    def call(kernel: Callable[..., Any], p: Problem, x: Tensors, w: Tensors) -> Any:
        return kernel(w[0], dtype)

    def reference(p: Problem, x: Tensors, w: Tensors, rows: Tensor, columns: Tensor) -> Tensor:
        q, scale = quantized_rows(w[0][rows], dtype)
        return (q.double() * scale.double())[:, columns]

    return Subject(
        "quantize_rowwise",
        dtype_name(dtype),
        lambda p, g: (),
        _float_input,
        call,
        reference,
        ("M", "K"),
    )


def _int8_mm() -> Subject:
    return _linear(
        "int8_mm",
        "int8",
        Weight(lambda p, g: (_random_int8(p.N, p.K, g),), lambda w, index: w[0][index].double()),
        _dense,
        inputs=lambda p, g: (_random_int8(p.M, p.K, g),),
    )


def _dequantize() -> Subject:
    def reference(p: Problem, x: Tensors, w: Tensors, rows: Tensor, columns: Tensor) -> Tensor:
        return _int4_rows(w, rows)[:, columns]

    return Subject(
        "dequantize_int4",
        "int4",
        lambda p, g: (),
        _random_int4,
        lambda kernel, p, x, w: kernel(*w, dtype=p.dtype),
        reference,
        ("N", "K"),
        grouped=True,
    )


def _dequantize_rows(dtype: torch.dtype) -> Subject:
    weight = _rowwise(dtype)
    return Subject(
        "dequantize_rowwise",
        dtype_name(dtype),
        lambda p, g: (),
        weight.random,
        lambda kernel, p, x, w: kernel(*w, dtype=p.dtype),
        lambda p, x, w, rows, columns: weight.rows(w, rows)[:, columns],
        ("N", "K"),
    )


def _takes_tinygemm(p: Problem) -> bool:
    return p.dtype is torch.bfloat16 and tinygemm.fits(p.N, p.K, p.group_size)


def _tinygemm_convert() -> Subject:
    return Subject(
        "convert_weight_to_int4pack",
        "int4",
        lambda p, g: (),
        lambda p, g: (tinygemm.random_stored(p.N, p.K, g),),
        lambda kernel, p, x, w: kernel(w[0], tinygemm.inner_k_tiles(p.K)),
        lambda p, x, w, rows, columns: tinygemm.packed_rows(w[0], rows)[:, columns],
        ("tiles", "K"),
        serves=_takes_tinygemm,
    )


def _tinygemm_mm() -> Subject:
    def random(p: Problem, g: Generator) -> Tensors:
        _, scale, zero_point = _random_int4(p, g)
        return tinygemm.random_packed(p.N, p.K, g), torch.stack([scale, zero_point], dim=-1)

    def reference(p: Problem, x: Tensors, w: Tensors, rows: Tensor, columns: Tensor) -> Tensor:
        s, z = w[1][:, columns].double().repeat_interleave(p.group_size, 0).unbind(-1)
        weight = (tinygemm.unpacked_rows(w[0], columns) - 8) * s.t() + z.t()
        return x[0][rows].double() @ weight.t()

    return Subject(
        "weight_int4pack_mm",
        "int4",
        _float_input,
        random,
        lambda kernel, p, x, w: kernel(x[0], w[0], p.group_size, w[1]),
        reference,
        grouped=True,
        serves=_takes_tinygemm,
    )


def _weight_only(dtype: torch.dtype) -> Subject:
    operator = "bf16i8bf16_rowwise" if dtype is torch.int8 else "bf16f8bf16_rowwise"
    return _linear(operator, dtype_name(dtype), _rowwise(dtype), _dense, adds_bias=lambda p: p.bias)


def _all() -> list[Subject]:
    subjects = [
        _linear("bf16i4bf16_rowwise", "int4", INT4, _dense),
        _linear("bf16i4bf16_rowwise_bias", "int4", INT4, _dense, adds_bias=lambda p: True),
        _int8_mm(),
    ]
    for make in (_weight_only, _scaled_mm, _scaled_linear, _quantize, _dequantize_rows):
        subjects += [make(dtype) for dtype in EIGHT_BIT_DTYPES]
    return [*subjects, _dequantize(), _tinygemm_convert(), _tinygemm_mm()]


SUBJECTS = _all()
