"""Products of experts beside torch._grouped_mm in bfloat16, on a GPU: microseconds by replays of CUDA graphs.

    python benchmarks/experts.py --shape 1536,2048 --shape 2048,768 --tokens 1,8,64,512,4096

Each token has some of the experts, by chance or by Zipf's law; two sets of weights, larger than a cache, take
turns. Beside each time stands the larger of what reading the weights of the experts that are hit takes and of
what multiplying does, at the rates given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
import torch
from torch import Tensor

from aoext import Code
from aoext.operators.calls import ao

BF16, INT8, E4M3 = torch.bfloat16, torch.int8, torch.float8_e4m3fn
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
SETS = 2
Product = tuple[
    str, float, int, Callable[[int], Tensor]
]  # name, bits of a weight, of a multiplication, a call


def microseconds(call: Callable[[int], Tensor]) -> float:
    """The fastest of five replays of a graph of calls."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for i in range(SETS):
            call(i)
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call(0)
        end.record()
        end.synchronize()
        calls = max(1, min(20, int(2 / begin.elapsed_time(end)))) * SETS
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        for i in range(calls):
            call(i % SETS)
        graph.capture_end()
        times = []
        for _ in range(6):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / calls * 1e3)
    return min(times[1:])


def offsets_of(tokens: int, experts: int, top: int, zipf: bool, g: torch.Generator) -> tuple[Tensor, int]:
    """Where the rows of experts end, and how many have any."""
    ranks = torch.arange(1, experts + 1, device="cuda", dtype=torch.float32)
    chance = (1 / ranks if zipf else torch.ones_like(ranks)).expand(tokens, experts)
    counts = torch.bincount(torch.multinomial(chance, top, generator=g).flatten(), minlength=experts)
    return counts.cumsum(0).to(torch.int32), int((counts > 0).sum())


def products(x: Tensor, N: int, offsets: Tensor, g: torch.Generator) -> Iterator[Product]:
    E, K = len(offsets), x.shape[1]

    def draw(*sizes: int) -> Tensor:
        return torch.rand(*sizes, device="cuda", generator=g) / 100

    codes = [torch.randint(-127, 128, (E, N, K), device="cuda", dtype=INT8, generator=g) for _ in range(SETS)]
    int8 = codes
    e4m3 = [w.to(BF16).to(E4M3) for w in codes]
    nibbles = [w[:, :, : K // 2].contiguous() for w in codes]
    bf16 = [w.to(BF16).transpose(-2, -1) for w in codes]
    rows, blocks, groups = draw(E, N, 1), draw(E, N // 128, K // 128), draw(E, K // 128, N).to(BF16)
    powers = torch.randint(115, 122, (E, N, K // 32), device="cuda", dtype=torch.uint8, generator=g)
    table = torch.tensor(E2M1, device="cuda")
    (q8, s8), (qf, sf), (qb, sb) = ao.quantize(x, INT8), ao.quantize(x, E4M3), ao.quantize(x, E4M3, [1, 128])
    to_bf16: dict[str, Any] = {"offsets": offsets, "out_dtype": BF16}
    by_128 = {"block_size": [128, 128]}

    def weight_only(weights: list[Tensor], scale: Tensor, code: Code, **more: Any) -> Callable[[int], Tensor]:
        return lambda i: ao.weight_only_linear(x, weights[i], scale, code, offsets=offsets, **more)

    def scaled(q: Tensor, s: Tensor, weights: list[Tensor], scale: Tensor, code: Code, **more: Any) -> Any:
        return lambda i: ao.scaled_mm(q, weights[i], s, scale, code, **more, **to_bf16)

    lut4 = [w.view(torch.uint8) for w in nibbles]
    yield "int4", 4.25, 16, weight_only(nibbles, groups, Code.INT4, zero_point=groups)
    yield "int8", 8, 16, weight_only(int8, rows, Code.INT8)
    yield "e4m3 128x128", 8, 16, weight_only(e4m3, blocks, Code.E4M3, **by_128)
    yield "mxfp4", 4.25, 16, weight_only(lut4, powers, Code.LUT4, block_size=[1, 32], table=table)
    yield "int8 x int8", 8, 8, scaled(q8, s8, int8, rows, Code.INT8)
    yield "e4m3 x e4m3", 8, 8, scaled(qf, sf, e4m3, rows, Code.E4M3)
    yield "128x128 both", 8, 8, scaled(qb, sb, e4m3, blocks, Code.E4M3, input_block=[1, 128], **by_128)
    yield "int8 x int4", 4.25, 16, scaled(q8, s8, nibbles, groups, Code.INT4, zero_point=groups)
    yield "bf16", 16, 16, lambda i: torch._grouped_mm(x, bf16[i], offs=offsets)


def ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


@click.command()
@click.option("--shape", multiple=True, default=["1536,2048", "2048,768"], help="N,K of a weight")
@click.option("--tokens", default="1,8,64,512,4096")
@click.option("--experts", default=128)
@click.option("--top", default=8, help="experts of a token")
@click.option("--zipf", is_flag=True)
@click.option("--bandwidth", default=4.0, help="TB/s")
@click.option("--peak", default=700.0, help="TFLOP/s in bfloat16")
def main(
    shape: tuple[str, ...], tokens: str, experts: int, top: int, zipf: bool, bandwidth: float, peak: float
) -> None:
    g = torch.Generator("cuda").manual_seed(torch.seed() % 2**31)
    for N, K in map(ints, shape):
        for count in ints(tokens):
            offsets, hit = offsets_of(count, experts, top, zipf, g)
            x = torch.randn(count * top, K, device="cuda", dtype=BF16, generator=g)
            found = []
            for name, bits, multiplied, call in products(x, N, offsets, g):
                reading = hit * N * K * bits / 8 / bandwidth / 1e6
                multiplying = 2 * len(x) * N * K * multiplied / 16 / peak / 1e6
                found.append(f"{name} {microseconds(call):.1f} ({max(reading, multiplying):.1f})")
            print(f"{N} x {K}, {count} tokens, {hit} experts hit:", ", ".join(found), flush=True)


if __name__ == "__main__":
    main()
