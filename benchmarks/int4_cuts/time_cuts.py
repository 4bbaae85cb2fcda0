"""Every way to cut an int4 product over a GPU, checked and timed: what the plans' models are fitted to.

    python benchmarks/int4_cuts/time_cuts.py --m 1,16,64 --shape 4096x4096

Builds the kernels apart from the library with nvcc, for the GPU at hand, and calls each with every
configuration that may be worth it, past the plan. Prints the fastest beside the one that the plan takes;
all of them are in the JSON.
"""

from __future__ import annotations

import ctypes
import json
import math
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from rich import box
from rich.table import Table
from torch import Tensor

from aoext import ops
from aoext.cli.clocks import Candidate
from aoext.cli.cuda_clock import GraphClock
from aoext.cli.options import JSON_FILE, CountsType, ShapeType
from aoext.cli.report import console
from aoext.cli.shapes import LLAMA_3_8B_AND_70B, Shape

ROOT = Path(__file__).parents[2]
KERNELS = ("decode", "mma", "wgmma", "batch")
ELEMENTS = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
POOL_BYTES = 340_000_000  # of weights that calls go through: more than five times the L2 cache of an H200
MOST_INTS = 16


class Int4Linear(ctypes.Structure):
    """csrc/cuda/kernels/int4.h"""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "scale", "zero_point", "bias", "y")),
        *((name, ctypes.c_int64) for name in ("M", "N", "K", "group_size")),
        *((name, ctypes.c_int) for name in ("type", "scale_type", "bias_type")),
    )


def build(folder: Path, hopper: bool) -> ctypes.CDLL:
    """The kernels as a library, made anew where a source is younger."""
    kernels = ROOT / "csrc/cuda/kernels"
    sources = [Path(__file__).with_name("entry.cu")]
    sources += [kernels / name for name in ("launch.cu", "int4_decode.cu", "int4_mma.cu")]
    sources += [kernels / "sm90a/int4_wgmma.cu", kernels / "sm90a/int4_batch.cu"] if hopper else []
    library = folder / "int4_cuts.so"
    youngest = max(path.stat().st_mtime for path in [*kernels.rglob("*.*"), *sources])
    if not library.is_file() or library.stat().st_mtime < youngest:
        folder.mkdir(parents=True, exist_ok=True)
        target = ["-gencode=arch=compute_90a,code=sm_90a", "-DWITH_HOPPER"] if hopper else ["-arch=native"]
        options = ["-std=c++17", "-O3", "-shared", "-Xcompiler=-fPIC", "--threads=0", f"-I{ROOT / 'csrc'}"]
        subprocess.run(["nvcc", *options, *target, *map(str, sources), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@dataclass
class Point:
    """One problem with its tensors: as many copies of the weight as no cache holds."""

    x: Tensor
    weights: list[tuple[Tensor, Tensor, Tensor]]
    y: Tensor

    @classmethod
    def random(cls, M: int, shape: Shape, group_size: int, dtype: torch.dtype) -> Point:
        def weight() -> tuple[Tensor, Tensor, Tensor]:
            size = (shape.K // group_size, shape.N)
            q = torch.randint(-128, 128, (shape.N, shape.K // 2), dtype=torch.int8, device="cuda")
            scale = torch.rand(size, device="cuda") * 0.02 + 0.005
            return q, scale.to(dtype), (torch.randn(size, device="cuda") * 0.05).to(dtype)

        copies = max(2, math.ceil(POOL_BYTES / (shape.N * shape.K / 2)))
        x = torch.randn(M, shape.K, device="cuda").to(dtype)
        return cls(x, [weight() for _ in range(copies)], x.new_empty(M, shape.N))

    def problem(self, copy: int = 0) -> Int4Linear:
        weight, scale, zero_point = self.weights[copy]
        pointers = [t.data_ptr() for t in (self.x, weight, scale, zero_point)]
        M, K = self.x.shape
        types = [ELEMENTS[self.x.dtype], ELEMENTS[scale.dtype], 0]
        groups = scale.shape[0]
        return Int4Linear(*pointers, None, self.y.data_ptr(), M, weight.shape[0], K, K // groups, *types)


class Cuts:
    """One kernel's configurations for one point."""

    def __init__(self, library: ctypes.CDLL, kernel: str, point: Point) -> None:
        self.library, self.index, self.kernel, self.point = library, KERNELS.index(kernel), kernel, point
        properties = torch.cuda.get_device_properties(0)
        self.multiprocessors = properties.multi_processor_count
        self.shared_memory = properties.shared_memory_per_block_optin
        self.hopper = properties.major >= 9
        self.problems = [point.problem(copy) for copy in range(len(point.weights))]

    def chosen(self) -> tuple[int, ...]:
        """The plan's, or nothing where the kernel does not serve."""
        ints = (ctypes.c_int * MOST_INTS)()
        count = self.library.choose(
            self.index,
            ctypes.byref(self.problems[0]),
            self.multiprocessors,
            self.shared_memory,
            int(self.hopper),
            ints,
        )
        return tuple(ints[:count])

    def candidates(self) -> Iterator[tuple[int, ...]]:
        """Configurations that may be worth it; those that do not fit are refused at the launch."""
        M, N = self.point.x.shape[0], self.point.y.shape[1]
        if self.kernel == "mma":
            yield from ((128, block, splits) for block in (32, 64, 128) for splits in (1, 2, 3, 4, 6, 8, 12))
        elif self.kernel == "wgmma":
            for tokens in (32, 64, 96, 128, 192, 256):
                tiles = math.ceil(N / 128) * math.ceil(M / tokens)
                rounds = math.ceil(tiles / self.multiprocessors)
                for cluster, blocks in self.shares(tiles):
                    yield (tokens, cluster, 0, blocks)
                rest = tiles % self.multiprocessors
                for ranges in {self.multiprocessors, 2 * rest, 3 * rest, 4 * rest}:
                    yield (tokens, 1, ranges, self.multiprocessors)
                yield (tokens, 1, 0, math.ceil(tiles / rounds))
        elif self.kernel == "batch":
            tokens = next(t for t in (16, 32, 64) if t >= M)
            for slices in (1, 2, 4):
                tiles = math.ceil(N / (256 // slices))
                rounds = math.ceil(tiles / self.multiprocessors)
                yield (tokens, slices, 1, math.ceil(tiles / rounds), self.shared_memory)
                for cluster, blocks in self.shares(tiles):
                    yield (tokens, slices, cluster, blocks, self.shared_memory)
        else:
            rows = 2 if M <= 2 else 8 if M <= 8 else 16
            for warp_tiles, units in ((2, 1), (1, 2), (2, 2)):
                for tiles, slices in (
                    (1, 8),
                    (1, 16),
                    (2, 4),
                    (2, 8),
                    (4, 2),
                    (4, 4),
                    (5, 4),
                    (8, 2),
                    (16, 1),
                ):
                    for cluster in (1, 2, 4, 8) if self.hopper else (1,):
                        groups = math.ceil(N / (16 * warp_tiles * tiles))
                        for turns in (1, 2, 3, 4):
                            blocks = math.ceil(groups / turns)
                            if self.multiprocessors / 2 <= blocks * cluster <= 2 * self.multiprocessors:
                                yield (
                                    rows,
                                    warp_tiles,
                                    units,
                                    tiles,
                                    slices,
                                    cluster,
                                    blocks,
                                    self.shared_memory,
                                    int(self.hopper),
                                )

    def shares(self, tiles: int) -> Iterator[tuple[int, int]]:
        """Clusters that may share what is left of so many tiles, and blocks in all."""
        for cluster in (1, 2, 4, 8):
            for idle in (0, 4, 8, 12, 16) if cluster > 1 else (0,):
                blocks = (self.multiprocessors - idle) // cluster * cluster
                yield (cluster, min(blocks, tiles * cluster))

    def seconds(self, config: tuple[int, ...], samples: int) -> float | None:
        """The median of so many samples of one call, or None where the launch is refused."""
        ints = (ctypes.c_int * MOST_INTS)(*config)
        self.library.workspace_bytes.restype = ctypes.c_size_t
        size = self.library.workspace_bytes(self.index, ctypes.byref(self.problems[0]), ints)
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
        turn = 0

        def call() -> None:
            nonlocal turn
            problem = self.problems[turn % len(self.problems)]
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            space = ctypes.c_void_p(workspace.data_ptr())
            turn += 1
            if error := self.library.launch(self.index, ctypes.byref(problem), ints, space, stream):
                raise RuntimeError(f"{self.kernel} {config}: CUDA error {error}")

        try:
            self.point.y.fill_(torch.nan)
            call()
        except RuntimeError:
            return None
        self._check(config)
        clock = GraphClock(Candidate(lambda: call, len(self.problems)), self.point.x.device)
        times: list[float] = []
        while len(times) < samples:
            times += clock.samples()
        return statistics.median(times)

    def _check(self, config: tuple[int, ...]) -> None:
        rows = self.point.x[:: max(1, len(self.point.x) // 4)].double()
        weight = torch.ops.ao.dequantize_int4(*self.point.weights[0], dtype=torch.float32).double()
        expected = rows @ weight.t()
        got = self.point.y[:: max(1, len(self.point.x) // 4)].double()
        error = ((got - expected).norm(dim=1) / expected.norm(dim=1)).max().item()
        if not error <= ops.ERROR_BOUND[self.point.y.dtype]:
            raise click.ClickException(f"{self.kernel} {config} is wrong: a row is off by {error:.1e}")


@click.command()
@click.option("--kernel", "kernels", multiple=True, type=click.Choice(KERNELS), help="Default: all.")
@click.option(
    "--m", "rows", type=CountsType(), default="1,2,4,8,16,32,64,128,256,512,1024,4096", show_default=True
)
@click.option(
    "--shape", "shapes", multiple=True, type=ShapeType(), help="Default: those of Llama 3 8B and 70B."
)
@click.option("--group-size", type=click.IntRange(min=32), default=128, show_default=True)
@click.option("--samples", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--build-folder", type=click.Path(path_type=Path), default="build/int4_cuts", show_default=True)
@click.option("--json", "json_path", type=JSON_FILE, default="out/int4_cuts.json", show_default=True)
def main(
    kernels: tuple[str, ...],
    rows: tuple[int, ...],
    shapes: tuple[Shape, ...],
    group_size: int,
    samples: int,
    build_folder: Path,
    json_path: Path,
) -> None:
    """Time every configuration of the int4 kernels on the current NVIDIA GPU."""
    if not torch.cuda.is_available():
        raise click.ClickException("there is no NVIDIA GPU here: torch.cuda.is_available() is False")
    library = build(build_folder, torch.cuda.get_device_capability() == (9, 0))
    records = []
    table = Table("N×K", "M", "kernel", "plan's", "µs", "fastest", "µs", "plan ÷ fastest", box=box.SIMPLE)
    for shape in shapes or LLAMA_3_8B_AND_70B:
        for M in rows:
            point = Point.random(M, shape, group_size, torch.bfloat16)
            for kernel in kernels or KERNELS:
                cuts = Cuts(library, kernel, point)
                chosen = cuts.chosen()
                if not chosen:
                    continue
                configs = dict.fromkeys([chosen, *cuts.candidates()])
                timed = {c: s for c in configs if (s := cuts.seconds(c, samples)) is not None}
                best = min(timed, key=timed.__getitem__)
                table.add_row(
                    str(shape),
                    str(M),
                    kernel,
                    " ".join(map(str, chosen)),
                    f"{timed[chosen] * 1e6:.1f}",
                    " ".join(map(str, best)),
                    f"{timed[best] * 1e6:.1f}",
                    f"{timed[chosen] / timed[best]:.2f}",
                )
                records.append(
                    {
                        "N": shape.N,
                        "K": shape.K,
                        "M": M,
                        "group_size": group_size,
                        "kernel": kernel,
                        "plan": chosen,
                        "us": [[list(config), seconds * 1e6] for config, seconds in timed.items()],
                    }
                )
    console().print(table)
    json_path.parent.mkdir(parents=True, exist_ok=True)
    json_path.write_text(json.dumps(records))


if __name__ == "__main__":
    main()
