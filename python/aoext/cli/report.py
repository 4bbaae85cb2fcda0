"""`aoext report`: is this device sound, and how fast is it; one page to send back."""

from __future__ import annotations

import secrets
from pathlib import Path

import click
import torch

from aoext.cli import bench, report_view
from aoext.cli.devices import default_device
from aoext.cli.options import CountsType, DeviceType, ShapeType
from aoext.cli.page import console, write_json
from aoext.cli.report_run import Settings, collect
from aoext.cli.shapes import Shape, named
from aoext.reference import SUBJECTS, Problem, Subject

SHAPES = (named(4096, 4096), named(14336, 4096))
QUICK_SHAPES = (Shape(1024, 1024),)
ROWS, QUICK_ROWS = (1, 4, 16, 64, 512), (1, 16)
SECONDS, QUICK_SECONDS = 0.15, 0.03  # for each candidate of a point
GROUP_SIZE = 128

# One of each kind is timed; all of them are checked.
TIMED = [s for s in SUBJECTS if s.typical]


def _serves(subject: Subject, shape: Shape) -> bool:
    return subject.serves(Problem(1, shape.N, shape.K, GROUP_SIZE))


@click.command()
@click.option("--device", type=DeviceType(), help="Default: the accelerator at hand, else the CPU.")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="out",
    show_default=True,
    help="Where report.txt and report.json go.",
)
@click.option("--quick", is_flag=True, help="One small shape, less time for each: about a minute.")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=ShapeType(),
    help=f"Shape of a weight to time; can be repeated. Default: {', '.join(map(str, SHAPES))}.",
)
@click.option(
    "--m",
    "rows",
    type=CountsType(),
    metavar="M,M,…",
    help=f"Rows of the input. Default: {','.join(map(str, ROWS))}.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help=f"Time for each candidate of a point. Default: {SECONDS}, with --quick {QUICK_SECONDS}.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="The seed of the random numbers. Default: a fresh one."
)
def report(
    device: torch.device | None,
    output_dir: Path,
    quick: bool,
    shapes: tuple[Shape, ...],
    rows: tuple[int, ...] | None,
    seconds: float | None,
    seed: int | None,
) -> None:
    """Check a device and measure it: self-checks, operators against float64, speed, versions.

    Prints one page and writes it with all numbers to report.txt and report.json, to send back. Exits with 1
    where anything is wrong. Both hold the drivers' environment variables: look through them first.

    Speed is measured where aoext-bench is installed; the page says so where it is not. Where other work takes
    the cores meanwhile, that is no fault of the device, so the exit code is that of the checks; but the page
    says that its speeds are not valid, and compares none, and "busy" in the JSON is true.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    shapes = shapes or (QUICK_SHAPES if quick else SHAPES)
    for shape in shapes:
        if shape.K % GROUP_SIZE:
            raise click.UsageError(f"K must be a multiple of {GROUP_SIZE}, got the shape {shape}")
    settings = Settings(
        device=device or default_device(),
        subjects=[s for s in TIMED if all(_serves(s, shape) for shape in shapes)],
        shapes=shapes,
        rows=rows or (QUICK_ROWS if quick else ROWS),
        group_size=GROUP_SIZE,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        seconds=seconds or (QUICK_SECONDS if quick else SECONDS),
        quick=quick,
    )
    with torch.inference_mode():
        measure = bench.find("report_speed", "measure")
        content = collect(settings, measure, lambda text: click.echo(f"aoext report: {text}", err=True))
    out = console()
    out.record = True
    report_view.show(out, content)
    text, data = output_dir / "report.txt", output_dir / "report.json"
    text.write_text(out.export_text(), encoding="utf-8")
    write_json(data, report_view.as_json(content))
    out.print(f"\ntext   {text}\nJSON   {data}")
    if content.problems:
        raise click.exceptions.Exit(1)
