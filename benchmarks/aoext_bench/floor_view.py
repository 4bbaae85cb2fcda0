"""Times over all shapes: what a kernel is worth at each M, against the floor and the other candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import geometric_mean

from rich.table import Table
from rich.text import Text

from aoext.cli.page import grid, in_words
from aoext_bench.bench_points import CANDIDATES, Kind, Point, sections
from aoext_bench.ceilings import Ceilings

OTHERS = ("linear", "torch")

# Characters of a line of a kind's name in the summary.
NAME = 42

# Up to so many rows of the input a product should take what reading its weight takes.
FEW_ROWS = 4


@dataclass(frozen=True)
class Geomean:
    """Means over the shapes, for one kind at one M. A candidate has one if it was timed at all shapes."""

    kind: Kind
    M: int
    times_read_floor: float
    times_floor: dict[str, float]
    times_floor_back_to_back: float  # of aoext
    speedup: dict[str, float]  # of aoext over another candidate
    least_speedup: dict[str, float]


def geomeans(points: Sequence[Point], ceilings: Mapping[int, Ceilings]) -> list[Geomean]:
    """For each kind that depends on M and each M, in their order."""
    means = []
    for section in sections(point for point in points if point.M is not None):
        ordered = sorted(section, key=_rows)
        means += [_geomean(M, list(group), ceilings) for M, group in groupby(ordered, key=_rows)]
    return means


def _rows(point: Point) -> int:
    return point.M or 0


def _geomean(M: int, points: list[Point], ceilings: Mapping[int, Ceilings]) -> Geomean:
    timed = [name for name in CANDIDATES if all(name in point.seconds for point in points)]
    speedups = {
        name: [point.seconds[name] / point.seconds["aoext"] for point in points]
        for name in timed
        if name != "aoext"
    }
    return Geomean(
        points[0].kind,
        M,
        geometric_mean([point.times_read_floor(ceilings) for point in points]),
        {name: geometric_mean([p.seconds[name] / p.floor(ceilings) for p in points]) for name in timed},
        geometric_mean([p.back_to_back.get("aoext", p.seconds["aoext"]) / p.floor(ceilings) for p in points]),
        {name: geometric_mean(values) for name, values in speedups.items()},
        {name: min(values) for name, values in speedups.items()},
    )


def by_size(ceilings: Mapping[int, Ceilings]) -> bool:
    """Whether reads were measured by size, so that the floor of each call is known well."""
    return any(own.read_seconds for own in ceilings.values())


def at_each_shape(section: Sequence[Point], ceilings: Mapping[int, Ceilings]) -> Table:
    """A line for each M: time ÷ floor at each shape, their geomean, and how the others stand."""
    table = grid(
        f"{section[0].kind}: time ÷ floor at each N x K; floor = max(read of its bytes, FLOP ÷ peak)"
    )
    shapes = list(dict.fromkeys((point.N, point.K) for point in section))
    table.add_column("M", justify="right")
    for N, K in shapes:
        table.add_column(f"{N}\nx{K}", justify="right", no_wrap=True)
    table.add_column("geomean", justify="right", style="bold")
    behind = any(point.behind for point in section)
    if behind:
        table.add_column("back to\nback", justify="right")
    for other in OTHERS:
        table.add_column(f"vs {other}\nleast", justify="right")
        table.add_column("\ngeomean", justify="right")
    for mean in geomeans(section, ceilings):
        own = {(p.N, p.K): p.seconds["aoext"] / p.floor(ceilings) for p in section if p.M == mean.M}
        cells = [str(mean.M), *(_number(own.get(shape)) for shape in shapes)]
        cells.append(_number(mean.times_floor["aoext"]))
        cells += [_number(mean.times_floor_back_to_back)] * behind
        for other in OTHERS:
            cells.append(_number(mean.least_speedup.get(other), "×"))
            cells.append(_number(mean.speedup.get(other), "×"))
        table.add_row(*cells)
    return table


def summary(threads: int, points: Sequence[Point], ceilings: Mapping[int, Ceilings]) -> Table:
    """Geomeans over the shapes with so many threads: lines for each kind, a column for each M."""
    own = [point for point in points if point.threads == threads]
    means = geomeans(own, ceilings)
    table = grid(
        f"{in_words(threads)}, geomean over the shapes; reads: {ceilings[threads].read_gb_per_s:.1f} GB/s"
    )
    table.add_column("", max_width=NAME)
    table.add_column("M", no_wrap=True)
    rows = sorted({mean.M for mean in means})
    for M in rows:
        table.add_column(str(M), justify="right", no_wrap=True)
    for section in sections(own):
        first = section[0]
        by_rows = {mean.M: mean for mean in means if mean.kind == first.kind}
        name = str(first.kind)
        if len(name) > NAME:  # lines break between operator and format
            name = name.replace(" [", "\n[", 1)
        for label, value in _ratios(first).items():
            cells = [value(by_rows[M]) if M in by_rows else None for M in rows]
            if any(cell is not None for cell in cells):
                unit = "×" if label.startswith("vs") else ""
                table.add_row(Text(name), label, *(_number(cell, unit) for cell in cells))
                name = ""
    return table


def _ratios(point: Point) -> dict[str, Callable[[Geomean], float | None]]:
    """What the summary says of points like this one, by label."""
    if point.peer_is_floor:
        return {f"÷ {point.peer}": lambda mean: _inverse(mean.speedup.get("torch"))}
    return {
        "÷ read floor": lambda mean: mean.times_read_floor if mean.M <= FEW_ROWS else None,
        "vs linear": lambda mean: mean.speedup.get("linear"),
        "vs torch": lambda mean: mean.speedup.get("torch"),
    }


def _inverse(value: float | None) -> float | None:
    return None if value is None else 1 / value


def _number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}{unit}"


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
