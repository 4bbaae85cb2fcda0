"""What a call of an operator costs in a program that AOTInductor compiled: by the proxy, and by the C shims.

    python benchmarks/aoti_overhead.py [--device cuda]

One package calls a small operator CALLS times in a row, another one once; the difference of their times over
the difference of their calls is the time of a call, kernel included. Eager is a call from Python.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import aoext
from aoext.formats.table import Code

CALLS = 65
SIZE = 16  # of the square weight: as little work as can be


class Chain(nn.Module):
    """y = w ⋯ (w x), one call of ao::weight_only_linear for each."""

    def __init__(self, calls: int, device: torch.device) -> None:
        super().__init__()
        self.calls = calls
        self.register_buffer(
            "weight", torch.randint(-127, 128, (SIZE, SIZE), dtype=torch.int8, device=device)
        )
        self.register_buffer("scale", torch.rand(SIZE, 1, device=device) / 500)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            x = torch.ops.ao.weight_only_linear(x, self.weight, self.scale, code=Code.INT8)
        return x


def fastest(run: Callable[[], Any], device: torch.device, repeats: int = 5000) -> float:
    """Seconds of one run, the least of many; on a CPU those that the thread was busy."""
    on_gpu = device.type != "cpu"
    clock = time.perf_counter if on_gpu else time.thread_time
    best = float("inf")
    for _ in range(repeats):
        begin = clock()
        run()
        if on_gpu:
            torch.accelerator.synchronize(device)
        best = min(best, clock() - begin)
    return best


def package(calls: int, device: torch.device, options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    x = torch.randn(1, SIZE, dtype=torch.bfloat16, device=device)
    program = torch.export.export(Chain(calls, device), (x,))
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "chain.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=options)
        return torch._inductor.aoti_load_package(path)


@torch.inference_mode()  # no Python in a call: aoext registers gradients from there
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", type=torch.device, default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    x = torch.randn(1, SIZE, dtype=torch.bfloat16, device=device)
    ways: dict[str, Callable[[int], Callable[[Tensor], Tensor]]] = {
        "eager": lambda calls: Chain(calls, device),
        "proxy": lambda calls: package(calls, device, {}),
        "C shim": lambda calls: package(calls, device, aoext.aoti_options()),
    }
    print(f"ns for each call of ao::weight_only_linear, 1×{SIZE} by {SIZE}×{SIZE}, on {device}, one thread")
    for name, make in ways.items():
        many, one = make(CALLS), make(1)
        seconds = fastest(lambda: many(x), device) - fastest(lambda: one(x), device)  # noqa: B023
        print(f"{name:8} {seconds / (CALLS - 1) * 1e9:8.0f}")


if __name__ == "__main__":
    main()
