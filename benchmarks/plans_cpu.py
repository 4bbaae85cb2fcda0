"""The kernels that CPUs choose over a grid of problems, for every instruction set; none need run here.

    python benchmarks/plans_cpu.py > tests/plans_cpu.txt

tests/test_cpu_plans.py holds the library against that file: who changes a choice on purpose writes it anew,
and the difference shows what was changed. Below the products that get the same kernels, a line has the
instruction sets that choose alike, and for each kernel the largest number of rows of x that it gets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import click
import torch

from aoext import ops
from aoext.formats.table import FORMATS, Code

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
INT8, E4M3, E5M2 = torch.int8, torch.float8_e4m3fn, torch.float8_e5m2
E8M0 = torch.float8_e8m0fnu
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32", INT8: "int8", E4M3: "e4m3", E5M2: "e5m2", E8M0: "e8m0"}

ISAS = ("amx", "avx512", "avxvnni", "avx2", "i8mm", "dotprod", "neon", "portable")
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 25, 32, 33, 47, 48, 4096)
SHAPES = ((4096, 4096), (32, 1056), (4, 768))  # N, K
GROUPS, FEW_GROUPS = (1, 4, 8, 12, 16, 32, 48, 64, 128, 192), (16, 32, 128)

MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
TABLES = {
    "e2m1": torch.tensor([*MAGNITUDES, *(-m for m in MAGNITUDES)]),
    "of bf16": torch.arange(16.0),
    "of fp32": torch.linspace(-1, 1, 16),
    "with inf": torch.tensor([*range(15), math.inf]),
}

Case = tuple[str, tuple[Any, ...], dict[str, Any]]  # what it is, the operator and its arguments, its options


def groups_of(K: int) -> tuple[int, ...]:
    return *(GROUPS if (4096, K) in SHAPES else FEW_GROUPS), K


def int4(M: int, N: int, K: int) -> Iterator[Case]:
    weight = torch.empty(N, K // 2, dtype=INT8)
    for group in groups_of(K):
        if K % group:
            continue
        groups = torch.empty(K // group, N, dtype=BF16)
        rows = (("weight_only_linear", x) for x in (BF16, FP16, FP32))
        for operator, x in (*rows, ("scaled_linear", FP16)):
            arguments = operator, torch.empty(M, K, dtype=x), weight, groups
            label = f"{NAMES[x]} x int4 by {'K' if group == K else group}"
            options = {"zero_point": groups, "code": Code.INT4}
            if operator == "weight_only_linear":
                yield label, arguments, options
                continue
            for quantized in (INT8, E4M3):
                yield f"{NAMES[quantized]}, of {label}", arguments, {**options, "input_dtype": quantized}
        if N % 8 == 0 and group in (32, 128):
            packed = torch.empty(N // 8, K // 32, 32, 1, dtype=torch.int32)
            pairs = torch.empty(K // group, N, 2, dtype=BF16)
            product = "weight_int4pack_mm", torch.empty(M, K, dtype=BF16), packed, group, pairs
            yield f"bf16 x int4pack by {group}", product, {}


def eight_bits(M: int, N: int, K: int) -> Iterator[Case]:
    """Weights of 8 bits, under inputs of high precision and of 8 bits."""
    yield "int8_mm", ("int8_mm", torch.empty(M, K, dtype=INT8), torch.empty(N, K, dtype=INT8)), {}
    for code, dtype in ((Code.INT8, INT8), (Code.E4M3, E4M3), (Code.E5M2, E5M2)):
        weight = torch.empty(N, K, dtype=dtype)
        for group in groups_of(K):
            scale = torch.empty(N, math.ceil(K / group), dtype=FP32)
            block = {"block_size": [1, group], "code": code}
            label = f"{NAMES[dtype]} by {'K' if group == K else group}"
            for x in (BF16, FP16, FP32):
                arguments = torch.empty(M, K, dtype=x), weight, scale
                yield f"{NAMES[x]} x {label}", ("weight_only_linear", *arguments), block
                if code == Code.INT8:
                    zeros = {**block, "zero_point": torch.empty(scale.shape, dtype=INT8)}
                    yield f"{NAMES[x]} x {label} with zero points", ("weight_only_linear", *arguments), zeros
            for of_scale in (FP32, E8M0):
                arguments = torch.empty(M, K, dtype=BF16), weight, scale.to(of_scale)
                of = f"{NAMES[dtype]} x {label}, scales {NAMES[of_scale]}"
                yield of, ("scaled_linear", *arguments), {"input_block": [1, group], **block}
        row_scale, blocks = torch.empty(N, 1), torch.empty(math.ceil(N / 128), math.ceil(K / 128))
        operands = torch.empty(M, K, dtype=dtype), weight, torch.empty(M, math.ceil(K / 128)), blocks
        both = {"input_block": [1, 128], "block_size": [128, 128], "code": code}
        yield f"{NAMES[dtype]} x {NAMES[dtype]} by 128 x 128", ("scaled_mm", *operands), both
        yield (
            f"bf16 x {NAMES[dtype]} of one scale",
            (
                "weight_only_linear",
                torch.empty(M, K, dtype=BF16),
                weight,
                row_scale[:1],
            ),
            {"block_size": [N, K], "code": code},
        )


def tables(M: int, N: int, K: int) -> Iterator[Case]:
    weight = torch.empty(N, K // 2, dtype=torch.uint8)
    for name, table in TABLES.items():
        for group in groups_of(K):
            scale = torch.empty(N, math.ceil(K / group), dtype=FP32)
            for x in (BF16, FP16, FP32):
                arguments = "weight_only_linear", torch.empty(M, K, dtype=x), weight, scale
                options = {"block_size": [1, group], "table": table, "code": Code.LUT4}
                yield f"{NAMES[x]} x table {name} by {'K' if group == K else group}", arguments, options


def planes(M: int, N: int, K: int) -> Iterator[Case]:
    """Codes in planes, with scales beside them and inside."""
    for code in (Code.INT5, Code.Q4_K, Code.Q5_0, Code.Q6_K, Code.Q8_0, Code.IQ4_XS, Code.TQ2_0):
        format = FORMATS[code]
        if K % format.values:
            continue
        weight = torch.empty(*format.stored_shape(N, K), dtype=torch.uint8)
        for group in (8, 16, 32, 96, 128, K) if format.scales == "groups" else (format.group,):
            if K % group:
                continue
            groups = torch.empty(K // group, N, dtype=BF16)
            operands, options = (weight, groups), {"zero_point": groups, "code": code}
            if format.scales == "inside":
                operands, options = (weight, torch.empty(1)), {"code": code}
            label = f"{code.name.lower()} by {'K' if group == K else group}"
            for x in (BF16, FP16, FP32):
                arguments = "weight_only_linear", torch.empty(M, K, dtype=x), *operands
                yield f"{NAMES[x]} x {label}", arguments, options
            for quantized in (INT8, E4M3):
                arguments = "scaled_linear", torch.empty(M, K, dtype=BF16), *operands
                for block in (32, 256, K) if format.scales == "inside" and K % 256 == 0 else (K,):
                    of_x = f"{NAMES[quantized]} by {'K' if block == K else block}"
                    own = {**options, "input_dtype": quantized}
                    if block < K:
                        own["input_block"] = [1, block]
                    yield f"{of_x} x {label}", arguments, own


def cases(M: int, N: int, K: int) -> Iterator[Case]:
    """Calls of every operator that chooses a kernel."""
    yield from int4(M, N, K)
    yield from eight_bits(M, N, K)
    yield from tables(M, N, K)
    yield from planes(M, N, K)


def plans() -> Iterator[str]:
    for N, K in SHAPES:
        yield f"{N} x {K}"
        found: dict[str, dict[str, list[tuple[int, str]]]] = {}  # by what it is and instruction set
        for M in ROWS:
            for label, arguments, options in cases(M, N, K):
                for isa in ISAS:
                    runs = found.setdefault(label, {}).setdefault(isa, [])
                    kernel = ops.plan(isa, *arguments, **options)
                    if runs and runs[-1][1] == kernel:
                        runs.pop()
                    runs.append((M, kernel))
        yield from written(found)


def written(found: dict[str, dict[str, list[tuple[int, str]]]]) -> Iterator[str]:
    """What is chosen alike, once."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for label, by_isa in found.items():
        alike: dict[str, list[str]] = {}
        for isa, runs in by_isa.items():
            alike.setdefault(", ".join(f"{M} {kernel}" for M, kernel in runs), []).append(isa)
        lines = tuple(f"    {' '.join(isas)}: {line}" for line, isas in alike.items())
        labels.setdefault(lines, []).append(label)
    for lines, of in labels.items():
        yield from (f"  {label}" for label in of)
        yield from lines


@click.command()
def main() -> None:
    for line in plans():
        click.echo(line)


if __name__ == "__main__":
    main()
