"""Products of experts beside their peers in one run, on a GPU: microseconds by replays of CUDA graphs.

    python benchmarks/experts.py --shape 1536,2048 --shape 2048,768
    python benchmarks/experts.py --published

Each token has some of the experts, by chance or by Zipf's law; two sets of weights, larger than a cache, take
turns. Beside each time stands the larger of what reading the weights of the experts that are hit takes and of
what multiplying does, at the rates given.

The peers are torch._grouped_mm in bfloat16, a loop over the experts that are hit of this library's products
with one weight, whose numbers of rows the graph knows, and Humming (`pip install humming-kernels`), where it
is installed, on the same rows sorted by expert.

--published has the shape that Humming publishes times of, "7000 to 512": taken for K = 7168 and N = 512, as
7000 are no whole blocks of mxfp4, and for 8 experts a token, by which its times at many tokens are what an
H200 can compute. How many experts there are is not said: --experts.
"""

from __future__ import annotations

import copy
import itertools
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

# Humming's times on an H200, mxfp4 under bfloat16, in microseconds by tokens; and N and K that they are of.
PUBLISHED, PUBLISHED_SHAPE = {1: 19, 64: 51, 512: 92, 4096: 452, 32768: 3400}, "512,7168"

# What Humming calls the formats that are ours too, in bits of a weight.
HUMMING: dict[str, tuple[float, dict[str, Any]]] = {
    "int4": (4.25, {"dtype": "int4", "group_size": 128, "has_zero_point": True, "is_fp_zero_point": True}),
    "mxfp4": (4.25, {"dtype": "float4e2m1", "group_size": 32, "scale_dtype": "float8e8m0"}),
    "e4m3": (8, {"dtype": "float8e4m3"}),
}

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
        return torch.rand(*sizes, device=x.device, generator=g) / 100

    codes = [
        torch.randint(-127, 128, (E, N, K), device=x.device, dtype=INT8, generator=g) for _ in range(SETS)
    ]
    int8 = codes
    e4m3 = [w.to(BF16).to(E4M3) for w in codes]
    nibbles = [w[:, :, : K // 2].contiguous() for w in codes]
    bf16 = [w.to(BF16).transpose(-2, -1) for w in codes]
    rows, blocks, groups = draw(E, N, 1), draw(E, N // 128, K // 128), draw(E, K // 128, N).to(BF16)
    powers = torch.randint(115, 122, (E, N, K // 32), device=x.device, dtype=torch.uint8, generator=g)
    table = torch.tensor(E2M1, device=x.device)
    (q8, s8), (qf, sf), (qb, sb) = ao.quantize(x, INT8), ao.quantize(x, E4M3), ao.quantize(x, E4M3, [1, 128])
    to_bf16: dict[str, Any] = {"offsets": offsets, "out_dtype": BF16}
    by_128 = {"block_size": [128, 128]}

    def weight_only(weights: list[Tensor], scale: Tensor, code: Code, **more: Any) -> Callable[[int], Tensor]:
        return lambda i: ao.weight_only_linear(x, weights[i], scale, code, offsets=offsets, **more)

    ends = [0, *offsets.tolist()]
    own = [(e, slice(*pair)) for e, pair in enumerate(itertools.pairwise(ends)) if pair[0] < pair[1]]

    def loop(weights: list[Tensor], scale: Tensor, code: Code, **more: Any) -> Callable[[int], Tensor]:
        def of_expert(i: int, e: int, rows: slice) -> Tensor:
            each = {n: a[e] if isinstance(a, Tensor) and n != "table" else a for n, a in more.items()}
            return ao.weight_only_linear(x[rows], weights[i][e], scale[e], code, **each)

        return lambda i: torch.cat([of_expert(i, e, rows) for e, rows in own])

    def scaled(q: Tensor, s: Tensor, weights: list[Tensor], scale: Tensor, code: Code, **more: Any) -> Any:
        return lambda i: ao.scaled_mm(q, weights[i], s, scale, code, **more, **to_bf16)

    lut4 = [w.view(torch.uint8) for w in nibbles]
    formats: dict[str, tuple[float, tuple[Any, ...], dict[str, Any]]] = {
        "int4": (4.25, (nibbles, groups, Code.INT4), {"zero_point": groups}),
        "int8": (8, (int8, rows, Code.INT8), {}),
        "e4m3 128x128": (8, (e4m3, blocks, Code.E4M3), by_128),
        "mxfp4": (4.25, (lut4, powers, Code.LUT4), {"block_size": [1, 32], "table": table}),
    }
    for name, (bits, operands, more) in formats.items():
        yield name, bits, 16, weight_only(*operands, **more)
    for name, (bits, operands, more) in formats.items():
        yield f"{name} by a loop", bits, 16, loop(*operands, **more)
    yield "int8 x int8", 8, 8, scaled(q8, s8, int8, rows, Code.INT8)
    yield "e4m3 x e4m3", 8, 8, scaled(qf, sf, e4m3, rows, Code.E4M3)
    yield "128x128 both", 8, 8, scaled(qb, sb, e4m3, blocks, Code.E4M3, input_block=[1, 128], **by_128)
    yield "int8 x int4", 4.25, 16, scaled(q8, s8, nibbles, groups, Code.INT4, zero_point=groups)
    yield "bf16", 16, 16, lambda i: torch._grouped_mm(x, bf16[i], offs=offsets)


def humming_layers(E: int, N: int, K: int, g: torch.Generator) -> dict[str, list[Any]]:
    """Layers of Humming in its formats, SETS of each; none where it is not installed, which is said."""
    try:
        from humming.layer import HummingLayer
    except ImportError as error:
        print(f"without Humming: {error}")
        return {}
    layers: dict[str, list[Any]] = {}
    weight = torch.randn(E, N, K, device="cuda", dtype=BF16, generator=g) * 0.02
    for name, (_, config) in HUMMING.items():
        try:
            first = HummingLayer(
                shape_n=N, shape_k=K, num_experts=E, weight_config=dict(config), torch_dtype=BF16
            ).cuda()
            first.load_from_unquantized(weight)
            first.transform()
        except Exception as error:  # of any kind: the others are still to be timed
            print(f"without Humming's {name}: {type(error).__name__}: {error}")
        else:
            layers[name] = [first, *(copy.deepcopy(first) for _ in range(SETS - 1))]
    return layers


def humming(x: Tensor, offsets: Tensor, layers: dict[str, list[Any]]) -> Iterator[Product]:
    begins = torch.nn.functional.pad(offsets.long(), (1, 0))
    for name, own in layers.items():

        def product(i: int, own: list[Any] = own) -> Tensor:
            result: Tensor = own[i](
                x, expert_layout=begins, compute_config={"gemm_type": "grouped_contiguous"}
            )
            return result

        yield f"Humming's {name}", HUMMING[name][0], 16, product


def ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


@click.command()
@click.option("--shape", multiple=True, default=["1536,2048", "2048,768"], help="N,K of a weight")
@click.option("--published", is_flag=True, help="the shape that Humming publishes times of")
@click.option("--tokens", default="1,2,4,8,16,32,64,128,256,512,1024,2048,4096,8192")
@click.option("--experts", default=128)
@click.option("--top", default=8, help="experts of a token")
@click.option("--zipf", is_flag=True)
@click.option("--bandwidth", default=4.0, help="TB/s")
@click.option("--peak", default=700.0, help="TFLOP/s in bfloat16")
def main(
    shape: tuple[str, ...],
    published: bool,
    tokens: str,
    experts: int,
    top: int,
    zipf: bool,
    bandwidth: float,
    peak: float,
) -> None:
    g = torch.Generator("cuda").manual_seed(torch.seed() % 2**31)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for N, K in map(ints, [PUBLISHED_SHAPE] if published else shape):
        layers = humming_layers(experts, N, K, g)
        for count in PUBLISHED if published else ints(tokens):
            offsets, hit = offsets_of(count, experts, top, zipf, g)
            x = torch.randn(count * top, K, device="cuda", dtype=BF16, generator=g)
            found = []
            for name, bits, multiplied, call in (*products(x, N, offsets, g), *humming(x, offsets, layers)):
                reading = hit * N * K * bits / 8 / bandwidth / 1e6
                multiplying = 2 * len(x) * N * K * multiplied / 16 / peak / 1e6
                try:
                    time = f"{microseconds(call):.1f}"
                except RuntimeError as error:
                    time = f"failed: {str(error).splitlines()[0]}"
                found.append(f"{name} {time} ({max(reading, multiplying):.1f})")
            if published:
                found.append(f"Humming's mxfp4 as published {PUBLISHED[count]}")
            print(f"{N} x {K}, {count} tokens, {hit} experts hit:", ", ".join(found), flush=True)


if __name__ == "__main__":
    main()
