"""`aoext quality`: what schemes and algorithms cost a model, by the same held-out text."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from aoext.cli.options import JSON_FILE
from aoext.cli.page import console, environment, progress_line, summary_line, write_json
from aoext_bench import quality_chart, quality_view
from aoext_bench.devices import Device
from aoext_bench.options import CHART_FILE, MeasuredDeviceType
from aoext_bench.quality_models import Folder, Subject, Tiny
from aoext_bench.quality_run import ALGORITHMS, SCHEMES, Result, run

TYPICAL = ("rounding", "search", "hqq")


@click.command()
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--scheme", "schemes", multiple=True, type=click.Choice(list(SCHEMES)), help="Default: all.")
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    type=click.Choice(list(ALGORITHMS)),
    help=f"Can be repeated. Default: {', '.join(TYPICAL)}.",
)
@click.option("--device", type=MeasuredDeviceType(), default="cpu", show_default=True)
@click.option(
    "--windows",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Held-out text, 512 tokens each.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Text to calibrate with, 512 tokens each.",
)
@click.option("--tiny/--no-tiny", default=True, show_default=True, help="The model that aoext ships, too.")
@click.option("--json", "json_path", type=JSON_FILE, default="out/quality.json", show_default=True)
@click.option("--plot", "plot_path", type=CHART_FILE, default="out/quality.png", show_default=True)
def quality(
    folder: Path | None,
    schemes: tuple[str, ...],
    algorithms: tuple[str, ...],
    device: Device,
    windows: int,
    samples: int,
    tiny: bool,
    json_path: Path,
    plot_path: Path,
) -> None:
    """Quantise a model in every scheme by every algorithm, and compare it with what it was.

    FOLDER has a language model of transformers with its tokenizer, heldout.txt, by which it is judged, and
    train.txt, by which algorithms calibrate that want data; benchmarks/quality_model.py makes one of
    SmolLM2-135M. KL is the mean divergence of the next token's distribution from that of the model in
    bfloat16; "same" says how often the likeliest token is the same.
    """
    if folder is None and not tiny:
        raise click.UsageError("--no-tiny leaves nothing to measure without FOLDER")
    out = console()
    where = environment(device.device)
    out.print(summary_line(where))
    try:
        subjects: list[Subject] = [Tiny(device.device, windows, samples)] if tiny else []
        if folder is not None:
            subjects.append(Folder(folder, device.device, windows, samples))
    except (ImportError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    results: list[Result] = []
    for subject in subjects:
        progress_line(f"{subject.name}: {subject.base}")
        for result in run(subject, schemes or tuple(SCHEMES), algorithms or TYPICAL):
            results.append(result)
            progress_line(f"{result.scheme}, {result.algorithm}: {result.evaluation}")
            write_json(json_path, quality_view.as_json(results, subjects, where))
        _show(out, subject, [result for result in results if result.model == subject.name])
    quality_chart.draw(results, subjects, plot_path, summary_line(where))
    out.print(f"\nJSON   {json_path}\nchart  {plot_path}")


def _show(out: Console, subject: Subject, results: list[Result]) -> None:
    out.print()
    out.print(quality_view.table(subject, results))
