"""What act-order costs: an int4 layer whose columns are permuted, beside the same one without a permutation.

    python benchmarks/act_order.py
    python benchmarks/act_order.py --device cuda

Both multiply by the same weight, which differs in k_order alone; they take turns, and the fastest call of
each counts. On a CPU the weights rotate through a pool that no cache holds.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import click
import torch
from torch.nn import functional as F

from aoext.tensors import Int4Tensor

GROUP = 128
POOL_BYTES = 192 * 2**20
SHAPES = ((4096, 4096), (11008, 4096), (4096, 11008))
ROWS = (1, 4, 16, 64, 256)


def weights(N: int, K: int, device: str) -> tuple[list[Int4Tensor], list[Int4Tensor]]:
    """A pool of weights without a permutation, and the same memory with one."""
    plain = []
    for _ in range(1 if device == "cuda" else max(1, POOL_BYTES // (N * K // 2))):
        q = torch.randint(-128, 128, (N, K // 2), dtype=torch.int8, device=device)
        scale = torch.rand(K // GROUP, N, dtype=torch.bfloat16, device=device)
        plain.append(Int4Tensor(q, scale, torch.zeros_like(scale), [1, GROUP], [N, K]))
    order = torch.randperm(K).to(device)
    permuted = [weight.remade({**dict(weight.named_fields()), "k_order": order}) for weight in plain]
    return plain, permuted


def fastest(calls: list[Callable[[], None]], seconds: float) -> list[float]:
    """The fastest time of each, in turns."""
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for index, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - begin)
    return best


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--threads", type=int, default=None, help="Of a CPU.")
@click.option("--seconds", type=float, default=2.0, show_default=True, help="For each figure.")
def main(device: str, threads: int | None, seconds: float) -> None:
    """Print the time of a layer with act-order over that of one without, and both in microseconds."""
    if threads is not None:
        torch.set_num_threads(threads)
    print(f"{device}, {torch.get_num_threads()} threads, groups of {GROUP}")
    print("N, K, M: without, with, ratio")
    for (N, K), M in itertools.product(SHAPES, ROWS):
        pools = [itertools.cycle(pool) for pool in weights(N, K, device)]
        x = torch.randn(M, K, dtype=torch.bfloat16, device=device)

        def call(pool: itertools.cycle[Int4Tensor], x: torch.Tensor = x) -> None:
            F.linear(x, next(pool))
            if device == "cuda":
                torch.cuda.synchronize()

        with torch.inference_mode():
            plain, permuted = fastest([lambda pool=pool, call=call: call(pool) for pool in pools], seconds)
        print(f"{N}, {K}, {M}: {plain * 1e6:.0f}, {permuted * 1e6:.0f}, {permuted / plain:.3f}", flush=True)


if __name__ == "__main__":
    main()
