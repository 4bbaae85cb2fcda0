"""The speeds of `aoext report`: the bench's own measurements, in a table that fits its page."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from aoext.cli import report_run
from aoext.cli.page import part_grid, section
from aoext.reference import Subject, full_name
from aoext_bench import bench_view
from aoext_bench.bench_defaults import defaults
from aoext_bench.bench_points import Point, Settings
from aoext_bench.bench_run import Bench, WrongResultError
from aoext_bench.busy import Load, Observer
from aoext_bench.ceilings import Ceilings, measure_ceilings
from aoext_bench.devices import MIB, measured
from aoext_bench.pool import pool_bytes

QUICK_POOL = 32 * MIB


@dataclass
class Speed:
    """What was measured, and what went wrong with it."""

    settings: Settings
    ceilings: dict[int, Ceilings] = field(default_factory=dict)  # by threads of the CPU
    points: list[Point] = field(default_factory=list)
    load: Load = field(default_factory=lambda: Load(1))  # of other work
    failures: list[str] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        """Whether other work took the cores, so that no speed is valid."""
        return self.load.busy

    def as_json(self, environment: dict[str, Any]) -> dict[str, Any] | None:
        """As `aoext bench` writes it; None where nothing could be measured."""
        if not self.ceilings:
            return None
        return bench_view.as_json(self.points, self.settings, self.ceilings, environment, self.load)

    def show(self, out: Console) -> None:
        """Its part of the page."""
        if not self.points:
            return
        settings, load = self.settings, self.load
        (ceilings,) = self.ceilings.values()
        what = "µs, times as fast as F.linear in bf16 (×), times the read floor (/)"
        if any(point.behind for point in self.points):
            what += ", behind a kernel of PyTorch's"
        reached = f"{ceilings.read_gb_per_s:.1f} GB/s read, {ceilings.gemm_gflop_per_s:,.0f} GFLOP/s"
        # A time measured on a busy machine is an upper bound, and its ratio to another says nothing.
        section(out, "speed: µs at most, NOT VALID" if load.busy else f"speed: {what}: {reached}")
        if load.busy:
            out.print(bench_view.busy(load))
        for shape in settings.shapes:
            own = [p for p in self.points if p.K == shape.K and p.N in (shape.N, None)]
            table = part_grid(f"N x K = {shape.N} x {shape.K}", *(f"M = {M}" for M in settings.rows))
            for (operator, format), group in itertools.groupby(own, key=lambda p: (p.operator, p.format)):
                points = {point.M: point for point in group}
                cells = (self._cell(points.get(M, points.get(None))) for M in settings.rows)
                table.add_row(full_name(operator, format), *cells)
            out.print(table)
        if not load.busy:
            slower = bench_view.slower(self.points, "linear")
            out.print(Text(f"slower than F.linear beyond noise: {len(slower)} of {len(self.points)} points"))
        for line in bench_view.notes(self.points):
            out.print(line)

    def _cell(self, point: Point | None) -> str:
        if point is None:
            return "–"
        if self.load.busy:
            return f"({point.seconds['aoext'] * 1e6:,.1f})"
        ratio = point.speedup("linear")
        times = "" if ratio is None else f"{ratio:.2f}× "
        return f"{point.seconds['aoext'] * 1e6:,.1f} {times}/{point.times_read_floor(self.ceilings):.1f}"


def measure(about: report_run.Settings, done: Callable[[Subject], None]) -> Speed:
    """Time the report's operators; what goes wrong with one leaves the others."""
    device = measured(about.device)
    settings = Settings(
        device=device,
        subjects=about.subjects,
        shapes=about.shapes,
        rows=about.rows,
        dtype=torch.bfloat16,
        group_sizes=(about.group_size,),
        threads=(torch.get_num_threads(),),
        seed=about.seed,
        seconds=about.seconds,
        pool_bytes=QUICK_POOL if about.quick else pool_bytes(device),
        check=True,
        generic=defaults(device).generic,
    )
    speed = Speed(settings)
    runner = Bench(settings)
    observer = Observer(settings.threads, device.watch)
    try:
        speed.ceilings = measure_ceilings(device, settings.seed, settings.threads)
    except RuntimeError as error:
        speed.failures.append(f"ceilings: {str(error).splitlines()[0]}")
        return speed
    for subject in settings.subjects:
        try:
            speed.points += runner.points(subject)
        except (WrongResultError, RuntimeError) as error:
            speed.failures.append(f"timing {subject.name}: {str(error).splitlines()[0]}")
        done(subject)
    speed.load = observer.verdict()
    return speed
