"""`aoext bench`: how fast the operators are, against what one would use without them."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
import torch
from rich.console import Console
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from aoext.cli.options import JSON_FILE, CountsType, ShapeType
from aoext.cli.page import console, environment, progress_line, summary_line, write_json
from aoext.cli.shapes import QUICK, Shape
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name
from aoext.reference import SUBJECTS, Problem, Subject
from aoext_bench import bench_chart, bench_view, floor_chart, floor_view
from aoext_bench.bench_defaults import DEFAULTS, QUICK_ROWS, defaults, estimate, within
from aoext_bench.bench_points import Point, Settings, count_points, sections
from aoext_bench.bench_run import Bench, WrongResultError
from aoext_bench.busy import Observer
from aoext_bench.ceilings import Ceilings, measure_ceilings
from aoext_bench.devices import Device
from aoext_bench.options import CHART_FILE, MeasuredDeviceType, PlanType
from aoext_bench.pool import pool_bytes

# How many slow points are listed below the tables.
MOST_LISTED = 12

ON_CPU, ON_CUDA = DEFAULTS["cpu"], DEFAULTS["cuda"]

DTYPES = {dtype_name(dtype): dtype for dtype in FLOAT_DTYPES}
OPERATORS = list(dict.fromkeys(subject.operator for subject in SUBJECTS))
FORMATS = list(dict.fromkeys(subject.format for subject in SUBJECTS if not subject.by_expert))


def _choose(operators: tuple[str, ...], formats: tuple[str, ...], by_expert: bool) -> list[Subject]:
    """The subjects of these names; without names, the typical ones of each operator that has some.

    by_expert: those with a weight for each expert, of int4 and int8 where nothing is said.
    """
    if by_expert:
        of, formats = operators or ("weight_only_linear",), formats or ("int4", "int8")
        found = [s for s in SUBJECTS if s.by_expert and s.operator in of]
        return [s for s in found if s.format.removesuffix(" experts") in formats]
    typical = {s.operator for s in SUBJECTS if s.typical}
    names = operators or [name for name in OPERATORS if name in typical]
    chosen = [
        s
        for s in SUBJECTS
        if not s.by_expert
        and s.operator in names
        and (s.format in formats if formats else s.typical or s.operator not in typical)
    ]
    if not chosen:
        raise click.UsageError(f"no operator of {', '.join(names)} has the format {', '.join(formats)}")
    return chosen


def _check_sizes(
    subjects: list[Subject], shapes: Sequence[Shape], group_sizes: Sequence[int], dtype: torch.dtype
) -> list[Subject]:
    """The subjects that serve all of these; an error where none does, or where a size is wrong."""
    weights = list(itertools.product(shapes, group_sizes))
    serving = [s for s in subjects if all(s.serves(Problem(1, n.N, n.K, g, dtype)) for n, g in weights)]
    for subject in subjects:
        for shape, group_size in weights:
            if subject.grouped and (shape.K % 2 or shape.K % group_size):
                raise click.UsageError(
                    f"{subject.operator} needs K even and a multiple of the group size {group_size}, "
                    f"got the shape {shape}"
                )
    if not serving:
        raise click.UsageError(
            f"{_listed(s.operator for s in subjects)}: cannot take weights of {_listed(shapes)} in groups "
            f"of {_listed(group_sizes)} with {dtype_name(dtype)}"
        )
    return serving


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


@click.command()
@click.option(
    "--operator",
    "operators",
    multiple=True,
    type=click.Choice(OPERATORS),
    help="Operator to time; can be repeated. Default: all but the faces of others.",
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(FORMATS),
    help="Number format to time; can be repeated. Default: the typical ones.",
)
@click.option("--device", type=MeasuredDeviceType(), default="cpu", show_default=True)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=ShapeType(),
    help=f"Shape of the weight; can be repeated. Default on cpu: {_listed(ON_CPU.shapes)}; on cuda "
    f"{ON_CUDA.shapes_are}; else those of Llama 3 8B.",
)
@click.option(
    "--m",
    "rows",
    type=CountsType(),
    metavar="M,M,…",
    help=f"Rows of the input. Default on cpu: {_listed(ON_CPU.rows)}; on cuda "
    f"{_listed(sorted(ON_CUDA.rows))}, or as many of them as --minutes allows; else 1, 4, 16, 32, 128, 512.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help=f"Leave out some of the default M where all would take longer. Default: no limit; on cuda "
    f"{ON_CUDA.minutes:g}.",
)
@click.option(
    "--dtype",
    type=click.Choice(list(DTYPES)),
    default="bfloat16",
    show_default=True,
    help="The dtype of inputs and results in high precision.",
)
@click.option(
    "--group-size",
    "group_sizes",
    type=CountsType(),
    metavar="G,G,…",
    help=f"Groups of int4. Default on cpu: {_listed(ON_CPU.group_sizes)}, with --quick and elsewhere 128.",
)
@click.option(
    "--threads",
    type=CountsType(),
    metavar="T,T,…",
    help=f"Threads of the CPU. Default on cpu: {_listed(ON_CPU.threads)}, with --quick "
    f"{ON_CPU.threads[-1]}; elsewhere torch's choice.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seeds the random numbers. Default: a fresh one.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help=f"Time for each candidate of a point. Default: 0.3, with --quick 0.06; on cuda {ON_CUDA.seconds} "
    f"and {ON_CUDA.quick_seconds}.",
)
@click.option(
    "--pool-mb",
    type=click.IntRange(min=1),
    help="Memory for the weights of each candidate. Default: twice the largest cache, at least 256; on cuda "
    "six times, at least 336.",
)
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Compare with float64 before timing.",
)
@click.option(
    "--generic/--no-generic",
    default=None,
    help="Time the generic twin too. Default: no on cpu and cuda, else yes.",
)
@click.option(
    "--bias/--no-bias",
    default=None,
    help="Give a bias to the scaled operators, which take one or none. Default: on cpu.",
)
@click.option(
    "--experts",
    type=click.IntRange(min=1),
    help="Time products by expert, of so many, beside F.grouped_mm: of --operator (weight_only_linear) in "
    "--format (int4, int8). M counts tokens then, and tables show the rows, --top-k of each.",
)
@click.option("--top-k", type=click.IntRange(min=1), default=1, help="Experts of a token. Default: 1.")
@click.option(
    "--plan",
    "plans",
    multiple=True,
    type=PlanType(),
    help='A plan to force besides, "kernel field=value …"; can be repeated.',
)
@click.option(
    "--linear",
    multiple=True,
    type=click.Choice(list(DTYPES)),
    help="The dtype of F.linear; of several the fastest counts. Default: that of --dtype.",
)
@click.option("--quick", is_flag=True, help="Fewer shapes and M, less time for each: under a minute.")
@click.option("--json", "json_path", type=JSON_FILE, default="out/bench.json", show_default=True)
@click.option("--plot", "plot_path", type=CHART_FILE, default="out/bench.png", show_default=True)
def bench(
    operators: tuple[str, ...],
    formats: tuple[str, ...],
    device: Device,
    shapes: tuple[Shape, ...],
    rows: tuple[int, ...] | None,
    minutes: float | None,
    dtype: str,
    group_sizes: tuple[int, ...] | None,
    threads: tuple[int, ...] | None,
    seed: int | None,
    seconds: float | None,
    pool_mb: int | None,
    check: bool,
    generic: bool | None,
    bias: bool | None,
    experts: int | None,
    top_k: int,
    plans: tuple[str, ...],
    linear: tuple[str, ...],
    quick: bool,
    json_path: Path,
    plot_path: Path,
) -> None:
    """Time operators of torch.ops.ao against F.linear, their generic twins and torch's own operators.

    "vs X" says how many times as fast as X aoext is: 2.00× takes half the time, below 1 aoext is slower.
    Weights come from pools larger than the caches and candidates take turns. On a CPU or an XPU the fastest
    call counts; on cuda the median of replays of CUDA graphs, and beside it stands the floor: the time to
    read the bytes that must move, measured by size, or to multiply at the measured peak. What counts there is
    a product behind a kernel of PyTorch's that writes its activations, as a model calls it; "back to back" is
    the same product behind itself.

    On a CPU all is measured for each number of threads, and a table for each ends the output: time ÷ read
    floor, where a call should take no longer than to read its weight, and how many times as fast as F.linear
    and torch's own operators, geomeans over the shapes. ATEN_CPU_CAPABILITY=avx2 AOEXT_CPU_ISA=avx2 in the
    environment hold torch and aoext to AVX2.

    Where other work takes the cores, the output says so and "busy" in the JSON is true: no figure is valid
    then, and none is compared. The exit code is 0 all the same.
    """
    if experts and top_k > experts:
        raise click.UsageError(f"--top-k must be at most --experts, {experts}, got {top_k}")
    subjects = _choose(operators, formats, bool(experts))
    own = defaults(device)
    shapes = shapes or (QUICK if quick else tuple(own.shapes))
    group_sizes = group_sizes or tuple(own.group_sizes[:1] if quick else own.group_sizes)
    threads = threads or tuple(own.threads[-1:] if quick else own.threads) or (torch.get_num_threads(),)
    subjects = _check_sizes(subjects, shapes, group_sizes, DTYPES[dtype])
    with torch.inference_mode():
        settings = Settings(
            device=device,
            subjects=subjects,
            shapes=shapes,
            rows=rows or (QUICK_ROWS if quick else own.rows),
            dtype=DTYPES[dtype],
            group_sizes=group_sizes,
            threads=threads,
            seed=secrets.randbelow(2**31) if seed is None else seed,
            seconds=seconds or (own.quick_seconds if quick else own.seconds),
            pool_bytes=pool_mb * 10**6 if pool_mb else pool_bytes(device),
            check=check,
            generic=own.generic if generic is None else generic,
            bias=own.bias if bias is None else bias,
            plans=plans,
            experts=experts or 0,
            top_k=top_k,
            linear=tuple(DTYPES[name] for name in linear),
        )
        limit = minutes or own.minutes
        if rows is None and limit:
            settings = within(settings, limit)
            settings = replace(settings, rows=tuple(sorted(settings.rows)))
        try:
            _run(settings, rows is None and not quick, json_path, plot_path)
        except WrongResultError as error:
            raise click.ClickException(str(error)) from error


def _run(settings: Settings, limited: bool, json_path: Path, plot_path: Path) -> None:
    """limited: whether the M are the default ones, as many as the time allows."""
    out = console()
    where = environment(settings.device.device)
    total = count_points(settings)
    about = summary_line(where, settings.threads)
    out.print(about)
    out.print(
        f"seed {settings.seed}, pools of {settings.pool_bytes / 1e6:.0f} MB, M = {_listed(settings.rows)}: "
        f"{total} points, roughly {estimate(settings) / 60:.1f} minutes"
    )
    left_out = sorted(set(defaults(settings.device).rows) - set(settings.rows))
    if limited and left_out:
        out.print(f"left out to keep to the time: M = {_listed(left_out)} (--minutes, --m)")
    observer = Observer(settings.threads, settings.device.watch)
    if (early := observer.before()).busy:
        out.print(bench_view.busy(early))
    ceilings = measure_ceilings(settings.device, settings.seed, settings.threads)
    out.print(bench_view.reached(ceilings))
    points = _measure_all(settings, total, lambda s, p: _show(out, s, p, settings, ceilings))

    load = observer.verdict()
    for over, label in {} if load.busy else bench_view.OTHERS.items():
        if lines := bench_view.slower(points, over):
            out.print(f"\nslower than {label} ({len(lines)} of {len(points)} points):")
            out.print("\n".join(f"  {line}" for line in lines[:MOST_LISTED]))
            if len(lines) > MOST_LISTED:
                out.print(f"  and {len(lines) - MOST_LISTED} more, by less: see the JSON")
    by_size = floor_view.by_size(ceilings)
    if load.busy:
        out.print()
        out.print(bench_view.busy(load))
    if not by_size:
        for threads in settings.threads:
            out.print()
            out.print(floor_view.summary(threads, points, ceilings))
    write_json(json_path, bench_view.as_json(points, settings, ceilings, where, load))
    footer = "BUSY MACHINE, not valid. " if load.busy else ""
    footer += f"{about}. {settings.device.STATISTIC.capitalize()} of many calls"
    if by_size and any(point.flop for point in points):
        floor_chart.draw(points, ceilings, plot_path, f"{footer}, lower is faster.")
    else:
        bench_chart.draw(points, plot_path, f"{footer}, higher is faster.")
    out.print(f"\nJSON   {json_path}\nchart  {plot_path}")
    if load.busy:
        out.print(bench_view.busy(load))


def _measure_all(settings: Settings, total: int, show: Callable[[Subject, list[Point]], None]) -> list[Point]:
    """All points; `show` gets those of each subject as soon as they are complete."""
    runner = Bench(settings)
    points: list[Point] = []
    begin = time.monotonic()
    with tqdm(total=total, unit="point", disable=None, leave=False) as bar:
        for subject in settings.subjects:
            bar.set_description(subject.name)
            own = []
            for point in runner.points(subject):
                own.append(point)
                bar.update()
            points += own
            spent = time.monotonic() - begin
            left = spent / len(points) * (total - len(points))
            progress_line(
                f"{subject.name}: {len(points)} of {total} points, {spent:.0f} s, {left:.0f} s to go"
            )
            with tqdm.external_write_mode():
                show(subject, own)
    return points


def _show(
    out: Console,
    subject: Subject,
    points: list[Point],
    settings: Settings,
    ceilings: Mapping[int, Ceilings],
) -> None:
    for section in sections(points):
        out.print()
        out.print(bench_view.table(subject, section, settings, ceilings))
        if floor_view.by_size(ceilings) and subject.is_linear:
            out.print(floor_view.at_each_shape(section, ceilings))
    for note in bench_view.notes(points):
        out.print(f"  {note}")
