"""Times against the floor, over all shapes: what a kernel is worth at each M."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import geometric_mean

from rich import box
from rich.table import Table
from rich.text import Text

from aoext.cli.bench_run import CANDIDATES, Point
from aoext.cli.ceilings import Ceilings
from aoext.cli.subjects import Subject

OTHERS = ("linear", "torch")


@dataclass(frozen=True)
class Geomean:
    """Of one subject at one M, over the shapes; of each candidate, where it was timed at all of them."""

    operator: str
    format: str
    M: int
    times_floor: dict[str, float]
    speedup: dict[str, float]  # of aoext over another candidate
    least_speedup: dict[str, float]


def geomeans(points: Sequence[Point], ceilings: Ceilings) -> list[Geomean]:
    """For each subject that multiplies and each M, in their order."""
    of_products = [point for point in points if point.M is not None and point.flop]
    order = {(p.operator, p.format): i for i, p in reversed(list(enumerate(of_products)))}
    ordered = sorted(of_products, key=lambda p: (order[p.operator, p.format], p.M or 0))
    groups = groupby(ordered, key=lambda p: (p.operator, p.format, p.M or 0))
    return [_geomean(*key, list(group), ceilings) for key, group in groups]


def _geomean(operator: str, format: str, M: int, points: list[Point], ceilings: Ceilings) -> Geomean:
    timed = [name for name in CANDIDATES if all(name in point.seconds for point in points)]
    speedups = {
        name: [point.seconds[name] / point.seconds["aoext"] for point in points]
        for name in timed
        if name != "aoext"
    }
    return Geomean(
        operator,
        format,
        M,
        {name: geometric_mean([p.seconds[name] / p.floor(ceilings) for p in points]) for name in timed},
        {name: geometric_mean(values) for name, values in speedups.items()},
        {name: min(values) for name, values in speedups.items()},
    )


def summary(subject: Subject, points: Sequence[Point], ceilings: Ceilings) -> Table:
    """A line for each M: time ÷ floor at each shape, their geomean, and how the others stand."""
    title = f"{subject.name}: time ÷ floor at each N x K; floor = max(read of its bytes, FLOP ÷ peak)"
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    shapes = list(dict.fromkeys((point.N, point.K) for point in points))
    table.add_column("M", justify="right")
    for N, K in shapes:
        table.add_column(f"{N}\nx{K}", justify="right", no_wrap=True)
    table.add_column("geomean", justify="right", style="bold")
    for other in OTHERS:
        table.add_column(f"vs {other}\nleast", justify="right")
        table.add_column("\ngeomean", justify="right")
    for mean in geomeans(points, ceilings):
        own = {(p.N, p.K): p.seconds["aoext"] / p.floor(ceilings) for p in points if p.M == mean.M}
        cells = [str(mean.M), *(_number(own.get(shape)) for shape in shapes)]
        cells.append(_number(mean.times_floor["aoext"]))
        for other in OTHERS:
            cells.append(_number(mean.least_speedup.get(other), "×"))
            cells.append(_number(mean.speedup.get(other), "×"))
        table.add_row(*cells)
    return table


def _number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:.{2 if value < 10 else 1}f}{unit}"


def read_table(ceilings: Ceilings) -> str:
    """Sizes and times of reads in two lines."""
    sizes = sorted(ceilings.read_seconds)
    megabytes = [f"{size / 1e6:g}" for size in sizes]
    times = [f"{ceilings.read_seconds[size] * 1e6:.{2 if size < 1e8 else 0}f}" for size in sizes]
    widths = [max(map(len, pair)) for pair in zip(megabytes, times, strict=True)]
    lines = (
        name + " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        for name, cells in (("read, cold, MB ", megabytes), ("           µs  ", times))
    )
    return "\n".join(lines)
