"""The chart of `aoext demo`: quality against bytes, and the speed of prefill and decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aoext.cli import charts
from aoext.cli.demo_run import BASELINE, DemoResult, SchemeResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A hue for each format; the darker one is weight-only, or the larger group.
COLOURS = {
    "bf16": "#52606d",
    "int8 weight-only": "#0b69c7",
    "int8 dynamic": "#7cb8f2",
    "float8 weight-only": "#6f3fb8",
    "float8 dynamic": "#bb9ee6",
    "int4 group 128": "#c65d00",
    "int4 group 32": "#f2a654",
}
WIDTH, HEIGHT = 14, 5.6
LINE = 0.075  # least distance of labels, as a part of the axis


def draw(result: DemoResult, path: Path, footer: str) -> None:
    """Write the chart."""
    with charts.drawn(path, WIDTH, HEIGHT) as figure:
        quality, prefill, decode = figure.subplots(1, 3, width_ratios=(1.6, 1, 1))
        _quality(quality, result.schemes)
        _bars(prefill, result, "Prefill", lambda scheme: scheme.prefill_tokens_per_s)
        _bars(decode, result, "Decode", lambda scheme: scheme.decode_tokens_per_s)
        prefill.set_yticks(range(len(result.schemes)), [scheme.name for scheme in reversed(result.schemes)])
        decode.set_yticks([])
        count = result.parameters / 1e6
        charts.headline(
            figure,
            "What quantisation costs, saves and gains",
            f"a trained byte-level language model of {count:.1f} million parameters, "
            f"{result.windows} windows of held-out text",
            footer,
        )


def _quality(axes: Axes, schemes: Sequence[SchemeResult]) -> None:
    """Bits per byte over megabytes; labels stand beside the points, apart from each other."""
    values = [scheme.bits_per_byte for scheme in schemes]
    low, high = min(values), max(values)
    room = 0.25 * (high - low) or 0.05
    axes.set_ylim(low - room, high + room)
    most = max(scheme.weight_bytes for scheme in schemes) / 1e6
    axes.set_xlim(0, 1.12 * most)
    axes.set_title("Quality against bytes")
    axes.set_xlabel("linear weights, MB")
    axes.set_ylabel("bits per byte of held-out text (lower is better)")
    charts.bare(axes)
    least = LINE * (high - low + 2 * room)
    columns = _columns(schemes, most)
    for column in columns:
        # Outer ones to the left, where there is room for them.
        left = column in (columns[0], columns[-1])
        places = _apart([scheme.bits_per_byte for scheme in column], least)
        for scheme, place in zip(column, places, strict=True):
            x, y = scheme.weight_bytes / 1e6, scheme.bits_per_byte
            axes.scatter(x, y, s=95, color=COLOURS[scheme.name], zorder=3, edgecolors=charts.PAPER)
            axes.annotate(
                scheme.name,
                (x, y),
                xytext=(x - 0.035 * most if left else x + 0.06 * most, place),
                ha="right" if left else "left",
                va="center",
                fontsize=9.5,
                arrowprops={"arrowstyle": "-", "color": charts.FAINT, "lw": 0.7, "shrinkB": 5},
            )


def _columns(schemes: Sequence[SchemeResult], most: float) -> list[list[SchemeResult]]:
    """Schemes of about the same size, each group from low to high."""
    columns: list[list[SchemeResult]] = []
    for scheme in sorted(schemes, key=lambda s: s.weight_bytes):
        near = columns and scheme.weight_bytes - columns[-1][-1].weight_bytes < 0.1e6 * most
        if near:
            columns[-1].append(scheme)
        else:
            columns.append([scheme])
    return [sorted(column, key=lambda s: s.bits_per_byte) for column in columns]


def _apart(values: Sequence[float], least: float) -> list[float]:
    """Places near ascending values, `least` from each other at least, with the same middle."""
    places: list[float] = []
    for value in values:
        places.append(max(value, places[-1] + least) if places else value)
    shift = (sum(places) - sum(values)) / len(values)
    return [place - shift for place in places]


def _bars(axes: Axes, result: DemoResult, title: str, speed: Callable[[SchemeResult], float]) -> None:
    """A bar for each scheme, the first on top, with its ratio to bf16; a line marks bf16."""
    schemes = list(reversed(result.schemes))
    speeds = [speed(scheme) for scheme in schemes]
    base = speed(result.baseline)
    axes.barh(
        range(len(schemes)),
        speeds,
        height=0.68,
        color=[COLOURS[scheme.name] for scheme in schemes],
    )
    axes.axvline(base, color=charts.FAINT, lw=1, ls=(0, (3, 3)), zorder=0.5)
    most = max(speeds)
    for i, (scheme, value) in enumerate(zip(schemes, speeds, strict=True)):
        ratio = "" if scheme.name == BASELINE else f"  {value / base:.2f}×"
        charts.bar_label(axes, f"{value:,.0f}{ratio}", value, i)
    axes.set_xlim(0, 1.45 * most)
    axes.set_xticks([])
    axes.set_title(f"{title}, tokens per second")
    axes.grid(visible=False)
    charts.bare(axes, "left", "bottom")
