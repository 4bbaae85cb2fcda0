"""Good calls of every operator, by its own kernel or the generic one, against float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

import aoext
from aoext.reference import (
    ALL_CALLS,
    EIGHT_BIT,
    HIGH_PRECISION,
    INPUT_CALLS,
    TINYGEMM_CALLS,
    Problem,
    assert_close,
    routed,
    sorted_by_expert,
)
from fuzz.draws import LAYOUTS, Answer, Draw, formed, told_call

ROWS = [0, 1, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 129, 300]
COLUMNS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65, 96, 100, 128, 257, 515]
GROUP_SIZES = [2, 3, 6, 8, 10, 16, 24, 32, 32, 48, 64, 96, 128, 256, 384]
PRODUCTS = 2**24  # M·N·K at most, for a reference in float64 takes its time


def draw_problem(draw: Draw) -> Problem:
    M, N = draw.choice(ROWS), draw.choice(COLUMNS)
    group_size = draw.choice(GROUP_SIZES)
    groups = draw.choice([1, 1, 2, 3, 4, 5, 8, 13, 16, 27])
    K = group_size * groups * (2 if group_size * groups % 2 else 1)
    while M * N * K > PRODUCTS:
        M, N = (M + 1) // 2, (N + 1) // 2
    leading = draw.choice([None, None, (), (M,), (1, M), (2, M), (M, 1, 3)])
    dtype, scale_dtype = draw.choice(HIGH_PRECISION), draw.choice(HIGH_PRECISION)
    block_n = draw.choice([1, 1, 2, 3, 7, 16, 128])
    eight_bit, experts = draw.choice(EIGHT_BIT), draw.choice([1, 2, 4, 9])
    return Problem(
        M, N, K, group_size, dtype, scale_dtype, eight_bit, leading, block_n=block_n, experts=experts
    )


def sort(draw: Draw) -> tuple[str, Callable[[], Answer]]:
    experts = draw.choice([1, 2, 8, 129, 8192])
    expert = routed(draw.choice(ROWS), draw.choice([1, 2, 8]), experts, draw.generator())
    expert = formed(expert.to(draw.choice([torch.int32, torch.int64])), draw.choice(LAYOUTS))
    kernel = aoext.ops.generic("sort_by_expert") if draw.chance(0.25) else torch.ops.ao.sort_by_expert

    def attempt() -> Answer:
        results = kernel(expert, experts)
        assert tuple(result.tolist() for result in results) == sorted_by_expert(expert, experts)
        return "ran"

    return told_call("sort_by_expert", (expert, experts), {}), attempt


def good_call(draw: Draw) -> tuple[str, Callable[[], Answer]]:
    if draw.chance(0.02):
        return sort(draw)
    kind = draw.choice(list(ALL_CALLS))
    problem = draw_problem(draw)
    call = ALL_CALLS[kind](problem, draw.generator())
    operator = call.operator
    # An input may lie anyhow. All else is contiguous, but may begin between two words of 16 bytes.
    layouts = [
        draw.choice(LAYOUTS) if i == 0 else draw.choice(["dense", "offset"]) for i in range(len(call.args))
    ]
    if kind not in INPUT_CALLS or kind in TINYGEMM_CALLS:
        layouts[0] = "dense"
    args = tuple(
        formed(arg, layout) if isinstance(arg, Tensor) else arg
        for arg, layout in zip(call.args, layouts, strict=True)
    )
    call = dataclasses.replace(call, args=args)
    generic = draw.chance(0.25)
    kernel = aoext.ops.generic(operator) if generic else getattr(torch.ops.ao, operator)
    words = told_call(f"{'generic ' if generic else ''}{operator}", call.args, call.kwargs)

    def attempt() -> Answer:
        before = [arg.clone() if isinstance(arg, Tensor) else arg for arg in call.args]
        result = kernel(*call.args, **call.kwargs)
        assert_close(result, call.reference, call.terms)
        assert same_bits(kernel(*call.args, **call.kwargs), result), "another call gave other bits"
        for old, new in zip(before, call.args, strict=True):
            assert not isinstance(new, Tensor) or same_bits(old, new), "an argument was overwritten"
        return "ran"

    return words, attempt


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(*(t.flatten().clone().view(torch.uint8) for t in (a, b)))
