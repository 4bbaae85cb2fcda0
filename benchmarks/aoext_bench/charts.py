"""The look of all charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patheffects import AbstractPathEffect

INK = "#1f2933"
FAINT = "#7b8794"
GRID = "#e4e7eb"
PAPER = "#ffffff"

_STYLE = {
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "savefig.dpi": 144,
}


@contextmanager
def drawn(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches, saved to `path` at the end. Needs no display."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type, unused-ignore]
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.savefig(path)


def headline(
    figure: Figure,
    title: str,
    explanation: str,
    footer: str,
    legend: Mapping[str, Artist] | None = None,
) -> None:
    """Put a title, lines that explain it and a legend above all axes, and a footer below them."""
    width, height = figure.get_size_inches()
    x = 0.2 / width
    more = 0.18 * explanation.count("\n")  # inches of further lines
    top = (1.15 if legend else 0.85) + more  # inches that are kept free for all this
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, 0.4 / height, 1, 1 - (top + 0.4) / height))  # type: ignore[call-arg]
    figure.text(x, 1 - 0.2 / height, title, fontsize=15, fontweight="bold", va="top")
    figure.text(x, 1 - 0.53 / height, explanation, fontsize=10, color=FAINT, va="top", linespacing=1.35)
    figure.text(x, 0.12 / height, footer, fontsize=8.5, color=FAINT, va="bottom")
    if legend:
        figure.legend(
            list(legend.values()),
            list(legend),
            loc="upper left",
            bbox_to_anchor=(x, 1 - (0.75 + more) / height),
            borderpad=0,
            borderaxespad=0,
            ncols=len(legend),
        )


def bare(axes: Axes, *sides: str) -> None:
    """Take away the frame on some sides, and its ticks."""
    for side in sides:
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)


def outline(width: float) -> list[AbstractPathEffect]:
    """What makes a text readable on top of lines."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=width, foreground=PAPER)]


def label(axes: Axes, text: str, at: tuple[float, float], colour: str) -> None:
    """A small text above a point, readable on top of lines."""
    axes.annotate(
        text,
        at,
        xytext=(0, 6),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
        color=colour,
        zorder=5,
        path_effects=outline(2.5),
    )


def bar_label(axes: Axes, text: str, x: float, y: float) -> None:
    """A text behind the end of a horizontal bar."""
    axes.annotate(
        text,
        (x, y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=9.5,
        path_effects=outline(4),
    )
