"""Weight-only products of blockwise formats on an NVIDIA GPU, beside formats of as many bits and F.linear.

    python benchmarks/blocks.py --m 1,4,8,16
    AOEXT_CUDA_FAMILY=sm80 python benchmarks/blocks.py --m 32,256,2048

Behind a kernel of PyTorch's, checked against float64 first, as `aoext bench` does it. Geomeans over the
shapes: microseconds; the time to read a byte of weights and scales, as times of the peer's (int4 in groups of
128, int8 or e4m3 with a scale a row); the time as times of F.linear's in bfloat16.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

import click
import torch
from rich import box
from rich.table import Table

from aoext.cli.options import JSON_FILE, CountsType, ShapeType
from aoext.cli.page import console, environment, summary_line, write_json
from aoext.cli.shapes import Shape
from aoext.ops import with_plan
from aoext.reference import SUBJECTS
from aoext_bench.bench_points import Point, Settings
from aoext_bench.bench_run import Bench
from aoext_bench.devices import Device
from aoext_bench.options import MeasuredDeviceType
from aoext_bench.pool import pool_bytes

SCHEMA = "aoext.blocks/1"
SHAPES = (Shape(4096, 4096), Shape(28672, 4096), Shape(4096, 14336))


class Row(NamedTuple):
    """A format of weights."""

    operator: str
    format: str
    group_size: int
    peer: str | None


FORMATS = {
    "int4": Row("bf16i4bf16_rowwise", "int4", 128, None),
    "int8": Row("bf16i8bf16_rowwise", "int8", 128, None),
    "e4m3": Row("bf16f8bf16_rowwise", "float8_e4m3fn", 128, None),
    "mxfp4": Row("bf16lut4bf16_blockwise", "mxfp4", 128, "int4"),
    "nvfp4": Row("bf16lut4bf16_blockwise", "nvfp4", 128, "int4"),
    "nf4": Row("bf16lut4bf16_blockwise", "nf4", 128, "int4"),
    "int8 1x32": Row("bf16i8bf16_blockwise", "int8", 32, "int8"),
    "mxfp8": Row("bf16f8bf16_blockwise", "mxfp8", 128, "e4m3"),
    "e4m3 128x128": Row("bf16f8bf16_blockwise", "float8 128x128", 128, "e4m3"),
}


def measured(
    row: Row, device: Device, shapes: tuple[Shape, ...], rows: tuple[int, ...], seconds: float
) -> list[Point]:
    """The points of a row, at all shapes and M."""
    (subject,) = (s for s in SUBJECTS if (s.operator, s.format) == (row.operator, row.format))
    settings = Settings(
        device=device,
        subjects=[subject],
        shapes=shapes,
        rows=rows,
        dtype=torch.bfloat16,
        group_sizes=(row.group_size,),
        threads=(torch.get_num_threads(),),
        seed=secrets.randbelow(2**31),
        seconds=seconds,
        pool_bytes=pool_bytes(device),
        check=True,
        generic=False,
    )
    return list(Bench(settings).points(replace(subject)))


def mean(points: list[Point], M: int, per_byte: bool = False, over: str | None = None) -> float:
    """Seconds, of a byte or as times of another candidate's."""
    return geometric_mean(
        p.seconds["aoext"] / (p.seconds[over] if over else p.bytes_from_memory if per_byte else 1)
        for p in points
        if p.M == M
    )


@click.command()
@click.option("--device", type=MeasuredDeviceType(), default="cuda", show_default=True)
@click.option("--format", "formats", multiple=True, type=click.Choice(list(FORMATS)), help="Default: all.")
@click.option("--m", "rows", type=CountsType(), default="1,4,8,16", show_default=True)
@click.option("--shape", "shapes", multiple=True, type=ShapeType(), help="Default: three of Llama 3 8B.")
@click.option("--plan", default="", help="A kernel to force, of those formats that have it.")
@click.option("--seconds", type=float, default=0.03, show_default=True, help="For each candidate of a point.")
@click.option("--json", "json_path", type=JSON_FILE, default="out/blocks.json", show_default=True)
def main(
    device: Device,
    formats: tuple[str, ...],
    rows: tuple[int, ...],
    shapes: tuple[Shape, ...],
    plan: str,
    seconds: float,
    json_path: Path,
) -> None:
    """Time blockwise weight-only products beside their peers."""
    names = [name for name in FORMATS if not formats or name in formats]
    peers = [FORMATS[name].peer for name in names]
    names = list(dict.fromkeys([*(name for name in FORMATS if name in peers), *names]))
    out = console()
    out.print(summary_line(environment(device.device), (torch.get_num_threads(),)))
    found: dict[str, list[Point]] = {}
    table = Table("format", "M", "µs", "÷ peer, a byte", "÷ F.linear", "kernels", box=box.SIMPLE)
    with torch.inference_mode(), with_plan(plan) if plan else contextlib.nullcontext():
        for name in names:
            row = FORMATS[name]
            points = found[name] = measured(row, device, shapes or SHAPES, rows, seconds)
            for M in rows:
                peer = found.get(row.peer or "")
                ratio = mean(points, M, per_byte=True) / mean(peer, M, per_byte=True) if peer else None
                table.add_row(
                    name,
                    str(M),
                    f"{mean(points, M) * 1e6:.2f}",
                    "" if ratio is None else f"{ratio:.2f}",
                    f"{mean(points, M, over='linear'):.3f}",
                    ", ".join(dict.fromkeys(p.plan.split()[1].strip(",") for p in points if p.M == M)),
                )
    out.print(table)
    records = [
        {
            "format": name,
            **{"M": p.M, "N": p.N, "K": p.K, "plan": p.plan},
            "us": {candidate: seconds * 1e6 for candidate, seconds in p.seconds.items()},
        }
        for name, points in found.items()
        for p in points
    ]
    write_json(json_path, {"schema": SCHEMA, "points": records})


if __name__ == "__main__":
    main()
