"""Ways to cut fp4_decode's products over a GPU, timed behind a kernel of PyTorch's, the fastest first.

    python benchmarks/cuts/fp4_cuts.py --m 1,16 --shape 4096x4096

What choose_fp4_decode (csrc/cuda/kernels/fp4_decode.cu) was fitted to.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from aoext.cli.options import JSON_FILE, CountsType, ShapeType
from aoext.cli.shapes import Shape
from aoext.ops import ao, plan, with_plan
from aoext.reference.blockwise import E2M1
from aoext_bench.clocks import Candidate
from aoext_bench.cuda_clock import GraphClock

POOL_BYTES = 340_000_000  # of weights that calls go through, more than any cache holds
MOST_WARPS = 16
WARPS = (
    *((1, k_splits) for k_splits in (4, 6, 8, 12, 16)),
    *((2, k_splits) for k_splits in (2, 3, 4, 6, 8)),
    *((3, k_splits) for k_splits in (2, 3, 4, 5)),
    *((4, k_splits) for k_splits in (1, 2, 3, 4)),
    *((5, 3), (6, 2), (8, 1), (8, 2), (16, 1)),
)


def weights(shape: Shape, group: int) -> list[tuple[Tensor, Tensor]]:
    """Codes and scales."""
    made = []
    for _ in range(max(2, math.ceil(POOL_BYTES / (shape.N * shape.K // 2)))):
        codes = torch.randint(0, 256, (shape.N, shape.K // 2), dtype=torch.uint8, device="cuda")
        if group == 32:
            scale = torch.randint(118, 127, (shape.N, shape.K // 32), dtype=torch.uint8, device="cuda")
        else:
            scale = torch.rand(shape.N, shape.K // 16, device="cuda").to(torch.float8_e4m3fn)
        made.append((codes, scale))
    return made


def configs(N: int) -> Iterator[dict[str, int]]:
    """Whole rounds of the GPU."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for (tiles, k_splits), cluster, resident in itertools.product(WARPS, (1, 2), (1, 2, 3)):
        if resident * tiles * k_splits > (20 if resident > 1 else MOST_WARPS):
            continue
        groups, slots = math.ceil(N / (16 * tiles)), sms * resident // cluster
        blocks = math.ceil(groups / math.ceil(groups / slots))
        for depth in (2, 4):
            yield {"depth": depth, "tiles": tiles, "k_splits": k_splits, "cluster": cluster, "blocks": blocks}


@click.command()
@click.option("--m", "rows", type=CountsType(), default="1,4,8,16", show_default=True)
@click.option("--shape", "shapes", multiple=True, type=ShapeType(), required=True)
@click.option("--group", type=click.Choice(["16", "32"]), default="32", show_default=True)
@click.option("--show", type=int, default=5, show_default=True, help="How many to print.")
@click.option("--json", "json_path", type=JSON_FILE, default="out/fp4_cuts.json", show_default=True)
def main(rows: tuple[int, ...], shapes: tuple[Shape, ...], group: str, show: int, json_path: Path) -> None:
    """Time every cut."""
    device, table = torch.device("cuda", 0), torch.tensor(E2M1, device="cuda")
    block, records = [1, int(group)], []
    for shape in shapes:
        pool = weights(shape, int(group))
        for M in rows:
            x = torch.randn(M, shape.K, device="cuda").bfloat16()

            def call(w: tuple[Tensor, Tensor], x: Tensor = x) -> Any:
                return ao.bf16lut4bf16_blockwise(x * 1.0, w[0], table, w[1], block)

            nexts = itertools.cycle(pool)

            def prepare(call: Any = call, nexts: Any = nexts) -> Any:
                return partial(call, next(nexts))

            chosen = plan(
                torch.cuda.get_device_name().removeprefix("NVIDIA ").split()[0].replace("H100", "H100 SXM"),
                "bf16lut4bf16_blockwise",
                *(t.to("meta") for t in (x, pool[0][0], table, pool[0][1])),
                block,
            )
            fields = {k: int(v) for k, v in (f.split("=") for f in chosen.split()[1:])}
            own = {k: fields[k] for k in ("depth", "tiles", "k_splits", "cluster", "blocks")}
            timed: list[tuple[float, dict[str, int]]] = []
            for config in [own, *configs(shape.N)]:
                with torch.inference_mode(), with_plan("fp4_decode", **config):
                    try:
                        clock = GraphClock(Candidate(prepare, len(pool)), device)
                    except RuntimeError:  # it does not fit
                        torch.cuda.synchronize()
                        continue
                timed.append((min(clock.samples()) * 1e6, config))
            click.echo(f"{shape} M = {M}: plan {timed[0]}")
            for time, config in sorted(timed, key=lambda t: t[0])[:show]:
                click.echo(f"  {time:.2f} {config}")
            records.append({"N": shape.N, "K": shape.K, "M": M, "group": int(group), "us": timed})
    json_path.parent.mkdir(parents=True, exist_ok=True)
    json_path.write_text(json.dumps(records))


if __name__ == "__main__":
    main()
