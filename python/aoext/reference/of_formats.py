"""The subjects of the operators that take weights of every format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.formats.dtypes import dtype_name
from aoext.formats.table import FORMATS

from . import values
from .blockwise import EIGHT_BIT_BLOCKWISE, LUT4_BLOCKWISE, WITH_ZERO_POINTS, Blockwise
from .subject import (
    Index,
    Problem,
    Subject,
    Tensors,
    Weight,
    dequantization,
    float_input,
    linear,
)
from .values import rand


@dataclass(frozen=True)
class Form:
    """A weight as arguments of the operators."""

    kind: str
    format: str
    weight: Weight
    names: tuple[str, ...]  # of what it stores, in order
    block: Callable[[Problem], list[int] | None] = lambda p: None
    typical: bool = True
    # To what activations are quantised under it, in which blocks (None: rows), and whether by powers of two.
    input: torch.dtype | None = None
    input_block: Callable[[Problem], list[int] | None] = lambda p: None
    power_of_two: bool = False
    follows_groups: bool = False  # whether its blocks are the problem's

    @property
    def grouped(self) -> bool:
        return FORMATS[self.weight.code].scales == "groups" or self.follows_groups

    def named(self, p: Problem, stored: Tensors) -> dict[str, Any]:
        """The arguments of a weight; what comes behind them is the bias."""
        return {
            **dict(zip((*self.names, "bias"), stored, strict=False)),
            "block_size": self.block(p),
            "input_block": self.input_block(p),
        }

    def block_k(self, p: Problem) -> int:
        """Columns of an activation that share a scale."""
        block = self.input_block(p)
        return p.K if block is None else block[1]

    def quantized(self, p: Problem, x: Tensor) -> Tensors:
        assert self.input is not None
        if self.input_block(p) is None:
            return values.quantized(x, self.input)
        return values.quantized_blocks(x, self.input, self.block_k(p), self.power_of_two)

    def dense(self, p: Problem, quantized: Tensors) -> Tensor:
        return quantized[0].double() * values.spread(quantized[1].double(), self.block_k(p), p.K)


def _positional(kernel: Callable[..., Any], operator: str, given: dict[str, Any], **options: Any) -> Any:
    """A call with all that is given by position, as far as the schema takes it so."""
    schema = getattr(torch.ops.ao, operator).default._schema.arguments
    arguments = [given.get(argument.name) for argument in schema if not argument.kwarg_only]
    while arguments and arguments[-1] is None:
        arguments.pop()
    return kernel(*arguments, **options)


def _weight_only(form: Form) -> Subject:
    def call(kernel: Callable[..., Any], p: Problem, x: Tensors, w: Tensors) -> Any:
        given = {"input": x[0], **form.named(p, w)}
        return _positional(kernel, "weight_only_linear", given, code=int(form.weight.code))

    return linear(
        "weight_only_linear",
        form.format,
        form.weight,
        call=call,
        adds_bias=lambda p: p.bias,
        grouped=form.grouped,
        typical=form.typical,
        kind=form.kind,
    )


def _scaled_linear(form: Form) -> Subject:
    options = {"input_dtype": form.input} if FORMATS[form.weight.code].codes_a_byte > 1 else {}

    def call(kernel: Callable[..., Any], p: Problem, x: Tensors, w: Tensors) -> Any:
        given = {"input": x[0], **form.named(p, w)}
        return _positional(kernel, "scaled_linear", given, code=int(form.weight.code), **options)

    return linear(
        "scaled_linear",
        form.format,
        form.weight,
        lambda p, x, rows: form.dense(p, form.quantized(p, x[0][rows])),
        call=call,
        adds_bias=lambda p: p.bias,
        grouped=form.grouped,
        typical=form.typical,
        in_8_bit=True,
        kind=form.kind,
    )


def _scaled_mm(form: Form) -> Subject:
    def inputs(p: Problem, g: Generator) -> Tensors:
        assert form.input is not None
        quantized, scale = values.rowwise_values(p.rows, p.K, form.input, g)
        if form.input_block(p) is None:
            return quantized, scale
        blocks = -(-p.K // form.block_k(p))
        return quantized, (rand(g, *p.rows, blocks) + 0.5) / values.quantized_max(form.input)

    def call(kernel: Callable[..., Any], p: Problem, x: Tensors, w: Tensors) -> Any:
        given = {"input": x[0], "input_scale": x[1], **form.named(p, w)}
        return _positional(kernel, "scaled_mm", given, code=int(form.weight.code), out_dtype=p.dtype)

    return linear(
        "scaled_mm",
        form.format,
        form.weight,
        lambda p, x, rows: form.dense(p, (x[0][rows], x[1][rows])),
        inputs=inputs,
        call=call,
        adds_bias=lambda p: p.bias,
        grouped=form.grouped,
        typical=form.typical,
        in_8_bit=True,
        kind=form.kind,
    )


def _dequantize(form: Form) -> Subject:
    def call(kernel: Callable[..., Any], p: Problem, x: Tensors, w: Tensors) -> Any:
        options = {"code": int(form.weight.code), "dtype": p.dtype}
        return _positional(kernel, "dequantize", form.named(p, w), **options)

    return dequantization(
        "dequantize",
        form.format,
        form.weight,
        call,
        grouped=form.grouped,
        typical=form.typical,
        kind=form.kind,
    )


def _quantize(form: Form) -> Subject:
    # Its input is what rotates; the result that is checked is values · scale.
    options = {"power_of_two": True} if form.power_of_two else {}

    def call(kernel: Callable[..., Any], p: Problem, x: Tensors, w: Tensors) -> Any:
        given = {"input": w[0], "dtype": form.input, "block_size": form.input_block(p)}
        return _positional(kernel, "quantize", given, **options)

    def expected(
        p: Problem, x: Tensors, w: Tensors, rows: Index, columns: Index
    ) -> tuple[Tensor, Tensor | None]:
        return form.dense(p, form.quantized(p, w[0][rows]))[..., columns], None

    return Subject(
        "quantize",
        form.format,
        lambda p, g: (),
        float_input,
        call,
        expected,
        ("M", "K"),
        grouped=form.grouped,
        block_k=form.block_k,
        typical=form.typical,
        kind=form.kind,
    )


def _by_blocks(format: Blockwise, kind: str, names: tuple[str, ...]) -> Form:
    def input_block(p: Problem) -> list[int]:
        return [1, format.block_of(p)[1]]

    return Form(
        kind,
        format.name,
        format.weight,
        names,
        format.block_of,
        format.typical,
        None if "table" in names else format.code,
        input_block,
        format.scale is torch.float8_e8m0fnu,
        format.block is None,
    )


def subjects_of_formats(rows: Mapping[torch.dtype, Weight], int4: Weight) -> list[Subject]:
    """Every such operator in every named format. rows: weights with a scale each row, by their dtype."""
    plain, with_zeros = ("weight", "scale"), ("weight", "scale", "zero_point")
    by_rows = [
        Form("rows", dtype_name(dtype), weight, plain, typical=dtype is not torch.float8_e5m2, input=dtype)
        for dtype, weight in rows.items()
    ]
    by_groups = [
        Form(
            "int4", dtype_name(dtype), int4, (*plain, "zero_point"), typical=dtype is torch.int8, input=dtype
        )
        for dtype in (torch.int8, torch.float8_e4m3fn)
    ]
    blocks = [_by_blocks(format, "blocks", plain) for format in EIGHT_BIT_BLOCKWISE]
    zeros = [_by_blocks(format, "zero points", with_zeros) for format in WITH_ZERO_POINTS]
    looked_up = ("weight", "table", "scale")
    tables = [
        _by_blocks(format, "table", (*looked_up, *["global_scale"] * format.has_global_scale))
        for format in LUT4_BLOCKWISE
    ]
    only_int4 = [Form("int4", "int4", int4, with_zeros)]
    rare = [replace(form, typical=False) for form in zeros]
    subjects = [_weight_only(form) for form in (*only_int4, *by_rows, *blocks, *zeros, *tables)]
    subjects += [_scaled_linear(form) for form in (*by_groups, *by_rows, *blocks, *rare)]
    subjects += [_scaled_mm(form) for form in (*by_groups, *by_rows, *blocks, *rare)]
    subjects += [_quantize(form) for form in (*by_rows, *blocks)]
    return subjects + [_dequantize(form) for form in (*only_int4, *by_rows, *blocks, *rare, *tables)]
