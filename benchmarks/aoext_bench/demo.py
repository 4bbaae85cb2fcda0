"""`aoext demo`: language models go through every quantisation scheme, for quality and for speed."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.text import Text
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from aoext.cli.options import JSON_FILE, OutputFile
from aoext.cli.page import console, environment, progress_line, summary_line, write_json
from aoext.library.info import devices
from aoext_bench import bench_view, demo_chart, demo_view
from aoext_bench.demo_run import TRAINED, Progress, Settings, run
from aoext_bench.devices import Device
from aoext_bench.options import CHART_FILE, MeasuredDeviceType

DEVICE = "cuda where aoext has kernels for the GPU that is here, else cpu"


@click.command()
@click.option("--device", type=MeasuredDeviceType(), default=lambda: _default_device(), show_default=DEVICE)
@click.option(
    "--windows",
    type=click.IntRange(min=1),
    default=96,
    show_default=True,
    help="Windows of held-out text at most, 512 bytes each.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seeds random weights. Default: a fresh one.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Time for everything; what does not fit is left out.",
)
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="out",
    show_default=True,
    help="Where demo.json and demo.png go.",
)
@click.option("--json", "json_path", type=JSON_FILE, help="Elsewhere for the JSON.")
@click.option("--chart", "chart_path", type=CHART_FILE, help="Elsewhere for the chart.")
@click.pass_context
def demo(
    context: click.Context,
    device: Device,
    windows: int,
    seed: int | None,
    seconds: float,
    output_dir: Path,
    json_path: Path | None,
    chart_path: Path | None,
) -> None:
    """Quantise language models in every way; compare size, quality and speed.

    Quality is that of a small trained model: bits per byte say how well it predicts text that it has
    not seen; lower is better, 8 is chance. Speed is that of a model of real width with random weights.
    """
    json_path = json_path or _inside(output_dir, "demo.json", JSON_FILE, context)
    chart_path = chart_path or _inside(output_dir, "demo.png", CHART_FILE, context)
    seed = secrets.randbelow(2**31) if seed is None else seed
    settings = Settings(device, windows, seed, seconds)

    out = console()
    where = environment(device.device)
    out.print(summary_line(where))
    try:
        with _progress(seconds) as progress:
            result = run(settings, progress)
    except (ImportError, OSError) as error:
        raise click.ClickException(f"the demo's model cannot be loaded: {error}") from error
    out.print(demo_view.figures(result))
    out.print("\n".join(demo_view.models(result)))
    out.print(
        "change: of the bits per byte, ± its standard error. same byte: how often the likeliest next byte is "
        f"that of {TRAINED}.\n"
        "weights: of the linear layers, of the model for speed. vs: how many times as fast as the fastest "
        "that is not quantised.\n"
    )
    if left_out := demo_view.left_out(result):
        out.print(f"In {seconds:g} s (--seconds) there was no time for:")
        out.print("".join(f"  {line}\n" for line in left_out))
    out.print(f"seed {seed}\n")
    write_json(json_path, demo_view.as_json(result, where))
    demo_chart.draw(result, chart_path, summary_line(where))
    out.print(bench_view.busy(result.load) if result.load.busy else Text(demo_view.headline(result), "bold"))
    out.print(f"JSON   {json_path}\nchart  {chart_path}")


def _default_device() -> str:
    return "cuda" if devices().get("cuda") == "own" else "cpu"


def _inside(folder: Path, name: str, kind: OutputFile, context: click.Context) -> Path:
    """A file in the output folder, found to be writable."""
    return kind.convert(folder / name, None, context)


@contextmanager
def _progress(seconds: float) -> Iterator[Progress]:
    """A bar of all the time with what is being done, on a terminal, and lines elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    with tqdm(total=seconds, bar_format="{percentage:3.0f}% |{bar:30}| {desc}", leave=False) as bar:
        begin = time.monotonic()

        def progress(what: str) -> None:
            spent = min(time.monotonic() - begin, seconds)
            bar.set_description_str(f"{seconds - spent:.0f} s left, {what}", refresh=False)
            bar.update(spent - bar.n)

        yield progress


class _Lines:
    """A line for each new kind of work."""

    def __init__(self) -> None:
        self.said = ""

    def __call__(self, what: str) -> None:
        kind = what.split(",")[0].split(":")[0]
        if kind != self.said:
            progress_line(kind)
        self.said = kind
