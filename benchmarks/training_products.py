"""Products for training on frozen quantised weights: ours, and a weight that is dequantised for PyTorch's.

    python benchmarks/training_products.py --device cuda --m 2048 --shape 4096x4096 --shape 14336x4096

For each format y = x·wᵀ and dx = dy·w of M rows, in bfloat16: what aoext does of itself, dequantising alone,
and dequantising with PyTorch's product behind it, all as parts of the time that PyTorch takes with a plain
weight. The choice between the two rests on these figures. On a CPU the times are the process's CPU time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch.nn.functional import linear

from aoext.cli.options import JSON_FILE
from aoext.cli.page import environment, grid, present
from aoext.configs.schemes import as_config

SCHEMA = "aoext.training_products/1"
SCHEMES = ("nf4", "mxfp4", "nvfp4", "int4", "int8", "float8")
COLUMNS = ("y, ours", "y, dequantised", "dx, ours", "dx, dequantised", "dequantising")


def seconds(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """The median of several calls."""
    call()
    times = []
    for _ in range(repeats):
        if device.type != "cpu":
            torch.accelerator.synchronize()
        clock = time.process_time if device.type == "cpu" else time.perf_counter
        begin = clock()
        call()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(clock() - begin)
    return statistics.median(times)


def measure(scheme: str, M: int, N: int, K: int, device: torch.device, repeats: int) -> dict[str, Any]:
    """Times as parts of those of a plain weight, which are in seconds."""
    plain = torch.randn(N, K, device=device, dtype=torch.bfloat16) / K**0.5
    x, grad = (torch.randn(M, size, device=device, dtype=torch.bfloat16) for size in (K, N))
    weight = as_config("--scheme", scheme).quantize(plain)
    leaf = x.clone().requires_grad_()
    y = linear(leaf, weight)

    def timed(call: Callable[[], Any]) -> float:
        return seconds(call, device, repeats)

    forward, backward = timed(lambda: linear(x, plain)), timed(lambda: grad @ plain)
    with torch.no_grad():
        parts = (
            timed(lambda: linear(x, weight)) / forward,
            timed(lambda: linear(x, weight.dequantize())) / forward,
        )
    return {
        "scheme": scheme,
        **{"M": M, "N": N, "K": K},
        "seconds": {"y": forward, "dx": backward},
        "parts": dict(
            zip(
                COLUMNS,
                (
                    *parts,
                    timed(lambda: torch.autograd.grad(y, leaf, grad, retain_graph=True)) / backward,
                    timed(lambda: grad @ weight.dequantize()) / backward,
                    timed(weight.dequantize) / backward,
                ),
                strict=True,
            )
        ),
    }


def shape_of(context: Any, parameter: Any, values: tuple[str, ...]) -> list[tuple[int, int]]:
    try:
        return [(int(n), int(k)) for n, k in (value.split("x") for value in values)]
    except ValueError as error:
        raise click.BadParameter("must be NxK, as 4096x4096") from error


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--scheme", "schemes", multiple=True, default=SCHEMES, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--m", "rows", multiple=True, type=click.IntRange(min=1), default=(2048,), show_default=True)
@click.option("--shape", "shapes", multiple=True, default=("4096x4096", "14336x4096"), callback=shape_of)
@click.option("--repeats", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--json", "json_path", type=JSON_FILE, default="out/training_products.json", show_default=True)
def main(
    schemes: tuple[str, ...],
    device: str,
    rows: tuple[int, ...],
    shapes: list[tuple[int, int]],
    repeats: int,
    json_path: Path,
) -> None:
    place = torch.device(device)
    view = grid("Times as parts of a plain weight's in bfloat16")
    for column in ("scheme", "M", "N", "K", *COLUMNS):
        view.add_column(column, justify="left" if column == "scheme" else "right", no_wrap=True)
    results = []
    for N, K in shapes:
        for M in rows:
            for scheme in schemes:
                result = measure(scheme, M, N, K, place, repeats)
                results.append(result)
                cells = (f"{part:.2f}" for part in result["parts"].values())
                view.add_row(scheme, str(M), str(N), str(K), *cells)
    where = environment(place)
    present({"schema": SCHEMA, "environment": where, "results": results}, view, json_path)


if __name__ == "__main__":
    main()
