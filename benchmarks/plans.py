"""The plans of an NVIDIA GPU over a grid of problems, a line each; the GPU need not be at hand.

    python benchmarks/plans.py --gpu H200 > tests/plans_h200.txt

tests/test_cuda_plans.py holds the library against that file: who changes a choice on purpose writes it anew,
and the difference shows what was changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import torch

from aoext import ops

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
INT8, E4M3 = torch.int8, torch.float8_e4m3fn

ROWS = (1, 2, 4, 8, 9, 16, 33, 64, 100, 256, 600, 4096)
SHAPES = ((4096, 4096), (28672, 4096), (8192, 28672), (1280, 8192), (520, 640), (77, 1056))  # N, K


def empty(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def int4(M: int, N: int, K: int, group_size: int, dtype: torch.dtype, scale: torch.dtype) -> tuple[Any, ...]:
    groups = [empty(scale, K // group_size, N)] * 2
    return ("bf16i4bf16_rowwise", empty(dtype, M, K), empty(INT8, N, K // 2), *groups)


def calls(M: int, N: int, K: int) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Named calls of every operator that chooses a kernel, on meta tensors."""
    for group_size in (32, 128):
        if K % group_size == 0:
            yield f"int4 bf16 group {group_size}", int4(M, N, K, group_size, BF16, BF16), {}
            yield f"int4 fp16, scales fp32, group {group_size}", int4(M, N, K, group_size, FP16, FP32), {}
    if N % 8 == 0:
        packed = empty(torch.int32, N // 8, K // 32, 32, 1)
        pairs = empty(BF16, K // 32, N, 2)
        yield "int4pack", ("weight_int4pack_mm", empty(BF16, M, K), packed, 32, pairs), {}
    scales = empty(FP32, M, 1), empty(FP32, N, 1)
    yield "int8 int32", ("int8_mm", empty(INT8, M, K), empty(INT8, N, K)), {}
    for dtype, output in ((INT8, BF16), (E4M3, BF16)):
        operands = empty(dtype, M, K), empty(dtype, N, K)
        yield f"{dtype} {output}", ("scaled_mm_rowwise", *operands, *scales), {"out_dtype": output}
        dynamic = empty(output, M, K), operands[1], scales[1]
        yield f"{dtype} {output} dynamic", ("scaled_linear_rowwise", *dynamic), {}
    yield "int8 bf16", ("bf16i8bf16_rowwise", empty(BF16, M, K), empty(INT8, N, K), scales[1]), {}


def plans(gpu: str) -> Iterator[str]:
    for N, K in SHAPES:
        for M in ROWS:
            for name, arguments, options in calls(M, N, K):
                yield f"{M} {N}x{K} {name}: {ops.plan(gpu, *arguments, **options)}"


@click.command()
@click.option("--gpu", default="H200", show_default=True, help="A name of csrc/cuda/gpus.h.")
def main(gpu: str) -> None:
    for line in plans(gpu):
        click.echo(line)


if __name__ == "__main__":
    main()
