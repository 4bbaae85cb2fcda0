"""How many times as fast as the faster of F.linear in float32 and in bfloat16 the CPU kernels are, over M.

A user without bfloat16 hardware runs float32, so that is the peer, and inputs are float32 unless `--dtype`
says otherwise. Candidates take turns in one process and the fastest call of each counts; weights rotate
through pools larger than the caches. With one thread a call's time is that of the thread, so that other
processes do not count.

    python benchmarks/cpu_grid.py
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 AOEXT_CPU_ISA=avx2 \
        python benchmarks/cpu_grid.py --shape 384x384 --m 1,32,128
"""

from __future__ import annotations

import time

import click
import torch
from torch import Tensor
from torch.nn.functional import linear

import aoext  # noqa: F401
from aoext import packing
from aoext.cli.options import CountsType, ShapeType
from aoext.cli.shapes import Shape, named
from aoext.reference import Tensors
from aoext_bench.bench import DTYPES
from aoext_bench.bench_run import Way
from aoext_bench.busy import Watch
from aoext_bench.clocks import Candidate
from aoext_bench.devices import CPU, MIB, cpu_threads
from aoext_bench.pool import Pool
from aoext_bench.timing import interleaved

# The layers of a MiniLM, and of a Llama of a billion parameters.
SHAPES = [
    named(N, K) for N, K in ((384, 384), (1536, 384), (384, 1536), (2048, 2048), (5632, 2048), (2048, 5632))
]
POOL_BYTES = 80 * MIB
GROUPS = {"int4 g32": 32, "int4 g128": 128}
SCHEMES = [*GROUPS, "int8 weights", "e4m3 weights", "int8 dynamic", "int8 by int8", "int8_mm"]
PEERS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def rotating(weights: Tensors) -> Pool:
    pool = Pool(POOL_BYTES)
    pool.fill(weights)
    return pool


def way(scheme: str, x: Tensor, w: Tensor) -> Way:
    """How a scheme multiplies x [M, K] by the weight w [N, K]."""
    ao = torch.ops.ao
    if scheme in GROUPS:
        q, *scales = packing.int4_row_quantize_zp(w.to(x.dtype), GROUPS[scheme])
        pool = rotating((packing.pack_int4(q), *scales))
        return Way(lambda x, parts: ao.bf16i4bf16_rowwise(*x, *parts), (x,), pool)
    dtype = torch.float8_e4m3fn if scheme.startswith("e4m3") else torch.int8
    pool = rotating(ao.quantize_rowwise(w, dtype))
    if scheme.endswith("weights"):
        op = ao.bf16f8bf16_rowwise if scheme.startswith("e4m3") else ao.bf16i8bf16_rowwise
        return Way(lambda x, parts: op(*x, *parts), (x,), pool)
    if scheme == "int8 dynamic":
        return Way(lambda x, parts: ao.scaled_linear_rowwise(*x, *parts), (x,), pool)
    quantised = ao.quantize_rowwise(x, dtype)
    if scheme == "int8_mm":
        return Way(lambda x, parts: ao.int8_mm(x[0], parts[0]), quantised, pool)

    def scaled(x: Tensors, parts: Tensors) -> Tensor:
        (values, scales), (weight, weight_scale) = x, parts
        return ao.scaled_mm_rowwise(values, weight, scales, weight_scale, None, out_dtype=w.dtype)

    return Way(scaled, quantised, pool)


def peer(x: Tensor, w: Tensor) -> Way:
    return Way(lambda x, parts: linear(*x, *parts), (x,), rotating((w,)))


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--shape", "shapes", type=ShapeType(), multiple=True, default=SHAPES, show_default=True)
@click.option("--m", "rows", type=CountsType(), default="1,8,32,128,512", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
@click.option("--scheme", "schemes", type=click.Choice(SCHEMES), multiple=True, default=SCHEMES)
@click.option("--seconds", type=float, default=0.05, show_default=True, help="For each candidate of a point.")
def main(
    shapes: tuple[Shape, ...],
    rows: tuple[int, ...],
    threads: int,
    dtype: str,
    schemes: tuple[str, ...],
    seconds: float,
) -> None:
    device = CPU(torch.device("cpu"))
    if threads == 1:
        device.watch = Watch(wall=time.thread_time)
    print("N×K", "M", "F.linear float32 µs", "bfloat16 µs", *schemes, sep=" | ")
    with cpu_threads(threads):
        for shape in shapes:
            w = torch.randn(shape.N, shape.K) / shape.K**0.5
            for M in rows:
                x = torch.randn(M, shape.K)
                ways = {name: peer(x.to(plain), w.to(plain)) for name, plain in PEERS.items()}
                ways |= {scheme: way(scheme, x.to(DTYPES[dtype]), w.to(DTYPES[dtype])) for scheme in schemes}
                candidates: dict[str, Candidate] = {name: each.back_to_back() for name, each in ways.items()}
                timings = interleaved(candidates, device, seconds)
                took = {name: timing.seconds for name, timing in timings.items()}
                fastest = min(took[name] for name in PEERS)
                print(
                    shape,
                    M,
                    *(f"{took[name] * 1e6:.0f}" for name in PEERS),
                    *(f"{fastest / took[scheme]:.2f}" for scheme in schemes),
                    sep=" | ",
                    flush=True,
                )


if __name__ == "__main__":
    main()
