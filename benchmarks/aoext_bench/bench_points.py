"""What `aoext bench` measures, and what a measurement holds: settings, problems, points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from aoext.cli.shapes import Shape
from aoext.reference import Problem, Subject, full_name
from aoext_bench.ceilings import Ceilings
from aoext_bench.devices import Device

CANDIDATES = ("aoext", "linear", "generic", "torch")


@dataclass(frozen=True)
class Settings:
    """What to measure and how."""

    device: Device
    subjects: Sequence[Subject]
    shapes: Sequence[Shape]
    rows: Sequence[int]  # the M of each shape
    dtype: torch.dtype
    group_sizes: Sequence[int]
    threads: Sequence[int]  # of the CPU
    seed: int
    seconds: float  # for each candidate of a point
    pool_bytes: int
    check: bool
    generic: bool = True  # whether the generic twin is a candidate
    bias: bool = False  # whether operators that take one or none get one
    plans: Sequence[str] = ()  # to force, each a candidate of its own: "kernel field=value …"
    experts: int = 0  # of products by expert, where a row of the M is a token that chooses
    top_k: int = 1  # of them
    linear: Sequence[torch.dtype] = ()  # F.linear's, of which the fastest counts; dtype where there is none


class Kind(NamedTuple):
    """What the points of a table have in common."""

    operator: str
    format: str
    group_size: int | None
    threads: int

    def __str__(self) -> str:
        """Without the threads."""
        group = "" if self.group_size is None else f", group size {self.group_size}"
        return f"{full_name(self.operator, self.format)}{group}"


@dataclass
class Point:
    """What was measured for one subject and one problem; times in seconds."""

    operator: str
    format: str
    M: int | None  # None where the operator does not depend on it
    N: int | None
    K: int
    group_size: int | None
    threads: int
    layer: str
    plan: str  # what aoext.explain says
    peer: str | None  # torch's operator
    peer_is_floor: bool  # whether the peer only moves the bytes
    bytes: int  # read and written at least once by aoext's kernel
    bytes_from_memory: int  # of what rotates: the weight with its scales, or what is quantised
    flop: int
    floor_flop: int  # those that the ceiling for products in bfloat16 binds
    floor_flop8: int  # those that the one for products of 8-bit operands does
    # By candidate, plans that were forced by their own text: behind, else back to back.
    seconds: dict[str, float] = field(default_factory=dict)
    behind: dict[str, float] = field(default_factory=dict)  # a kernel of PyTorch's, where that was timed
    back_to_back: dict[str, float] = field(default_factory=dict)
    cpu_share: float | None = None  # of all timed calls: how long the calling thread had a core
    calls: dict[str, int] = field(default_factory=dict)
    clocks: dict[str, str] = field(default_factory=dict)  # how each was timed
    missing: dict[str, str] = field(default_factory=dict)  # candidate -> why it was not timed
    errors: dict[str, float] = field(default_factory=dict)  # relative, against float64

    @property
    def kind(self) -> Kind:
        return Kind(self.operator, self.format, self.group_size, self.threads)

    def speedup(self, over: str) -> float | None:
        """How many times as fast as another candidate aoext is."""
        return self.seconds[over] / self.seconds["aoext"] if over in self.seconds else None

    def floor(self, ceilings: Mapping[int, Ceilings]) -> float:
        """Seconds that no kernel can do without: to read the bytes, or to multiply."""
        return ceilings[self.threads].floor(self.bytes, self.floor_flop, self.floor_flop8)

    def times_read_floor(self, ceilings: Mapping[int, Ceilings]) -> float:
        """aoext's time over that to read what no cache holds, with as many threads."""
        return self.seconds["aoext"] / ceilings[self.threads].reading(self.bytes_from_memory)

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.seconds["aoext"] / 1e9

    @property
    def gflop_per_s(self) -> float:
        return self.flop / self.seconds["aoext"] / 1e9


def rows_of(subject: Subject, settings: Settings) -> Sequence[int]:
    """The M to measure for a subject; any single one where M does not matter."""
    return settings.rows if {"M", "T"} & set(subject.result) else settings.rows[:1]


def shapes_of(subject: Subject, settings: Settings) -> Sequence[Shape]:
    """The shapes to measure for a subject; one of each K where N does not matter."""
    if subject.depends_on_rows_of_the_weight:
        return settings.shapes
    return list({shape.K: Shape(shape.N, shape.K) for shape in reversed(settings.shapes)}.values())[::-1]


def problems(subject: Subject, settings: Settings) -> list[list[Problem]]:
    """The problems to measure for a subject, those with the same weight together."""
    group_sizes = settings.group_sizes if subject.grouped else settings.group_sizes[:1]
    return [
        [_problem(subject, settings, M, shape, group_size) for M in rows_of(subject, settings)]
        for group_size in group_sizes
        for shape in shapes_of(subject, settings)
    ]


def _problem(subject: Subject, settings: Settings, M: int, shape: Shape, group_size: int) -> Problem:
    """Experts have no bias, as torch's grouped product has none; each token chooses others at random."""
    sizes = shape.N, shape.K, group_size, settings.dtype, None
    if not subject.by_expert:
        return Problem(M, *sizes, bias=settings.bias)
    g = torch.Generator().manual_seed(settings.seed + M)
    chosen = torch.rand(M, settings.experts, generator=g).topk(settings.top_k).indices
    ends = chosen.flatten().bincount(minlength=settings.experts).cumsum(0).tolist()
    return Problem(M * settings.top_k, *sizes, bias=False, experts=settings.experts, offsets=tuple(ends))


def sections(points: Iterable[Point]) -> list[list[Point]]:
    """The points of each kind together, in the order in which the kinds first come."""
    found: dict[Kind, list[Point]] = {}
    for point in points:
        found.setdefault(point.kind, []).append(point)
    return list(found.values())


def count_candidates(settings: Settings) -> int:
    """How many candidates a point has at most."""
    others = len(settings.plans) + max(0, len(settings.linear) - 1)
    return len(CANDIDATES) - (not settings.generic) + others


def count_points(settings: Settings) -> int:
    count = sum(len(same) for subject in settings.subjects for same in problems(subject, settings))
    return count * len(settings.threads)
