"""Loss curves of a small language model that trains in 8 bits, beside bfloat16's.

    python benchmarks/training.py

A TinyLM learns Python's standard library byte by byte, from the same initial weights and windows in every
way, with AdamW and under autocast to bfloat16; seeds change both. The table has bits per byte over the last
tenth of the steps, how far seeds are apart, and by how much a way differs from bfloat16 with the same seed.
The chart has the means of all seeds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

import aoext
from aoext.cli.options import JSON_FILE
from aoext.cli.page import environment, grid, present
from aoext_bench.tiny_lm import TinyLM, TinyLMConfig, split, standard_library_files
from aoext_bench.tiny_lm.data import join_documents

SCHEMA = "aoext.training/1"
CONFIG = TinyLMConfig(dim=128, hidden=384, layers=2, heads=4, context=64)
BATCH = 8

WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "bfloat16": lambda model: None,
    "int8 mixed precision": lambda model: aoext.quantize_(model, aoext.Int8MixedPrecisionTrainingConfig()),
    "float8 by rows": lambda model: aoext.quantize_(model, aoext.Float8LinearConfig("rowwise")),
    "float8 by blocks": lambda model: aoext.quantize_(model, aoext.Float8LinearConfig("blockwise")),
    "int8 weights": lambda model: aoext.quantize_(model, aoext.Int8WeightOnlyQuantizedTrainingConfig()),
}


def curve(way: str, seed: int, steps: int, text: bytes, device: str) -> tuple[list[float], float]:
    """Bits per byte in each step, and the seconds of a step."""
    torch.manual_seed(seed)
    model = TinyLM(CONFIG).to(device)
    WAYS[way](model)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 50))
    windows = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # of random rounding
    losses, begin = [], time.process_time() if device == "cpu" else time.perf_counter()
    for _ in range(steps):
        starts = torch.randint(len(text) - CONFIG.context - 1, (BATCH,), generator=windows).tolist()
        tokens = torch.tensor([list(text[i : i + CONFIG.context + 1]) for i in starts], device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item() / math.log(2))
    end = time.process_time() if device == "cpu" else time.perf_counter()
    return losses, (end - begin) / steps


def last(losses: list[float]) -> float:
    return statistics.mean(losses[-max(1, len(losses) // 10) :])


def summary(way: str, curves: list[list[float]], base: list[list[float]], seconds: float) -> dict[str, Any]:
    finals, base_finals = [last(losses) for losses in curves], [last(losses) for losses in base]
    return {
        "way": way,
        "bits_per_byte": statistics.mean(finals),
        "spread": max(finals) - min(finals),
        "difference": statistics.mean(a - b for a, b in zip(finals, base_finals, strict=True)),
        "seconds": seconds,
        "curve": [statistics.mean(values) for values in zip(*curves, strict=True)],
    }


def chart(path: Path, results: list[dict[str, Any]]) -> None:
    """Means over 20 steps, so that curves can be told from each other."""
    from aoext_bench.charts import drawn

    with drawn(path, 8, 4.5) as figure:
        axes = figure.subplots()
        for result in results:
            points = result["curve"]
            means = [statistics.mean(points[i : i + 20]) for i in range(0, len(points), 20)]
            axes.plot([20 * i + 10 for i in range(len(means))], means, label=result["way"], linewidth=1.2)
        axes.set_xlabel("step")
        axes.set_ylabel("bits per byte")
        axes.set_title("A small model of Python, trained in 8 bits")
        axes.legend()


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), default=list(WAYS)[1:])
@click.option("--steps", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--json", "json_path", type=JSON_FILE, default="out/training.json", show_default=True)
@click.option("--chart", "chart_path", type=click.Path(path_type=Path), help="Where to draw the curves.")
def main(
    ways: tuple[str, ...], steps: int, seeds: int, device: str, json_path: Path, chart_path: Path | None
) -> None:
    text = join_documents(split(standard_library_files())[0])
    view = grid("Bits per byte over the last tenth of the steps")
    for column in ("way", "bits per byte", "seeds apart", "more than bfloat16", "ms per step"):
        view.add_column(column, justify="left" if column == "way" else "right", no_wrap=True)
    results: list[dict[str, Any]] = []
    base: list[list[float]] = []
    for way in dict.fromkeys(("bfloat16", *ways)):
        runs = [curve(way, seed, steps, text, device) for seed in range(seeds)]
        curves = [losses for losses, _ in runs]
        base = base or curves
        result = summary(way, curves, base, statistics.median(seconds for _, seconds in runs))
        results.append(result)
        numbers = (result[name] for name in ("bits_per_byte", "spread", "difference"))
        view.add_row(way, *(f"{number:.3f}" for number in numbers), f"{result['seconds'] * 1e3:.0f}")
    where = environment(torch.device(device))
    measured = {"schema": SCHEMA, "environment": where, "steps": steps, "seeds": seeds, "results": results}
    present(measured, view, json_path)
    if chart_path is not None:
        chart(chart_path, results)


if __name__ == "__main__":
    main()
