"""The chart of `aoext quality`: a line for each scheme, with a point for each algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aoext_bench import charts
from aoext_bench.quality_models import Subject
from aoext_bench.quality_run import Result

if TYPE_CHECKING:
    from matplotlib.artist import Artist

WIDTH, LINE, REST = 8.5, 0.32, 2.6  # inches: of a panel, of a scheme, and above and below
# Algorithms have these in the order in which they come.
COLOURS = ("#9aa5b1", "#0b69c7", "#f2a654", "#2f8f5b", "#6f3fb8", "#b8304f")


def draw(results: Sequence[Result], subjects: Sequence[Subject], path: Path, footer: str) -> None:
    """Write the chart: a panel for each model, the largest schemes on top."""
    algorithms = list(dict.fromkeys(result.algorithm for result in results))
    bits = {result.scheme: result.bits_per_weight for result in results}
    schemes = list(reversed(bits))
    legend: dict[str, Artist] = {}
    with charts.drawn(path, WIDTH * len(subjects), LINE * len(schemes) + REST) as figure:
        panels = figure.subplots(1, len(subjects), squeeze=False)[0]
        for axes, subject in zip(panels, subjects, strict=True):
            own = [result for result in results if result.model == subject.name]
            axes.set_title(f"{subject.name}, perplexity {subject.base.perplexity:.2f} in bfloat16")
            axes.set_xlabel("KL from the original, nats a token")
            axes.set_xscale("log")
            axes.set_yticks(range(len(schemes)), [f"{s}   {bits[s]:.2f} bits" for s in schemes])
            axes.set_ylim(-0.6, len(schemes) - 0.4)
            charts.bare(axes, "left")
            for algorithm, colour in zip(algorithms, COLOURS, strict=False):
                points = [result for result in own if result.algorithm == algorithm]
                legend[algorithm] = axes.scatter(
                    [point.evaluation.divergence for point in points],
                    [schemes.index(point.scheme) for point in points],
                    s=70,
                    color=colour,
                    zorder=3,
                    edgecolors=charts.PAPER,
                )
        charts.headline(
            figure,
            "The same bits, better numbers",
            "Held-out text; the original is the model in bfloat16. Further to the left is better.",
            footer,
            legend,
        )
