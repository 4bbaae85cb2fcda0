"""Runs our CUDA kernels under compute-sanitizer: memcheck, racecheck, initcheck and synccheck, on odd shapes.

    python tools/cuda_sanitizer.py [--tool memcheck] [--only grouped] [--parts 8] [--seconds 60]

Each tool runs a process of its own for the newest family of kernels and for sm80's, or so many processes of
a part of the calls each, with every tensor an allocation of its own, so that an access beyond one is seen.
Results are compared with float64 besides. The exit code is 1 where a tool finds anything. racecheck wants a
library built with -DAOEXT_RACECHECK (docs/cuda.md) and takes minutes for the larger calls of kernels of
sm_90a: calls go from small to large, and after so many seconds a process begins no other.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FAMILIES = ("newest", "sm80")
BOUND = 1e-2  # of a row's relative error: results are compared to know that kernels ran, tests are stricter
FOUND = 9  # compute-sanitizer's exit code where it finds anything

# M, N, K, group size: tails in every direction, split and unsplit K, every range of M; small for racecheck.
SHAPES = [
    (1, 7, 2, 2),
    (1, 33, 64, 32),
    (1, 130, 4096, 128),
    (2, 257, 1056, 32),
    (3, 31, 1000, 250),
    (4, 96, 2048, 256),
    (5, 65, 384, 384),
    (8, 200, 1024, 64),
    (9, 72, 96, 6),
    (12, 136, 1152, 128),
    (16, 515, 320, 32),
    (17, 136, 1024, 128),
    (30, 264, 512, 32),
    (33, 260, 640, 128),
    (50, 1032, 768, 256),
    (64, 100, 512, 64),
    (65, 132, 768, 256),
    (97, 84488, 128, 128),  # many more tiles than multiprocessors
    (100, 256, 12288, 128),
    (129, 72, 256, 32),
    (257, 264, 384, 128),
    (300, 129, 512, 128),
]


def calls() -> Iterator[tuple[Any, Any]]:
    """reference.Problem and reference.Call, on the CPU, of all that has kernels of its own."""
    import torch

    from aoext.reference import ALL_CALLS, EIGHT_BIT, TINYGEMM_CALLS, Problem, blockwise_weight_only
    from aoext.reference.blockwise import EIGHT_BIT_BLOCKWISE, LUT4_BLOCKWISE

    generator = torch.Generator().manual_seed(torch.seed() % 2**31)
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    dtypes = ((bf16, bf16), (fp16, fp16), (bf16, fp32), (fp16, bf16), (fp32, fp32))
    linear = ("bf16i4bf16_rowwise", "bf16i4bf16_rowwise_bias")
    for i, (M, N, K, group_size) in enumerate(sorted(SHAPES, key=lambda shape: math.prod(shape[:3]))):
        # With a bias and without take turns, and so do the other dtypes beside bfloat16.
        dtype, scale_dtype = dtypes[1 + i % (len(dtypes) - 1)]
        chosen = [(linear[i % 2], bf16, bf16), (linear[1 - i % 2], dtype, scale_dtype)]
        chosen += [("dequantize_int4", dtype, scale_dtype)] if i % 4 == 0 else []
        chosen += [(operator, bf16, bf16) for operator in TINYGEMM_CALLS if N >= 8]
        for operator, *types in chosen:
            p = Problem(M, N, K, group_size, *types)
            yield p, ALL_CALLS[operator](p, generator)
        # Of experts: one, some, and more than a warp finds at once.
        experts = (1, 5, 200)[i % 3] if N * K < 2**20 else 2
        for types in ((bf16, bf16), (dtype, scale_dtype)):
            p = Problem(M, N, K, group_size, *types, experts=experts, bias=i % 2 == 0)
            yield p, ALL_CALLS["bf16i4bf16_rowwise_grouped"](p, generator)
        # Of 8 bits two products and a dynamic one, which quantises too: all formats within a few shapes.
        weight_only = ("bf16i8bf16_rowwise", "bf16f8bf16_rowwise")[i % 2]
        scaled = ("int8_mm", "scaled_mm_rowwise", "scaled_mm_rowwise")[i % 3]
        for j, operator in enumerate((weight_only, scaled, "scaled_linear_rowwise")):
            p = Problem(M, N, K - i % 5 // 4, K, dtype, fp32, EIGHT_BIT[(i + j) % 3])
            yield p, ALL_CALLS[operator](p, generator)
        # Of those with a scale a block one of 4 bits and one of 8.
        for formats in (LUT4_BLOCKWISE, EIGHT_BIT_BLOCKWISE):
            p = Problem(M, N, K, group_size, dtype, scale_dtype, block_n=1 + i % 3)
            yield p, blockwise_weight_only(formats[i % len(formats)], p, generator)
        # Inputs of 8 bits with a scale a block, and on int4: blocks of 128 by 128, of 32, and odd ones.
        block_n, block_k = ((128, 128), (1, 32), (3, 7))[i % 3]
        for j, operator in enumerate(
            ("scaled_mm_blockwise", "scaled_linear_blockwise", "scaled_linear_int4")
        ):
            group = group_size if operator.endswith("int4") else block_k
            p = Problem(M, N, K, group, dtype, scale_dtype, EIGHT_BIT[(i + j) % 2], block_n=block_n)
            yield p, ALL_CALLS[operator](p, generator)


def calls_by_kernel() -> Iterator[tuple[str, Any, Any]]:
    """The same, by a kernel of Hopper's that no plan takes for problems so small."""
    import torch

    from aoext.reference import ALL_CALLS, EIGHT_BIT, Problem

    generator = torch.Generator().manual_seed(torch.seed() % 2**31)
    for M, eight_bit, dtype in itertools.product(
        (20, 150, 300), EIGHT_BIT[:2], (torch.bfloat16, torch.float16)
    ):
        p = Problem(M, 264, 640, 128, dtype, dtype, eight_bit)
        yield "scaled_wgmma", p, ALL_CALLS["scaled_mm_int4"](p, generator)


def is_right(call: Any, result: Any) -> bool:
    """Whether a result, on the CPU, is near the call's reference: exactly that where it is no float64."""
    import torch

    if call.reference.dtype is not torch.float64:
        return torch.equal(result, call.reference)
    norm = call.reference.norm(dim=1)
    return bool(((result.double() - call.reference).norm(dim=1) <= BOUND * norm).all())


def run(only: str, part: int, parts: int, seconds: int) -> None:
    """What a sanitized process does. Data comes from the CPU: next to no kernel of PyTorch's runs."""
    import torch

    import aoext
    from aoext.ops import with_plan

    if not torch._C._dispatch_has_kernel_for_dispatch_key("ao::bf16i4bf16_rowwise", "CUDA"):
        sys.exit("the library was built without kernels for CUDA")
    plans: dict[str, int] = {}
    end = time.monotonic() + seconds
    hopper = torch.cuda.get_device_capability() == (9, 0) and "AOEXT_CUDA_FAMILY" not in os.environ
    every = itertools.chain(calls_by_kernel() if hopper else (), (("", *one) for one in calls()))
    chosen = (one for one in every if only in one[2].operator)
    for kernel, problem, call in itertools.islice(chosen, part, None, parts):
        if time.monotonic() > end:
            print(f"  stopped before {call.operator} {problem}")
            break
        moved = [a.to("cuda") if isinstance(a, torch.Tensor) else a for a in call.args]
        with with_plan(kernel) if kernel else contextlib.nullcontext():
            result = getattr(torch.ops.ao, call.operator)(*moved, **call.kwargs).cpu()
            plan = f"{call.operator}: {aoext.explain(call.operator, *moved)}"
        torch.cuda.synchronize()
        if not is_right(call, result):
            sys.exit(f"{call.operator} {problem}: the result is wrong")
        plans[plan] = plans.get(plan, 0) + 1
    for plan, count in sorted(plans.items()):
        print(f"  {count:3} calls: {plan}")


def sanitize(
    sanitizer: str, tool: str, family: str, only: str, part: tuple[int, int, int]
) -> tuple[bool, str]:
    """Whether a tool finds nothing in a part of the calls, and what it said."""
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    if family != "newest":
        environment["AOEXT_CUDA_FAMILY"] = family
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20"]
    if tool != "initcheck":  # which must see what other kernels write
        options += ["--kernel-regex", "kernel_substring=aoext"]
    command = [sanitizer, *options, sys.executable, __file__, "--only", only, "--run", *map(str, part)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    clean = re.search(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards", done.stdout)
    if done.returncode == 0 and clean:
        return True, done.stdout
    return False, f"{done.stdout}\n{done.stderr[-4000:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tool", choices=TOOLS, action="append")
    parser.add_argument("--family", choices=FAMILIES, action="append")
    parser.add_argument("--only", default="", help="operators with this in their names")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=10**6)
    parser.add_argument("--run", type=int, nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.only, *arguments.run)
        return
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(sanitizer).is_file():
        sys.exit("cuda_sanitizer.py: compute-sanitizer was not found: it comes with the CUDA toolkit")
    parts, seconds = arguments.parts, arguments.seconds
    runs = list(itertools.product(arguments.family or FAMILIES, arguments.tool or TOOLS, range(parts)))
    bad = []
    with ThreadPoolExecutor(max(1, min(len(runs), (os.cpu_count() or 1) // 2))) as pool:
        results = pool.map(
            lambda run: sanitize(sanitizer, run[1], run[0], arguments.only, (run[2], parts, seconds)), runs
        )
        for (family, tool, part), (good, said) in zip(runs, results, strict=True):
            print(
                f"{tool}, kernels of the {family} family, part {part + 1} of {parts}\n{said.rstrip()}\n",
                flush=True,
            )
            if not good:
                bad.append(f"{tool} ({family}, part {part + 1})")
    if bad:
        sys.exit(f"cuda_sanitizer.py: findings of {', '.join(bad)}")
    print(f"clean: {', '.join(dict.fromkeys(f'{tool} ({family})' for family, tool, _ in runs))}")


if __name__ == "__main__":
    main()
