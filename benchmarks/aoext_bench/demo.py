"""`aoext demo`: language models go through every quantisation scheme, for quality and for speed."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from rich.text import Text
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from aoext.cli.options import JSON_FILE, OutputFile
from aoext.cli.page import console, environment, progress_line, summary_line, write_json
from aoext.info import devices
from aoext_bench import bench_view, demo_chart, demo_view
from aoext_bench.demo_run import Settings, run
from aoext_bench.devices import Device
from aoext_bench.options import CHART_FILE, MeasuredDeviceType

DEVICE = "cuda where aoext has kernels for the GPU that is here, else cpu"
PROMPT = "class Parser:\n    def __init__(self, "


@click.command()
@click.option("--device", type=MeasuredDeviceType(), default=lambda: _default_device(), show_default=DEVICE)
@click.option(
    "--windows",
    type=click.IntRange(min=1),
    default=96,
    show_default=True,
    help="Windows of held-out text, 512 bytes each.",
)
@click.option("--prompt", default=PROMPT, help="Text to continue. Default: the beginning of a class.")
@click.option(
    "--new-tokens",
    type=click.IntRange(min=1),
    default=120,
    show_default=True,
    help="Bytes to continue it by.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="0 takes the likeliest byte, more draws.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Of these draws, and of random weights. Default: a fresh one."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="Time for the speed of all schemes together.",
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
    prompt: str,
    new_tokens: int,
    temperature: float,
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
    settings = Settings(device, windows, prompt, new_tokens, temperature, seed, seconds)

    out = console()
    where = environment(device.device)
    out.print(summary_line(where))
    try:
        result = run(settings, _progress)
    except (ImportError, OSError) as error:
        raise click.ClickException(f"the demo's model cannot be loaded: {error}") from error
    out.print(demo_view.figures(result))
    out.print("\n".join(demo_view.models(result)))
    out.print(
        "change: of the bits per byte, ± its standard error. weights: of the linear layers, of the model for "
        "speed.\nvs: how many times as fast as the fastest that is not quantised.\n"
    )
    out.print(
        f"seed {seed}, temperature {temperature:g}, prompt:\n{demo_view.readable(settings.prompt_bytes)}"
    )
    out.print(demo_view.continuations(result))
    write_json(json_path, demo_view.as_json(result, where))
    demo_chart.draw(result, chart_path, summary_line(where))
    out.print(bench_view.busy(result.load) if result.load.busy else Text(demo_view.headline(result), "bold"))
    out.print(f"JSON   {json_path}\nchart  {chart_path}")


def _default_device() -> str:
    return "cuda" if devices().get("cuda") == "own" else "cpu"


def _inside(folder: Path, name: str, kind: OutputFile, context: click.Context) -> Path:
    """A file in the output folder, found to be writable."""
    return kind.convert(folder / name, None, context)


def _progress(what: str, items: Iterable[str]) -> Iterator[str]:
    """`items` with a progress bar on a terminal, and as lines elsewhere."""
    if sys.stderr.isatty():
        with tqdm(items, desc=what, unit="", leave=False) as bar:
            for item in bar:
                bar.set_postfix_str(item)
                yield item
        return
    said = None
    for item in items:
        line = f"{what}: {item}" if item else what
        if line != said:
            progress_line(line)
        said = line
        yield item
