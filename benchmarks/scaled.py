"""8-bit activations by int4 and by blockwise 8-bit weights on an NVIDIA GPU: every tile, beside torch's bf16.

    python benchmarks/scaled.py --m 256,1024,4096 --group 128 --json scaled.json

Times are medians of replays of CUDA graphs, µs; `×` is how many times as fast as F.linear in bf16.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F
from torch import Tensor

import aoext
from aoext.ops import ao, with_plan
from aoext_bench.clocks import Candidate
from aoext_bench.devices import measured
from aoext_bench.timing import interleaved

SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # N, K of Llama 3 8B's layers
INT8, E4M3, BF16 = torch.int8, torch.float8_e4m3fn, torch.bfloat16
POOL_BYTES = 160_000_000  # of weights that calls go through
TILES = ((128, 128), (128, 256))  # output channels, rows of x

Call = Callable[..., Any]


def copies_of(make: Callable[[], tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    first = make()
    size = sum(t.nbytes for t in first)
    return [first, *(make() for _ in range(min(16, POOL_BYTES // size)))]


def eight_bit(dtype: torch.dtype, *sizes: int) -> Tensor:
    x = torch.randn(sizes, device="cuda")
    return (x * 40).clamp_(-127, 127).to(INT8) if dtype is INT8 else x.to(dtype)


def bf16_weight(N: int, K: int) -> tuple[Tensor, ...]:
    return (torch.randn(N, K, device="cuda", dtype=BF16),)


def candidate(call: Call, weights: list[tuple[Tensor, ...]], tile: str = "") -> Candidate:
    """`tile`: a plan to force, "kernel name=value …"."""
    turn = iter(range(1 << 62))
    name, *fields = tile.split() or [""]
    config = {key: int(value) for key, value in (f.split("=") for f in fields)}

    def prepare() -> Call:
        w = weights[next(turn) % len(weights)]

        def run() -> Any:
            with with_plan(name, **config) if tile else contextlib.nullcontext():
                return call(*w)

        return run

    return Candidate(prepare, len(weights))


def tile_text(M: int, N: int, block_n: int, block_m: int, x_is_left: int = 0) -> str:
    tiles = math.ceil(N / block_n) * math.ceil(M / block_m)
    blocks = math.ceil(tiles / math.ceil(tiles / torch.cuda.get_device_properties(0).multi_processor_count))
    tile = f"block_n={block_n} block_m={block_m} x_is_left={x_is_left}"
    return f"scaled_wgmma {tile} cluster=1 stream_k_blocks=0 blocks={blocks}"


def int4_candidates(M: int, N: int, K: int, group: int, kinds: list[str]) -> Iterator[tuple[str, Candidate]]:
    groups = lambda: torch.rand(K // group, N, device="cuda", dtype=BF16) * 0.01 + 0.001  # noqa: E731
    weights = copies_of(
        lambda: (torch.randint(-128, 128, (N, K // 2), dtype=INT8, device="cuda"), groups(), groups() - 0.005)
    )
    wide = torch.randn(M, K, device="cuda", dtype=BF16)
    if "weight" in kinds:
        yield f"g{group} weight-only", candidate(lambda *w: ao.bf16i4bf16_rowwise(wide, *w), weights)
    for dtype, name in ((INT8, "int8"), (E4M3, "e4m3")):
        x, x_scale = eight_bit(dtype, M, K), torch.rand(M, 1, device="cuda") + 0.5
        product = lambda w, s, z, x=x, x_scale=x_scale: ao.scaled_mm_int4(x, w, x_scale, s, z)  # noqa: E731
        if "tiles" in kinds:
            for rows, tokens in TILES:
                if tokens <= 2 * M:
                    tile = tile_text(M, N, rows, tokens)
                    yield f"{name} g{group} {rows}x{tokens}", candidate(product, weights, tile)
        if "wgmma" in kinds:
            yield f"{name} g{group} int4_wgmma", candidate(product, weights, "int4_wgmma")
        if "mm" in kinds:
            yield f"{name} g{group} mm", candidate(product, weights)
        if "linear" in kinds:
            linear = lambda *w, dtype=dtype: ao.scaled_linear_int4(wide, *w, input_dtype=dtype)  # noqa: E731
            yield f"{name} g{group} linear", candidate(linear, weights)


def block_candidates(M: int, N: int, K: int, kinds: list[str]) -> Iterator[tuple[str, Candidate]]:
    weights = copies_of(
        lambda: (eight_bit(E4M3, N, K), torch.rand(math.ceil(N / 128), math.ceil(K / 128), device="cuda"))
    )
    x, x_scale = eight_bit(E4M3, M, K), torch.rand(M, math.ceil(K / 128), device="cuda")
    product = lambda w, s: ao.scaled_mm_blockwise(x, w, x_scale, s, [1, 128], [128, 128])  # noqa: E731
    yield "blocks", candidate(product, weights)
    if "linear" in kinds:
        wide = torch.randn(M, K, device="cuda", dtype=BF16)
        linear = lambda w, s: ao.scaled_linear_blockwise(wide, w, s, [1, 128], [128, 128])  # noqa: E731
        yield "blocks linear", candidate(linear, weights)
    if "tiles" in kinds:
        for rows, tokens in TILES:
            if tokens <= 2 * M:
                tile = tile_text(M, N, rows, tokens, x_is_left=1)
                yield f"blocks {rows}x{tokens}", candidate(product, weights, tile)
    kind = F.ScalingType
    turned = x_scale.t().contiguous().t()
    yield (
        "blocks torch",
        candidate(
            lambda w, s: F.scaled_mm(
                x, w.t(), turned, kind.BlockWise1x128, s.t(), kind.BlockWise128x128, output_dtype=BF16
            ),
            weights,
        ),
    )
    row_scale = torch.rand(N, 1, device="cuda")
    one_scale = x_scale[:, :1].contiguous()
    yield "rowwise", candidate(lambda w, s: ao.scaled_mm_rowwise(x, w, one_scale, row_scale), weights)


@click.command()
@click.option("--m", "rows", default="256,1024,4096", help="Rows of the activation.")
@click.option("--group", "groups", default="128", help="Group sizes of int4; 0: blockwise weights.")
@click.option("--kinds", default="mm,linear", help="Some of mm, linear, tiles, wgmma, weight.")
@click.option("--shapes", default="0,1,2,3", help="Which of Llama 3 8B's.")
@click.option("--seconds", default=0.01)
@click.option("--json", "to", type=click.Path(path_type=Path))
def main(rows: str, groups: str, kinds: str, shapes: str, seconds: float, to: Path | None) -> None:
    """Prints a line for each candidate."""
    device = measured(torch.device("cuda"))
    print(aoext.__version__, torch.cuda.get_device_name(), flush=True)
    results: dict[str, dict[str, float]] = {}
    for N, K in (SHAPES[int(i)] for i in shapes.split(",")):
        for M in map(int, rows.split(",")):
            wide = torch.randn(M, K, device="cuda", dtype=BF16)
            plain = copies_of(partial(bf16_weight, N, K))
            made = {"bf16": candidate(partial(F.linear, wide), plain)}
            for group in map(int, groups.split(",")):
                kind = kinds.split(",")
                made |= dict(
                    int4_candidates(M, N, K, group, kind) if group else block_candidates(M, N, K, kind)
                )
            good = {}
            for name, one in made.items():
                try:
                    one.prepare()()
                    torch.cuda.synchronize()
                    good[name] = one
                except (RuntimeError, ValueError, AttributeError) as error:
                    print(name, "refused:", str(error).splitlines()[0][:150])
            times = {name: t.seconds * 1e6 for name, t in interleaved(good, device, seconds).items()}
            results[f"{M} {N}x{K}"] = times
            bf16 = times["bf16"]
            line = ", ".join(
                f"{name} {t:.1f} (×{bf16 / t:.2f})" for name, t in times.items() if name != "bf16"
            )
            print(
                f"M={M} {N}x{K}: bf16 {bf16:.1f} ({2 * M * N * K / bf16 / 1e6:.0f} TFLOP/s); {line}",
                flush=True,
            )
    if to:
        to.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
