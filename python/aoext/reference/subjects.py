"""All subjects: every operator of torch.ops.ao in every number format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.formats.dtypes import dtype_name
from aoext.packing.layouts import GROUP_SIZES

from . import values
from .experts import experts
from .stored import (
    EIGHT_BIT_BLOCKWISE,
    FLOAT8_128,
    GGML,
    GROUPS,
    INT4,
    LUT4_BLOCKWISE,
    MXFP8,
    NVFP4,
    PLANES,
    WITH_ZERO_POINTS,
    Stored,
    by_rows,
)
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
from .values import EIGHT_BIT, rand, randn

INT8, E4M3 = torch.int8, torch.float8_e4m3fn


def _kind(w: Stored) -> str:
    """The kind of calls that a packed format goes under: one for those whose codes lie alike."""
    if w.inside:
        return GGML[0].name
    return PLANES[0].name if w in PLANES else w.name


def _has_bias(p: Problem) -> bool:
    return p.bias


def _bias(found: Sequence[Tensor]) -> tuple[Tensor | None]:
    return (found[0] if found else None,)


def _with_bias(operands: tuple[Any, ...], bias: Sequence[Tensor]) -> tuple[Any, ...]:
    weight, scale, code, *others = operands
    return weight, scale, code, *_bias(bias), *others


def weight_only_linear(w: Stored, kind: str) -> Subject:
    return linear(
        "weight_only_linear",
        w.name,
        w.weight,
        call=lambda kernel, p, x, t: kernel(x[0], *_with_bias(w.operands(p, t), t[w.tensors :])),
        adds_bias=_has_bias,
        serves=w.takes,
        grouped=w.grouped,
        typical=w.typical,
        kind=kind,
    )


def _input_block(w: Stored, p: Problem) -> int:
    """Columns of the input that share a scale."""
    if w.inside:
        return 32
    return p.K if w.by_groups else w.block_of(p)[1]


def _block_argument(w: Stored, p: Problem) -> list[int] | None:
    return None if w.by_rows or w.by_groups else [1, _input_block(w, p)]


def _under(w: Stored, dtype: torch.dtype) -> str:
    return f"{w.name} by {dtype_name(dtype)}" if w.by_groups or w.inside else w.name


def scaled_mm(w: Stored, kind: str, dtype: torch.dtype) -> Subject:
    """dtype: the input's."""

    def inputs(p: Problem, g: Generator) -> Tensors:
        codes, row_scale = values.rowwise_values(p.rows, p.K, dtype, g)
        if w.by_rows or w.by_groups:
            return codes, row_scale
        blocks = -(-p.K // _input_block(w, p))
        return codes, (rand(g, *p.rows, blocks) + 0.5) / values.quantized_max(dtype)

    def dense(p: Problem, x: Tensors, rows: Index) -> Tensor:
        return x[0][rows].double() * values.spread(x[1][rows].double(), _input_block(w, p), p.K)

    return linear(
        "scaled_mm",
        _under(w, dtype),
        w.weight,
        dense,
        inputs=inputs,
        call=lambda kernel, p, x, t: kernel(
            *(x[0], t[0], x[1], t[1], int(w.code), *_bias(t[w.tensors :])),
            *(_block_argument(w, p), *w.scaled_operands(p, t)),
            out_dtype=p.dtype,
        ),
        adds_bias=_has_bias,
        serves=w.takes,
        grouped=w.grouped,
        typical=w.typical and dtype is not E4M3 if w.by_groups else w.typical,
        kind=kind,
    )


def scaled_linear(w: Stored, kind: str, dtype: torch.dtype) -> Subject:
    """dtype: what the input is quantised to."""
    power_of_two = w.scale is torch.float8_e8m0fnu

    def dense(p: Problem, x: Tensors, rows: Index) -> Tensor:
        block = _input_block(w, p)
        q, scale = values.quantized_blocks(x[0][rows], dtype, block, power_of_two)
        return q.double() * values.spread(scale.double(), block, p.K)

    options = {"input_dtype": dtype} if w.by_groups or w.inside else {}
    return linear(
        "scaled_linear",
        _under(w, dtype),
        w.weight,
        dense,
        call=lambda kernel, p, x, t: kernel(
            *(x[0], t[0], t[1], int(w.code), *_bias(t[w.tensors :])),
            *(_block_argument(w, p), *w.scaled_operands(p, t)),
            **options,
        ),
        adds_bias=_has_bias,
        serves=w.takes,
        grouped=w.grouped,
        typical=w.typical and dtype is not E4M3 if w.by_groups else w.typical,
        kind=kind,
    )


def dequantize(w: Stored, kind: str) -> Subject:
    return dequantization(
        "dequantize",
        w.name,
        w.weight,
        lambda kernel, p, x, t: kernel(*w.operands(p, t), dtype=p.dtype),
        serves=w.takes,
        grouped=w.grouped,
        typical=(w.by_rows and w.typical) or w.name in (INT4.name, "float8 128x128", "mxfp4"),
        kind=kind,
    )


def quantize(w: Stored, kind: str) -> Subject:
    """To the blocks and the dtype of a weight; the input is what rotates, the result values · scale."""
    dtype, power_of_two = w.dtype, w.scale is torch.float8_e8m0fnu

    def expected(
        p: Problem, x: Tensors, t: Tensors, rows: Index, columns: Index
    ) -> tuple[Tensor, Tensor | None]:
        block = _input_block(w, p)
        q, scale = values.quantized_blocks(t[0][rows], dtype, block, power_of_two)
        return (q.double() * values.spread(scale.double(), block, p.K))[..., columns], None

    def call(kernel: Callable[..., Any], p: Problem, x: Tensors, t: Tensors) -> Any:
        options = {"power_of_two": True} if power_of_two else {}
        block = _block_argument(w, p)
        return kernel(t[0], dtype, *([] if block is None else [block]), **options)

    return Subject(
        "quantize",
        w.name,
        lambda p, g: (),
        float_input,
        call,
        expected,
        ("M", "K"),
        grouped=w.grouped,
        block_k=lambda p: _input_block(w, p),
        typical=w.typical,
        kind=kind,
    )


def subject(operator: str, w: Stored) -> Subject:
    """One of the five operators with a weight that need not be one of SUBJECTS'."""
    if operator == "scaled_mm":
        return scaled_mm(w, "", w.dtype)
    if operator == "scaled_linear":
        return scaled_linear(w, "", w.dtype)
    makers = {"weight_only_linear": weight_only_linear, "dequantize": dequantize, "quantize": quantize}
    return makers[operator](w, "")


def _scaled_mm_rowwise(dtype: torch.dtype) -> Subject:
    w = by_rows(dtype, torch.float32)
    return linear(
        "scaled_mm_rowwise",
        dtype_name(dtype),
        w.weight,
        lambda p, x, rows: scaled_values(x, rows),
        inputs=lambda p, g: values.rowwise_values(p.rows, p.K, dtype, g),
        call=lambda kernel, p, x, t: kernel(x[0], t[0], x[1], t[1], *t[2:], out_dtype=p.dtype),
        adds_bias=_has_bias,
        typical=False,
    )


def _int8_mm() -> Subject:
    return linear(
        "int8_mm",
        "int8",
        Weight(
            lambda p, g: values.rowwise_values((p.N,), p.K, torch.int8, g)[:1],
            lambda p, w, rows: stored_values(w, rows),
        ),
        inputs=lambda p, g: values.rowwise_values(p.rows, p.K, torch.int8, g)[:1],
        exact=True,
    )


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
        kind="convert_weight_to_int4pack",
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
        Weight(random, rows),
        call=lambda kernel, p, x, w: kernel(x[0], w[0], p.group_size, w[1]),
        grouped=True,
        serves=_takes_tinygemm,
    )


def _all() -> list[Subject]:
    int4 = INT4.weight
    found = [
        linear("bf16i4bf16_rowwise", "int4", int4, grouped=True, typical=False),
        linear(
            "bf16i4bf16_rowwise_bias", "int4", int4, adds_bias=lambda p: True, grouped=True, typical=False
        ),
        _int8_mm(),
        *map(_scaled_mm_rowwise, EIGHT_BIT),
        *(weight_only_linear(w, f"weight_only_linear {_kind(w)}") for w in (*GROUPS, *GGML)),
    ]
    names = {dtype: "int8" if dtype is INT8 else "float8" for dtype in EIGHT_BIT}
    for dtype in EIGHT_BIT:
        found.append(weight_only_linear(by_rows(dtype), f"weight_only_linear {names[dtype]}"))
    for make in (scaled_mm, scaled_linear):
        found += [make(by_rows(dtype, torch.float32), f"{make.__name__} rows", dtype) for dtype in EIGHT_BIT]
        for w in (*GROUPS, *GGML):
            dtypes = (INT8, E4M3) if w.name == _kind(w) else (INT8,)
            found += [make(w, f"{make.__name__} {_kind(w)}", dtype) for dtype in dtypes]
        found += [make(w, f"{make.__name__} blocks", w.dtype) for w in EIGHT_BIT_BLOCKWISE]
    found += [quantize(by_rows(dtype), "quantize rows") for dtype in EIGHT_BIT]
    found += [quantize(w, "quantize blocks") for w in EIGHT_BIT_BLOCKWISE]
    found += [
        weight_only_linear(w, f"weight_only_linear {names[w.dtype]} blocks") for w in EIGHT_BIT_BLOCKWISE
    ]
    found.append(weight_only_linear(WITH_ZERO_POINTS, "weight_only_linear int8 zeros"))
    found += [weight_only_linear(w, "weight_only_linear lut4") for w in LUT4_BLOCKWISE]
    for w, kind in (
        *((w, w.name) for w in (*GROUPS[:3], GGML[0])),
        (by_rows(INT8), "int8"),
        (FLOAT8_128, "float8 blocks"),
        (WITH_ZERO_POINTS, "int8 zeros"),
        (NVFP4, "lut4"),
    ):
        found.append(experts(weight_only_linear(w, f"weight_only_linear {kind}"), w))
    for w, kind, dtype in (
        (by_rows(E4M3, torch.float32), "rows", E4M3),
        (INT4, "int4", INT8),
        (MXFP8, "blocks", E4M3),
    ):
        found.append(experts(scaled_mm(w, f"scaled_mm {kind}", dtype), w))
    rows = by_rows(INT8, torch.float32)
    found.append(experts(scaled_linear(rows, "scaled_linear rows", INT8), rows))
    found += [dequantize(w, f"dequantize {_kind(w)}") for w in (*GROUPS, *GGML)]
    found += [dequantize(by_rows(dtype), "dequantize rows") for dtype in EIGHT_BIT]
    found += [dequantize(w, "dequantize blocks") for w in EIGHT_BIT_BLOCKWISE]
    found += [dequantize(WITH_ZERO_POINTS, "dequantize int8 zeros")]
    found += [dequantize(w, "dequantize lut4") for w in LUT4_BLOCKWISE]
    return [*found, _tinygemm_convert(), tinygemm_mm()]


SUBJECTS = _all()
