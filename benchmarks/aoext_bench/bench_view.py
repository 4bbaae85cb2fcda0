"""Results of `aoext bench` as tables and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from aoext.cli.page import grid, in_words
from aoext.formats.dtypes import dtype_name
from aoext.reference import Subject
from aoext_bench.bench_points import CANDIDATES, Point, Settings
from aoext_bench.busy import LEAST, Load
from aoext_bench.ceilings import Ceilings
from aoext_bench.floor_view import Geomean, geomeans, read_table

# Two measurements of the same thing differ by this much.
NOISE = 0.03

# What stands for the other candidates in tables and charts.
OTHERS = {"linear": "linear", "generic": "generic", "torch": "torch"}


def reached(ceilings: Mapping[int, Ceilings]) -> str:
    """A line for each number of threads, and reads by size below it where they were measured."""
    lines = []
    for threads, own in ceilings.items():
        line = (
            f"ceilings{_with(threads, ceilings)}: {own.read_gb_per_s:.1f} GB/s read ({own.read_by}), "
            f"{own.gemm_gflop_per_s:,.0f} GFLOP/s ({own.gemm_by})"
        )
        if own.gemm8_gflop_per_s:
            line += f", {own.gemm8_gflop_per_s:,.0f} in 8 bits ({own.gemm8_by})"
        lines += [line, read_table(own)] if own.read_seconds else [line]
    return "\n".join(lines)


def busy(load: Load) -> Text:
    """What a reader of figures must know first."""
    return Text(
        "\n".join(f"BUSY MACHINE, no figure is valid: {reason}" for reason in load.reasons), "bold red"
    )


def _with(threads: int, all_counts: Collection[int]) -> str:
    """The number of threads, said where there are several."""
    return f", {in_words(threads)}" if len(all_counts) > 1 else ""


def table(
    subject: Subject, points: Sequence[Point], settings: Settings, ceilings: Mapping[int, Ceilings]
) -> Table:
    """Points of a subject that are of one kind, a line for each."""
    dtype, kind = dtype_name(settings.dtype), points[0].kind
    linear = " or ".join(map(dtype_name, settings.linear)) or dtype
    title = f"{kind}{_with(kind.threads, settings.threads)}"
    twin = "F.grouped_mm" if subject.by_expert else "F.linear"
    title += f"; {twin} in {linear}" if subject.is_linear else f"; {dtype}"
    behind = any(point.behind for point in points)
    result = grid(f"{title}; µs behind a kernel of PyTorch's" if behind else title)
    others = {name: label for name, label in OTHERS.items() if settings.generic or name != "generic"}
    headers = [
        "N x K",
        "M",
        "µs",
        *(["back to back"] * behind),
        *(f"vs {label}" for label in others.values()),
    ]
    by_size = bool(ceilings[kind.threads].read_seconds)
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
            *([_microseconds(point.back_to_back["aoext"])] * behind),
            *(_times(point.speedup(other)) for other in others),
            *(_against_floor(point, ceilings) if by_size else _of_ceilings(point, ceilings)),
            Text(point.plan.rpartition(": ")[2]),  # the device stands above all tables
        )
        before = shape
        for plan in (plan for plan in settings.plans if plan in point.seconds):
            times = [point.seconds[plan], *([point.back_to_back[plan]] * behind)]
            blank = [""] * (len(others) + len(speeds))
            result.add_row("", "", *map(_microseconds, times), *blank, Text(plan))
    return result


def _against_floor(point: Point, ceilings: Mapping[int, Ceilings]) -> tuple[str, ...]:
    floor = point.floor(ceilings)
    return _microseconds(floor), f"{point.seconds['aoext'] / floor:.2f}"


def _of_ceilings(point: Point, ceilings: Mapping[int, Ceilings]) -> tuple[str, ...]:
    own = ceilings[point.threads]
    return (
        f"{point.gb_per_s:.1f}",
        f"{point.gb_per_s / own.read_gb_per_s:.0%}",
        f"{point.gflop_per_s:,.0f}" if point.flop else "",
        f"{point.gflop_per_s / own.gemm_gflop_per_s:.0%}" if point.flop else "",
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


def notes(points: Sequence[Point]) -> list[str]:
    """What torch's peers are called, and why some, or plans, are missing: once for each, not for each point.

    And whether other work took the cores meanwhile.
    """
    peers: dict[str | None, None] = {}
    reasons: dict[str, None] = {}
    for point in points:
        if "torch" in point.seconds:
            peers[point.peer] = None
        else:
            reasons[f"{point.peer or 'torch'}: {point.missing['torch']}"] = None
        plans = (name for name in point.missing if name not in CANDIDATES)
        reasons |= {f"{plan}: {point.missing[plan]}": None for plan in plans}
    lines = [f"torch is {' or '.join(str(peer) for peer in peers)}"] if peers else []
    lines += [f"not compared: {reason}" for reason in reasons]
    shares = [point.cpu_share for point in points if point.cpu_share is not None]
    if disturbed := [share for share in shares if share < LEAST]:
        lines.append(
            f"BUSY MACHINE, not valid: the timed calls of {len(disturbed)} of {len(shares)} points had a "
            f"core for {min(disturbed):.0%} to {max(disturbed):.0%} of their time"
        )
    return lines


def slower(points: Sequence[Point], over: str) -> list[str]:
    """The points where aoext is slower than another candidate beyond noise; no peer is that is a floor."""
    counts = {point.threads for point in points}
    beaten = [point for point in points if not (over == "torch" and point.peer_is_floor)]
    found = [(speedup, point) for point in beaten if (speedup := point.speedup(over)) is not None]
    return [
        f"{point.kind}{_with(point.threads, counts)}, M={point.M} N={point.N} K={point.K}: {speedup:.2f}×"
        for speedup, point in sorted(found, key=lambda pair: pair[0])
        if speedup < 1 - NOISE
    ]


def as_json(
    points: Sequence[Point],
    settings: Settings,
    ceilings: Mapping[int, Ceilings],
    environment: dict[str, Any],
    load: Load,
) -> dict[str, Any]:
    """The content of the JSON file.

    schema       "aoext.bench/3"
    environment  versions, machine, device with instruction_set and threads (report.environment)
    busy         whether other work took the cores: no figure is valid then
    load         threads (that the run needs), cpu_share (of the time of all timed calls: how long the calling
                 thread had a core; null where the host computes nothing), free_cores (that others left, of
                 those the process may use; null where the system does not tell), reasons (why busy)
    settings     seed, dtype, group_sizes, threads, seconds (for each candidate of a point), pool_bytes,
                 check, generic, bias (whether the scaled operators got one), plans (that were forced),
                 linear (the dtypes of F.linear, of which the fastest counts),
                 statistic (what counts of a candidate's samples: "fastest" or "median")
    ceilings     a list, for each number of threads: threads, read_gb_per_s, gemm_gflop_per_s (bf16 or fp32),
                 gemm8_gflop_per_s (8-bit operands, null where not measured), and the loops that reached them;
                 read_seconds: {bytes: seconds to read them, cold}, empty where only the rate was measured
    results      a list; each entry has
        operator, format, M, N, K, group_size, layer   null where the operator does not depend on it
        threads      of the CPU
        plan         the kernel that ran, as aoext.explain names it
        peer         torch's operator, null if it has none; peer_is_floor: whether that only moves the bytes
        bytes_from_memory  of the weight with scales and zero points, or what else no cache holds
        bytes, flop  of one call; floor_flop those that the former ceiling binds, floor_flop8
                     those that the 8-bit one does
        seconds      {"aoext", "linear", "generic", "torch", and plans}: of one call of each that was timed,
                     as it counts: behind where that was timed, else back_to_back
        behind       {candidate: seconds behind a kernel of PyTorch's that writes the activations, its own
                     time taken off}, on cuda; back_to_back {candidate: seconds behind the same call}
        calls        how many of the calls that count were timed; clocks how
        cpu_share    as in load, of this point's calls
        missing      {candidate: why it was not timed}
        errors       {candidate: largest relative error of a row against float64}
        speedup      {candidate: its seconds / aoext's seconds}; above 1 aoext is faster
        gb_per_s, of_read_ceiling, gflop_per_s, of_gemm_ceiling
        floor_seconds  what no kernel can do without: max(time to read its bytes, floor_flop / ceiling,
                       floor_flop8 / ceiling)
        times_floor    {candidate: its seconds / floor_seconds}
        times_read_floor  aoext's seconds / those to read bytes_from_memory
    geomean      over the shapes, a list: operator, format, group_size, threads, M, times_read_floor,
                 times_floor and speedup by candidate, least_speedup likewise; times_floor_back_to_back of
                 aoext
    """
    return {
        "schema": "aoext.bench/3",
        "environment": environment,
        "busy": load.busy,
        "load": load.as_json(),
        "settings": {
            "seed": settings.seed,
            "dtype": dtype_name(settings.dtype),
            "group_sizes": list(settings.group_sizes),
            "threads": list(settings.threads),
            "seconds": settings.seconds,
            "pool_bytes": settings.pool_bytes,
            "check": settings.check,
            "generic": settings.generic,
            "bias": settings.bias,
            "plans": list(settings.plans),
            "linear": [dtype_name(dtype) for dtype in settings.linear or (settings.dtype,)],
            "statistic": settings.device.STATISTIC,
        },
        "ceilings": [{"threads": threads, **asdict(own)} for threads, own in ceilings.items()],
        "results": [
            {
                **asdict(point),
                "speedup": {name: point.speedup(name) for name in point.seconds if name != "aoext"},
                "gb_per_s": point.gb_per_s,
                "of_read_ceiling": point.gb_per_s / ceilings[point.threads].read_gb_per_s,
                "gflop_per_s": point.gflop_per_s,
                "of_gemm_ceiling": point.gflop_per_s / ceilings[point.threads].gemm_gflop_per_s,
                "floor_seconds": point.floor(ceilings),
                "times_floor": {name: s / point.floor(ceilings) for name, s in point.seconds.items()},
                "times_read_floor": point.times_read_floor(ceilings),
            }
            for point in points
        ],
        "geomean": [mean.kind._asdict() | _without_kind(mean) for mean in geomeans(points, ceilings)],
    }


def _without_kind(mean: Geomean) -> dict[str, Any]:
    return {name: value for name, value in asdict(mean).items() if name != "kind"}
