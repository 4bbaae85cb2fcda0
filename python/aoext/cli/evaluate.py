"""`aoext evaluate`: how far models are from a reference, on a text."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import click

from aoext.cli.language_models import load, of_text, windows_of
from aoext.cli.options import JSON_FILE, OutputFile
from aoext.cli.page import console, grid, progress_line, write_json
from aoext.models.summary import bits_per_weight, model_bytes
from aoext.quality.evaluate import Evaluation
from aoext.quality.evaluate import evaluate as measure


@click.command()
@click.argument("reference", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("models", type=click.Path(exists=True, file_okay=False, path_type=Path), nargs=-1)
@of_text(32)
@click.option("--chart", type=OutputFile(".svg"), help="Draw KL of each model into this SVG file.")
@click.option("--json", "json_file", type=JSON_FILE, help="Write all numbers into this file.")
def evaluate(
    reference: Path,
    models: tuple[Path, ...],
    data: tuple[Path, ...],
    length: int,
    windows: int,
    device: str,
    dtype: str,
    chart: Path | None,
    json_file: Path | None,
) -> None:
    """How well REFERENCE and MODELS predict a text, and how far MODELS are from REFERENCE.

    Each is a folder of transformers, plain or quantised. The table has perplexity; KL(REFERENCE ‖ model) in
    nats for a token; the share of positions whose most likely token is the reference's; and stored bits for a
    weight of linear layers and experts. All use the tokenizer of REFERENCE. Two models are in memory at a
    time.
    """
    batches = windows_of(reference, data, length, windows)
    original = load(reference, device, dtype)
    rows: list[dict[str, Any]] = []
    for folder in (reference, *models):
        progress_line(f"evaluating {folder}")
        model = original if folder is reference else load(folder, device, dtype)
        try:
            found = measure(model, batches, None if folder is reference else original)
        except ValueError as error:
            raise click.ClickException(f"{folder}: {error}") from error
        rows.append(_row(folder, found, bits_per_weight(model), model_bytes(model)))
    _print(rows)
    if chart is not None:
        chart.write_text(drawn(rows[1:]), encoding="utf-8")
    if json_file is not None:
        write_json(json_file, {"tokens": len(batches) * (length - 1), "models": rows})


def _row(folder: Path, found: Evaluation, bits: float, size: int) -> dict[str, Any]:
    return {
        "model": str(folder),
        "bits_per_weight": bits,
        "megabytes": size / 1e6,
        "perplexity": found.perplexity,
        "kl": found.divergence,
        "same_token": found.same_token,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    table = grid()
    table.add_column("model")
    for header in ("bits a weight", "MB", "perplexity", "KL", "same token"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("")
    largest = max((row["kl"] or 0.0 for row in rows), default=0.0)
    for row in rows:
        kl, same = row["kl"], row["same_token"]
        bar = "" if not kl else "█" * max(1, round(20 * kl / largest))
        table.add_row(
            row["model"],
            f"{row['bits_per_weight']:.3f}",
            f"{row['megabytes']:.1f}",
            f"{row['perplexity']:.3f}",
            "" if kl is None else f"{kl:.4f}",
            "" if same is None else f"{same:.1%}",
            bar,
        )
    console().print(table)


def drawn(rows: list[dict[str, Any]]) -> str:
    """Bars of KL as an SVG file."""
    height, left, width = 30, 240, 720
    largest = max((row["kl"] or 0.0 for row in rows), default=0.0) or 1.0
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height * len(rows) + 50}" '
        'font-family="sans-serif" font-size="13" fill="#1f2933">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<text x="10" y="22" font-weight="bold">KL from the reference, nats a token</text>',
    ]
    for i, row in enumerate(rows):
        y = 40 + height * i
        length = max(1.0, (width - left - 190) * (row["kl"] or 0.0) / largest)
        name = escape(Path(row["model"]).name)
        label = f"{row['kl']:.4f}, {row['bits_per_weight']:.2f} bits a weight"
        lines += [
            f'<text x="{left - 10}" y="{y + 16}" text-anchor="end">{name}</text>',
            f'<rect x="{left}" y="{y + 3}" width="{length:.1f}" height="18" fill="#3d7ea6"/>',
            f'<text x="{left + length + 6:.1f}" y="{y + 16}" fill="#7b8794">{label}</text>',
        ]
    return "\n".join((*lines, "</svg>\n"))
