"""Results of `aoext bench` as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from aoext.cli.bench_run import Point, Settings
from aoext.cli.ceilings import Ceilings
from aoext.cli.floor_view import geomeans
from aoext.cli.subjects import Subject
from aoext.packing import dtype_name

# Two measurements of the same thing differ by this much.
NOISE = 0.03

# What stands for the other candidates in tables and charts.
OTHERS = {"linear": "linear", "generic": "generic", "torch": "torch"}


def table(subject: Subject, points: Sequence[Point], settings: Settings, ceilings: Ceilings) -> Table:
    """All points of a subject, a line for each."""
    dtype = dtype_name(settings.dtype)
    title = subject.name
    if subject.grouped:
        title += f", group size {settings.group_size}"
    title += f"; F.linear in {dtype}" if subject.is_linear else f", {dtype}"
    result = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    headers = ["N x K", "M", "µs", *(f"vs {label}" for label in OTHERS.values())]
    by_size = bool(ceilings.read_seconds)
    speeds = ("floor", "÷ floor") if by_size else ("GB/s", "read", "GFLOP/s", "peak")
    for header in (*headers, *speeds):
        result.add_column(header, justify="right", no_wrap=True)
    result.add_column("kernel")
    before = None
    for point in points:
        shape = " x ".join(_size(size) for size in (point.N, point.K))
        result.add_row(
            shape if shape != before else "",
            _size(point.M),
            _microseconds(point.seconds["aoext"]),
            *(_times(point.speedup(other)) for other in OTHERS),
            *(_against_floor(point, ceilings) if by_size else _of_ceilings(point, ceilings)),
            Text(point.plan.rpartition(": ")[2]),  # the device stands above all tables
        )
        before = shape
    return result


def _against_floor(point: Point, ceilings: Ceilings) -> tuple[str, ...]:
    floor = point.floor(ceilings)
    return _microseconds(floor), f"{point.seconds['aoext'] / floor:.2f}"


def _of_ceilings(point: Point, ceilings: Ceilings) -> tuple[str, ...]:
    return (
        f"{point.gb_per_s:.1f}",
        f"{point.gb_per_s / ceilings.read_gb_per_s:.0%}",
        f"{point.gflop_per_s:,.0f}" if point.flop else "",
        f"{point.gflop_per_s / ceilings.gemm_gflop_per_s:.0%}" if point.flop else "",
    )


def _size(size: int | None) -> str:
    return "any" if size is None else str(size)


def _microseconds(seconds: float) -> str:
    digits = 0 if seconds > 1e-4 else 1 if seconds > 1e-5 else 2
    return f"{seconds * 1e6:,.{digits}f}"


def _times(speedup: float | None) -> Text:
    if speedup is None:
        return Text("–", style="dim")
    style = "green" if speedup > 1 + NOISE else "red" if speedup < 1 - NOISE else ""
    return Text(f"{speedup:.2f}×", style=style)


def notes(points: Iterable[Point]) -> list[str]:
    """What torch's peers are called, and why some are missing: once for each, not for each point."""
    peers: dict[str | None, None] = {}
    reasons: dict[str, None] = {}
    for point in points:
        if "torch" in point.seconds:
            peers[point.peer] = None
        else:
            reasons[f"{point.peer or 'torch'}: {point.missing['torch']}"] = None
    lines = [f"torch is {' or '.join(str(peer) for peer in peers)}"] if peers else []
    return lines + [f"not compared: {reason}" for reason in reasons]


def slower(points: Iterable[Point], over: str) -> list[str]:
    """The points where aoext is slower than another candidate beyond noise."""
    found = [(speedup, point) for point in points if (speedup := point.speedup(over)) is not None]
    return [
        f"{point.operator} [{point.format}] M={point.M} N={point.N} K={point.K}: {speedup:.2f}×"
        for speedup, point in sorted(found, key=lambda pair: pair[0])
        if speedup < 1 - NOISE
    ]


def as_json(
    points: Sequence[Point], settings: Settings, ceilings: Ceilings, environment: dict[str, Any]
) -> dict[str, Any]:
    """The content of the JSON file.

    schema       "aoext.bench/1"
    environment  versions, machine, device with instruction_set and threads (report.environment)
    settings     seed, dtype, group_size, seconds (for each candidate of a point), pool_bytes, check, generic,
                 statistic (what counts of a candidate's samples: "fastest" or "median")
    ceilings     read_gb_per_s, gemm_gflop_per_s (bf16), gemm8_gflop_per_s (8-bit operands, null where not
                 measured), and the loops that reached them; read_seconds: {bytes: seconds to read them,
                 cold}, empty where only the rate was measured
    results      a list; each entry has
        operator, format, M, N, K, group_size, layer   null where the operator does not depend on it
        plan         the kernel that ran, as aoext.explain names it
        peer         torch's operator, null if it has none
        bytes, flop  of one call; floor_flop those that the bf16 ceiling binds, floor_flop8
                     those that the 8-bit one does
        seconds      {"aoext", "linear", "generic", "torch"}: of one call of each that was timed
        calls        how many calls were timed, alike; clocks how
        missing      {candidate: why it was not timed}
        errors       {candidate: largest relative error of a row against float64}
        speedup      {candidate: its seconds / aoext's seconds}; above 1 aoext is faster
        gb_per_s, of_read_ceiling, gflop_per_s, of_gemm_ceiling
        floor_seconds  what no kernel can do without: max(time to read its bytes, floor_flop / ceiling,
                       floor_flop8 / ceiling)
        times_floor    {candidate: its seconds / floor_seconds}
    geomean      over the shapes, a list: operator, format, M, times_floor and speedup by candidate,
                 least_speedup likewise
    """
    return {
        "schema": "aoext.bench/1",
        "environment": environment,
        "settings": {
            "seed": settings.seed,
            "dtype": dtype_name(settings.dtype),
            "group_size": settings.group_size,
            "seconds": settings.seconds,
            "pool_bytes": settings.pool_bytes,
            "check": settings.check,
            "generic": settings.generic,
            "statistic": settings.device.STATISTIC,
        },
        "ceilings": asdict(ceilings),
        "results": [
            {
                **asdict(point),
                "speedup": {name: point.speedup(name) for name in point.seconds if name != "aoext"},
                "gb_per_s": point.gb_per_s,
                "of_read_ceiling": point.gb_per_s / ceilings.read_gb_per_s,
                "gflop_per_s": point.gflop_per_s,
                "of_gemm_ceiling": point.gflop_per_s / ceilings.gemm_gflop_per_s,
                "floor_seconds": point.floor(ceilings),
                "times_floor": {name: s / point.floor(ceilings) for name, s in point.seconds.items()},
            }
            for point in points
        ],
        "geomean": [asdict(mean) for mean in geomeans(points, ceilings)],
    }
