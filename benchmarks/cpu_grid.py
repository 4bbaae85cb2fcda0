"""How many times as fast as the faster of `F.linear` in float32 and in bfloat16 the CPU kernels are, over M.

A user without bfloat16 hardware runs float32, so that is the peer, and inputs are float32 unless `--dtype`
says otherwise. Candidates take turns in one process and the fastest call of each counts; weights rotate
through pools larger than the caches. With one thread a call's time is that of the thread, so that other
processes do not count.

    python benchmarks/cpu_grid.py --threads 1
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 AOEXT_CPU_ISA=avx2 \
        python benchmarks/cpu_grid.py --threads 1 --shape 384x384 --m 1,32,128
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import aoext  # noqa: F401
from aoext import packing

SHAPES = "384x384,1536x384,384x1536,2048x2048,5632x2048,2048x5632"
POOL_BYTES = 80 << 20
GROUPS = {"int4 g32": 32, "int4 g128": 128}
SCHEMES = [*GROUPS, "int8 weights", "e4m3 weights", "int8 dynamic", "int8 by int8", "int8_mm"]
Call = Callable[[], torch.Tensor]


def rotating(make: Callable[[], tuple[torch.Tensor, ...]], call: Callable[..., torch.Tensor]) -> Call:
    """`call` on copies of one weight's parts in turn."""
    first = make()
    size = sum(t.numel() * t.element_size() for t in first)
    pool = [first] + [tuple(t.clone() for t in first) for _ in range(min(POOL_BYTES // size, 255))]
    at = 0

    def turn() -> torch.Tensor:
        nonlocal at
        at = (at + 1) % len(pool)
        return call(*pool[at])

    return turn


def candidates(scheme: str, x: torch.Tensor, w: torch.Tensor) -> Call:
    ao = torch.ops.ao
    if scheme in GROUPS:
        q, *scales = packing.int4_row_quantize_zp(w.to(x.dtype), GROUPS[scheme])
        return rotating(
            lambda: (packing.pack_int4(q), *scales), lambda *parts: ao.bf16i4bf16_rowwise(x, *parts)
        )
    dtype = torch.float8_e4m3fn if scheme.startswith("e4m3") else torch.int8
    values, scale = ao.quantize_rowwise(w, dtype)
    if scheme.endswith("weights"):
        op = ao.bf16f8bf16_rowwise if scheme.startswith("e4m3") else ao.bf16i8bf16_rowwise
        return rotating(lambda: (values, scale), lambda q, s: op(x, q, s))
    if scheme == "int8 dynamic":
        return rotating(lambda: (values, scale), lambda q, s: ao.scaled_linear_rowwise(x, q, s))
    xq, xs = ao.quantize_rowwise(x, dtype)
    if scheme == "int8_mm":
        return rotating(lambda: (values,), lambda q: ao.int8_mm(xq, q))
    return rotating(
        lambda: (values, scale), lambda q, s: ao.scaled_mm_rowwise(xq, q, xs, s, None, out_dtype=x.dtype)
    )


def fastest(calls: dict[str, Call], seconds: float, threads: int) -> dict[str, float]:
    """Of calls in turn, until each has had `seconds` and at least three calls."""
    clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    best = dict.fromkeys(calls, math.inf)
    used = dict.fromkeys(calls, 0)
    count = 0
    while count < 3 or (min(used.values()) < seconds * 1e9 and count < 3000):
        for name, call in calls.items():
            if count > 3 and used[name] > 2 * seconds * 1e9:
                continue
            begin = clock()
            call()
            took = clock() - begin
            used[name] += took
            best[name] = min(best[name], took / 1e3)
        count += 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default=SHAPES, help="of weights, NxK, with commas between")
    parser.add_argument("--m", default="1,8,32,128,512")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--scheme", default=",".join(SCHEMES), help="with commas between")
    parser.add_argument("--seconds", type=float, default=0.05, help="for each candidate of a point")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    schemes = options.scheme.split(",")
    print("N×K", "M", "F.linear float32 µs", "bfloat16 µs", *schemes, sep=" | ")
    for shape in options.shape.split(","):
        n, k = map(int, shape.split("x"))
        w = torch.randn(n, k) / k**0.5
        for m in map(int, options.m.split(",")):
            x = torch.randn(m, k).to(getattr(torch, options.dtype))
            calls = {
                name: rotating(lambda t=t, w=w: (w.to(t),), lambda v, t=t, x=x: F.linear(x.to(t), v))
                for name, t in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
            }
            calls |= {scheme: candidates(scheme, x, w) for scheme in schemes}
            took = fastest(calls, options.seconds, options.threads)
            peer = min(took["float32"], took["bfloat16"])
            print(
                f"{shape} | {m} | {took['float32']:.0f} | {took['bfloat16']:.0f}",
                *(f"{peer / took[s]:.2f}" for s in schemes),
                sep=" | ",
                flush=True,
            )


if __name__ == "__main__":
    main()
