"""Times of the small-M kernels on two GPUs, predicted from their code: a roofline on paper.

A vector engine is taken to start one instruction a clock, one of 16 lanes of 32 bits (wider ones and
transcendental functions take more: Instruction.clocks), of all its threads together, while its matrix engine
works beside it. A DPAS of r rows keeps the matrix engine busy for r·16·16 / macs clocks, of either type.
Memory is read once at its published bandwidth. What takes longest is the prediction: each of these overlaps
with all others. No latency and no launch (some microseconds) is in it. What the first cache can deliver is
not published for all of them, so it limits nothing here; the table says how many 64-byte lines a clock a
Xe-core's loads ask it for, at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from check import Image, Report
from disassembly import Kernel
from geometry import FAMILIES, Geometry, read_geometry
from rich.console import Console
from tables import grid, lines
from targets import HARDWARE, Hardware

SHAPES = ((4096, 4096), (14336, 4096))  # N, K
ROWS = (1, 4, 8, 16, 32, 64)
GROUP_SIZE = 128
GOAL_DEVICE, GOAL_ROWS = "bmg", 32  # memory-bound up to here
BLOCKS_GOAL_ROWS = 16  # of weights with a scale a block

# csrc/sycl/kernels/shape.h: a sub-group takes every S-th block of K; and the plan's S.
LANES, BLOCK, MOST_SUB_GROUPS = 16, 128, 16

RESOURCES = ("memory", "instructions", "matrix engine")


@dataclass(frozen=True)
class Cost:
    """What a kernel costs a sub-group on a device, in clocks of a vector engine."""

    geometry: Geometry
    loop: int  # once through the main loop
    block: int  # around it, for each block of K
    rest: int  # before and after, the sum over sub-groups included
    loop_rows: int  # rows of all DPAS of a pass
    loop_lines: int  # cache lines of all loads of a pass
    loop_instructions: int  # of a pass

    @property
    def instructions_of_a_weight(self) -> float:
        return self.loop_instructions / self.geometry.weights


def cost_of(kernel: Kernel, geometry: Geometry, *, shortest: bool = False) -> Cost:
    """By the longest way through the main loop, or the shortest."""
    code = kernel.code
    begin, end = code.main_loop or (0, 0)
    longest, loop = code.way(begin, end), code.way(begin, end, shortest=shortest)
    around = [(a, b) for a, b in code.loops if a <= begin and end <= b and (a, b) != (begin, end)]
    outer = code.way(*max(around)) if around else longest
    last = max((b for _, b in around), default=end)
    # After the main loop the sub-groups' sums are added up: the loops within others there run once a row of y
    # and tile of columns, whatever the number of sub-groups is (split_k.h: more of them add more, each for
    # fewer elements).
    nested = [(a, b) for a, b in code.innermost if any(x < a and b < y for x, y in code.loops)]
    sums = [code.way(a, b).clocks for a, b in nested if a > last]
    runs = geometry.rows * geometry.columns - len(sums)
    added = max(runs, 0) * max(sums, default=0)
    # The shortest way to the main loop finds no expert (experts.h).
    first = min((a for a, _ in around), default=begin)
    experts = code.way(0, first).clocks - code.way(0, first, shortest=True).clocks
    return Cost(
        geometry,
        loop.clocks,
        outer.clocks - longest.clocks,
        code.way().clocks - outer.clocks - experts + added,
        loop.dpas_rows,
        loop.cache_lines,
        len(loop),
    )


@dataclass(frozen=True)
class Prediction:
    """Seconds of each resource for one problem on one device."""

    device: str
    kernel: str
    M: int
    N: int
    K: int
    bytes: int
    instructions_of_a_weight: float  # and lane
    lines: float  # of cache, that the busiest Xe-core loads
    clock: float
    seconds: dict[str, float]  # by RESOURCES

    @property
    def limit(self) -> str:
        return max(self.seconds, key=self.seconds.__getitem__)

    @property
    def total(self) -> float:
        return self.seconds[self.limit]

    @property
    def lines_of_a_clock(self) -> float:
        return self.lines / (self.total * self.clock)


def predict(
    hardware: Hardware,
    device: str,
    name: str,
    cost: Cost,
    bits: int,
    M: int,
    N: int,
    K: int,
    scale_bytes: float | None = None,
) -> Prediction:
    """scale_bytes: a weight, where scales belong to blocks; else of groups of int4, or of rows."""
    geometry = cost.geometry
    work_groups = -(-M // geometry.rows) * -(-N // (LANES * geometry.columns))
    blocks = -(-K // BLOCK)
    threads = hardware.engines * hardware.threads_of_an_engine
    sub_groups = 1  # as tile_sub_groups of csrc/sycl/plan.cpp
    while sub_groups * 2 <= min(MOST_SUB_GROUPS, blocks) and sub_groups * work_groups < threads:
        sub_groups *= 2
    own_blocks = -(-blocks // sub_groups)
    passes = own_blocks * BLOCK // geometry.tile_k
    # The busiest Xe-core and its busiest engine.
    on_core = -(-work_groups // hardware.cores) * sub_groups
    on_engine = -(-on_core // (hardware.engines // hardware.cores))
    clocks = cost.rest + own_blocks * cost.block + passes * cost.loop
    matrix = passes * cost.loop_rows * LANES * LANES / hardware.macs
    size = N * K * bits // 8 + 2 * (M * K + M * N)
    if scale_bytes is not None:
        size += int(scale_bytes * N * K)
    else:
        size += 2 * 2 * N * K // GROUP_SIZE if bits == 4 else 4 * N  # scales and zero points, or scales
    seconds = (
        size / hardware.bandwidth,
        on_engine * clocks / hardware.clock,
        on_engine * matrix / hardware.clock,
    )
    return Prediction(
        *(device, name, M, N, K, size, cost.instructions_of_a_weight),
        lines=on_core * passes * cost.loop_lines,
        clock=hardware.clock,
        seconds=dict(zip(RESOURCES, seconds, strict=True)),
    )


# Weights with a scale a block of 32 that are predicted: bytes of scales a weight. mxfp4's scales are a byte,
# and the kernel recognises its table: the shortest way through the loop; int8's are bfloat16.
BLOCKS = {"blocks_tile.dpas_lut4_bf16": 1 / 32, "blocks_tile.dpas_int8_bf16": 2 / 32}


def _is_predicted(image: Image, kernel: str) -> bool:
    if image.source == "blocks_tile":
        return image.name in BLOCKS and kernel.endswith("_g32")
    return image.name.endswith("_bf16") and not kernel.endswith("_g32")


def predict_all(report: Report) -> list[Prediction]:
    """Predictions for the bfloat16 kernels of every source whose geometry is known."""
    found = []
    for image in report.images:
        if not image.is_matrix or image.family not in FAMILIES:
            continue
        scale_bytes = BLOCKS.get(image.name)
        bits = FAMILIES[image.family].bits
        for device, hardware in HARDWARE.items():
            costs = _costs(report, image, device)
            for N, K in SHAPES:
                for M in ROWS if costs else ():
                    rows = min((r for r in costs if r >= M), default=max(costs))
                    name, cost = costs[rows]
                    found.append(predict(hardware, device, name, cost, bits, M, N, K, scale_bytes))
    return found


def _costs(report: Report, image: Image, device: str) -> dict[int, tuple[str, Cost]]:
    """{rows of the kernel: its name and cost}."""
    result = report.results.get((image.name, device))
    found: dict[int, tuple[str, Cost]] = {}
    for name, kernel in (result.kernels if result else {}).items():
        loop = kernel.code.main_loop
        if not _is_predicted(image, name) or loop is None:
            continue
        geometry = read_geometry(image.family, kernel, kernel.code.way(*loop))
        if geometry:
            shown = name.replace(image.source, image.name.replace("dpas_", ""))
            found[geometry.rows] = shown, cost_of(kernel, geometry, shortest=image.family.endswith("_lut4"))
    return found


HEADERS = (
    "N x K",
    "M",
    "kernel",
    "bytes/weight",
    "instr/weight",
    "lines/clock",
    *RESOURCES,
    "µs",
    "limited by",
)


def _cells(p: Prediction) -> tuple[str, ...]:
    rates = (f"{p.bytes / (p.N * p.K):.2f}", f"{p.instructions_of_a_weight:.1f}", f"{p.lines_of_a_clock:.2f}")
    times = (f"{seconds * 1e6:.1f}" for seconds in (*p.seconds.values(), p.total))
    return (f"{p.N}x{p.K}", str(p.M), p.kernel, *rates, *times, p.limit)


def goal_rows(p: Prediction) -> int:
    return BLOCKS_GOAL_ROWS if p.kernel.startswith("blocks_tile") else GOAL_ROWS


def goals(predictions: Sequence[Prediction]) -> list[str]:
    """Whether instructions stay below the memory's floor up to GOAL_ROWS on GOAL_DEVICE."""
    of_goal = [p for p in predictions if p.device == GOAL_DEVICE and goal_rows(p) >= p.M]
    missed = [
        f"{p.kernel}, M = {p.M}, {p.N} x {p.K}: "
        f"{p.limit} take {p.total / p.seconds['memory']:.2f} of memory's time"
        for p in of_goal
        if p.limit != "memory"
    ]
    goal = (
        f"memory-bound up to M = {GOAL_ROWS}, by blocks to {BLOCKS_GOAL_ROWS}, "
        f"on {HARDWARE[GOAL_DEVICE].product}"
    )
    return [f"goal, {goal}: {'missed' if missed else 'met'}", *missed] if of_goal else []


def _title(device: str) -> str:
    h = HARDWARE[device]
    limits = f"{h.bandwidth / 1e9:.0f} GB/s, {h.engines} vector engines at {h.clock / 1e9:.2f} GHz"
    return f"{h.product} ({limits}), predicted, not measured; µs"


def _by_device(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    found = {device: [p for p in predictions if p.device == device] for device in HARDWARE}
    return {device: own for device, own in found.items() if own}


def show(console: Console, predictions: Sequence[Prediction]) -> None:
    headers = [header.replace("/", "/\n").replace(" engine", "\nengine") for header in HEADERS]
    for device, own in _by_device(predictions).items():
        console.print(grid(_title(device), headers, map(_cells, own), text=("kernel", "limited by")))
    for line in goals(predictions):
        console.print(f"  {line}")


def markdown(predictions: Sequence[Prediction]) -> str:
    found = []
    for device, own in _by_device(predictions).items():
        rows = ((*cells[:2], f"`{cells[2]}`", *cells[3:]) for cells in map(_cells, own))
        found += [f"{_title(device)}:", "", *lines(HEADERS, rows), ""]
    return "\n".join(found + [f"- {line}" for line in goals(predictions)])
