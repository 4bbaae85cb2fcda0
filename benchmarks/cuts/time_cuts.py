"""The ways that a plan considers to cut a product over a GPU, checked and timed: what fit.py fits models to.

    python benchmarks/cuts/time_cuts.py --gpu H200 --format int8 --m 1,16,64 --shape 4096x4096

Prints the fastest beside the one that the plan takes; all of them are in the JSON, a line for each problem
and kernel, written as they come.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from rich import box
from rich.table import Table
from torch import Tensor

from aoext import ops, reference
from aoext.cli.options import JSON_FILE, CountsType, ShapeType
from aoext.cli.page import console
from aoext.cli.shapes import LLAMA_3_8B_AND_70B, Shape
from aoext.formats.table import code_of
from aoext.operators.calls import ao
from aoext.reference.stored import EIGHT_BIT_BLOCKWISE, LUT4_BLOCKWISE, Stored
from aoext_bench.clocks import Candidate
from aoext_bench.considered import Considered
from aoext_bench.cuda_clock import GraphClock

BF16, INT8, E4M3 = torch.bfloat16, torch.int8, torch.float8_e4m3fn
BETWEEN = 2**16  # elements that another's kernel copies between calls
POOL_BYTES = 340_000_000  # of weights that calls go through: more than five times the L2 cache of an H200

Config = tuple[int, ...]


class Point(ABC):
    """One call of an operator with its tensors: as many copies of the weight as no cache holds."""

    operator: str
    options: dict[str, Any]  # its arguments by keyword

    def __init__(self, M: int, shape: Shape, weight_bytes: int) -> None:
        self.M, self.N, self.K = M, shape.N, shape.K
        self.options = {}
        self.copies = max(2, math.ceil(POOL_BYTES / weight_bytes))
        self.generator = torch.Generator("cuda").manual_seed(torch.seed() % 2**31)
        self.checked = slice(None, None, max(1, M // 4))  # rows of the result

    @abstractmethod
    def arguments(self, copy: int) -> tuple[Any, ...]:
        """Those of the operator, with this copy of the weight."""

    @abstractmethod
    def expected(self) -> Tensor:
        """Checked rows of the result in float64, of the first copy."""

    def call(self, copy: int) -> Tensor:
        y: Tensor = getattr(ao, self.operator)(*self.arguments(copy), **self.options)
        return y


class Int4Point(Point):
    """x in bfloat16, weights in groups with zero points."""

    operator = "bf16i4bf16_rowwise"

    def __init__(self, M: int, shape: Shape, group_size: int) -> None:
        super().__init__(M, shape, shape.N * shape.K // 2)
        g = self.generator
        self.x = reference.randn(g, M, shape.K, dtype=BF16)
        self.weights = [
            reference.int4_weight(shape.N, shape.K, group_size, BF16, g) for _ in range(self.copies)
        ]

    def arguments(self, copy: int) -> tuple[Any, ...]:
        return self.x, *self.weights[copy]

    def expected(self) -> Tensor:
        return self.x[self.checked].double() @ reference.int4_float64(*self.weights[0]).t()


class RowwisePoint(Point):
    """Weights of 8 bits with a scale a row; x likewise, or in bfloat16."""

    def __init__(self, M: int, shape: Shape, weight: torch.dtype, x: torch.dtype) -> None:
        super().__init__(M, shape, shape.N * shape.K)
        g = self.generator
        if x is BF16:
            self.operator, self.options = "weight_only_linear", {"code": int(code_of(weight))}
            self.x, self.row_scale = reference.randn(g, M, shape.K, dtype=BF16), None
        else:
            self.operator = "scaled_mm_rowwise"
            self.x, self.row_scale = reference.rowwise_values((M,), shape.K, x, g)
        _, self.scale = reference.rowwise_values((shape.N,), 1, weight, g)  # the copies share it
        self.weights = [
            reference.rowwise_values((shape.N,), shape.K, weight, g)[0] for _ in range(self.copies)
        ]

    def arguments(self, copy: int) -> tuple[Any, ...]:
        scales = [self.scale] if self.row_scale is None else [self.row_scale, self.scale]
        return self.x, self.weights[copy], *scales

    def expected(self) -> Tensor:
        x = self.x[self.checked].double()
        x = x if self.row_scale is None else x * self.row_scale[self.checked].double()
        return x @ (self.weights[0].double() * self.scale.double()).t()


class BlocksPoint(Point):
    """x in bfloat16, weights with a scale a block."""

    def __init__(self, M: int, shape: Shape, format: Stored) -> None:
        super().__init__(M, shape, shape.N * shape.K // (2 if format.table else 1))
        self.operator, self.options = "weight_only_linear", {}
        self.format, self.problem = format, reference.Problem(M, shape.N, shape.K, 32)
        self.x = reference.randn(self.generator, M, shape.K, dtype=BF16)
        self.weights = [format.random(self.problem, self.generator) for _ in range(self.copies)]

    def arguments(self, copy: int) -> tuple[Any, ...]:
        weight, scale, code, *others = self.format.operands(self.problem, self.weights[copy])
        return self.x, weight, scale, code, None, *others

    def expected(self) -> Tensor:
        rows = self.format.rows(self.problem, self.weights[0], slice(None))
        return self.x[self.checked].double() @ rows.t()


def random_point(format: str, M: int, shape: Shape, group_size: int) -> Point:
    if format == "int4":
        return Int4Point(M, shape, group_size)
    if format in BLOCKS:
        return BlocksPoint(M, shape, BLOCKS[format])
    weight = INT8 if format.startswith("int8") else E4M3
    return RowwisePoint(M, shape, weight, BF16 if format.endswith("weight-only") else weight)


BLOCKS = {
    format.name: format
    for format in (*EIGHT_BIT_BLOCKWISE, *LUT4_BLOCKWISE)
    if format.name in ("mxfp8", "mxfp4", "nvfp4", "nf4")
}

# Formats of weights, and of x where that is not bfloat16, and the kernels that they have.
FORMATS = {
    "int4": ("int4_ring", "int4_mma", "int4_decode", "int4_batch", "int4_wgmma"),
    "int8": ("rowwise_decode", "rowwise_mma", "rowwise_wgmma"),
    "float8": ("rowwise_decode", "rowwise_mma", "rowwise_wgmma"),
    "int8-weight-only": ("rowwise_decode", "rowwise_mma", "weight_only_wgmma"),
    "float8-weight-only": ("rowwise_decode", "rowwise_mma", "weight_only_wgmma"),
    **dict.fromkeys(BLOCKS, ("fp4_decode", "blocks_decode", "blocks_mma", "blocks_wgmma")),
}
KERNELS = tuple(dict.fromkeys(kernel for kernels in FORMATS.values() for kernel in kernels))


def configurations(cuts: Considered, most: int) -> list[Config]:
    """So many at most: those that the model says are fastest, the plan's first, and a random quarter.

    The latter are said to take less than twice as long: they show what the model is wrong about.
    """
    model = cuts.microseconds()
    order = list(dict.fromkeys(cuts.configs[i] for i in model.argsort(stable=True).tolist()))
    if most == 0 or len(order) <= most:
        return order
    fastest = most - most // 4
    near = {cuts.configs[i] for i in (model < 2 * model.min()).nonzero().flatten().tolist()}
    others = [config for config in order[fastest:] if config in near]
    return order[:fastest] + random.sample(others, min(len(others), most // 4))


def median_of(call: Callable[[], object], copies: int, samples: int) -> float:
    clock = GraphClock(Candidate(lambda: call, copies), torch.device("cuda"))
    times: list[float] = []
    while len(times) < samples:
        times += clock.samples()
    return statistics.median(times)


def seconds(
    point: Point, cuts: Considered, config: Config, expected: Tensor, samples: int, between: bool
) -> float:
    """The median of so many samples of one call of a kernel, which is checked first.

    between: behind a kernel of another's, whose own time is taken off
    """
    copies = itertools.cycle(range(point.copies))
    from_, to = torch.randn(2, BETWEEN, device="cuda")

    def other() -> None:
        torch.mul(from_, 1.0, out=to)

    def call() -> None:
        if between:
            other()
        point.call(next(copies))

    with ops.with_plan(cuts.kernel, **dict(zip(cuts.names, config, strict=True))):
        off = point.call(0)[point.checked].double() - expected
        error = (off.norm(dim=1) / expected.norm(dim=1)).max().item()
        if not error <= ops.ERROR_BOUND[BF16]:
            raise click.ClickException(f"{cuts.kernel} {config} is wrong: a row is off by {error:.1e}")
        theirs = median_of(other, point.copies, samples) if between else 0.0
        return median_of(call, point.copies, samples) - theirs


def considered(gpu: str, kernel: str, point: Point) -> Considered | None:
    """Nothing where the kernel does not serve."""
    try:
        return Considered(gpu, kernel, point.operator, *point.arguments(0), **point.options)
    except RuntimeError as error:
        if "kernel must be one that takes" in str(error):
            return None
        raise


@click.command()
@click.option("--gpu", required=True, help="The GPU at hand, by its name of csrc/cuda/gpus.h.")
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(list(FORMATS)),
    default=["int4"],
    show_default=True,
    help="The weight's; x is like an int8 or float8 weight, and in bfloat16 beside all others.",
)
@click.option("--kernel", "kernels", multiple=True, type=click.Choice(KERNELS), help="Default: all.")
@click.option(
    "--m", "rows", type=CountsType(), default="1,2,4,8,16,32,64,128,256,512,1024,4096", show_default=True
)
@click.option(
    "--shape", "shapes", multiple=True, type=ShapeType(), help="Default: those of Llama 3 8B and 70B."
)
@click.option(
    "--group-size", type=click.IntRange(min=32), default=128, show_default=True, help="Groups of int4."
)
@click.option(
    "--most", type=click.IntRange(min=0), default=0, help="Configurations of a kernel; 0: all. Default: 0."
)
@click.option("--samples", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--between", is_flag=True, help="Another's kernel runs between calls; its time does not count.")
@click.option("--seconds", "limit", type=float, default=math.inf, help="Begin no problem after so long.")
@click.option("--json", "json_path", type=JSON_FILE, default="out/cuts.jsonl", show_default=True)
def main(
    gpu: str,
    formats: tuple[str, ...],
    kernels: tuple[str, ...],
    rows: tuple[int, ...],
    shapes: tuple[Shape, ...],
    group_size: int,
    most: int,
    samples: int,
    between: bool,
    limit: float,
    json_path: Path,
) -> None:
    """Time every configuration of the kernels of a format on the current NVIDIA GPU."""
    if not torch.cuda.is_available():
        raise click.ClickException("there is no NVIDIA GPU here: torch.cuda.is_available() is False")
    table = Table("N×K", "M", "kernel", "plan's", "µs", "fastest", "µs", "plan ÷ fastest", box=box.SIMPLE)
    json_path.parent.mkdir(parents=True, exist_ok=True)
    points = list(itertools.product(formats, shapes or LLAMA_3_8B_AND_70B, rows))
    if limit < math.inf:
        random.shuffle(points)  # what is left out is then of all kinds
    end = time.monotonic() + limit
    with json_path.open("w") as lines:
        for format, shape, M in points:
            if time.monotonic() > end:
                break
            point = random_point(format, M, shape, group_size)
            expected = point.expected()
            for kernel in [name for name in FORMATS[format] if name in (kernels or KERNELS)]:
                cuts = considered(gpu, kernel, point)
                if cuts is None:
                    continue
                us = {
                    config: seconds(point, cuts, config, expected, samples, between) * 1e6
                    for config in configurations(cuts, most)
                }
                best = min(us, key=us.__getitem__)
                table.add_row(
                    str(shape),
                    str(M),
                    kernel,
                    " ".join(map(str, cuts.chosen)),
                    f"{us[cuts.chosen]:.1f}",
                    " ".join(map(str, best)),
                    f"{us[best]:.1f}",
                    f"{us[cuts.chosen] / us[best]:.2f}",
                )
                record = {
                    "gpu": gpu,
                    "format": format,
                    "N": shape.N,
                    "K": shape.K,
                    "M": M,
                    "group_size": group_size if format == "int4" else None,
                    "kernel": kernel,
                    "plan": cuts.chosen,
                    "us": list(us.items()),
                }
                lines.write(json.dumps(record) + "\n")
                lines.flush()
    console().print(table)


if __name__ == "__main__":
    main()
