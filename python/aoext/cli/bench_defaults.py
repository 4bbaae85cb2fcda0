"""What `aoext bench` measures if it is not told, by device, and how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aoext.cli.bench_run import Settings, count_candidates, count_points, shapes_of
from aoext.cli.devices import Device
from aoext.cli.shapes import LLAMA_3_8B, LLAMA_3_8B_AND_70B, Shape


@dataclass(frozen=True)
class Defaults:
    """For one type of device."""

    shapes: Sequence[Shape]
    shapes_are: str
    rows: Sequence[int]  # M; the first are the last to be left out
    seconds: float  # for each candidate of a point
    quick_seconds: float
    minutes: float | None = None  # the most that all default M may take
    generic: bool = True  # whether the generic twin is timed

    # For the estimate, in seconds: before the first point, around each candidate (capture, check), and for
    # each byte of a pool that is filled.
    begin: float = 2.0
    around: float = 0.0
    fill: float = 1 / 3e9


QUICK_ROWS = (1, 16, 128)

_DEFAULTS = Defaults(LLAMA_3_8B, "the linear layers of Llama 3 8B", (1, 4, 16, 32, 128, 512), 0.3, 0.06)
DEFAULTS = {
    "cuda": Defaults(
        LLAMA_3_8B_AND_70B,
        "the linear layers of Llama 3 8B and 70B",
        (1, 16, 256, 4096, 64, 1024, 4, 8, 32, 128, 512, 2),
        seconds=0.05,
        quick_seconds=0.02,
        minutes=4.0,
        generic=False,  # a hundred times as slow, and it would cool the GPU for whoever comes after it
        begin=15.0,
        around=0.2,
        fill=1 / 200e9,
    ),
}


def defaults(device: Device) -> Defaults:
    """Of this type of device."""
    return DEFAULTS.get(device.device.type, _DEFAULTS)


def estimate(settings: Settings) -> float:
    """Roughly how many seconds a run takes at most."""
    own = defaults(settings.device)
    weights = sum(len(shapes_of(subject, settings)) for subject in settings.subjects)
    each = count_points(settings) * (settings.seconds + own.around) + weights * settings.pool_bytes * own.fill
    return own.begin + count_candidates(settings) * each


def within(settings: Settings, minutes: float) -> Settings:
    """With as many of the M, in their order, as fit into so many minutes; with the first one in any case."""
    rows = settings.rows
    while len(rows) > 1 and estimate(replace(settings, rows=rows)) > 60 * minutes:
        rows = rows[:-1]
    return replace(settings, rows=rows)
