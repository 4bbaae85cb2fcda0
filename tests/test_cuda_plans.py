"""CUDA's kernels by configuration: every instance of their templates and every way to cut a product, by name.

What an instance or a cut needs of a problem stands here, and no plan is asked to come upon it. That a case
gets the instance that it is for is shown without a GPU, on meta tensors.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import aoext
from aoext import ops, reference
from aoext.formats.dtypes import dtype_name
from aoext.formats.table import FORMATS, Code
from aoext.operators.calls import ao, bound, described
from aoext.ops import plan, with_plan
from aoext.reference import ALL_CALLS, Call, Problem, Stored, assert_close, call_of, subjects
from aoext.reference.stored import E2M1
from conftest import script_of_benchmarks
from folded import CODES, folded, run
from of_experts import BY_NAME as OF_EXPERTS
from of_experts import call_of as call_of_experts
from of_experts import on_meta as on_meta_of_experts

BF16, FP16, FP32 = reference.HIGH_PRECISION
INT8, E4M3, E5M2 = reference.EIGHT_BIT
E8M0, LUT4 = torch.float8_e8m0fnu, torch.uint8
ELEMENTS = (BF16, FP16, FP32, INT8, E4M3, E5M2, torch.int32, E8M0, LUT4)  # csrc/common/element.h

GROUPED = "weight_only_linear int4"  # of OF_EXPERTS

needs_plans = pytest.mark.skipif(not ops._has_plans(), reason="aoext was built without CUDA")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
of_own_family = pytest.mark.skipif(
    "AOEXT_CUDA_FAMILY" in os.environ, reason="every GPU has the kernels of AOEXT_CUDA_FAMILY"
)
pytestmark = needs_plans

HOPPER_KERNELS = (
    "int4_batch",
    "int4_wgmma",
    "int4_grouped_wgmma",
    "rowwise_wgmma",
    "weight_only_wgmma",
    "blocks_wgmma",
    "scaled_wgmma",
    "packed_wgmma",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem of an operator, and what is forced on it."""

    kernel: str
    operator: str
    problem: Problem
    config: dict[str, int]
    bias: bool = True
    inner_k_tiles: int = 8
    format: Stored | None = None
    experts: bool = False  # a product of them in a format that OF_EXPERTS may not have

    @property
    def is_of_experts(self) -> bool:
        return self.experts or self.operator in OF_EXPERTS

    @property
    def product(self) -> tuple[str, Stored, torch.dtype]:
        """The operator of experts, the weight, and what the input is or becomes."""
        return OF_EXPERTS.get(self.operator) or (self.operator, self.format, self.problem.eight_bit)

    def call(self, generator: torch.Generator) -> Call:
        if self.is_of_experts:
            return call_of_experts(*self.product, self.problem, generator)
        if self.operator == "weight_int4pack_mm":
            return reference.weight_int4pack_mm(self.problem, generator, self.inner_k_tiles)
        if self.operator in ALL_CALLS:
            call = ALL_CALLS[self.operator](self.problem, generator)
            return call if self.bias else reference.without_bias(call)
        eight_bit = self.problem.eight_bit
        if self.operator == "weight_only_linear":
            return call_of(subjects.weight_only_linear(self.format, ""), self.problem, generator)
        if "int4" in self.operator:
            stored = Stored("int4", Code.INT4)
        else:
            by_rows = self.operator.endswith("rowwise")
            scale = FP32 if by_rows else None
            stored = self.format or Stored("8 bits", CODES[eight_bit], scale=scale, by_rows=by_rows)
        if self.operator.startswith("bf16"):
            subject = subjects.weight_only_linear(stored, "")
        else:
            dynamic = self.operator.startswith("scaled_linear")
            make = subjects.scaled_linear if dynamic else subjects.scaled_mm
            subject = make(stored, "", eight_bit)
        return call_of(subject, self.problem, generator)

    def __str__(self) -> str:
        config = " ".join(f"{name}={value}" for name, value in self.config.items())
        count = f"E{self.problem.experts}" if self.is_of_experts else ""
        return f"{self.kernel} {config} {self.operator} {self.problem} {self.format or ''} {count}"


def tiles_of(block_n: int, block_m: int, N: int, M: int) -> dict[str, int]:
    """A tile of the matrix engine, each to a block of its own."""
    blocks = math.ceil(N / block_n) * math.ceil(M / block_m)
    return {
        "block_m": block_m,
        "block_n": block_n,
        "cluster": 1,
        "stream_k_blocks": 0,
        "blocks": blocks,
        "x_is_left": 0,
    }


def operator_of(x: torch.dtype, weight: torch.dtype) -> str:
    """The product of such operands."""
    if x is weight:
        return "scaled_mm_rowwise"
    return "bf16i8bf16_rowwise" if weight is INT8 else "bf16f8bf16_rowwise"


# ---- What an instance needs, by what tells it from others (csrc/cuda/kernels/instances.h) -----------------


def int4_ring(type: int, scale: int, sub: int, rows: int, ringed: int, warp_tiles: int) -> Iterator[Case]:
    dtypes = (ELEMENTS[type], ELEMENTS[scale])
    fewest = 1 if sub == 128 or rows == 2 else rows // 2 + 1 if rows == 16 else 3
    # Rows of scales that begin at multiples of 16 and of 4 bytes, or at others.
    for N in (88, 90) if ringed else (77,):
        for M in (fewest, rows):
            problem = Problem(M, N, 640 if sub == 128 else 416, sub, *dtypes)
            yield Case("int4_ring", "bf16i4bf16_rowwise_bias", problem, {"warp_tiles": warp_tiles})


def int4_decode(
    type: int, scale: int, sub: int, block_m: int, warp_tiles: int, stage_k_tiles: int
) -> Iterator[Case]:
    for M in (block_m - 5, block_m):
        problem = Problem(M, 90, 640, sub, ELEMENTS[type], ELEMENTS[scale])
        config = {"block_m": block_m, "warp_tiles": warp_tiles, "stage_k_tiles": stage_k_tiles}
        yield Case("int4_decode", "bf16i4bf16_rowwise_bias", problem, config)


def int4_batch(type: int, scale: int, sub: int, block_m: int) -> Iterator[Case]:
    for M, group_size in ((block_m - 3, sub), (block_m, sub if sub < 128 else 384)):
        problem = Problem(M, 264, 1152, group_size, ELEMENTS[type], ELEMENTS[scale])
        yield Case("int4_batch", "bf16i4bf16_rowwise_bias", problem, {"block_m": block_m})


def int4_wgmma(type: int, scale: int, scale_chunks: int, block_n: int, block_m: int) -> Iterator[Case]:
    for M in (block_m - 7, block_m + 5):
        problem = Problem(M, 200, 640, 32 * scale_chunks, ELEMENTS[type], ELEMENTS[scale])
        yield Case("int4_wgmma", "bf16i4bf16_rowwise_bias", problem, tiles_of(block_n, block_m, 200, M))


def int4_grouped_ring(
    type: int, scale: int, sub: int, rows: int, ringed: int, warp_tiles: int
) -> Iterator[Case]:
    for N in (88, 90) if ringed else (77,):
        for M in (1, 9, 50):
            for block_m in (1,) if rows == 2 else (8,) if sub == 32 else (1, 8):
                K = 640 if sub == 128 else 416
                problem = Problem(M, N, K, sub, ELEMENTS[type], ELEMENTS[scale], experts=5)
                config = {"block_m": block_m, "warp_tiles": warp_tiles}
                yield Case("int4_grouped_ring", GROUPED, problem, config)


def int4_grouped_wgmma(
    type: int, scale: int, scale_chunks: int, block_n: int, block_m: int
) -> Iterator[Case]:
    for M, experts in ((3 * block_m - 7, 5), (70, 40)):
        problem = Problem(M, 200, 640, 32 * scale_chunks, ELEMENTS[type], ELEMENTS[scale], experts=experts)
        config = {"block_n": block_n, "block_m": block_m, "blocks": 100}
        yield Case("int4_grouped_wgmma", GROUPED, problem, config)


def int4_mma(type: int, scale: int, block_m: int) -> Iterator[Case]:
    for M, group_size in ((block_m - 7, 32), (block_m + 5, 416)):
        problem = Problem(M, 200, 416, group_size, ELEMENTS[type], ELEMENTS[scale])
        yield Case("int4_mma", "bf16i4bf16_rowwise_bias", problem, {"block_m": block_m, "splits": 1})


def rowwise_decode(
    x: int, weight: int, quantizes: int, octets: int, depth: int, experts: int
) -> Iterator[Case]:
    cut = {"depth": depth, "tiles": 2, "k_splits": 4}  # warps enough to quantise a row each
    if experts:
        operator = "scaled_linear" if quantizes else "scaled_mm" if x == weight else "weight_only_linear"
        dtype = BF16 if x == weight else ELEMENTS[x]
        for M, count in ((1, 1), (9, 5), (70, 5)):
            problem = Problem(M, 77, 656, 656, dtype, FP32, experts=count)
            yield Case("rowwise_decode", f"{operator} {dtype_name(ELEMENTS[weight])}", problem, cut)
        return
    for M in (8 * octets - 7, 8 * octets):
        for dtype in (BF16, FP16, FP32) if x == weight else (ELEMENTS[x],):
            name = "scaled_linear_rowwise" if quantizes else operator_of(ELEMENTS[x], ELEMENTS[weight])
            problem = Problem(M, 77, 656, 656, dtype, FP32, ELEMENTS[weight])
            yield Case("rowwise_decode", name, problem, cut)


def rowwise_wgmma(type: int, output: int, height: int, block_m: int, experts: int) -> Iterator[Case]:
    if experts:
        problem = Problem(0, 200, 656, 656, ELEMENTS[output], FP32)
        operator = f"scaled_mm {dtype_name(ELEMENTS[type])}"
        yield from expert_tiles("rowwise_wgmma", operator, problem, height, block_m)
        return
    x_is_left = int(height not in (64, 128))
    for block_n, M in (
        (height, block_m - 7),
        (height - 16 if height in (64, 96, 128) else height, block_m + 5),
    ):
        if not x_is_left and block_n <= 64 < height:
            continue
        config = {**tiles_of(block_n, block_m, 200, M), "x_is_left": x_is_left}
        problem = Problem(M, 200, 656, 656, ELEMENTS[output], FP32, ELEMENTS[type])
        if height == 96 and block_n == 80:  # the tile of 80 output channels has them
            config = {**tiles_of(height, block_m, 200, M), "x_is_left": x_is_left}
        yield Case("rowwise_wgmma", "scaled_mm_rowwise", problem, config)
        if ELEMENTS[output] is FP32:
            yield Case("rowwise_wgmma", "int8_mm", problem, config)


def expert_tiles(kernel: str, operator: str, problem: Problem, block_n: int, block_m: int) -> Iterator[Case]:
    """A tile of the matrix engine, of experts that fill some and of those that do not."""
    for M, count in ((3 * block_m - 7, 5), (70, 40)):
        config = {**tiles_of(block_n, block_m, 1, 1), "blocks": 100}
        yield Case(kernel, operator, dataclasses.replace(problem, M=M, experts=count), config)


def weight_only_wgmma(type: int, weight: int, block_n: int, block_m: int, experts: int) -> Iterator[Case]:
    if experts:
        problem = Problem(0, 200, 656, 656, ELEMENTS[type], FP32)
        operator = f"weight_only_linear {dtype_name(ELEMENTS[weight])}"
        yield from expert_tiles("weight_only_wgmma", operator, problem, block_n, block_m)
        return
    for M in (block_m - 7, block_m + 5):
        problem = Problem(M, 200, 656, 656, ELEMENTS[type], FP32, ELEMENTS[weight])
        operator = operator_of(ELEMENTS[type], ELEMENTS[weight])
        yield Case("weight_only_wgmma", operator, problem, tiles_of(block_n, block_m, 200, M))


def rowwise_mma(
    type: int, weight: int, float8: int, block_n: int, block_m: int, experts: int
) -> Iterator[Case]:
    x, w = ELEMENTS[type], ELEMENTS[weight]
    config = {"block_n": block_n, "block_m": block_m, "splits": 1, "float8": float8}
    outputs = (x,) if x is not w else (BF16, FP16) if float8 else (BF16, FP16, FP32)
    for output in outputs:
        if experts:
            operator = f"{'scaled_mm' if x is w else 'weight_only_linear'} {dtype_name(w)}"
            for M, count in ((3 * block_m - 7, 5), (70, 40)):
                problem = Problem(M, 300, 656, 656, output, FP32, experts=count)
                yield Case("rowwise_mma", operator, problem, config)
            continue
        for M in (block_m - 7, block_m + 5):
            problem = Problem(M, 300, 656, 656, output, FP32, w)
            yield Case("rowwise_mma", operator_of(x, w), problem, config)
            if output is FP32 and w is INT8:
                yield Case("rowwise_mma", "int8_mm", problem, config)


def of_blocks(
    kernel: str,
    code: torch.dtype,
    block: tuple[int, int],
    scale: torch.dtype,
    M: int,
    N: int,
    K: int,
    dtype: torch.dtype,
    config: dict[str, int],
    table: tuple[float, ...] | None = None,
) -> Case:
    """A weight with a scale a block: with a scale of all, and through a table or random ones, of 4 bits."""
    lut4 = code is LUT4
    name = "lut4" if lut4 else "i8" if code is INT8 else "f8"
    format = Stored("", CODES[code], block, scale, table, has_global_scale=lut4)
    return Case(kernel, f"bf16{name}bf16_blockwise", Problem(M, N, K, K, dtype, BF16), config, format=format)


def with_experts(case: Case, count: int) -> Case:
    problem = dataclasses.replace(case.problem, experts=count)
    return dataclasses.replace(case, operator="weight_only_linear", problem=problem, experts=True)


# Blocks by the k that have one scale at least, as instances know it, of weights of 4 bits or not.
GRANULES: dict[tuple[bool, int], list[tuple[tuple[int, int], torch.dtype]]] = {
    (True, 16): [((1, 16), E4M3), ((5, 48), BF16)],
    (True, 32): [((1, 32), E8M0), ((1, 64), FP32), ((2, 96), FP16)],
    (True, 128): [((1, 128), BF16), ((128, 256), FP32), ((1, 10_000), FP32)],
    (False, 16): [((1, 16), FP16), ((1, 32), E8M0), ((3, 48), BF16)],
    (False, 64): [((128, 128), FP32), ((1, 64), BF16), ((2, 10_000), FP32)],
}
WGMMA_GRANULES = {
    (True, 16): GRANULES[True, 16],
    (True, 32): [*GRANULES[True, 32], *GRANULES[True, 128]],
    (False, 32): [((1, 32), E8M0), ((1, 64), BF16), ((7, 96), FP16)],
    (False, 128): [((128, 128), FP32), ((1, 256), E8M0), ((2, 10_000), FP32)],
}


def blocks_decode(
    type: int, weight: int, granule: int, octets: int, depth: int, experts: int
) -> Iterator[Case]:
    code = ELEMENTS[weight]
    for M in (9, 50) if experts else (8 * octets - 7, 8 * octets):
        for block, scale in GRANULES[code is LUT4, granule]:
            config = {"depth": depth, "tiles": 2, "k_splits": 2}
            case = of_blocks("blocks_decode", code, block, scale, M, 77, 672, ELEMENTS[type], config)
            yield with_experts(case, 5) if experts else case


def fp4_decode(group: int, octets: int, depth: int, experts: int) -> Iterator[Case]:
    """The kernel itself tells e2m1 from other tables."""
    scale, config = E8M0 if group == 32 else E4M3, {"depth": depth, "tiles": 2, "k_splits": 2}
    for M in (9, 50) if experts else (8 * octets - 7, 8 * octets):
        for table in (E2M1, None):
            case = of_blocks("fp4_decode", LUT4, (1, group), scale, M, 77, 896, BF16, config, table)
            yield with_experts(case, 5) if experts else case


def blocks_mma(type: int, weight: int, block_n: int, block_m: int, experts: int) -> Iterator[Case]:
    code, config = ELEMENTS[weight], {"block_n": block_n, "block_m": block_m, "splits": 1}
    for M in (3 * block_m - 7, 70) if experts else (block_m - 7, block_m + 5):
        for granule in (16, 32, 128) if code is LUT4 else (16, 64):
            for block, scale in GRANULES[code is LUT4, granule]:
                case = of_blocks("blocks_mma", code, block, scale, M, 203, 672, ELEMENTS[type], config)
                yield with_experts(case, 40 if M == 70 else 5) if experts else case


def blocks_wgmma(
    type: int, weight: int, granule: int, block_n: int, block_m: int, experts: int
) -> Iterator[Case]:
    code = ELEMENTS[weight]
    for M in (3 * block_m - 7, 70) if experts else (block_m - 7, block_m + 5):
        config = tiles_of(block_n, block_m, 203, M)
        for block, scale in WGMMA_GRANULES[code is LUT4, granule]:
            case = of_blocks("blocks_wgmma", code, block, scale, M, 203, 672, ELEMENTS[type], config)
            yield with_experts(case, 40 if M == 70 else 5) if experts else case


def scaled_wgmma(
    by: int, sub: int, type: int, output: int, block_n: int, block_m: int, experts: int
) -> Iterator[Case]:
    """by: how w is scaled, by blocks of 64 output channels or more, by single ones, or int4 by groups."""
    x_is_left = int(by == 0 and block_m >= 128)
    dtype, eight_bit = ELEMENTS[output], ELEMENTS[type]
    if experts:
        for group, scale in ((128, FP32), (256, BF16), (656, FP32)) if sub == 1 else ((32, FP32), (96, FP32)):
            problem = Problem(0, 200, 656, group, dtype, scale, eight_bit, block_n=1 if by else 128)
            for case in expert_tiles("scaled_wgmma", "scaled_mm", problem, block_n, block_m):
                yield dataclasses.replace(case, format=Stored("8 bits", CODES[eight_bit]), experts=True)
        return
    for M in (block_m - 7, block_m + 5):
        config = {**tiles_of(block_n, block_m, 200, M), "x_is_left": x_is_left}
        if by == 2:
            halves = eight_bit is E4M3 and dtype is FP16  # what the engine adds up by itself is 64 k
            for group in {1: (128, 672), 2: (64, 128, 672) if halves else (64,), 4: (32, 160)}[sub]:
                scale = dtype if group < 256 else FP32
                problem = Problem(M, 200, 672 if group == 672 else 640, group, dtype, scale, eight_bit)
                yield Case("scaled_wgmma", "scaled_mm_int4", problem, config)
            continue
        for group in (128, 256, 656) if sub == 1 else (32, 96):
            problem = Problem(M, 200, 656, group, dtype, FP32, eight_bit, block_n=1 if by else 128)
            yield Case("scaled_wgmma", "scaled_mm_blockwise", problem, config)


def packed(code: int) -> tuple[Stored, int, tuple[tuple[int, int], ...]]:
    """A format of packed codes; K of a product; group sizes, and types of scales."""
    stored = Stored(Code(code).name.lower(), Code(code))
    K = 768 if FORMATS[stored.code].values == 256 else 416
    return stored, K, ((32, BF16), (16, FP32), (K, FP16)) if stored.by_groups else ((32, BF16),)


def packed_decode(type: int, code: int) -> Iterator[Case]:
    stored, K, groups = packed(code)
    config = {"block_n": 32, "k_warps": 2}
    for group, scale in (*groups, *(((128, BF16),) if stored.by_groups else ())):
        problem = Problem(1, 200, 896 if group == 128 else K, group, ELEMENTS[type], scale)
        yield Case("packed_decode", "weight_only_linear", problem, config, format=stored)


def packed_mma(type: int, code: int, block_m: int, experts: int) -> Iterator[Case]:
    stored, K, groups = packed(code)
    config = {"block_n": 32, "block_m": block_m, "k_warps": 2}
    for M in (17, 70) if experts else (block_m - 3, block_m + 5):
        for group, scale in groups:
            problem = Problem(M, 200, K, group, ELEMENTS[type], scale)
            case = Case("packed_mma", "weight_only_linear", problem, config, format=stored)
            yield with_experts(case, 40 if M == 70 else 5) if experts else case


def packed_tiles(type: int, code: int, experts: int) -> Iterator[Case]:
    stored, K, groups = packed(code)
    for M, cluster in ((89, 1), (70, 1)) if experts else ((29, 1), (37, 2)):
        for group, scale in groups:
            problem = Problem(M, 200, K, group, ELEMENTS[type], scale)
            case = Case("packed_tiles", "weight_only_linear", problem, {"cluster": cluster}, format=stored)
            yield with_experts(case, 40 if M == 70 else 5) if experts else case


def packed_wgmma(type: int, code: int) -> Iterator[Case]:
    stored, K, groups = packed(code)
    for M, cluster in ((61, 1), (69, 2)):
        for group, scale in groups:
            problem = Problem(M, 200, K, group, ELEMENTS[type], scale)
            yield Case("packed_wgmma", "weight_only_linear", problem, {"cluster": cluster}, format=stored)


def tinygemm_mm(inner_k_tiles: int, sub_groups: int, block_m: int) -> Iterator[Case]:
    for M, group_size in ((block_m - 5, 128 if sub_groups == 1 else 64), (block_m, 256 // sub_groups)):
        problem = Problem(M, 72, 768, group_size)
        config = {"block_m": block_m}
        yield Case("tinygemm_mm", "weight_int4pack_mm", problem, config, inner_k_tiles=inner_k_tiles)


CASES = {
    make.__name__: make
    for make in (
        int4_ring,
        int4_decode,
        int4_batch,
        int4_wgmma,
        int4_grouped_ring,
        int4_grouped_wgmma,
        int4_mma,
        rowwise_decode,
        rowwise_wgmma,
        weight_only_wgmma,
        rowwise_mma,
        blocks_decode,
        fp4_decode,
        blocks_wgmma,
        blocks_mma,
        packed_decode,
        packed_mma,
        packed_tiles,
        packed_wgmma,
        scaled_wgmma,
        tinygemm_mm,
    )
}
INSTANCES = ao._kernel_instances().splitlines() if ops._has_plans() else []


def cases_of(instance: str) -> list[Case]:
    kernel, *key = instance.split()
    return list(CASES[kernel](**{name: int(value) for name, value in (k.split("=") for k in key)}))


# ---- Ways to cut a product --------------------------------------------------------------------------------


def few_rows_cuts() -> Iterator[dict[str, int]]:
    """A block alone, several turns of one, x in pieces of shared memory, K shared by clusters."""
    yield {"tiles": 1, "k_splits": 8, "cluster": 1, "blocks": 1}
    yield {"tiles": 4, "k_splits": 2, "cluster": 1, "blocks": 2}
    yield {"tiles": 2, "k_splits": 4, "cluster": 1, "blocks": 100, "overlaps": 0}
    for cluster in (2, 4, 8):
        yield {"tiles": 4, "k_splits": 4, "cluster": cluster, "blocks": 2}


SEVEN = 7  # tiles: six and one left


def wgmma_cuts(block_n: int, block_m: int, most_cluster: int) -> Iterator[dict[str, int]]:
    """Whole tiles in turns, and tiles that clusters or ranges share, beside whole ones and without."""
    tile = {"block_n": block_n, "block_m": block_m}
    yield {**tile, "cluster": 1, "stream_k_blocks": 0, "blocks": 1}
    yield {**tile, "cluster": 1, "stream_k_blocks": 0, "blocks": SEVEN - 1}
    for cluster in range(2, most_cluster + 1):
        yield {**tile, "cluster": cluster, "stream_k_blocks": 0, "blocks": cluster * SEVEN}
        yield {**tile, "cluster": cluster, "stream_k_blocks": 0, "blocks": SEVEN - 1}
    yield {**tile, "cluster": 1, "stream_k_blocks": 3, "blocks": SEVEN + 3}
    yield {**tile, "cluster": 1, "stream_k_blocks": 2, "blocks": SEVEN - 1}


def cuts() -> Iterator[Case]:
    for M in (2, 8, 13):
        for cut in few_rows_cuts():
            int4 = Problem(M, 360, 4224, 128)
            yield Case("int4_ring", "bf16i4bf16_rowwise", int4, {**cut, "ahead": 512})
            yield Case("int4_decode", "bf16i4bf16_rowwise", int4, cut)
            for block_m in (1, 8):
                if cut["tiles"] >= cut["cluster"]:  # each block adds up a row of a tile, which may have one
                    of_experts = dataclasses.replace(int4, experts=3)
                    config = {**cut, "ahead": 512, "block_m": block_m}
                    yield Case("int4_grouped_ring", GROUPED, of_experts, config)
            if cut["tiles"] >= cut["cluster"]:
                fewer = {**cut, "k_splits": min(cut["k_splits"], 12 // cut["tiles"])}  # than 15 warps
                rows = Problem(M, 350, 4112, 4112, BF16, FP32, experts=3)
                for name in ("weight_only_linear int8", "scaled_mm float8_e4m3fn"):
                    yield Case("rowwise_decode", name, rows, fewer)
                four_bits = Problem(M, 350, 8320, 8320, BF16, BF16, experts=3)
                yield Case("fp4_decode", "weight_only_linear mxfp4", four_bits, fewer)
                yield Case("blocks_decode", "weight_only_linear nf4", four_bits, fewer)
                yield Case("blocks_decode", "weight_only_linear float8 128x128", rows, fewer)
            for block, scale in (((1, 32), E8M0), ((1, 16), E4M3)):
                config = {**cut, "ahead": 512}
                yield of_blocks("fp4_decode", LUT4, block, scale, M, 350, 8320, BF16, config, E2M1)
            for eight_bit in (INT8, E4M3):
                problem = Problem(M, 350, 4112, 4112, BF16, FP32, eight_bit)
                yield Case("rowwise_decode", "scaled_mm_rowwise", problem, {**cut, "ahead": 512})
                block = ((1, 32), E8M0) if eight_bit is INT8 else ((128, 128), FP32)
                yield of_blocks("blocks_decode", eight_bit, *block, M, 350, 4112, BF16, {**cut, "ahead": 512})
                if M <= 8 and cut["blocks"] == 2:
                    yield Case("rowwise_decode", "scaled_linear_rowwise", problem, cut)
            for b in (((1, 16), E4M3), ((1, 64), FP32)):
                config = {**cut, "ahead": 512, "depth": 2}
                yield of_blocks("blocks_decode", LUT4, *b, M, 350, 4128, BF16, config)
        # As little shared memory as makes x go through it in chunks.
        few = {"tiles": 2, "k_splits": 4, "cluster": 1, "shared_memory": 90_000}
        for blocks in (1, 100):
            long = {**few, "blocks": blocks}
            narrow = {**long, "warp_tiles": 1, "depth": 2}
            yield Case("int4_ring", "bf16i4bf16_rowwise", Problem(M, 360, 16512, 128), narrow)
            yield Case("int4_decode", "bf16i4bf16_rowwise", Problem(M, 360, 16512, 128), long)
            problem = Problem(M, 350, 24592, 24592, BF16, FP32, INT8)
            yield Case("rowwise_decode", "scaled_mm_rowwise", problem, long)
            shallow, more = {**long, "depth": 2}, {**long, "depth": 2, "shared_memory": 130_000}
            yield of_blocks("blocks_decode", E4M3, (1, 32), E8M0, M, 350, 24592, BF16, shallow)
            yield of_blocks("blocks_decode", LUT4, (1, 32), E8M0, M, 350, 49184, BF16, more)
    for splits in (1, 2, 5, 16):
        for block_m in (32, 64, 128):
            config = {"block_m": block_m, "splits": splits}
            yield Case("int4_mma", "bf16i4bf16_rowwise", Problem(70, 264, 4096, 64), config)
            for dtype in (INT8, E4M3):
                problem = Problem(70, 264, 4112, 4112, BF16, FP32, dtype)
                wide = {"block_n": 128, **config}
                yield Case("rowwise_mma", "scaled_mm_rowwise", problem, wide)
                yield Case("rowwise_mma", operator_of(BF16, dtype), problem, wide)
    for k_splits in (1, 2, 4):
        for M in (16, 50):
            problem = Problem(M, 520, 2176, 128)
            tiles = math.ceil(520 * k_splits / 256)
            for cluster, blocks in ((1, 1), (1, tiles), (1, tiles - 1), (2, 2 * tiles), (2, 4)):
                config = {"k_splits": k_splits, "cluster": cluster, "blocks": blocks}
                if cluster == 1 or tiles % blocks <= blocks // cluster:
                    yield Case("int4_batch", "bf16i4bf16_rowwise", problem, config)
    for T, experts in ((1, 1), (1, 64), (70, 300), (500, 8), (600, 1), (2000, 64)):
        for K, group in ((1024, 128), (416, 416), (288, 32)):  # whole stages and others
            problem = Problem(T, 328, K, group, experts=experts)
            for block_n, block_m in ((128, 32), (64, 32), (128, 64), (128, 256)):
                for blocks in (1, SEVEN) if T < 2000 else (132,):
                    config = {"block_n": block_n, "block_m": block_m, "blocks": blocks}
                    yield Case("int4_grouped_wgmma", GROUPED, problem, config)
    for block_n, block_m in ((128, 128), (64, 32), (192, 96)):
        M, N = block_m - 9, 6 * block_n + 40
        for cut in wgmma_cuts(block_n, block_m, 2):
            yield Case("int4_wgmma", "bf16i4bf16_rowwise", Problem(M, N, 4096, 128), cut)
        for cut in wgmma_cuts(block_n, block_m, 3):
            problem = Problem(M, N, 2064, 2064, BF16, FP32, E4M3)
            yield Case("weight_only_wgmma", "bf16f8bf16_rowwise", problem, cut)
    for block_n, block_m in ((128, 128), (64, 32)):
        M, N = block_m - 9, 6 * block_n + 40
        for cut in wgmma_cuts(block_n, block_m, 2):
            yield of_blocks("blocks_wgmma", LUT4, (1, 16), E4M3, M, N, 4128, BF16, cut)
            yield of_blocks("blocks_wgmma", E4M3, (128, 128), FP32, M, N, 2064, BF16, cut)
    for block_n, block_m, x_is_left in (
        (128, 128, 0),
        (112, 64, 0),
        (48, 32, 0),
        (64, 128, 0),
        (144, 128, 1),
    ):
        problem = Problem(block_m - 9, 6 * block_n + 40, 2064, 2064, BF16, FP32, INT8)
        for cluster, blocks in ((1, 1), (1, SEVEN - 1), (2, 2 * SEVEN), (2, SEVEN - 1)):
            config = {
                "block_n": block_n,
                "block_m": block_m,
                "x_is_left": x_is_left,
                "cluster": cluster,
                "blocks": blocks,
            }
            if cluster == 1 or not x_is_left:
                yield Case("rowwise_wgmma", "scaled_mm_rowwise", problem, {**config, "stream_k_blocks": 0})
    for block_n, block_m, x_is_left in ((128, 128, 1), (128, 256, 1), (64, 32, 0), (128, 64, 0)):
        problem = Problem(block_m - 9, 6 * block_n + 40, 2064, 128, BF16, FP32, E4M3, block_n=128)
        for cluster, blocks in ((1, 1), (1, SEVEN - 1), (2, 2 * SEVEN), (2, SEVEN - 1)):
            config = {
                "block_n": block_n,
                "block_m": block_m,
                "x_is_left": x_is_left,
                "cluster": cluster,
                "blocks": blocks,
            }
            if cluster == 1 or not x_is_left:
                yield Case("scaled_wgmma", "scaled_mm_blockwise", problem, {**config, "stream_k_blocks": 0})
    for block_n, block_m in ((128, 128), (128, 256), (64, 32)):
        config = {"block_n": block_n, "block_m": block_m, "x_is_left": 0, "stream_k_blocks": 0}
        for cluster, blocks in ((1, SEVEN - 1), (2, 2 * SEVEN), (2, SEVEN - 1)):
            cut = {**config, "cluster": cluster, "blocks": blocks}
            for group in (32, 64, 128) if block_n == 128 else ():
                for eight_bit in (INT8, E4M3):
                    problem = Problem(block_m - 9, 6 * block_n + 40, 2048, group, BF16, BF16, eight_bit)
                    yield Case("scaled_wgmma", "scaled_mm_int4", problem, cut)
            if block_m <= 128:
                problem = Problem(block_m - 9, 6 * block_n + 40, 2048, 32, BF16, FP32, E4M3)
                yield Case("scaled_wgmma", "scaled_mm_blockwise", problem, cut)
    for M, kernel, config in (
        (2, "int4_ring", {"tiles": 2}),
        (8, "int4_decode", {"tiles": 2}),
        (50, "int4_batch", {"k_splits": 2}),
        (150, "int4_wgmma", {}),
        (50, "int4_mma", {"splits": 2}),
    ):
        for eight_bit in (INT8, E4M3):
            for dtype in (BF16, FP16):
                problem = Problem(M, 520, 2176, 128, dtype, dtype, eight_bit)
                yield Case(kernel, "scaled_mm_int4", problem, config)
    for code, block, scale in ((LUT4, (1, 16), E4M3), (E4M3, (128, 128), FP32)):
        for block_n, block_m in ((128, 32), (128, 128)):
            config = {"block_n": block_n, "block_m": block_m, "splits": 3}
            yield of_blocks("blocks_mma", code, block, scale, 50, 520, 2080, BF16, config)
    for M in (3, 16):
        for phase_chunks, warps, blocks in ((1, 1, 1), (2, 4, 3), (5, 16, 100), (10, 8, 2)):
            config = {"phase_chunks": phase_chunks, "warps": warps, "blocks": blocks}
            yield Case("tinygemm_mm", "weight_int4pack_mm", Problem(M, 136, 1280, 128), config)
    for M in (1, 40):
        yield Case("int4_any", "bf16i4bf16_rowwise", Problem(M, 77, 416, 32), {})
        for dtype in (BF16, FP16, FP32):
            for experts in (1, 3, 300):
                problem = Problem(5 * M, 77, 418, 22, dtype, BF16, experts=experts)
                yield Case("int4_any", GROUPED, problem, {})
                for kernel, name in (
                    ("rowwise_any", "weight_only_linear int8"),
                    ("rowwise_any", "weight_only_linear float8_e5m2"),
                    ("blocks_any", "weight_only_linear lut4"),
                    ("blocks_any", "weight_only_linear int8 blocks"),
                    ("blocks_any", "weight_only_linear int8 zeros"),
                ):
                    yield Case(kernel, name, problem, {})
                if dtype is not FP32:
                    for kernel, name in (
                        ("rowwise_any", "scaled_mm int8"),
                        ("scaled_any", "scaled_mm float8_e4m3fn blocks"),
                        ("scaled_any", "scaled_mm int4 by int8"),
                        ("scaled_any", "scaled_mm int8 zeros"),
                    ):
                        yield Case(kernel, name, problem, {})
        yield Case("rowwise_any", "scaled_mm_rowwise", Problem(M, 77, 416, 416), {})
        for dtype in (BF16, FP32):
            yield of_blocks("blocks_any", LUT4, (1, 16), E4M3, M, 77, 418, dtype, {})
            yield of_blocks("blocks_any", E5M2, (3, 7), FP16, M, 77, 415, dtype, {})
        for eight_bit in (INT8, E4M3, E5M2):
            problem = Problem(M, 77, 415, 7, BF16, BF16, eight_bit, block_n=3)
            yield Case("scaled_any", "scaled_mm_blockwise", problem, {})
            if eight_bit is not E5M2:
                yield Case(
                    "scaled_any", "scaled_mm_int4", dataclasses.replace(problem, K=420, group_size=42), {}
                )
        yield Case("tinygemm_unpack", "weight_int4pack_mm", Problem(M, 136, 1280, 128), {})


CUTS = list(dict.fromkeys(map(str, cuts())))
CUTS_BY_NAME = {str(case): case for case in cuts()}


# ---- Without a GPU ----------------------------------------------------------------------------------------


def on_meta(case: Case) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a case's call, without numbers."""
    p, inner = case.problem, case.inner_k_tiles

    def empty(dtype: torch.dtype, *sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=dtype, device="meta")

    bias, scale = empty(p.scale_dtype, p.N), empty(FP32, p.N, 1)
    if case.operator == "weight_int4pack_mm":
        weight = empty(torch.int32, p.N // 8, p.K // (16 * inner), 32, inner // 2)
        return [empty(BF16, p.M, p.K), weight, p.group_size, empty(BF16, p.K // p.group_size, p.N, 2)], {}
    if case.operator.startswith("bf16i4"):
        groups = [empty(p.scale_dtype, p.K // p.group_size, p.N)] * 2
        arguments = [empty(p.dtype, p.M, p.K), empty(INT8, p.N, p.K // 2), *groups]
        return [*arguments, *([bias] if case.operator.endswith("_bias") else [])], {}
    if case.operator == "weight_only_linear":
        call = case.call(torch.Generator().manual_seed(0))
        return [a.to("meta") if isinstance(a, Tensor) else a for a in call.args], call.kwargs
    if case.format:
        f, (block_n, block_k) = case.format, case.format.block_of(p)
        scales = empty(f.scale or FP32, math.ceil(p.N / block_n), math.ceil(p.K / block_k))
        tail = [scales, [block_n, block_k], *([empty(FP32, 1)] if f.has_global_scale else [])]
        four_bits = [empty(LUT4, p.N, p.K // 2), empty(FP32, 16)]
        codes = four_bits if f.code is Code.LUT4 else [empty(f.dtype, p.N, p.K)]
        return [empty(p.dtype, p.M, p.K), *codes, *tail, bias], {}
    if case.operator == "int8_mm":
        return [empty(INT8, p.M, p.K), empty(INT8, p.N, p.K)], {}
    if case.operator == "scaled_linear_int4":
        groups = [empty(p.scale_dtype, p.K // p.group_size, p.N)] * 2
        return [empty(p.dtype, p.M, p.K), empty(INT8, p.N, p.K // 2), *groups, bias], {}
    if case.operator == "scaled_mm_int4":
        groups = [empty(p.scale_dtype, p.K // p.group_size, p.N)] * 2
        arguments = [empty(p.eight_bit, p.M, p.K), empty(INT8, p.N, p.K // 2), empty(FP32, p.M, 1)]
        return [*arguments, *groups, bias], {"out_dtype": p.dtype}
    weight = empty(p.eight_bit, p.N, p.K)
    if case.operator == "scaled_mm_blockwise":
        blocks = [math.ceil(p.N / p.block_n), math.ceil(p.K / p.group_size)]
        scales = [empty(FP32, p.M, blocks[1]), empty(p.scale_dtype, *blocks)]
        arguments = [empty(p.eight_bit, p.M, p.K), weight, *scales]
        return [*arguments, [1, p.group_size], [p.block_n, p.group_size], bias], {"out_dtype": p.dtype}
    if case.operator == "scaled_mm_rowwise":
        row_scale = empty(FP32, p.M, 1)
        return [empty(p.eight_bit, p.M, p.K), weight, row_scale, scale, bias], {"out_dtype": p.dtype}
    return [empty(p.dtype, p.M, p.K), weight, scale, bias], {}


def planned(gpu: str, case: Case) -> list[str]:
    if case.is_of_experts:
        operator = case.product[0]
        args, kwargs = on_meta_of_experts(*case.product, case.problem)
    else:
        args, kwargs = on_meta(case)
        operator, args, kwargs = folded(case.operator, *args, **kwargs)
    return ao._plan(gpu, operator, *described(operator, bound(operator, args, kwargs))).split("\n")


def test_instances_are_those_of_every_kernel() -> None:
    assert {line.split()[0] for line in INSTANCES} == set(CASES)
    assert len(INSTANCES) == len(set(INSTANCES))


@of_own_family
@pytest.mark.parametrize("kernel", CASES)
def test_a_case_gets_the_instance_that_it_is_for(kernel: str) -> None:
    for instance in [line for line in INSTANCES if line.split()[0] == kernel]:
        cases = cases_of(instance)
        assert cases, instance
        for case in cases:
            with with_plan(case.kernel, **case.config):
                text, launched = planned("H200", case)
            assert launched == instance, (case, text)
            fields = dict(f.split("=") for f in text.split(" | ")[0].split()[1:])
            assert {name: int(fields[name]) for name in case.config} == case.config


@of_own_family
@pytest.mark.parametrize("name", CUTS)
def test_a_cut_fits(name: str) -> None:
    case = CUTS_BY_NAME[name]
    with with_plan(case.kernel, **case.config):
        assert planned("H200", case)[0].split()[0] == case.kernel


PLANS = Path(__file__).parent / "plans"


@of_own_family
@pytest.mark.parametrize("file", sorted(path.name for path in PLANS.glob("*.txt")))
def test_plans_are_those_on_file(file: str) -> None:
    """A choice that is changed on purpose is written anew: benchmarks/plans.py says how."""
    module = script_of_benchmarks("plans.py")
    [gpu] = [gpu for gpu in module.GPUS if module.file_of(gpu) == file]
    assert list(module.plans(gpu)) == (PLANS / file).read_text().splitlines()


def test_every_gpu_has_its_plans_on_file() -> None:
    module = script_of_benchmarks("plans.py")
    with pytest.raises(RuntimeError, match=f"must be one of .*{', '.join(module.GPUS)}"):
        plan("", "bf16i4bf16_rowwise", *int4_operands(1))
    assert {path.name for path in PLANS.glob("*.txt")} == {module.file_of(gpu) for gpu in module.GPUS}


def test_every_kernel_is_chosen_somewhere_on_file() -> None:
    chosen = {
        line.split()[1]
        for path in PLANS.glob("*.txt")
        for line in path.read_text().splitlines()
        if line[:4] == "    "
    }
    assert set(CASES) <= chosen


def int4_operands(M: int, group_size: int = 128) -> list[Any]:
    case = Case("int4_ring", "bf16i4bf16_rowwise", Problem(M, 4096, 4096, group_size), {})
    return on_meta(case)[0]


@pytest.mark.parametrize("gpu", ["H200", "H100 SXM", "H100 PCIe", "A100", "L40S", "RTX 4090", "B200"])
def test_plans_of_a_gpu_are_for_what_it_has(gpu: str) -> None:
    for M in (1, 5, 16, 40, 300):
        text = plan(gpu, "bf16i4bf16_rowwise", *int4_operands(M))
        fields = dict(f.split("=") for f in text.split(" | ")[0].split()[1:])
        if not gpu.startswith("H"):
            assert text.split()[0] not in HOPPER_KERNELS
        if gpu == "B200" and "AOEXT_CUDA_FAMILY" not in os.environ:  # has clusters, too
            assert fields.get("overlaps", "1") == "1"
        elif not gpu.startswith("H"):
            assert fields.get("cluster", "1") == "1"
            assert fields.get("overlaps", "0") == "0"


def test_what_a_plan_prints_gives_it_again() -> None:
    """Every field that a plan prints can be forced, and gives the plan again."""
    for M in (1, 5, 16, 40, 300):
        chosen = plan("H200", "bf16i4bf16_rowwise", *int4_operands(M))
        kernel, *fields = chosen.split(" | ")[0].split()
        with with_plan(kernel, **{name: int(value) for name, value in (f.split("=") for f in fields)}):
            assert plan("H200", "bf16i4bf16_rowwise", *int4_operands(M)) == chosen


def test_figures_of_gpus_agree_with_each_other() -> None:
    """Peaks ask for a clock that such GPUs have: none has sparsity in it."""
    header = Path(__file__).parent.parent / "csrc" / "cuda" / "gpus.h"
    if not header.is_file():
        pytest.skip("needs the project's sources")
    row = r'\{"(.+?)", "NVIDIA .+?", (\d+), (\d+), (\d+) \* kKiB, (\d+) \* kKiB, .+?, \{(\d+), (\d+), (\d+)\}'
    rows = re.findall(row, header.read_text())
    assert {row[0] for row in rows} >= {
        "H200",
        "H100 SXM",
        "H100 PCIe",
        "A100",
        "L40S",
        "RTX 4090",
        "B200",
    }
    operations = {80: 2048, 89: 1024, 90: 4096, 100: 8192}  # in bf16, of a multiprocessor in a clock
    for name, *figures in rows:
        capability, multiprocessors, block, multiprocessor, bf16, fp8, int8 = map(int, figures)
        halved = name.startswith("RTX")  # sums in float32, which integers have none of
        rate = operations[capability] / (2 if halved else 1)
        assert 1.4 < bf16 * 1e3 / (multiprocessors * rate) < 2.6, name
        assert fp8 == pytest.approx(2 * bf16 if capability >= 89 else bf16, rel=0.02), name
        assert int8 == pytest.approx((4 if halved else 2) * bf16, rel=0.02), name
        assert multiprocessor == block + 1, name


def test_an_unknown_gpu_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"device must be one of .*H200, .*got H2000"):
        plan("H2000", "bf16i4bf16_rowwise", *int4_operands(1))


@pytest.mark.parametrize(
    ("kernel", "config", "message"),
    [
        ("int4_rings", {}, "kernel must be one of .*int4_ring, .*got int4_rings"),
        ("int4_ring", {"tile": 1}, "int4_ring has .*tiles, .*got tile"),
        ("int4_any", {"tiles": 1}, "int4_any has no field, got tiles"),
    ],
)
def test_what_there_is_not_is_named(kernel: str, config: dict[str, int], message: str) -> None:
    with pytest.raises(RuntimeError, match=message), with_plan(kernel, **config):
        pass
    assert ao._force_plan("") == ""


@of_own_family
@pytest.mark.parametrize(
    ("gpu", "M", "kernel", "config", "message"),
    [
        ("H200", 17, "int4_ring", {}, "kernel must be one that takes M = 17, .*got int4_ring"),
        ("A100", 40, "int4_wgmma", {}, "kernel must be one that takes M = 40, .* on A100, got int4_wgmma"),
        ("H200", 4, "int4_ring", {"tiles": 99}, "tiles = 99 must fit M = 4, "),
        ("H200", 40, "int4_mma", {"block_m": 48}, "block_m = 48 must fit M = 40, "),
        ("H200", 40, "int4_wgmma", {"block_m": 48}, "block_m = 48 must fit M = 40, "),
        ("A100", 4, "int4_ring", {"cluster": 2}, "cluster must be 1 on A100, got 2"),
        (
            "L40S",
            4,
            "int4_decode",
            {"shared_memory": 200_000},
            "shared_memory must be at most 101376",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    gpu: str, M: int, kernel: str, config: dict[str, int], message: str
) -> None:
    with with_plan(kernel, **config), pytest.raises(RuntimeError, match=message):
        plan(gpu, "bf16i4bf16_rowwise", *int4_operands(M))


@of_own_family
def test_every_block_of_a_cluster_adds_up_a_row_of_its_own() -> None:
    """A tile of experts may have a single row; a block without one would not wait for the others."""
    config = {"warp_tiles": 1, "tiles": 4, "k_splits": 4, "cluster": 8, "blocks": 2}
    case = Case("int4_grouped_ring", GROUPED, Problem(2, 360, 4224, 128, experts=3), {**config, "block_m": 8})
    with with_plan(case.kernel, **case.config), pytest.raises(RuntimeError, match="must fit M = 2, "):
        planned("H200", case)
    dense = Case("int4_ring", "bf16i4bf16_rowwise", Problem(2, 360, 4224, 128), config)
    with with_plan(dense.kernel, **config):
        assert planned("H200", dense)[0].startswith("int4_ring ")
    for M, N, K in itertools.product((1, 5, 16), (96, 360, 2048), (640, 4224, 16384)):
        chosen = Case("", GROUPED, Problem(M, N, K, 128, experts=128), {})
        kernel, *fields = planned("H200", chosen)[0].split(" | ")[0].split()
        cut = {name: int(value) for name, value in (f.split("=") for f in fields)}
        assert kernel == "int4_grouped_ring"
        assert cut["tiles"] * cut["warp_tiles"] >= cut["cluster"]


@of_own_family
def test_forcing_a_plan_ends_and_nests_and_is_a_threads_own() -> None:
    chosen = plan("H200", "bf16i4bf16_rowwise", *int4_operands(4))
    found: list[str] = []
    with with_plan("int4_mma", splits=2):
        with with_plan("int4_ring", tiles=3):
            assert " tiles=3 " in plan("H200", "bf16i4bf16_rowwise", *int4_operands(4))
            thread = threading.Thread(
                target=lambda: found.append(plan("H200", "bf16i4bf16_rowwise", *int4_operands(4)))
            )
            thread.start()
            thread.join()
        assert plan("H200", "bf16i4bf16_rowwise", *int4_operands(4)).startswith("int4_mma ")
        int8 = [torch.empty(4, 256, dtype=INT8, device="meta")] * 2
        assert plan("H200", "int8_mm", *int8).startswith("rowwise_")  # has no such kernel
    assert found == [chosen]
    assert plan("H200", "bf16i4bf16_rowwise", *int4_operands(4)) == chosen


def quantizes(operator: str, M: int, K: int, group_size: int) -> bool:
    case = Case("", operator, Problem(M, 4096, K, group_size), {})
    return "quantizes=1" in planned("H200", case)[0]


def test_short_rows_of_x_are_quantised_by_the_product() -> None:
    assert quantizes("scaled_linear_rowwise", 1, 4096, 4096)
    assert not quantizes("scaled_linear_rowwise", 8, 4096, 4096)
    assert not quantizes("scaled_linear_rowwise", 1, 28672, 28672)


@of_own_family
def test_what_lays_x_out_for_int4_quantises_it() -> None:
    assert not quantizes("scaled_linear_int4", 1, 4096, 128)
    assert quantizes("scaled_linear_int4", 40, 4096, 128)
    assert not quantizes("scaled_linear_int4", 400, 4096, 128)


# ---- On a GPU ---------------------------------------------------------------------------------------------


def runs_here(case: Case) -> bool:
    """Whether this GPU has what a case needs."""
    capability = torch.cuda.get_device_capability()
    hopper = capability == (9, 0) and "AOEXT_CUDA_FAMILY" not in os.environ
    if case.kernel in HOPPER_KERNELS or case.config.get("cluster", 1) > 1 or case.kernel.startswith("aten"):
        return hopper
    return capability >= (8, 9) or not case.config.get("float8", 0)


def is_of_no_expert(call: Call, row: int) -> bool:
    offsets = call.named().get("offsets")
    return offsets is not None and bool(offsets[-1] <= row)


def check(case: Case, generator: torch.Generator) -> None:
    """A launch is right, it gives the same bits again, and a row that is not a number stays alone."""
    call = case.call(generator)
    args = [a.to("cuda") if isinstance(a, Tensor) else a for a in call.args]
    operator = getattr(ao, call.operator)
    with with_plan(case.kernel, **case.config):
        result = operator(*args, **call.kwargs)
        assert_close(result, call.reference, call.terms)
        assert torch.equal(operator(*args, **call.kwargs), result)
        if args[0].is_floating_point() and case.problem.M > 1:
            args[0][1] = torch.nan
            poisoned = operator(*args, **call.kwargs)
            others = torch.arange(case.problem.M, device="cuda") != 1
            assert poisoned[1].isnan().all() or is_of_no_expert(call, 1)
            assert torch.equal(poisoned[others], result[others])


@needs_cuda
@pytest.mark.parametrize("instance", INSTANCES)
def test_an_instance_is_right(instance: str, generator: torch.Generator) -> None:
    for case in cases_of(instance):
        if not runs_here(case):
            pytest.skip("another GPU has it")
        check(case, generator)


@needs_cuda
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("eight_bit", [INT8, E4M3], ids=str)
@pytest.mark.parametrize(
    ("M", "K", "group_size"),
    [
        (1, 4096, 128),
        (9, 4224, 128),
        (33, 28672, 256),
        (64, 640, 128),
        (32, 640, 64),
        (17, 1152, 32),
    ],
)
def test_int4_batch_quantises_to_the_bits_of_two_operators(
    M: int, K: int, group_size: int, eight_bit: torch.dtype, dtype: torch.dtype, generator: torch.Generator
) -> None:
    case = Case("int4_batch", "scaled_mm_int4", Problem(M, 520, K, group_size, dtype, dtype, eight_bit), {})
    if not runs_here(case):
        pytest.skip("another GPU has it")
    N, groups = case.problem.N, K // group_size
    weight = torch.randint(-128, 128, (N, K // 2), dtype=INT8, generator=generator)
    scale, zero = (torch.randn(groups, N, generator=generator).abs().to(dtype) for _ in range(2))
    x, bias = torch.randn(M, K, generator=generator).to(dtype), torch.randn(N, generator=generator)
    x[0, K // 2] = 1000
    if M > 2:
        x[1], x[2, K - 1] = 0, torch.nan
    x, weight, scale, zero, bias = (t.to("cuda") for t in (x, weight, scale, zero, bias))
    q, x_scale = ao.quantize(x, eight_bit)
    with with_plan(case.kernel):
        name, args, kwargs = folded("scaled_linear_int4", x, weight, scale, zero, bias, input_dtype=eight_bit)
        one_launch = aoext.explain(name, *args, **kwargs)
        whole = run("scaled_linear_int4", x, weight, scale, zero, bias, input_dtype=eight_bit)
        parts = run("scaled_mm_int4", q, weight, x_scale, scale, zero, bias, out_dtype=dtype)
    assert "quantizes_input" in one_launch.choices
    torch.testing.assert_close(whole, parts, rtol=0, atol=0, equal_nan=True)
    finite = torch.arange(M, device="cuda") != (2 if M > 2 else M)
    assert torch.equal(whole.isfinite().all(1), finite)


@needs_cuda
@pytest.mark.parametrize("name", CUTS)
def test_a_cut_is_right(name: str, generator: torch.Generator) -> None:
    case = CUTS_BY_NAME[name]
    if not runs_here(case):
        pytest.skip("another GPU has it")
    check(case, generator)
