"""All subjects: every operator of torch.ops.ao in every number format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Generator, Tensor

from aoext.formats.dtypes import dtype_name
from aoext.formats.table import Code, code_of
from aoext.packing.layouts import GROUP_SIZES

from . import values
from .blockwise import subjects_by_block
from .of_formats import subjects_of_formats
from .subject import (
    ALL,
    Index,
    Problem,
    Subject,
    Tensors,
    Weight,
    dequantization,
    float_input,
    linear,
    scaled_values,
    stored_values,
)
from .values import EIGHT_BIT, randn


def _scaled_rows(p: Problem, stored: Tensors, index: Index) -> Tensor:
    return scaled_values(stored, index)


def _rowwise(dtype: torch.dtype, weight_only: bool) -> Weight:
    def random(p: Problem, g: Generator) -> Tensors:
        weight, scale = values.rowwise_values((p.N,), p.K, dtype, g)
        return weight, scale.to((p.scale_dtype if weight_only else None) or torch.float32)

    return Weight(random, _scaled_rows, code_of(dtype))


def _random_int4(p: Problem, g: Generator) -> Tensors:
    return values.int4_weight(p.N, p.K, p.group_size, p.bias_dtype, g)


def _int4_rows(p: Problem, stored: Tensors, index: Index) -> Tensor:
    return values.int4_float64(stored[0][index], stored[1][:, index], stored[2][:, index])


INT4 = Weight(_random_int4, _int4_rows, Code.INT4)


def _grouped_int4() -> Subject:
    def random(p: Problem, g: Generator) -> Tensors:
        experts = [_random_int4(p, g) for _ in range(p.experts)]
        bias = (randn(g, p.experts, p.N, dtype=p.bias_dtype),) if p.bias else ()
        weight = (torch.stack(parts) for parts in zip(*experts, strict=True))
        return *weight, values.expert_offsets(p.M, p.experts, g), *bias

    def expected(
        p: Problem, x: Tensors, w: Tensors, rows: Index, columns: Index
    ) -> tuple[Tensor, Tensor | None]:
        result = torch.zeros(p.M, p.N, dtype=torch.float64, device=x[0].device)
        terms, begin = result.clone(), 0
        for expert, end in enumerate(w[3].tolist()):
            own = slice(begin, end)
            bias = w[4][expert] if p.bias else None
            dense = INT4.rows(p, tuple(part[expert] for part in w[:3]), ALL)
            result[own], terms[own] = values.product(stored_values(x, own), dense, bias)
            begin = end
        return result[rows][:, columns], terms[rows][:, columns]

    return Subject(
        "bf16i4bf16_rowwise_grouped",
        "int4",
        float_input,
        random,
        lambda kernel, p, x, w: kernel(*x, *w),
        expected,
        ("T", "N"),
        grouped=True,
        adds_bias=lambda p: p.bias,
        by_expert=True,
    )


def _is_typical(dtype: torch.dtype) -> bool:
    return dtype is not torch.float8_e5m2


def _scaled_mm(dtype: torch.dtype) -> Subject:
    return linear(
        "scaled_mm_rowwise",
        dtype_name(dtype),
        _rowwise(dtype, weight_only=False),
        _scaled_rows,
        inputs=lambda p, g: values.rowwise_values(p.rows, p.K, dtype, g),
        call=lambda kernel, p, x, w: kernel(x[0], w[0], x[1], w[1], *w[2:], out_dtype=p.dtype),
        adds_bias=lambda p: p.bias,
        typical=_is_typical(dtype),
        in_8_bit=True,
    )


def _scaled_linear(dtype: torch.dtype) -> Subject:
    return linear(
        "scaled_linear_rowwise",
        dtype_name(dtype),
        _rowwise(dtype, weight_only=False),
        lambda p, x, rows: scaled_values(values.quantized(x[0][rows], dtype), ALL),
        adds_bias=lambda p: p.bias,
        typical=_is_typical(dtype),
        in_8_bit=True,
    )


def _quantize(dtype: torch.dtype) -> Subject:
    # Its input is what rotates; the result that is checked is values · scale.
    return Subject(
        "quantize_rowwise",
        dtype_name(dtype),
        lambda p, g: (),
        float_input,
        lambda kernel, p, x, w: kernel(w[0], dtype),
        lambda p, x, w, rows, columns: (
            scaled_values(values.quantized(w[0][rows], dtype), ALL)[..., columns],
            None,
        ),
        ("M", "K"),
        typical=_is_typical(dtype),
    )


def _int8_mm() -> Subject:
    return linear(
        "int8_mm",
        "int8",
        Weight(
            lambda p, g: values.rowwise_values((p.N,), p.K, torch.int8, g)[:1],
            lambda p, w, rows: stored_values(w, rows),
            Code.INT8,
        ),
        inputs=lambda p, g: values.rowwise_values(p.rows, p.K, torch.int8, g)[:1],
        exact=True,
        in_8_bit=True,
    )


def _dequantize_rowwise(dtype: torch.dtype) -> Subject:
    weight = _rowwise(dtype, weight_only=True)
    return dequantization("dequantize_rowwise", dtype_name(dtype), weight, typical=_is_typical(dtype))


def _dequantize_int4() -> Subject:
    return dequantization("dequantize_int4", "int4", INT4, grouped=True)


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

    return linear(
        "weight_int4pack_mm",
        "int4",
        Weight(random, rows, Code.INT4),
        call=lambda kernel, p, x, w: kernel(x[0], w[0], p.group_size, w[1]),
        grouped=True,
        serves=_takes_tinygemm,
    )


def _weight_only(dtype: torch.dtype) -> Subject:
    operator = "bf16i8bf16_rowwise" if dtype is torch.int8 else "bf16f8bf16_rowwise"
    weight = _rowwise(dtype, weight_only=True)
    return linear(operator, dtype_name(dtype), weight, adds_bias=lambda p: p.bias, typical=_is_typical(dtype))


def _scaled_mm_int4(dtype: torch.dtype) -> Subject:
    return linear(
        "scaled_mm_int4",
        dtype_name(dtype),
        INT4,
        _scaled_rows,
        inputs=lambda p, g: values.rowwise_values(p.rows, p.K, dtype, g),
        call=lambda kernel, p, x, w: kernel(x[0], w[0], x[1], *w[1:], out_dtype=p.dtype),
        adds_bias=lambda p: p.bias,
        grouped=True,
        typical=dtype is torch.int8,
        in_8_bit=True,
    )


def _scaled_linear_int4(dtype: torch.dtype) -> Subject:
    return linear(
        "scaled_linear_int4",
        dtype_name(dtype),
        INT4,
        lambda p, x, rows: scaled_values(values.quantized(x[0][rows], dtype), ALL),
        call=lambda kernel, p, x, w: kernel(x[0], *w, input_dtype=dtype),
        adds_bias=lambda p: p.bias,
        grouped=True,
        typical=dtype is torch.int8,
        in_8_bit=True,
    )


def _all() -> list[Subject]:
    subjects = [
        linear("bf16i4bf16_rowwise", "int4", INT4, grouped=True),
        linear("bf16i4bf16_rowwise_bias", "int4", INT4, adds_bias=lambda p: True, grouped=True),
        _grouped_int4(),
        _int8_mm(),
    ]
    for make in (_weight_only, _scaled_mm, _scaled_linear, _quantize, _dequantize_rowwise):
        subjects += [make(dtype) for dtype in EIGHT_BIT]
    for dtype in (torch.int8, torch.float8_e4m3fn):
        subjects += [_scaled_mm_int4(dtype), _scaled_linear_int4(dtype)]
    subjects += [*subjects_by_block(), _dequantize_int4(), _tinygemm_convert(), tinygemm_mm()]
    # The others stand beside operators that take weights of every format, which are timed for them.
    seeds = ("bf16i4bf16_rowwise", "int8_mm", "convert_weight_to_int4pack", "weight_int4pack_mm")
    subjects = [replace(s, typical=s.typical and s.operator in seeds) for s in subjects]
    return subjects + subjects_of_formats({dtype: _rowwise(dtype, True) for dtype in EIGHT_BIT}, INT4)


SUBJECTS = _all()
