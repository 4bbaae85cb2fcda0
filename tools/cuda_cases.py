"""The calls of cuda_sanitizer.py: odd shapes of every operator that has kernels of its own for CUDA."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

BOUND = 1e-2  # of a row's relative error: results are compared to know that kernels ran, tests are stricter

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


class Case(NamedTuple):
    """A call that is yet to be made, and the kernel that it is forced to take, or ""."""

    kind: str  # of reference.ALL_CALLS
    problem: Any  # reference.Problem
    make: Callable[[Any], Any]  # reference.Call of a generator
    kernel: str = ""

    @property
    def size(self) -> int:
        """What it takes to make and to multiply."""
        p = self.problem
        return (p.M + (p.experts if " experts" in self.kind else 1)) * p.N * p.K

    def __str__(self) -> str:
        by = f" by {self.kernel}" if self.kernel else ""
        return f"{self.kind}{by} {self.problem}".replace("torch.", "")


def calls() -> Iterator[Case]:
    """Calls of all operators that have kernels of their own."""
    import torch

    from aoext.reference import ALL_CALLS, EIGHT_BIT, TINYGEMM_CALLS, Problem, call_of, subject
    from aoext.reference.stored import EIGHT_BIT_BLOCKWISE, INT4, LUT4_BLOCKWISE, by_rows
    from aoext.reference.subjects import experts as experts_of
    from aoext.reference.subjects import scaled_linear, scaled_mm, weight_only_linear

    def case(kind: str, p: Problem) -> Case:
        return Case(kind, p, partial(ALL_CALLS[kind], p))

    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    dtypes = ((bf16, bf16), (fp16, fp16), (bf16, fp32), (fp16, bf16), (fp32, fp32))
    linear = ("bf16i4bf16_rowwise", "bf16i4bf16_rowwise_bias")
    for i, (M, N, K, group_size) in enumerate(sorted(SHAPES, key=lambda shape: math.prod(shape[:3]))):
        # With a bias and without take turns, and so do the other dtypes beside bfloat16.
        dtype, scale_dtype = dtypes[1 + i % (len(dtypes) - 1)]
        chosen = [(linear[i % 2], bf16, bf16), (linear[1 - i % 2], dtype, scale_dtype)]
        chosen += [("dequantize int4", dtype, scale_dtype)] if i % 4 == 0 else []
        chosen += [(operator, bf16, bf16) for operator in TINYGEMM_CALLS if N >= 8]
        for operator, *types in chosen:
            yield case(operator, Problem(M, N, K, group_size, *types))
        # One expert, some, and more than a warp finds at once.
        experts = (1, 5, 200)[i % 3] if N * K < 2**20 else 2
        for types in ((bf16, bf16), (dtype, scale_dtype)):
            p = Problem(M, N, K, group_size, *types, experts=experts, bias=i % 2 == 0)
            yield case("weight_only_linear int4 experts", p)
        # The other products of experts take turns: inputs of high precision, of 8 bits, quantised on the way.
        p = Problem(
            M, N, K, group_size, dtype, scale_dtype, experts=experts, block_n=1 + i % 3, bias=i % 2 == 0
        )
        eight_bit, stored = EIGHT_BIT[i % 2], (*LUT4_BLOCKWISE, *EIGHT_BIT_BLOCKWISE)
        for make, weight in (
            (weight_only_linear, by_rows(EIGHT_BIT[i % 3])),
            (weight_only_linear, stored[i % len(stored)]),
            ((scaled_mm, scaled_linear)[i % 2], by_rows(EIGHT_BIT[i % 3], fp32)),
            ((scaled_linear, scaled_mm)[i % 2], EIGHT_BIT_BLOCKWISE[i % len(EIGHT_BIT_BLOCKWISE)]),
            ((scaled_mm, scaled_linear)[i // 2 % 2], INT4),
        ):
            under = (eight_bit if weight is INT4 else weight.dtype,) if make is not weight_only_linear else ()
            product = experts_of(make(weight, "", *under), weight)
            yield Case(product.name, p, partial(call_of, product, p))
        # Two 8-bit products and a dynamic one, which quantises too: all formats within a few shapes.
        weight_only = ("weight_only_linear int8", "weight_only_linear float8")[i % 2]
        scaled = ("int8_mm", "scaled_mm_rowwise", "scaled_mm_rowwise")[i % 3]
        for j, operator in enumerate((weight_only, scaled, "scaled_linear rows")):
            yield case(operator, Problem(M, N, K - i % 5 // 4, K, dtype, fp32, EIGHT_BIT[(i + j) % 3]))
        # One format of 4 bits and one of 8 among those with a scale a block.
        p = Problem(M, N, K, group_size, dtype, scale_dtype, block_n=1 + i % 3)
        for formats in (LUT4_BLOCKWISE, EIGHT_BIT_BLOCKWISE):
            stored = formats[i % len(formats)]
            product = subject("weight_only_linear", stored)
            yield Case(f"weight_only_linear {stored.name}", p, partial(call_of, product, p))
        # Inputs of 8 bits with a scale a block, and on int4: blocks of 128 by 128, of 32, and odd ones.
        block_n, block_k = ((128, 128), (1, 32), (3, 7))[i % 3]
        for j, operator in enumerate(("scaled_mm blocks", "scaled_linear blocks", "scaled_linear int4")):
            group = group_size if operator.endswith("int4") else block_k
            p = Problem(M, N, K, group, dtype, scale_dtype, EIGHT_BIT[(i + j) % 2], block_n=block_n)
            yield case(operator, p)


def calls_by_kernel() -> Iterator[Case]:
    """By a kernel of Hopper's that no plan takes for problems so small."""
    import torch

    from aoext.reference import ALL_CALLS, EIGHT_BIT, Problem

    for M, eight_bit, dtype in itertools.product(
        (20, 150, 300), EIGHT_BIT[:2], (torch.bfloat16, torch.float16)
    ):
        p = Problem(M, 264, 640, 128, dtype, dtype, eight_bit)
        yield Case("scaled_mm int4", p, partial(ALL_CALLS["scaled_mm int4"], p), "scaled_wgmma")


def cases(family: str, only: str, device: str) -> list[Case]:
    """All that a tool runs of a family on this machine, in an order that is the same in every process."""
    import torch

    hopper = device == "cuda" and torch.cuda.get_device_capability() == (9, 0)
    forced = calls_by_kernel() if hopper and family == "newest" else ()
    return [case for case in itertools.chain(forced, calls()) if only in case.kind]


def in_turn(every: Sequence[Case], part: int, parts: int) -> list[int]:
    """The numbers of all cases as one of so many processes takes them: those of its operators first."""
    amount: dict[str, int] = {}
    for case in every:
        amount[case.kind] = amount.get(case.kind, 0) + case.size
    part_of = {operator: i % parts for i, operator in enumerate(sorted(amount, key=lambda o: -amount[o]))}
    return sorted(range(len(every)), key=lambda i: (part_of[every[i].kind] != part, every[i].size))


def is_right(call: Any, result: Any) -> bool:
    """Whether a result, on the CPU, is near the call's reference: exactly that where it is no float64."""
    import torch

    if call.reference.dtype is not torch.float64:
        return torch.equal(result, call.reference)
    norm = call.reference.norm(dim=1)
    return bool(((result.double() - call.reference).norm(dim=1) <= BOUND * norm).all())
