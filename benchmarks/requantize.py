"""What it takes to write new weights into a quantised model: `weight.copy_` by format, beside a plain copy.

    python benchmarks/requantize.py --device cuda
    python benchmarks/requantize.py --threads 1 --layers 1

All linear weights of a model of 8B of Llama's shape, or of `--layers` of its layers, each a call. `copy_`
waits for whether all was finite and leaves a weight as it was where not; "no wait" is
copy_(…, non_blocking=True), "model" aoext.requantize_ of all, which waits once; "kernels" is "no wait" in a
graph. GB/s count the source's bytes and those of the weight; the share is of what a plain copy of the source
moves a second. First every format's bits are held against those of Python on the CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

import aoext
from aoext.tensors import BlockwiseTensor, Float8Tensor, Int4Tensor, Int8Tensor, Lut4Tensor, in_place

SHAPES = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336)]
LAYERS = 32
FORMATS: dict[str, Callable] = {
    "int4": lambda w: Int4Tensor.from_hp(w, [1, 128]),
    "int4 symmetric": lambda w: Int4Tensor.from_hp(w, [1, 128], symmetric=True),
    "nf4": lambda w: Lut4Tensor.from_hp(w, "nf4"),
    "mxfp4": lambda w: Lut4Tensor.from_hp(w, "mxfp4"),
    "nvfp4": lambda w: Lut4Tensor.from_hp(w, "nvfp4"),
    "int8": Int8Tensor.from_hp,
    "float8": Float8Tensor.from_hp,
    "float8 blocks": BlockwiseTensor.from_hp,
}


def check(device: str) -> None:
    """Bits of the device's kernel against those of Python on the CPU."""
    for name, make in FORMATS.items():
        for dtype in (torch.bfloat16, torch.float32):
            weight = make(torch.randn(136, 4096, dtype=dtype, device=device))
            plain = torch.randn(136, 4096, dtype=dtype, device=device)
            plain[:9] *= torch.logspace(-30, 4, 9, device=device)[:, None].to(dtype)
            plain[9] = (plain[9] * 4).round() / 4
            plain[10] = 0
            expected = weight.to("cpu").requantized(plain.cpu())
            served = in_place.is_served(weight)
            weight.copy_(plain)
            wrong = {
                field: int((own.cpu().view(torch.uint8) != other.view(torch.uint8)).sum())
                for (field, own), (_, other) in zip(
                    weight.named_fields(), expected.named_fields(), strict=True
                )
            }
            broken = {field: count for field, count in wrong.items() if count}
            by = "kernel" if served else "PYTHON"
            print(f"check {name:15} {dtype!s:15} {by}  bytes that differ: {broken or 'none'}")


class Clock:
    """Times of calls: of the GPU's queue, or of the process's CPU time."""

    def __init__(self, device: str, repeats: int) -> None:
        self.cuda, self.repeats = device == "cuda", repeats

    def best(self, call: Callable[[], object]) -> float:
        """Seconds by the wall clock on a GPU, and CPU time of the process else; the least of several."""
        best, now = float("inf"), time.perf_counter if self.cuda else time.process_time
        for _ in range(self.repeats):
            self.wait()
            begin = now()
            call()
            self.wait()
            best = min(best, now() - begin)
        return best

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def kernels(self, call: Callable[[], object]) -> float:
        """Seconds that the GPU is busy: in a graph, which the host does not slow down."""
        if not self.cuda:
            return float("nan")
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return self.best(graph.replay)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the model")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), help=", ".join(FORMATS))
    parser.add_argument("--repeats", type=int, default=5, help="of which the fastest counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of a CPU")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    device, clock = options.device, Clock(options.device, options.repeats)
    check(device)
    shapes = SHAPES * options.layers
    # A source for each weight, so that none comes out of a cache.
    sources = [torch.randn(shape, dtype=torch.bfloat16, device=device) for shape in shapes]
    places = [torch.empty_like(source) for source in sources[: len(SHAPES)]]

    def copies() -> None:
        for place, source in zip(places, sources, strict=False):
            place.copy_(source)

    seconds = clock.kernels(copies) if clock.cuda else clock.best(copies)
    plain = 2 * sum(place.nbytes for place in places) / seconds
    count = sum(source.numel() for source in sources)
    print(f"{count / 1e9:.2f} G weights; a plain copy moves {plain / 1e9:.1f} GB/s")
    print(f"{'':15} {'GB/s':>6} {'share':>6} {'kernels':>8} {'no wait':>8} {'model':>8} {'copy_':>8}  ms")
    for name in options.formats:
        moved, (busy, *times) = measure(FORMATS[name], sources, options.layers, clock)
        rate = moved / (busy if clock.cuda else min(times))
        shown = " ".join(f"{1e3 * t:8.2f}" for t in (busy, *times))
        print(f"{name:15} {rate / 1e9:6.1f} {rate / plain:6.2f} {shown}", flush=True)


def measure(
    make: Callable, sources: list[torch.Tensor], layers: int, clock: Clock
) -> tuple[int, list[float]]:
    """Bytes that a model's weights and their sources have, and seconds to write the former."""
    one = [make(source) for source in sources[: len(SHAPES)]]
    weights = [weight.clone() for _ in range(layers) for weight in one]
    model = nn.Module()
    for i, weight in enumerate(weights):
        layer = nn.Linear(1, 1, bias=False)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        model.add_module(str(i), layer)
    given = {f"{i}.weight": source for i, source in enumerate(sources)}

    def write(**how: bool) -> None:
        for weight, source in zip(weights, sources, strict=True):
            weight.copy_(source, **how)

    def write_at_once() -> None:
        write(non_blocking=True)

    times = [clock.best(call) for call in (write_at_once, lambda: aoext.requantize_(model, given), write)]
    moved = sum(source.nbytes + weight.stored_bytes for source, weight in zip(sources, weights, strict=True))
    return moved, [clock.kernels(write_at_once), *times]


if __name__ == "__main__":
    main()
