"""Ways to store a weight: a code with its blocks, scales and table; random ones, and what they stand for."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.formats.dtypes import dtype_name
from aoext.formats.table import FORMATS, Code, code_of

from . import values
from .ggml import blocks_terms, random_blocks
from .subject import Index, Problem, Tensors, Weight
from .values import EIGHT_BIT, rand, randn


@dataclass(frozen=True)
class Stored:
    """A way to store weights [N, K]. What is None comes of the problem."""

    name: str
    code: Code
    block: tuple[int, int] | None = None  # rows and columns that share a scale
    scale: torch.dtype | None = None
    table: tuple[float, ...] | None = None
    has_global_scale: bool = False
    scales_each_expert: bool = False  # by a global scale of its own, not by one for all
    has_zero_point: bool = False  # beside int8; int4 always has one
    has_nested_scale: bool = False  # of 8 bits, with factors and an offset
    by_rows: bool = False  # a scale a row
    typical: bool = True

    @property
    def dtype(self) -> torch.dtype:
        return FORMATS[self.code].storage

    @property
    def by_groups(self) -> bool:
        return FORMATS[self.code].scales == "groups"

    @property
    def inside(self) -> bool:
        """Whether the blocks of codes hold their scales."""
        return FORMATS[self.code].scales == "inside"

    @property
    def grouped(self) -> bool:
        """Whether the problem's group size matters."""
        return self.block is None and not self.by_rows and not self.inside

    def takes(self, p: Problem) -> bool:
        """Whether rows are whole blocks of codes, and of groups where these have scales beside them."""
        whole_groups = self.by_groups or self.has_nested_scale
        return p.K % FORMATS[self.code].values == 0 and not (whole_groups and p.K % p.group_size)

    def block_of(self, p: Problem) -> list[int]:
        if self.by_rows:
            return [1, p.K]
        if self.inside:
            return [1, FORMATS[self.code].group]
        of_row = self.by_groups or self.has_nested_scale
        return [1, p.group_size] if of_row else list(self.block or (p.block_n, p.group_size))

    def block_argument(self, p: Problem) -> list[int] | None:
        """The argument block_size: None where the scale's shape says it."""
        return None if self.by_rows or self.by_groups or self.inside else self.block_of(p)

    def random(self, p: Problem, g: Generator) -> Tensors:
        """The weight, its scales, and which there are of zero points, table and global scale."""
        format = FORMATS[self.code]
        if self.inside:
            return random_blocks(self.code, p.N, p.K, g), rand(g, 1) + 0.5
        if self.by_groups:
            codes = values.random_bytes(tuple(format.stored_shape(p.N, p.K)), format.storage, g)
            return codes, *values.scales_of_groups(p.N, p.K // p.group_size, p.bias_dtype, g)
        block_n, block_k = self.block_of(p)
        blocks = -(-p.N // block_n), -(-p.K // block_k) if p.K else 0
        scale_dtype = self.scale or p.scale_dtype or torch.float32
        if format.has_table:
            codes = values.random_bytes(tuple(format.stored_shape(p.N, p.K)), format.storage, g)
            table = torch.tensor(self.table, dtype=FP32, device=g.device) if self.table else randn(g, 16)
            if self.has_nested_scale:
                return codes, *_random_nested(*blocks, table, g)
            scales = values.block_scales(*blocks, scale_dtype, 1.0, g)
            return codes, scales, table, *([rand(g, 1) + 0.5] * self.has_global_scale)
        if self.by_rows:
            codes, scale = values.rowwise_values((p.N,), p.K, self.dtype, g)
            return codes, scale.to(scale_dtype)
        codes, _ = values.rowwise_values((p.N,), p.K, self.dtype, g)
        scales = values.block_scales(*blocks, scale_dtype, 1 / values.quantized_max(self.dtype), g)
        if not self.has_zero_point:
            return codes, scales
        return codes, scales, torch.randint(-128, 128, blocks, generator=g, dtype=self.dtype, device=g.device)

    def codes(self, packed: Tensor) -> Tensor:
        """The codes of bytes: int64 [n, K]."""
        format = FORMATS[self.code]
        if format.storage is torch.int8:
            return values.unpack_int4(packed)
        if format.bytes > 1:
            return values.unpack_planes(packed, format.bits)
        return values.unpack_unsigned(packed, format.values)

    def addends(self, p: Problem, stored: Tensors, index: Index) -> Tensors:
        """What rows of the weight are the sum of, in float64: scaled codes and zero points, or themselves."""
        codes, scale, *others = stored
        if self.by_groups:
            return values.groups_terms(self.codes(codes[index]), scale[:, index], others[0][:, index])
        if self.inside:
            return tuple(terms * scale.double() for terms in blocks_terms(self.code, codes[index]))
        return (self._blocks(p, stored, index),)

    def rows(self, p: Problem, stored: Tensors, index: Index) -> Tensor:
        """Rows of the weight in float64."""
        return functools.reduce(torch.add, self.addends(p, stored, index))

    def _blocks(self, p: Problem, stored: Tensors, index: Index) -> Tensor:
        codes, scale, *others = stored
        block = self.block_of(p)
        if FORMATS[self.code].has_table:
            if self.has_nested_scale:
                offset, both, factors = others[:3]
                scale = values.nested_float64(scale, both[16:], factors, offset)
                others = [both[:16]]
            looked_up = others[0].double()[self.codes(codes[index])]
            rows = values.blockwise_float64(looked_up, scale, block, index)
            return rows * others[1].double() if self.has_global_scale else rows
        dense = codes[index].double()
        if self.has_zero_point:
            dense = dense - values.blockwise_float64(torch.ones_like(dense), others[0], block, index)
        return (
            dense * scale[index].double()
            if self.by_rows
            else values.blockwise_float64(dense, scale, block, index)
        )

    @property
    def weight(self) -> Weight:
        return Weight(self.random, self.rows, self.addends)

    @property
    def tensors(self) -> int:
        """How many tensors `random` gives."""
        return 2 + self._has_zero + FORMATS[self.code].has_table + self._has_factors

    @property
    def _has_zero(self) -> bool:
        return self.by_groups or self.has_zero_point or self.has_nested_scale

    @property
    def _has_factors(self) -> bool:
        return self.has_global_scale or self.has_nested_scale

    @property
    def shared(self) -> range:
        """Which of them all experts have in common: the table, and what scales all."""
        first = self.tensors - FORMATS[self.code].has_table - self._has_factors
        each_expert = self.scales_each_expert or self.has_nested_scale
        return range(first, self.tensors - each_expert)

    def operands(self, p: Problem, w: Tensors) -> tuple[Any, ...]:
        """What dequantize takes; weight_only_linear has a bias behind the code."""
        codes, scale, *others = w[: self.tensors]
        zero = others.pop(0) if self._has_zero else None
        table, global_scale = (*others, None, None)[:2]
        return codes, scale, int(self.code), self.block_argument(p), zero, table, global_scale

    def scaled_operands(self, p: Problem, w: Tensors) -> tuple[Any, ...]:
        """The last of what scaled_linear and scaled_mm take: block size and zero point."""
        return self.operands(p, w)[3:5]


def _random_nested(rows: int, columns: int, table: Tensor, g: Generator) -> Tensors:
    """Scales [N, G], what is added to them, the table of both, and factors; scales are a quarter to 2."""
    scale = torch.randint(0, 256, (rows, columns), generator=g, dtype=torch.uint8, device=g.device)
    common = math.gcd(columns, 256)
    factors = rand(g, -(-rows * common // 256), columns // common) / 2 + 0.25
    return scale, rand(g, 1) / 4 + 1, torch.cat((table, rand(g, 256) * 2 - 1)), factors


NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
FP32, E4M3, E8M0 = torch.float32, torch.float8_e4m3fn, torch.float8_e8m0fnu


def by_rows(dtype: torch.dtype, scale: torch.dtype | None = None) -> Stored:
    typical = dtype is not torch.float8_e5m2
    return Stored(dtype_name(dtype), code_of(dtype), scale=scale, by_rows=True, typical=typical)


INT4 = Stored("int4", Code.INT4)
PLANES = [
    Stored(code.name.lower(), code, typical=False) for code in (Code.INT5, Code.INT3, Code.INT6, Code.INT7)
]
GROUPS = [INT4, Stored("int2", Code.INT2, typical=False), *PLANES]
GGML = [
    Stored(code.name.lower(), code, typical=False)
    for code in sorted(
        (code for code in Code if FORMATS[code].scales == "inside"), key=lambda c: c != Code.Q4_K
    )
]
FLOAT8_128 = Stored("float8 128x128", Code.E4M3, (128, 128), FP32)
MXFP8 = Stored("mxfp8", Code.E4M3, (1, 32), E8M0, typical=False)
EIGHT_BIT_BLOCKWISE = [
    *(Stored(f"{dtype_name(dtype)} blocks", code_of(dtype), typical=False) for dtype in EIGHT_BIT),
    FLOAT8_128,
    MXFP8,
]
WITH_ZERO_POINTS = Stored("int8 zeros", Code.INT8, has_zero_point=True, typical=False)
NVFP4 = Stored("nvfp4", Code.LUT4, (1, 16), E4M3, E2M1, has_global_scale=True, scales_each_expert=True)
NESTED = Stored("nf4 nested", Code.LUT4, table=NF4, has_nested_scale=True, typical=False)
LUT4_BLOCKWISE = [
    Stored("lut4", Code.LUT4, has_global_scale=True, scales_each_expert=True, typical=False),
    Stored("mxfp4", Code.LUT4, (1, 32), E8M0, E2M1),
    NVFP4,
    Stored("nf4", Code.LUT4, (1, 64), FP32, NF4),
    NESTED,
]
