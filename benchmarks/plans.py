"""The plans of NVIDIA GPUs over a grid of problems, a file for each GPU of csrc/cuda/gpus.h.

    python benchmarks/plans.py tests/plans

No GPU need be at hand. tests/test_cuda_plans.py holds the library against these files: who changes a choice
on purpose writes them anew, and the difference shows what was changed. A line has the rows of x that get one
plan, and that plan: the kernel with the numbers of its configuration, whose names the head of the file has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch

from aoext import ops
from aoext.formats.table import FORMATS, Code

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
INT8, E4M3, E5M2 = torch.int8, torch.float8_e4m3fn, torch.float8_e5m2
E8M0, LUT4 = torch.float8_e8m0fnu, torch.uint8
CODES = {INT8: Code.INT8, E4M3: Code.E4M3, E5M2: Code.E5M2, LUT4: Code.LUT4}

GPUS = ("H200", "H100 SXM", "H100 PCIe", "A100", "A100 80GB PCIe", "A100 40GB", "L40S", "RTX 4090", "B200")
MEASURED = "H200"  # has the whole grid
ROWS = (1, 2, 4, 8, 9, 16, 33, 64, 100, 256, 600, 4096)
SHAPES = ((4096, 4096), (28672, 4096), (8192, 28672), (1280, 8192), (520, 640), (77, 1056))  # N, K
FEW_ROWS, FEW_SHAPES = (1, 8, 16, 64, 600), ((28672, 4096), (1280, 8192), (520, 640))

Case = tuple[str, tuple[Any, ...], dict[str, Any]]  # what it is, the operator and its arguments, its options


def empty(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def int4(M: int, N: int, K: int) -> Iterator[Case]:
    def weight(group_size: int, scale: torch.dtype, *experts: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        groups = empty(scale, *experts, K // group_size, N)
        options: dict[str, Any] = {"zero_point": groups, "code": Code.INT4}
        if experts:
            options["offsets"] = empty(torch.int32, *experts)
        return (empty(INT8, *experts, N, K // 2), groups), options

    for group_size in (32, 128):
        if K % group_size:
            continue
        for x, scale in ((BF16, BF16), (FP16, FP32)):
            operands, options = weight(group_size, scale)
            label = f"{name(x)} x int4, scales {name(scale)} by {group_size}"
            yield label, ("weight_only_linear", empty(x, M, K), *operands), options
        for experts in (8, 128):
            operands, options = weight(group_size, BF16, experts)
            label = f"bf16 x int4, scales bf16 by {group_size}, {experts} experts"
            yield label, ("weight_only_linear", empty(BF16, M, K), *operands), options
        (w, groups), options = weight(group_size, BF16)
        for x in (INT8, E4M3):
            mm = "scaled_mm", empty(x, M, K), w, empty(FP32, M, 1), groups
            yield f"{name(x)} x int4 by {group_size}", mm, {**options, "out_dtype": BF16}
        linear = "scaled_linear", empty(BF16, M, K), w, groups
        yield f"bf16 to int8 x int4 by {group_size}", linear, options
    operands, options = weight(32, FP32)
    yield "fp32 x int4", ("weight_only_linear", empty(FP32, M, K), *operands), options
    if N % 8 == 0:
        packed, pairs = empty(torch.int32, N // 8, K // 32, 32, 1), empty(BF16, K // 32, N, 2)
        yield "bf16 x int4pack by 32", ("weight_int4pack_mm", empty(BF16, M, K), packed, 32, pairs), {}


def rows(M: int, N: int, K: int) -> Iterator[Case]:
    """A scale a row of 8-bit weights."""
    yield "int8 x int8 to int32", ("int8_mm", empty(INT8, M, K), empty(INT8, N, K)), {}
    row_scale, scale = empty(FP32, M, 1), empty(FP32, N, 1)
    for code, y in ((INT8, BF16), (E4M3, BF16), (E5M2, FP16), (E4M3, FP32)):
        mm = "scaled_mm", empty(code, M, K), empty(code, N, K), row_scale, scale
        yield f"{name(code)} x {name(code)} to {name(y)}", mm, {"code": CODES[code], "out_dtype": y}
    for code in (INT8, E4M3):
        operands = empty(BF16, M, K), empty(code, N, K), scale
        options = {"code": CODES[code]}
        yield f"bf16 to {name(code)} x {name(code)}", ("scaled_linear", *operands), options
        yield f"bf16 x {name(code)}", ("weight_only_linear", *operands), options


def blocks(M: int, N: int, K: int) -> Iterator[Case]:
    """A scale a block, of the weight alone and of both operands."""
    for code, scale_type, (block_n, block_k) in (
        (INT8, BF16, (1, 32)),
        (INT8, FP32, (1, K)),
        (E4M3, FP32, (128, 128)),
        (E4M3, E8M0, (1, 32)),
        (E5M2, FP16, (1, 64)),
        (LUT4, E8M0, (1, 32)),
        (LUT4, E4M3, (1, 16)),
        (LUT4, FP32, (1, 64)),
    ):
        scale = empty(scale_type, math.ceil(N / block_n), math.ceil(K / block_k))
        label = f"{name(code)}, scales {name(scale_type)} by {block_n} and {'K' if block_k == K else block_k}"
        weight = empty(code, N, K // 2 if code is LUT4 else K)
        options = {"block_size": [block_n, block_k], "code": CODES[code]}
        table = {"table": empty(FP32, 16)} if code is LUT4 else {}
        x = empty(BF16, M, K)
        yield f"bf16 x {label}", ("weight_only_linear", x, weight, scale), {**options, **table}
        if code is not LUT4 and block_k < K:
            mm = "scaled_mm", empty(code, M, K), weight, empty(FP32, M, math.ceil(K / block_k)), scale
            yield f"{name(code)} x {label}", mm, {**options, "input_block": [1, block_k], "out_dtype": BF16}


def packed(M: int, N: int, K: int) -> Iterator[Case]:
    """Codes that lie in blocks of bytes, their scales beside them or inside."""
    for code in (Code.INT2, Code.INT5, Code.Q4_K, Code.Q6_K):
        format = FORMATS[code]
        if K % format.values:
            continue
        beside = format.scales == "groups"
        scale = empty(BF16, K // 32, N) if beside else empty(FP32, 1)
        weight, zero = empty(LUT4, *format.stored_shape(N, K)), {"zero_point": scale} if beside else {}
        options = {"code": code, **zero}
        label = f"{code.name.lower()} by 32" if beside else code.name.lower()
        for x in (BF16, FP32):
            yield f"{name(x)} x {label}", ("weight_only_linear", empty(x, M, K), weight, scale), options
        block = K if beside else 32
        mm = "scaled_mm", empty(INT8, M, K), weight, empty(FP32, M, math.ceil(K / block)), scale
        input_block = {} if beside else {"input_block": [1, block]}
        yield f"int8 x {label}", mm, {**options, **input_block, "out_dtype": BF16}


# Products that come with a weight for each of so many experts, too; weight-only int4 has its own above.
EXPERTS = 128
OF_EXPERTS = (
    "int8 x int4 by 128",
    "bf16 x int8",
    "e4m3 x e4m3 to bf16",
    "bf16 to int8 x int8",
    "bf16 x e4m3, scales fp32 by 128 and 128",
    "e4m3 x e4m3, scales fp32 by 128 and 128",
    "e4m3 x e4m3, scales e8m0 by 1 and 32",
    "bf16 x lut4, scales e8m0 by 1 and 32",
    "bf16 x lut4, scales e4m3 by 1 and 16",
    "bf16 x lut4, scales fp32 by 1 and 64",
    "bf16 x int2 by 32",
    "bf16 x q4_k",
    "int8 x q4_k",
)


def of_experts(case: Case) -> Case:
    def each(t: torch.Tensor) -> torch.Tensor:
        return empty(t.dtype, EXPERTS, *t.shape)

    label, (operator, x, weight, *input_scale, scale), options = case
    more = {"zero_point": each(options["zero_point"])} if "zero_point" in options else {}
    options = {**options, **more, "offsets": empty(torch.int32, EXPERTS)}
    return f"{label}, {EXPERTS} experts", (operator, x, each(weight), *input_scale, each(scale)), options


def name(dtype: torch.dtype) -> str:
    return {
        BF16: "bf16",
        FP16: "fp16",
        FP32: "fp32",
        INT8: "int8",
        E4M3: "e4m3",
        E5M2: "e5m2",
        E8M0: "e8m0",
        LUT4: "lut4",
    }[dtype]


def cases(M: int, N: int, K: int) -> Iterator[Case]:
    """Calls of every operator that chooses a kernel, on meta tensors."""
    dense = [*int4(M, N, K), *rows(M, N, K), *blocks(M, N, K), *packed(M, N, K)]
    yield from dense
    yield from (of_experts(case) for case in dense if case[0] in OF_EXPERTS)


def compact(plan: str, names: dict[str, str]) -> str:
    """A plan without the names of its fields, which go into `names` by the kernel's."""
    text, *rest = plan.split(" | ")
    kernel, *fields = text.split()
    names[kernel] = " ".join(field.split("=")[0] for field in fields)
    if rest and "=" in rest[0]:
        rest = [" ".join(field for field in rest[0].split() if not field.endswith("=0"))]
    return " ".join([kernel, *(field.split("=")[1] for field in fields), *(f"| {r}" for r in rest if r)])


def plans(gpu: str) -> Iterator[str]:
    """The lines of a GPU's file."""
    row_counts, shapes = (ROWS, SHAPES) if gpu == MEASURED else (FEW_ROWS, FEW_SHAPES)
    names: dict[str, str] = {}
    lines: list[str] = []
    for N, K in shapes:
        lines.append(f"{N} x {K}")
        found: dict[str, list[tuple[list[int], str]]] = {}
        for M in row_counts:
            for label, arguments, options in cases(M, N, K):
                text = compact(ops.plan(gpu, *arguments, **options), names)
                runs = found.setdefault(label, [])
                if runs and runs[-1][1] == text:
                    runs[-1][0].append(M)
                else:
                    runs.append(([M], text))
        for label, runs in found.items():
            lines.append(f"  {label}")
            lines += [f"    {','.join(map(str, counts))}: {text}" for counts, text in runs]
    yield from (f"{kernel}: {fields}" for kernel, fields in sorted(names.items()) if fields)
    yield from lines


def file_of(gpu: str) -> str:
    return gpu.lower().replace(" ", "_") + ".txt"


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for gpu in GPUS:
        (folder / file_of(gpu)).write_text("".join(f"{line}\n" for line in plans(gpu)))


if __name__ == "__main__":
    main()
