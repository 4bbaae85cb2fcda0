"""The subjects of weights with a scale a block: 8-bit codes, and 4-bit codes into a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.formats.dtypes import dtype_name
from aoext.formats.table import Code, code_of

from . import values
from .subject import Index, Problem, Subject, Tensors, Weight, dequantization, float_input, linear
from .values import EIGHT_BIT, rand, randn


@dataclass(frozen=True)
class Blockwise:
    """A format of weights with a scale a block. What is None comes of the problem."""

    name: str
    code: torch.dtype  # uint8: indices of 4 bits into a table
    block: tuple[int, int] | None = None
    scale: torch.dtype | None = None
    table: tuple[float, ...] | None = None
    has_global_scale: bool = False
    has_zero_point: bool = False  # an integer of the code's dtype, subtracted
    typical: bool = True

    def block_of(self, p: Problem) -> list[int]:
        return list(self.block or (p.block_n, p.group_size))

    @property
    def weight(self) -> Weight:
        code = Code.LUT4 if self.code is torch.uint8 else code_of(self.code)
        return Weight(self.random, self.rows, code, by_blocks=True)

    def random(self, p: Problem, g: Generator) -> Tensors:
        """Codes, the table of those that have one, scales, and the zero points or the global scale."""
        block_n, block_k = self.block_of(p)
        blocks = -(-p.N // block_n), -(-p.K // block_k)
        scale_dtype = self.scale or p.scale_dtype or torch.float32
        if self.code is not torch.uint8:
            codes, _ = values.rowwise_values((p.N,), p.K, self.code, g)
            scales = values.block_scales(*blocks, scale_dtype, 1 / values.quantized_max(self.code), g)
            if not self.has_zero_point:
                return codes, scales
            return (
                codes,
                scales,
                torch.randint(-128, 128, blocks, generator=g, dtype=self.code, device=g.device),
            )
        codes = torch.randint(0, 256, (p.N, p.K // 2), generator=g, dtype=torch.uint8, device=g.device)
        known = self.table
        table = randn(g, 16) if known is None else torch.tensor(known, dtype=torch.float32, device=g.device)
        scales = values.block_scales(*blocks, scale_dtype, 1.0, g)
        return (
            codes,
            table,
            scales,
            *([rand(g, 1) + 0.5] * self.has_global_scale),
        )

    def rows(self, p: Problem, stored: Tensors, index: Index) -> Tensor:
        if self.code is not torch.uint8:
            codes = stored[0][index].double()
            if self.has_zero_point:
                ones = torch.ones_like(codes)
                codes = codes - values.blockwise_float64(ones, stored[2], self.block_of(p), index)
            return values.blockwise_float64(codes, stored[1], self.block_of(p), index)
        looked_up = values.lut4_float64(stored[0][index], stored[1])
        rows = values.blockwise_float64(looked_up, stored[2], self.block_of(p), index)
        return rows * stored[3].double() if self.has_global_scale else rows

    def arguments(self, p: Problem, w: Tensors) -> tuple[Any, ...]:
        """The weight as the operators take it, with what comes behind it."""
        if self.code is not torch.uint8:
            fields = 3 if self.has_zero_point else 2
            return *w[:fields], self.block_of(p), *w[fields:]
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
WITH_ZERO_POINTS = [Blockwise("int8", torch.int8, has_zero_point=True)]
LUT4_BLOCKWISE = [
    Blockwise("lut4", torch.uint8, has_global_scale=True, typical=False),
    Blockwise("mxfp4", torch.uint8, (1, 32), torch.float8_e8m0fnu, E2M1),
    Blockwise("nvfp4", torch.uint8, (1, 16), E4M3, E2M1, has_global_scale=True),
    Blockwise("nf4", torch.uint8, (1, 64), torch.float32, NF4),
]


def weight_only_blockwise(format: Blockwise) -> Subject:
    name = {torch.int8: "bf16i8bf16", torch.uint8: "bf16lut4bf16"}.get(format.code, "bf16f8bf16")
    return linear(
        f"{name}_blockwise{'_zp' * format.has_zero_point}",
        format.name,
        format.weight,
        call=lambda kernel, p, x, w: kernel(x[0], *format.arguments(p, w)),
        adds_bias=lambda p: p.bias,
        grouped=format.block is None,
        typical=format.typical or format.code is torch.int8,
    )


def _dequantize_blockwise(format: Blockwise) -> Subject:
    return dequantization(
        "dequantize_lut4" if format.code is torch.uint8 else "dequantize_blockwise",
        format.name,
        format.weight,
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
        return values_, (rand(g, *p.rows, blocks) + 0.5) / limit

    def dense(p: Problem, x: Tensors, rows: Index) -> Tensor:
        block_k = _input_block(format, p)[1]
        return x[0][rows].double() * values.spread(x[1][rows].double(), block_k, p.K)

    return linear(
        "scaled_mm_blockwise",
        format.name,
        format.weight,
        dense,
        inputs=inputs,
        call=lambda kernel, p, x, w: kernel(
            x[0], w[0], x[1], w[1], _input_block(format, p), format.block_of(p), *w[2:], out_dtype=p.dtype
        ),
        adds_bias=lambda p: p.bias,
        grouped=format.block is None,
        typical=format.typical,
        in_8_bit=True,
    )


def _scaled_linear_blockwise(format: Blockwise) -> Subject:
    def dense(p: Problem, x: Tensors, rows: Index) -> Tensor:
        power_of_two = format.scale is torch.float8_e8m0fnu
        quantized = values.quantized_blocks(x[0][rows], format.code, _input_block(format, p)[1], power_of_two)
        return quantized[0].double() * values.spread(quantized[1].double(), _input_block(format, p)[1], p.K)

    return linear(
        "scaled_linear_blockwise",
        format.name,
        format.weight,
        dense,
        call=lambda kernel, p, x, w: kernel(
            x[0], *w[:2], _input_block(format, p), format.block_of(p), *w[2:]
        ),
        adds_bias=lambda p: p.bias,
        grouped=format.block is None,
        typical=format.typical,
        in_8_bit=True,
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
        float_input,
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


def subjects_by_block() -> list[Subject]:
    """Every operator of such weights in every named format."""
    makers = (
        weight_only_blockwise,
        _scaled_mm_blockwise,
        _scaled_linear_blockwise,
        _quantize_blockwise,
    )
    subjects = [make(format) for make in makers for format in EIGHT_BIT_BLOCKWISE]
    subjects += [weight_only_blockwise(format) for format in (*WITH_ZERO_POINTS, *LUT4_BLOCKWISE)]
    return subjects + [_dequantize_blockwise(format) for format in (*EIGHT_BIT_BLOCKWISE, *LUT4_BLOCKWISE)]
