"""The chart of `aoext bench` where the floor is known by size: time ÷ floor by M, of all that was timed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from aoext_bench import charts
from aoext_bench.bench_chart import LINES
from aoext_bench.bench_points import Point
from aoext_bench.ceilings import Ceilings
from aoext_bench.floor_view import Geomean, geomeans

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = {"torch": LINES["torch"], "linear": ("F.linear", "#5b6770", 1.8, "s"), "aoext": LINES["aoext"]}
BACK_TO_BACK = "aoext, back to back"
COLUMNS, WIDTH, HEIGHT = 2, 5.2, 3.4  # panels in a row, inches of one
MOST = 20.0  # times the floor; slower is not shown


def draw(points: Sequence[Point], ceilings: Mapping[int, Ceilings], path: Path, footer: str) -> None:
    """Write the chart: a panel for each kind of product."""
    products = [point for point in points if point.flop]
    means = geomeans(products, ceilings)
    panels = [list(group) for _, group in groupby(means, key=lambda mean: mean.kind)]
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    shapes = len({(point.N, point.K) for point in points})
    width, height = max(8.5, WIDTH * columns), 1.6 + HEIGHT * rows
    with charts.drawn(path, width, height) as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(grid.flat, panels, strict=False):
            _panel(axes, panel, products, ceilings)
        legend = {
            label: handle
            for axes in grid.flat
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        where = "behind a kernel of PyTorch's; " if any(p.behind for p in products) else ""
        labels = [label for label, *_ in reversed(DRAWN.values())]
        charts.headline(
            figure,
            "Time ÷ floor",
            f"{where}by M, geomean over {shapes} shapes; band: best to worst shape; "
            "floor: to read what must move or to multiply",
            footer,
            {label: legend[label] for label in (*labels, BACK_TO_BACK) if label in legend},
        )


def _panel(
    axes: Axes, means: Sequence[Geomean], points: Sequence[Point], ceilings: Mapping[int, Ceilings]
) -> None:
    for name, (label, colour, line_width, marker) in DRAWN.items():
        drawn = [(i, mean.times_floor[name]) for i, mean in enumerate(means) if name in mean.times_floor]
        if drawn:
            x, y = zip(*drawn, strict=True)
            axes.plot(x, y, color=colour, lw=line_width, marker=marker, ms=line_width + 2, label=label)
    own = [p for p in points if p.kind == means[0].kind]
    if any(p.behind for p in own):
        alone = [mean.times_floor_back_to_back for mean in means]
        axes.plot(range(len(means)), alone, color=LINES["aoext"][1], lw=1.2, ls="--", label=BACK_TO_BACK)
    by_m = [[p.seconds["aoext"] / p.floor(ceilings) for p in own if mean.M == p.M] for mean in means]
    low, high = [min(values) for values in by_m], [max(values) for values in by_m]
    axes.fill_between(range(len(means)), low, high, color=LINES["aoext"][1], alpha=0.15, lw=0)
    for i, mean in enumerate(means):
        charts.label(
            axes, f"{mean.times_floor['aoext']:.2f}", (i, mean.times_floor["aoext"]), LINES["aoext"][1]
        )
    axes.axhline(1, color=charts.INK, lw=1, zorder=1)
    axes.set_yscale("log", base=2)
    axes.set_ylim(0.9, min(MOST, max(4.0, 1.2 * max(high))))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_xticks(range(len(means)), [str(mean.M) for mean in means])
    axes.grid(axis="x", visible=False)
    axes.minorticks_off()
    axes.tick_params(labelsize=8.5, which="both", length=0)
    axes.set_title(str(means[0].kind), fontsize=10)
    axes.set_xlabel("M", fontsize=9)
