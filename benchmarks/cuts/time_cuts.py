"""Every way to cut a product over a GPU, checked and timed: what the plans' models are fitted to.

    python benchmarks/cuts/time_cuts.py --format int8 --m 1,16,64 --shape 4096x4096

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import torch
from rich import box
from rich.table import Table
from torch import Tensor

from aoext import ops, reference
from aoext.cli.options import JSON_FILE, CountsType, ShapeType
from aoext.cli.page import console
from aoext.cli.shapes import LLAMA_3_8B_AND_70B, Shape
from aoext_bench.clocks import Candidate
from aoext_bench.cuda_clock import GraphClock

ROOT = Path(__file__).parents[2]
SOURCES = (
    "launch.cu",
    "int4_ring.cu",
    "int4_decode.cu",
    "int4_mma.cu",
    "rowwise_decode.cu",
    "rowwise_mma.cu",
)
HOPPER_SOURCES = ("int4_batch.cu", "int4_wgmma.cu", "rowwise_wgmma.cu", "weight_only_wgmma.cu")
BF16, INT8, E4M3 = torch.bfloat16, torch.int8, torch.float8_e4m3fn
ELEMENTS = {BF16: 0, torch.float16: 1, torch.float32: 2, INT8: 3, E4M3: 4}  # csrc/cuda/kernels/element.h
BETWEEN = 2**16  # elements that another's kernel copies between calls
POOL_BYTES = 340_000_000  # of weights that calls go through: more than five times the L2 cache of an H200
MOST_INTS = 16

Config = tuple[int, ...]


class Gpu(NamedTuple):
    multiprocessors: int
    shared_memory: int
    hopper: int

    @classmethod
    def current(cls) -> Gpu:
        properties = torch.cuda.get_device_properties(0)
        return cls(
            properties.multi_processor_count,
            properties.shared_memory_per_block_optin,
            int((properties.major, properties.minor) == (9, 0)),
        )


class Int4Linear(ctypes.Structure):
    """csrc/cuda/kernels/int4.h"""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "scale", "zero_point", "bias", "y")),
        *((name, ctypes.c_int64) for name in ("M", "N", "K", "group_size")),
        *((name, ctypes.c_int) for name in ("type", "scale_type", "bias_type")),
    )


class RowwiseLinear(ctypes.Structure):
    """csrc/cuda/kernels/rowwise.h"""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "row_scale", "scale", "bias", "y")),
        *((name, ctypes.c_int64) for name in ("M", "N", "K")),
        *((name, ctypes.c_int) for name in ("type", "weight_type", "scale_type", "bias_type", "output")),
        ("quantizes", ctypes.c_bool),
    )


def build(folder: Path, hopper: bool) -> ctypes.CDLL:
    """The kernels as a library, made anew where a source is younger."""
    kernels = ROOT / "csrc/cuda/kernels"
    sources = [Path(__file__).with_name("entry.cu"), *(kernels / name for name in SOURCES)]
    sources.append(ROOT / "csrc/cuda/properties.cpp")
    sources += [kernels / "sm90a" / name for name in HOPPER_SOURCES] if hopper else []
    library = folder / "cuts.so"
    youngest = max(
        path.stat().st_mtime for path in [*kernels.rglob("*.*"), *kernels.parent.glob("*.h"), *sources]
    )
    if not library.is_file() or library.stat().st_mtime < youngest:
        folder.mkdir(parents=True, exist_ok=True)
        target = ["-gencode=arch=compute_90a,code=sm_90a", "-DWITH_HOPPER"] if hopper else ["-arch=native"]
        options = ["-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC", "--threads=0", f"-I{ROOT / 'csrc'}"]
        subprocess.run(["nvcc", *options, *target, *map(str, sources), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.workspace_bytes.restype = ctypes.c_size_t
    return loaded


class Point(ABC):
    """One problem with its tensors: as many copies of the weight as no cache holds."""

    def __init__(self, M: int, shape: Shape, weight_bytes: int) -> None:
        self.M, self.N, self.K = M, shape.N, shape.K
        self.copies = max(2, math.ceil(POOL_BYTES / weight_bytes))
        self.y = torch.empty(M, shape.N, dtype=BF16, device="cuda")
        self.generator = torch.Generator("cuda").manual_seed(torch.seed() % 2**31)

    @abstractmethod
    def problem(self, copy: int) -> ctypes.Structure:
        """What a kernel is given, with this copy of the weight."""

    @abstractmethod
    def expected(self, rows: slice) -> Tensor:
        """Rows of the result in float64, of the first copy."""


class Int4Point(Point):
    """x in bfloat16, weights in groups with zero points."""

    def __init__(self, M: int, shape: Shape, group_size: int) -> None:
        super().__init__(M, shape, shape.N * shape.K // 2)
        self.group_size = group_size
        g = self.generator
        self.x = reference.randn(g, M, shape.K, dtype=BF16)
        self.weights = [
            reference.int4_weight(shape.N, shape.K, group_size, BF16, g) for _ in range(self.copies)
        ]

    def problem(self, copy: int) -> Int4Linear:
        pointers = [t.data_ptr() for t in (self.x, *self.weights[copy])]
        sizes = (self.M, self.N, self.K, self.group_size)
        return Int4Linear(*pointers, None, self.y.data_ptr(), *sizes, *[ELEMENTS[BF16]] * 3)

    def expected(self, rows: slice) -> Tensor:
        return self.x[rows].double() @ reference.int4_float64(*self.weights[0]).t()


class RowwisePoint(Point):
    """Weights of 8 bits with a scale a row; x likewise, or in bfloat16."""

    def __init__(self, M: int, shape: Shape, weight: torch.dtype, x: torch.dtype) -> None:
        super().__init__(M, shape, shape.N * shape.K)
        g = self.generator
        if x is BF16:
            self.x, self.row_scale = reference.randn(g, M, shape.K, dtype=BF16), None
        else:
            self.x, self.row_scale = reference.rowwise_values((M,), shape.K, x, g)
        _, self.scale = reference.rowwise_values((shape.N,), 1, weight, g)  # the copies share it
        self.weights = [
            reference.rowwise_values((shape.N,), shape.K, weight, g)[0] for _ in range(self.copies)
        ]

    def problem(self, copy: int) -> RowwiseLinear:
        tensors = (self.x, self.weights[copy], self.row_scale, self.scale, None, self.y)
        pointers = [None if t is None else t.data_ptr() for t in tensors]
        types = (self.x.dtype, self.weights[copy].dtype, self.scale.dtype, torch.float32, self.y.dtype)
        return RowwiseLinear(*pointers, self.M, self.N, self.K, *(ELEMENTS[t] for t in types))

    def expected(self, rows: slice) -> Tensor:
        x = self.x[rows].double()
        x = x if self.row_scale is None else x * self.row_scale[rows].double()
        return x @ (self.weights[0].double() * self.scale.double()).t()


def random_point(format: str, M: int, shape: Shape, group_size: int) -> Point:
    if format == "int4":
        return Int4Point(M, shape, group_size)
    weight = INT8 if format.startswith("int8") else E4M3
    return RowwisePoint(M, shape, weight, BF16 if format.endswith("weight-only") else weight)


# Formats of weights, and of x where that is not bfloat16, and the kernels that they have.
FORMATS = {
    "int4": ("int4_ring", "int4_mma", "int4_decode", "int4_batch", "int4_wgmma"),
    "int8": ("rowwise_decode", "rowwise_mma", "rowwise_wgmma"),
    "float8": ("rowwise_decode", "rowwise_mma", "rowwise_wgmma"),
    "int8-weight-only": ("rowwise_decode", "rowwise_mma", "weight_only_wgmma"),
    "float8-weight-only": ("rowwise_decode", "rowwise_mma", "weight_only_wgmma"),
}
KERNELS = tuple(dict.fromkeys(kernel for kernels in FORMATS.values() for kernel in kernels))


class Candidates:
    """Configurations that may be worth it; those that do not fit are refused at the launch."""

    def __init__(self, gpu: Gpu, point: Point) -> None:
        self.gpu, self.M, self.N, self.K = gpu, point.M, point.N, point.K

    def of(self, kernel: str) -> Iterator[Config]:
        yield from getattr(self, kernel)()

    def int4_mma(self) -> Iterator[Config]:
        yield from ((128, block, splits) for block in (32, 64, 128) for splits in (1, 2, 3, 4, 6, 8, 12))

    def rowwise_mma(self) -> Iterator[Config]:
        for tile in ((32, 32), (128, 32), (128, 64), (128, 128), (256, 128)):
            yield from ((*tile, splits, 0) for splits in (1, 2, 3, 4, 6, 8, 12))

    def int4_wgmma(self) -> Iterator[Config]:
        yield from self._wgmma(192, (96, 128), (1, 2), stage=256)
        yield from self._wgmma(128, (32, 64, 96, 128, 192, 256), (1, 2), stage=256)
        yield from self._wgmma(64, (32, 64, 128, 256), (1, 2), stage=256)

    def rowwise_wgmma(self) -> Iterator[Config]:
        for rows in range(48, 128 + 1, 16):
            tokens = (32, 64, 128, 256) if rows > 64 else (32, 64, 128)
            yield from self._wgmma(rows, tokens, (1, 2))
        for rows in range(48, 192 + 1, 16):
            tiles = math.ceil(self.N / rows) * math.ceil(self.M / 128)
            blocks = math.ceil(tiles / math.ceil(tiles / self.gpu.multiprocessors))
            yield (128, 1, 0, blocks, rows, 1)

    def weight_only_wgmma(self) -> Iterator[Config]:
        yield from self._wgmma(192, (64, 96, 128), (1, 2, 3), stage=128)
        yield from self._wgmma(128, (32, 96, 128, 192, 256), (1, 2, 3), stage=128)
        yield from self._wgmma(64, (32, 64, 128), (1, 2, 3), stage=128)

    def _wgmma(
        self,
        rows: int,
        tile_tokens: tuple[int, ...],
        clusters: tuple[int, ...],
        stage: int = 0,
    ) -> Iterator[Config]:
        """Tiles of so many rows of w, with ranges of stages of so much of K, if any."""
        sms = self.gpu.multiprocessors
        for tokens in tile_tokens:
            tiles = math.ceil(self.N / rows) * math.ceil(self.M / tokens)
            for cluster, blocks in self._shares(tiles, clusters):
                yield (tokens, cluster, 0, blocks, rows, 0)
            for shared, blocks in self._ranges(tiles, stage) if stage else ():
                yield (tokens, 1, shared, blocks, rows, 0)
            yield (tokens, 1, 0, math.ceil(tiles / math.ceil(tiles / sms)), rows, 0)

    def int4_batch(self) -> Iterator[Config]:
        tokens = next(t for t in (16, 32, 64) if t >= self.M)
        for slices in (1, 2, 4):
            tiles = math.ceil(self.N / (256 // slices))
            rounds = math.ceil(tiles / self.gpu.multiprocessors)
            yield (tokens, slices, 1, math.ceil(tiles / rounds), self.gpu.shared_memory)
            for cluster, blocks in self._shares(tiles, (1, 2)):
                yield (tokens, slices, cluster, blocks, self.gpu.shared_memory)

    def int4_ring(self) -> Iterator[Config]:
        for warp_tiles in (1, 2):
            yield from ((warp_tiles, *ring) for ring in self._rings(16 * warp_tiles, (2, 3)))

    def int4_decode(self) -> Iterator[Config]:
        rows = 8 if self.M <= 8 else 16
        cuts = ((1, 8), (1, 16), (2, 4), (2, 8), (4, 2), (4, 4), (5, 4), (8, 2), (16, 1))
        for warp_tiles, units in ((2, 1), (1, 2), (2, 2)):
            for tiles, slices in cuts:
                for cluster, blocks in self._turns(16 * warp_tiles * tiles):
                    cut = (tiles, slices, cluster, blocks)
                    yield (rows, warp_tiles, units, *cut, self.gpu.shared_memory, self.gpu.hopper)

    def rowwise_decode(self) -> Iterator[Config]:
        yield from self._rings(16, (2, 4))

    def _rings(self, rows: int, depths: tuple[int, ...]) -> Iterator[Config]:
        """Cuts for warps that take so many rows of w each through a ring of so many steps."""
        for depth in depths:
            for tiles in (1, 2, 3, 4, 5, 8):
                for slices in (1, 2, 3, 4, 5, 6, 8, 16):
                    if not 4 <= tiles * slices <= 16:
                        continue
                    for cluster, blocks in self._turns(rows * tiles):
                        cut = (tiles, slices, cluster, blocks)
                        yield (depth, *cut, self.gpu.shared_memory, 1024, self.gpu.hopper)

    def _turns(self, rows: int) -> Iterator[tuple[int, int]]:
        """Clusters, and blocks of so many rows of w that keep the multiprocessors busy in a few turns."""
        sms = self.gpu.multiprocessors
        for cluster in (1, 2, 4, 8) if self.gpu.hopper else (1,):
            for turns in (1, 2, 3, 4):
                blocks = math.ceil(math.ceil(self.N / rows) / turns)
                if sms / 2 <= blocks * cluster <= 3 * sms:
                    yield cluster, blocks

    def _shares(self, tiles: int, clusters: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Clusters that may share what is left of so many tiles, and blocks in all."""
        for cluster in clusters:
            for idle in (0, 4, 8, 12, 16) if cluster > 1 else (0,):
                blocks = (self.gpu.multiprocessors - idle) // cluster * cluster
                yield (cluster, min(blocks, tiles * cluster))

    def _ranges(self, tiles: int, stage: int) -> Iterator[tuple[int, int]]:
        """Ranges that may share what is left of so many tiles, and blocks in all."""
        sms = self.gpu.multiprocessors
        if tiles >= sms:
            yield from ((ranges, sms) for ranges in range(sms - 4, sms * 2 // 3, -4))
            return
        stages = math.ceil(self.K / stage)
        for ranges in range(sms - tiles, 0, -1):
            shared = stages * ranges // (ranges + tiles)
            even = shared > 0 and tiles * shared % ranges == 0
            if even or ranges == sms - tiles:
                yield (ranges, tiles + ranges)


class Cuts:
    """One kernel's configurations for one point."""

    def __init__(self, library: ctypes.CDLL, kernel: str, point: Point, between: bool) -> None:
        self.library, self.kernel, self.point = library, kernel, point
        self.between = torch.zeros(2, BETWEEN, device="cuda") if between else None
        self.index = library.find_kernel(kernel.encode())
        self.gpu = Gpu.current()
        self.problems = [point.problem(copy) for copy in range(point.copies)]
        self.checked = slice(None, None, max(1, point.M // 4))  # rows of the result
        self.expected = point.expected(self.checked)

    def chosen(self) -> Config:
        """The plan's, or nothing where the kernel does not serve."""
        if self.index < 0:
            return ()
        ints = (ctypes.c_int * MOST_INTS)()
        problem = ctypes.byref(self.problems[0])
        return tuple(ints[: self.library.choose(self.index, problem, torch.cuda.current_device(), ints)])

    def seconds(self, config: Config, samples: int) -> float | None:
        """The median of so many samples of one call, or None where the launch is refused."""
        ints = (ctypes.c_int * MOST_INTS)(*config)
        size = self.library.workspace_bytes(self.index, ctypes.byref(self.problems[0]), ints)
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
        turn = 0

        def copy() -> None:
            if self.between is not None:
                torch.mul(self.between[0], 1.0, out=self.between[1])

        def call() -> None:
            nonlocal turn
            copy()
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
        other = self._median(copy, samples) if self.between is not None else 0.0
        return self._median(call, samples) - other

    def _median(self, call: Callable[[], None], samples: int) -> float:
        clock = GraphClock(Candidate(lambda: call, len(self.problems)), self.point.y.device)
        times: list[float] = []
        while len(times) < samples:
            times += clock.samples()
        return statistics.median(times)

    def _check(self, config: Config) -> None:
        off = self.point.y[self.checked].double() - self.expected
        error = (off.norm(dim=1) / self.expected.norm(dim=1)).max().item()
        if not error <= ops.ERROR_BOUND[self.point.y.dtype]:
            raise click.ClickException(f"{self.kernel} {config} is wrong: a row is off by {error:.1e}")


@click.command()
@click.option(
    "--format",
    type=click.Choice(list(FORMATS)),
    default="int4",
    show_default=True,
    help="Of weights; x is in bfloat16 beside int4 and weight-only ones, and like them beside others.",
)
@click.option("--kernel", "kernels", multiple=True, type=click.Choice(KERNELS), help="Default: all.")
@click.option(
    "--m", "rows", type=CountsType(), default="1,2,4,8,16,32,64,128,256,512,1024,4096", show_default=True
)
@click.option(
    "--shape", "shapes", multiple=True, type=ShapeType(), help="Default: those of Llama 3 8B and 70B."
)
@click.option("--group-size", type=click.IntRange(min=32), default=128, show_default=True, help="Of int4.")
@click.option("--samples", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--between", is_flag=True, help="Another's kernel runs between calls; its time does not count.")
@click.option("--build-folder", type=click.Path(path_type=Path), default="build/cuts", show_default=True)
@click.option("--json", "json_path", type=JSON_FILE, default="out/cuts.json", show_default=True)
def main(
    format: str,
    kernels: tuple[str, ...],
    rows: tuple[int, ...],
    shapes: tuple[Shape, ...],
    group_size: int,
    samples: int,
    between: bool,
    build_folder: Path,
    json_path: Path,
) -> None:
    """Time every configuration of the kernels of a format on the current NVIDIA GPU."""
    if not torch.cuda.is_available():
        raise click.ClickException("there is no NVIDIA GPU here: torch.cuda.is_available() is False")
    library = build(build_folder, torch.cuda.get_device_capability() == (9, 0))
    records = []
    table = Table("N×K", "M", "kernel", "plan's", "µs", "fastest", "µs", "plan ÷ fastest", box=box.SIMPLE)
    for shape in shapes or LLAMA_3_8B_AND_70B:
        for M in rows:
            point = random_point(format, M, shape, group_size)
            for kernel in [name for name in FORMATS[format] if name in (kernels or KERNELS)]:
                cuts = Cuts(library, kernel, point, between)
                chosen = cuts.chosen()
                if not chosen:
                    continue
                configs = dict.fromkeys([chosen, *Candidates(cuts.gpu, point).of(kernel)])
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
                        "format": format,
                        "N": shape.N,
                        "K": shape.K,
                        "M": M,
                        "group_size": group_size if format == "int4" else None,
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
