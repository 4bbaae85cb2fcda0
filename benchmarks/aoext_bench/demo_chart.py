"""The chart of `aoext demo`: quality against bits per weight, and the speed of prefill and decode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aoext_bench import charts, demo_view
from aoext_bench.demo_run import SCHEMES, TRAINED, DemoResult, SchemeResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A hue for each format; the darker one is weight-only, or the larger group.
COLOURS = {
    "float32": "#9aa5b1",
    "bf16": "#52606d",
    "int8 weight-only": "#0b69c7",
    "int8 dynamic": "#7cb8f2",
    "float8 weight-only": "#6f3fb8",
    "float8 dynamic": "#bb9ee6",
    "int4 group 128": "#c65d00",
    "int4 group 32": "#f2a654",
    "int4 under int8": "#8a5a00",
    "float8 block": "#4b2a80",
    "mxfp8": "#d9c8f2",
    "mxfp4": "#2f8f5b",
    "nvfp4": "#83c9a3",
    "nf4": "#b8304f",
}
WIDTH, HEIGHT = 14, 5.8
LINE = 0.075  # least distance of labels, as a part of the axis


def draw(result: DemoResult, path: Path, footer: str) -> None:
    """Write the chart."""
    with charts.drawn(path, WIDTH, HEIGHT) as figure:
        quality, prefill, decode = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        _quality(quality, result)
        base = result.prefill_base
        _bars(prefill, result, f"Prefill, tokens/s (× {base.name})", base, _prefill)
        base = result.decode_base
        _bars(decode, result, f"Decode, tokens/s (× {base.name})", base, _decode)
        prefill.set_yticks(range(len(result.schemes)), [scheme.name for scheme in reversed(result.schemes)])
        decode.set_yticks([])
        charts.headline(figure, demo_view.headline(result), "\n".join(demo_view.models(result)), footer)


def _prefill(scheme: SchemeResult) -> float:
    return scheme.prefill_tokens_per_s


def _decode(scheme: SchemeResult) -> float:
    return scheme.decode_tokens_per_s


def _quality(axes: Axes, result: DemoResult) -> None:
    """Change of bits per byte over bits per weight; labels stand beside the points, apart from each other."""
    schemes = [scheme for scheme in result.schemes if scheme.name in SCHEMES or scheme.name == TRAINED]
    changes = {scheme.name: 100 * scheme.change_from(result.trained)[0] for scheme in schemes}
    errors = {scheme.name: 100 * scheme.change_from(result.trained)[1] for scheme in schemes}
    low = min(changes[name] - errors[name] for name in changes)
    high = max(changes[name] + errors[name] for name in changes)
    room = 0.2 * (high - low) or 0.05
    axes.set_ylim(low - room, high + room)
    most = max(scheme.size.bits_per_weight for scheme in schemes)
    axes.set_xlim(0, 1.12 * most)
    axes.set_title("Quality against size (lower is better)")
    axes.set_xlabel("bits per weight of the linear layers, with scales")
    axes.set_ylabel(f"bits per byte, % above {TRAINED} (± standard error)")
    axes.axhline(0, color=charts.FAINT, lw=1, ls=(0, (3, 3)), zorder=0.5)
    charts.bare(axes)
    least = LINE * (high - low + 2 * room)
    columns = _columns(schemes, most, changes)
    for column in columns:
        # Outer ones to the left, where there is room for them.
        left = column in (columns[0], columns[-1])
        places = _apart([changes[scheme.name] for scheme in column], least)
        for scheme, place in zip(column, places, strict=True):
            x, y = scheme.size.bits_per_weight, changes[scheme.name]
            axes.errorbar(x, y, errors[scheme.name], color=COLOURS[scheme.name], lw=1.2, capsize=3, zorder=2)
            axes.scatter(x, y, s=95, color=COLOURS[scheme.name], zorder=3, edgecolors=charts.PAPER)
            axes.annotate(
                scheme.name,
                (x, y),
                xytext=(x - 0.035 * most if left else x + 0.06 * most, place),
                ha="right" if left else "left",
                va="center",
                fontsize=9.5,
                path_effects=charts.outline(4),
                arrowprops={"arrowstyle": "-", "color": charts.FAINT, "lw": 0.7, "shrinkB": 5},
            )


def _columns(
    schemes: Sequence[SchemeResult], most: float, changes: Mapping[str, float]
) -> list[list[SchemeResult]]:
    """Schemes of about the same size, each group from low to high."""
    columns: list[list[SchemeResult]] = []
    for scheme in sorted(schemes, key=lambda s: s.size.bits_per_weight):
        near = columns and scheme.size.bits_per_weight - columns[-1][-1].size.bits_per_weight < 0.1 * most
        if near:
            columns[-1].append(scheme)
        else:
            columns.append([scheme])
    return [sorted(column, key=lambda s: changes[s.name]) for column in columns]


def _apart(values: Sequence[float], least: float) -> list[float]:
    """Places near ascending values, `least` from each other at least, with the same middle."""
    places: list[float] = []
    for value in values:
        places.append(max(value, places[-1] + least) if places else value)
    shift = (sum(places) - sum(values)) / len(values)
    return [place - shift for place in places]


def _bars(
    axes: Axes, result: DemoResult, title: str, base: SchemeResult, speed: Callable[[SchemeResult], float]
) -> None:
    """A bar for each scheme, the first on top, with its ratio to `base`, which a line marks."""
    schemes = list(reversed(result.schemes))
    speeds = [speed(scheme) for scheme in schemes]
    axes.barh(range(len(schemes)), speeds, height=0.68, color=[COLOURS[scheme.name] for scheme in schemes])
    axes.axvline(speed(base), color=charts.FAINT, lw=1, ls=(0, (3, 3)), zorder=0.5)
    for i, (scheme, value) in enumerate(zip(schemes, speeds, strict=True)):
        ratio = "" if scheme is base else f"  {value / speed(base):.2f}×"
        charts.bar_label(axes, f"{value:,.0f}{ratio}", value, i)
    axes.set_xlim(0, 1.45 * max(speeds))
    axes.set_xticks([])
    axes.set_title(title)
    axes.grid(visible=False)
    charts.bare(axes, "left", "bottom")
