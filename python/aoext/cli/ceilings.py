"""What the device can do at best, measured: the speeds that results are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aoext.cli.devices import MIB, Device
from aoext.cli.pool import pool_bytes

GEMM_SIZE = 2048
SECONDS = 0.7  # for each kind of loop

# Bytes that one call reads: about a large weight. A pool of them is larger than the caches.
CHUNK = 64 * MIB


@dataclass(frozen=True)
class Ceilings:
    """Speeds with the loops that reached them."""

    read_gb_per_s: float
    read_by: str
    gemm_gflop_per_s: float
    gemm_by: str


def measure_ceilings(device: Device, generator: torch.Generator) -> Ceilings:
    """The fastest way to read memory, and the fastest bf16 product, out of a few plain ones."""
    block = torch.randn(MIB, generator=generator).to(device.device)
    chunks = block.repeat(pool_bytes(device) // block.nbytes).split(CHUNK // 4)
    reads: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "dot of float32": torch.dot,
        "sum of float32": lambda a, b: (a.sum(), b.sum()),
        "copy": lambda a, b: a.copy_(b),  # one half read, one written
    }
    halves = [chunk.chunk(2) for chunk in chunks if chunk.nbytes == CHUNK]
    read = {
        name: CHUNK / _fastest(device, [_bound(loop, *half) for half in halves]) / 1e9
        for name, loop in reads.items()
    }
    n = GEMM_SIZE
    a, b = torch.randn(2, n, n, generator=generator).to(device.device, torch.bfloat16)
    products: dict[str, Callable[[Tensor, Tensor], Any]] = {
        f"{n}x{n} times {n}x{n}": torch.mm,
        f"F.linear of {n}x{n}": torch.nn.functional.linear,
    }
    gemm = {
        name: 2 * n**3 / _fastest(device, [_bound(product, a, b)]) / 1e9 for name, product in products.items()
    }
    read_by, gemm_by = max(read, key=read.__getitem__), max(gemm, key=gemm.__getitem__)
    return Ceilings(read[read_by], read_by, gemm[gemm_by], gemm_by)


def _bound(function: Callable[[Tensor, Tensor], Any], a: Tensor, b: Tensor) -> Callable[[], Any]:
    return lambda: function(a, b)


def _fastest(device: Device, calls: list[Callable[[], Any]]) -> float:
    """The least time of one call; they are called in turn, the first of all to warm up."""
    calls[0]()
    times: list[float] = []
    while len(times) < 4 or sum(times) < SECONDS:
        times.append(device.seconds(calls[(len(times) + 1) % len(calls)]))
    return min(times)
