"""What the device can do at best, measured: the speeds that results are held against."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aoext.formats.dtypes import dtype_name
from aoext_bench.clocks import Candidate
from aoext_bench.devices import CUDA, MIB, Device, cpu_threads
from aoext_bench.pool import pool_bytes
from aoext_bench.timing import MIN_SAMPLES, MOST_OVERTIME, interleaved

GEMM_SIZES = (512, 1024, 2048)
SLOW = 0.05  # seconds of a call, beyond which no larger product is tried
SECONDS = 0.3  # for each loop

# A GPU needs larger products to fill it; in bursts between rests its power does not hold them back.
GEMM_SIZES_CUDA = (4096, 6144, 8192)
GEMM_SECONDS_CUDA = 0.1

LINE = 4096  # columns of the matrix that is read as one

# Bytes that one call reads: about a large weight. A pool of them is larger than the caches.
CHUNK = 64 * MIB


@dataclass(frozen=True)
class Ceilings:
    """Speeds with the loops that reached them."""

    read_gb_per_s: float
    read_by: str
    gemm_gflop_per_s: float
    gemm_by: str
    # Seconds by bytes, from memory that no cache holds; empty where only the rate was measured.
    read_seconds: dict[int, float] = field(default_factory=dict)
    # The rate of products of 8-bit operands; None where it was not measured.
    gemm8_gflop_per_s: float | None = None
    gemm8_by: str = ""

    def reading(self, size: int) -> float:
        """Seconds to read so many bytes: between the measured sizes along a line, beyond them at the rate."""
        sizes = sorted(self.read_seconds)
        if not sizes or size >= sizes[-1]:
            return size / self.read_gb_per_s / 1e9
        if size <= sizes[0]:
            return self.read_seconds[sizes[0]]
        right = bisect_left(sizes, size)
        a, b = sizes[right - 1], sizes[right]
        return self.read_seconds[a] + (size - a) / (b - a) * (self.read_seconds[b] - self.read_seconds[a])

    def floor(self, size: int, flop: int, flop8: int = 0) -> float:
        """Seconds a call needs that moves so many bytes and computes so much, in bfloat16 and in 8 bits."""
        seconds8 = flop8 / self.gemm8_gflop_per_s / 1e9 if self.gemm8_gflop_per_s else 0.0
        return max(self.reading(size), flop / self.gemm_gflop_per_s / 1e9, seconds8)


def measure_ceilings(device: Device, seed: int, threads: Sequence[int]) -> dict[int, Ceilings]:
    """By numbers of CPU threads: the fastest way to read memory, and the fastest product."""
    ceilings = {}
    for count in threads:
        with cpu_threads(count):
            if isinstance(device, CUDA):
                ceilings[count] = _measure_cuda(device, seed)
            else:
                ceilings[count] = _measure(device, seed)
    return ceilings


def _measure(device: Device, seed: int) -> Ceilings:
    """The rate of the fastest of some plain loops that read, and that of the fastest product."""
    generator = device.generator(seed)
    block = torch.randn(MIB, generator=generator, dtype=torch.float32).to(device.device)
    vector = block[:LINE]
    chunks = block.repeat(pool_bytes(device) // block.nbytes).split(CHUNK // 4)
    reads: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "dot of float32": torch.dot,
        "sum of float32": lambda a, b: (a.sum(), b.sum()),
        "maximum of int32": lambda a, b: (a.view(torch.int32).amax(), b.view(torch.int32).amax()),
        "matrix of float32 by a vector": lambda a, b: (a.view(-1, LINE) @ vector, b.view(-1, LINE) @ vector),
        "copy": lambda a, b: a.copy_(b),  # one half read, one written
    }
    halves = [chunk.chunk(2) for chunk in chunks if chunk.nbytes == CHUNK]
    read = {
        name: CHUNK / _fastest(device, [_bound(loop, *half) for half in halves]) / 1e9
        for name, loop in reads.items()
    }
    gemm: dict[str, float] = {}
    # A CPU without instructions for bfloat16 is at its best in float32.
    for dtype in (torch.float32, torch.bfloat16):
        for n in GEMM_SIZES:
            a, b = torch.randn(2, n, n, generator=generator, dtype=torch.float32).to(device.device, dtype)
            seconds = _fastest(device, [_bound(torch.nn.functional.linear, a, b)])
            gemm[f"F.linear of {n}x{n} in {dtype_name(dtype)}"] = 2 * n**3 / seconds / 1e9
            if seconds > SLOW:
                break
    read_by, gemm_by = max(read, key=read.__getitem__), max(gemm, key=gemm.__getitem__)
    return Ceilings(read[read_by], read_by, gemm[gemm_by], gemm_by)


def _measure_cuda(device: CUDA, seed: int) -> Ceilings:
    """Reads by size, and the fastest sample of some products: the peak, which long runs do not hold."""
    from aoext_bench.cuda_read import read_table

    table, read_by = read_table(device, pool_bytes(device))
    rate = max(size / seconds for size, seconds in table.items()) / 1e9
    generator = device.generator(seed)
    products: dict[str, float] = {}
    for n in GEMM_SIZES_CUDA:
        a, b = (torch.randn(n, n, generator=generator, device=device.device).bfloat16() for _ in range(2))
        candidates = {
            f"{n}x{n} times {n}x{n} in bfloat16": Candidate(partial(_bound, torch.mm, a, b)),
            f"F.linear of {n}x{n} in bfloat16": Candidate(partial(_bound, torch.nn.functional.linear, a, b)),
        }
        for name, timing in interleaved(candidates, device, GEMM_SECONDS_CUDA).items():
            products[name] = 2 * n**3 / min(timing.samples) / 1e9
    device.release_memory()
    gemm_by = max(products, key=products.__getitem__)
    products8 = _float8_products(device, generator)
    gemm8_by = max(products8, key=products8.__getitem__, default="")
    return Ceilings(rate, read_by, products[gemm_by], gemm_by, table, products8.get(gemm8_by), gemm8_by)


def _float8_products(device: CUDA, generator: torch.Generator) -> dict[str, float]:
    """GFLOP/s of float8 products by name, summed the fast and less exact way; empty where torch has none."""
    one = torch.ones((), dtype=torch.float32, device=device.device)

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    rates: dict[str, float] = {}
    for n in GEMM_SIZES_CUDA:
        a, b = (
            torch.randn(n, n, generator=generator, device=device.device).to(torch.float8_e4m3fn)
            for _ in range(2)
        )
        try:
            product(a, b)
        except (RuntimeError, NotImplementedError):
            return {}
        timing = interleaved({"": Candidate(partial(_bound, product, a, b))}, device, GEMM_SECONDS_CUDA)[""]
        rates[f"_scaled_mm of {n}x{n}"] = 2 * n**3 / min(timing.samples) / 1e9
    device.release_memory()
    return rates


def _bound(function: Callable[[Tensor, Tensor], Any], a: Tensor, b: Tensor) -> Callable[[], Any]:
    return lambda: function(a, b)


def _fastest(device: Device, calls: list[Callable[[], Any]]) -> float:
    """The least time of one call; they are called in turn, the first of all to warm up."""
    calls[0]()
    times: list[float] = []
    while sum(times) < (SECONDS if len(times) >= MIN_SAMPLES else MOST_OVERTIME * SECONDS):
        times.append(device.seconds(calls[(len(times) + 1) % len(calls)]))
    return min(times)
