"""What `aoext bench` measures if it is not told, by device, and how long that takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from aoext.cli.shapes import LLAMA_3_8B, LLAMA_3_8B_AND_70B, LLAMA_3_8B_IN_BRIEF, Shape
from aoext.reference import Problem
from aoext_bench.bench_points import Settings, count_candidates, problems
from aoext_bench.devices import Device
from aoext_bench.timing import most_spent


@dataclass(frozen=True)
class Defaults:
    """For one type of device."""

    shapes: Sequence[Shape]
    shapes_are: str
    rows: Sequence[int]  # M; the first are the last to be left out
    seconds: float  # for each candidate of a point
    quick_seconds: float
    group_sizes: Sequence[int] = (128,)  # the first with --quick
    threads: Sequence[int] = ()  # of the CPU, the last with --quick; torch's choice if there are none
    minutes: float | None = None  # the most that all default M may take
    generic: bool = True  # whether the generic twin is timed
    bias: bool = False  # whether operators that take one or none get one

    # For the estimate, in seconds: before the first point, around each candidate (capture, check), and for
    # each byte of a pool that is filled; and how fast a thread computes where that may exceed the time for
    # a candidate, F.linear and all others.
    begin: float = 2.0
    around: float = 0.0
    fill: float = 1 / 3e9
    linear_flop_per_s: float = math.inf
    flop_per_s: float = math.inf


QUICK_ROWS = (1, 16, 128)

# Without AVX-512 ATen has no bfloat16 product worth the name.
_CPU_LINEAR = 150e9 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8e9

_DEFAULTS = Defaults(LLAMA_3_8B, "the linear layers of Llama 3 8B", (1, 4, 16, 32, 128, 512), 0.3, 0.06)
DEFAULTS = {
    # What the goals for CPUs are stated in.
    "cpu": Defaults(
        LLAMA_3_8B_IN_BRIEF,
        "three linear layers of Llama 3 8B, square, wide and long",
        (1, 2, 4, 8, 16, 32, 128, 512, 2048),
        seconds=0.3,
        quick_seconds=0.06,
        group_sizes=(128, 32),
        threads=(1, 2),
        generic=False,
        bias=True,
        begin=15.0,
        linear_flop_per_s=_CPU_LINEAR,
        flop_per_s=80e9,
    ),
    "cuda": Defaults(
        LLAMA_3_8B_AND_70B,
        "the linear layers of Llama 3 8B and 70B",
        (1, 16, 256, 4096, 64, 1024, 4, 8, 32, 128, 512, 2),
        seconds=0.05,
        quick_seconds=0.02,
        minutes=8.0,
        generic=False,  # a hundred times as slow, and it would cool the GPU for whoever comes after it
        begin=15.0,
        around=0.2,
        fill=1 / 200e9,
    ),
}


def defaults(device: Device) -> Defaults:
    """What a run on this type of device does unless told otherwise."""
    return DEFAULTS.get(device.device.type, _DEFAULTS)


def estimate(settings: Settings) -> float:
    """Roughly how many seconds a run takes at most."""
    own = defaults(settings.device)
    weights = [same for subject in settings.subjects for same in problems(subject, settings)]
    fill = count_candidates(settings) * len(weights) * settings.pool_bytes * own.fill
    every = (p for same in weights for p in same)
    return (
        own.begin + fill + sum(_at_most(p, threads, settings) for p in every for threads in settings.threads)
    )


def _at_most(p: Problem, threads: int, settings: Settings) -> float:
    """Roughly how many seconds a point takes at most."""
    own = defaults(settings.device)
    rates = [own.linear_flop_per_s] + (count_candidates(settings) - 1) * [own.flop_per_s]
    calls = [2 * p.M * p.N * p.K / rate / threads for rate in rates]
    once = sum(own.around + call + most_spent(call, settings.seconds) for call in calls)
    return once * (2 if settings.device.BEHIND else 1)


def within(settings: Settings, minutes: float) -> Settings:
    """With as many of the M, in their order, as fit into so many minutes; with the first one in any case."""
    rows = settings.rows
    while len(rows) > 1 and estimate(replace(settings, rows=rows)) > 60 * minutes:
        rows = rows[:-1]
    return replace(settings, rows=rows)
