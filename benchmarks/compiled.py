"""The small language model on a CPU: eager, compiled without aoext's passes, and compiled with them.

    python benchmarks/compiled.py

One token ("decode", without a cache) and a prompt ("prefill"), each with what it calls: operators that
PyTorch dispatches where it is eager, kernels that Inductor's code starts where it is compiled. All three are
timed in turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click
import torch
from rich import box
from rich.table import Table
from torch import Tensor, nn
from torch._inductor import config
from torch._inductor.utils import run_and_get_code
from torch.utils._python_dispatch import TorchDispatchMode

import aoext
from aoext.cli.page import console, environment, summary_line
from aoext_bench.clocks import Candidate
from aoext_bench.devices import Device
from aoext_bench.options import MeasuredDeviceType
from aoext_bench.timing import interleaved
from aoext_bench.tiny_lm import load_tiny_lm

SCHEMES = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=128),
    "int8": aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": aoext.Float8DynamicActivationFloat8WeightConfig(),
}
# Calls in Inductor's code: operators, and the loops that it wrote itself.
CALL = re.compile(
    r"^\s+(?:\w+ = )?(?:torch\.ops\.\w+\.\w+\.\w+\(|extern_kernels\.|cpp_fused\w*\(|aoti_torch)", re.M
)


class Counting(TorchDispatchMode):
    """Counts the operators that are dispatched and are no views."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += not func.is_view
        return func(*args, **(kwargs or {}))


def eager_calls(model: nn.Module, tokens: Tensor) -> int:
    with Counting() as counting:
        model(tokens)
    return counting.calls


def compiled(model: nn.Module, tokens: Tensor, **settings: Any) -> tuple[Callable[[Tensor], Tensor], int]:
    """The model compiled with these settings of Inductor's, and how many kernels one call of it starts."""
    torch._dynamo.reset()
    run = torch.compile(model, fullgraph=True, dynamic=False)
    with config.patch(**settings):
        _, code = run_and_get_code(run, tokens)
    body = code[-1].split("def call(")[-1].split("def benchmark_compiled_module")[0]
    return run, len(CALL.findall(body))


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--device", type=MeasuredDeviceType(), default="cpu", show_default=True)
@click.option("--scheme", "schemes", type=click.Choice(list(SCHEMES)), multiple=True, default=tuple(SCHEMES))
@click.option("--prompt", type=click.IntRange(min=2), default=128, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
def main(device: Device, schemes: tuple[str, ...], prompt: int, seconds: float) -> None:
    out = console()
    out.print(summary_line(environment(device.device)))
    view = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading in (
        "",
        "",
        "eager µs",
        "calls",
        "compiled µs",
        "calls",
        "with passes µs",
        "calls",
        "faster by",
    ):
        view.add_column(heading, justify="right")
    for name in schemes:
        scheme = SCHEMES[name]
        model = load_tiny_lm(device=device.device)
        aoext.quantize_(model, scheme)
        for what, length in (("decode", 1), ("prefill", prompt)):
            tokens = torch.randint(256, (1, length), device=device.device)
            with torch.no_grad():
                row = _measure(model, tokens, device, seconds, merge=name == "int4")
            view.add_row(name, what, *row)
    out.print(view)
    out.print("int4 with passes: its linears of one input merged, their weights frozen")


def _measure(model: nn.Module, tokens: Tensor, device: Device, seconds: float, merge: bool) -> list[str]:
    """Times and calls of all three, as cells."""
    with aoext.inductor.patch(enabled=False):
        plain, plain_calls = compiled(model, tokens)
    with aoext.inductor.patch(merge_linears=merge):
        ours, our_calls = compiled(model, tokens, freezing=merge)
    ways = {"eager": model, "plain": plain, "ours": ours}
    calls = {"eager": eager_calls(model, tokens), "plain": plain_calls, "ours": our_calls}
    candidates = {name: Candidate(lambda way=way: lambda: way(tokens)) for name, way in ways.items()}
    times = interleaved(candidates, device, seconds)
    cells = [cell for name in ways for cell in (f"{times[name].seconds * 1e6:.0f}", str(calls[name]))]
    return [*cells, f"{times['plain'].seconds / times['ours'].seconds:.2f}×"]


if __name__ == "__main__":
    main()
