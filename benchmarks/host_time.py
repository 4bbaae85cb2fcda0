"""What one call of a linear layer costs the host: quantised layers against nn.Linear in bfloat16.

    python benchmarks/host_time.py
    python benchmarks/host_time.py --device cuda

A weight of 128×128 and one row, so that next to nothing is computed; one thread. Time is the calling
thread's own, so that other work on the machine does not count, of loops that take turns in one process; the
fastest loop of each counts. "F.linear" calls it with the layer's weight, "operator" calls the operator of
torch.ops.ao with the weight's tensors. On a GPU it is the time to send the call.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from aoext.cli.options import JSON_FILE
from aoext.cli.page import environment, grid, present
from aoext.formats.table import code_of
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor
from aoext_bench.bench import DTYPES
from aoext_bench.devices import Device, cpu_threads
from aoext_bench.options import MeasuredDeviceType
from schemes import MODES, SCHEMES, Scheme

SCHEMA = "aoext.host_time/1"
BASE = "bf16"

Call = Callable[[], Any]


def operator(weight: Tensor, x: Tensor) -> Call | None:
    """The call of the operator that a weight of ours stands for; None for a weight of others'."""
    ao = torch.ops.ao
    if isinstance(weight, Int4Tensor):
        arguments = (x, weight.qdata, weight.scale, weight.zero_point)
        return lambda: ao.bf16i4bf16_rowwise(*arguments)
    if not isinstance(weight, Int8Tensor | Float8Tensor):
        return None
    op = ao.scaled_linear if weight.dynamic_activation else ao.weight_only_linear
    eight, code = (x, weight.qdata, weight.scale), int(code_of(weight.qdata.dtype))
    return lambda: op(*eight, code=code)


def calls(scheme: Scheme, size: int, x: Tensor, dtype: torch.dtype) -> dict[str, Call]:
    """The ways to multiply by one weight of a scheme."""
    layer = nn.Linear(size, size, bias=False, device=x.device, dtype=scheme.dtype or dtype)
    model = nn.Sequential(layer).requires_grad_(False)
    if scheme.quantise:
        scheme.quantise(model)
    layer = model[0]
    weight = layer.weight
    found: dict[str, Call] = {
        "layer": lambda: layer(x),
        "F.linear": lambda: nn.functional.linear(x, weight),
    }
    plain = operator(weight, x) if scheme.quantise else None
    return found | ({"operator": plain} if plain else {})


def loop_seconds(call: Call, count: int) -> float:
    """The thread's own time of one call, in a loop of so many."""
    begin = time.thread_time()
    for _ in range(count):
        call()
    return (time.thread_time() - begin) / count


def fastest(all_calls: dict[Any, Call], device: Device, count: int, repeats: int) -> dict[Any, float]:
    """The fastest of many loops of each call; the calls take turns."""
    times = dict.fromkeys(all_calls, float("inf"))
    for call in all_calls.values():
        loop_seconds(call, 10)
    gc.disable()
    try:
        for _ in range(repeats):
            for name, call in all_calls.items():
                if device.device.type != "cpu":
                    torch.accelerator.synchronize(device.device)  # a full queue would make the host wait
                times[name] = min(times[name], loop_seconds(call, count))
    finally:
        gc.enable()
    return times


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--device", type=MeasuredDeviceType(), default="cpu", show_default=True)
@click.option(
    "--scheme",
    "schemes",
    type=click.Choice([name for name in SCHEMES if name != BASE]),
    multiple=True,
    help="Can be repeated. Default: aoext's; torchao's are ao_….",
)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="bfloat16", show_default=True)
@click.option("--size", type=click.IntRange(min=32), default=128, show_default=True, help="N and K.")
@click.option("--rows", type=click.IntRange(min=1), default=1, show_default=True, help="M.")
@click.option("--calls", "count", type=click.IntRange(min=1), default=200, show_default=True, help="A loop.")
@click.option("--repeats", type=click.IntRange(min=1), default=40, show_default=True, help="Loops of each.")
@click.option("--json", "json_path", type=JSON_FILE, default="out/host_time.json", show_default=True)
def main(
    device: Device,
    schemes: tuple[str, ...],
    dtype: str,
    size: int,
    rows: int,
    count: int,
    repeats: int,
    json_path: Path,
) -> None:
    schemes = schemes or tuple(
        scheme.name for scheme in SCHEMES.values() if scheme.quantise and not scheme.name.startswith("ao_")
    )
    x = torch.randn(rows, size, device=device.device, dtype=DTYPES[dtype])
    made: dict[tuple[str, str], Call] = {}
    for name in (BASE, *schemes):
        scheme = SCHEMES[name]
        if why := scheme.what_prevents(device.device):
            raise click.UsageError(f"{name}: {why}")
        given = x.to(scheme.dtype) if scheme.dtype else x
        made |= {(name, way): call for way, call in calls(scheme, size, given, DTYPES[dtype]).items()}
    seconds: dict[str, dict[tuple[str, str], float]] = {}
    with cpu_threads(1):
        where = environment(device.device)
        for mode, context in MODES.items():
            with context():
                seconds[mode] = fastest(made, device, count, repeats)

    view = grid(f"µs of the host for one call, {rows}×{size} by {size}×{size}; × nn.Linear in bfloat16")
    view.add_column("scheme", no_wrap=True)
    view.add_column("", no_wrap=True)
    for mode in MODES:
        view.add_column(mode, justify="right", no_wrap=True)
        view.add_column("×", justify="right", no_wrap=True)
    results = []
    before = None
    for name, way in made:
        cells = []
        for mode in MODES:
            own, base = seconds[mode][name, way], seconds[mode][BASE, "layer"]
            results.append({"scheme": name, "way": way, "mode": mode, "seconds": own, "ratio": own / base})
            cells += [f"{own * 1e6:.2f}", f"{own / base:.2f}"]
        view.add_row(name if name != before else "", way, *cells)
        before = name
    settings = {"dtype": dtype, "N": size, "K": size, "M": rows, "calls": count, "repeats": repeats}
    content = {"schema": SCHEMA, "environment": where, "settings": settings, "results": results}
    present(content, view, json_path)


if __name__ == "__main__":
    main()
