"""The chart of `aoext bench`: how many times as fast as F.linear, for each operator, shape and M."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from aoext.cli.page import in_words
from aoext_bench import charts
from aoext_bench.bench_points import Point, sections

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Candidate -> label, colour, line width, marker; drawn in this order, aoext on top.
LINES = {
    "generic": ("generic twin", "#9aa5b1", 1.5, "s"),
    "torch": ("torch's quantised operator", "#d9822b", 1.8, "D"),
    "aoext": ("aoext", "#0b69c7", 2.6, "o"),
}
BASES = ("linear", "generic", "torch", "aoext")  # what is 1×: the first that was timed
COLUMN, ROW = 2.5, 2.2  # inches of one panel

# Multiples of F.linear's speed that a panel shows at least, and at most below 1.
SHOWN, FLOOR = (0.45, 2.2), 1 / 16


def draw(points: Sequence[Point], path: Path, footer: str) -> None:
    """Write the chart: a row of panels for each kind, a panel for each shape."""
    rows = sections(points)
    panels = [[list(group) for _, group in groupby(row, key=lambda p: (p.N, p.K))] for row in rows]
    columns = max(map(len, panels))
    width, height = max(8.5, 1.0 + COLUMN * columns), 1.6 + ROW * len(panels)
    with charts.drawn(path, width, height) as figure:
        grid = figure.subplots(len(panels), columns, squeeze=False)
        for axes_row, row in zip(grid, panels, strict=True):
            for axes in axes_row[len(row) :]:
                axes.set_axis_off()
            for axes, panel in zip(axes_row, row, strict=False):
                _panel(axes, panel)
            first = row[0][0]
            group = "" if first.group_size is None else f", group {first.group_size}"
            label = f"{first.operator}\n{first.format}{group}, {in_words(first.threads)}"
            axes_row[0].set_ylabel(label, fontsize=8, fontweight="bold")
        handles = {
            label: handle
            for axes in grid.flat
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        charts.headline(
            figure,
            "How many times as fast as F.linear",
            f"by rows of the input (M); below {_multiple(FLOOR, 0)} nothing is shown",
            footer,
            {label: handles[label] for label, *_ in reversed(LINES.values()) if label in handles},
        )


def relative(point: Point) -> Mapping[str, float]:
    """Speeds of the candidates as multiples of that of the first of BASES."""
    base = point.seconds[_base(point)]
    return {name: base / seconds for name, seconds in point.seconds.items() if name in LINES}


def _base(point: Point) -> str:
    return next(name for name in BASES if name in point.seconds)


def _panel(axes: Axes, panel: Sequence[Point]) -> None:
    speeds = [relative(point) for point in panel]
    for name, (label, colour, line_width, marker) in LINES.items():
        drawn = [(i, speed[name]) for i, speed in enumerate(speeds) if name in speed]
        if drawn:
            x, y = zip(*drawn, strict=True)
            size = line_width + 2
            axes.plot(x, y, color=colour, lw=line_width, marker=marker, ms=size, label=label)
    axes.axhline(1, color=charts.INK, lw=1, zorder=1)
    for i, speed in enumerate(speeds):
        charts.label(axes, _rounded(speed["aoext"]), (i, speed["aoext"]), LINES["aoext"][1])

    axes.set_yscale("log", base=2)
    axes.margins(x=0.12, y=0.25)
    low, high = axes.get_ylim()
    lowest = min(FLOOR, 0.7 * min(speed["aoext"] for speed in speeds))
    axes.set_ylim(max(lowest, min(low, SHOWN[0])), max(high, SHOWN[1]))
    axes.yaxis.set_major_formatter(_multiple)
    axes.set_xticks(range(len(panel)), ["any" if p.M is None else str(p.M) for p in panel])
    axes.grid(axis="x", visible=False)
    axes.minorticks_off()
    axes.tick_params(labelsize=8.5, which="both", length=0)
    first = panel[0]
    shape = f"{first.N}×{first.K}" if first.N is not None else f"K = {first.K}"
    base = _base(first)
    note = "" if base == "linear" else f", 1× is {first.peer if base == 'torch' else base}"
    axes.set_title(shape + note, fontsize=9.5, pad=4, fontweight="bold")
    axes.set_xlabel(f"M   ({first.layer})" if first.layer else "M", fontsize=8)


def _multiple(value: float, _: float) -> str:
    return f"{value:g}×" if value >= 1 else f"1/{1 / value:.0f}×"


def _rounded(value: float) -> str:
    return f"{value:.0f}×" if value >= 10 else f"{value:.2g}×"
