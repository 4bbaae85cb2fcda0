"""What act-order costs: an int4 layer whose columns are permuted, beside the same one without a permutation.

    python benchmarks/act_order.py
    python benchmarks/act_order.py --device cuda

Both multiply by the same weight, which differs in k_order alone, and the gather of the activation is timed by
itself as well; they take turns, and the fastest call of each counts. On a CPU the weights rotate through a
pool that no cache holds, and time with one thread is the thread's own, so that other work does not count.
Where two layers differ by noise, the gather's share says what act-order adds.
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
    """A pool of weights without a permutation, and one of the same weights with it, half a round ahead."""
    plain = []
    for _ in range(1 if device == "cuda" else max(1, POOL_BYTES // (N * K // 2))):
        q = torch.randint(-128, 128, (N, K // 2), dtype=torch.int8, device=device)
        scale = torch.rand(K // GROUP, N, dtype=torch.bfloat16, device=device)
        plain.append(Int4Tensor(q, scale, torch.zeros_like(scale), [1, GROUP], [N, K]))
    order = torch.randperm(K).to(device)
    permuted = [weight.remade({**dict(weight.named_fields()), "k_order": order}) for weight in plain]
    half = len(plain) // 2  # or the second would find what the first has left in a cache
    return plain, permuted[half:] + permuted[:half]


def fastest(calls: list[Callable[[], object]], seconds: float, clock: Callable[[], float]) -> list[float]:
    """The fastest time of each, in turns."""
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for index, call in enumerate(calls):
            begin = clock()
            call()
            best[index] = min(best[index], clock() - begin)
    return best


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--threads", type=int, default=1, show_default=True, help="How many threads the CPU uses.")
@click.option("--seconds", type=float, default=2.0, show_default=True, help="For each line.")
def main(device: str, threads: int, seconds: float) -> None:
    """Print microseconds of a layer without and with act-order and of the gather, and what it adds."""
    torch.set_num_threads(threads)
    clock = time.thread_time if (device, threads) == ("cpu", 1) else time.perf_counter
    print(f"{device}, {threads} threads, groups of {GROUP}")
    print(
        f"{'N':>6} {'K':>6} {'M':>4} {'without':>9} {'with':>9} {'gather':>8} {'with ÷':>8} {'gather ÷':>9}"
    )
    for (N, K), M in itertools.product(SHAPES, ROWS):
        pools = [itertools.cycle(pool) for pool in weights(N, K, device)]
        order = next(pools[1]).k_order
        x = torch.randn(M, K, dtype=torch.bfloat16, device=device)
        calls: list[Callable[[], object]] = [
            lambda pool=pools[0], x=x: F.linear(x, next(pool)),
            lambda pool=pools[1], x=x: F.linear(x, next(pool)),
            lambda order=order, x=x: x.gather(-1, order.expand(x.shape)),
        ]
        if device == "cuda":
            calls = [lambda call=call: (call(), torch.cuda.synchronize()) for call in calls]
        with torch.inference_mode():
            without, with_order, gather = fastest(calls, seconds, clock)
        print(
            f"{N:6} {K:6} {M:4} {without * 1e6:9.1f} {with_order * 1e6:9.1f} {gather * 1e6:8.1f} "
            f"{with_order / without:8.3f} {gather / without:9.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
