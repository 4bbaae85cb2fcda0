"""Timing that stands noise: candidates take turns, and the fastest call of each counts.

On a shared machine a call can only be slowed down, so its minimum is what the code takes. Turns spread
what comes and goes (clock speeds, other work) over all candidates alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aoext.cli.devices import Device

# A call that is slower than a candidate's whole time still gets a chance to be timed warm.
MIN_CALLS = 5
MOST_OVERTIME = 10.0

# Makes one call ready, outside the timed part.
Candidate = Callable[[], Callable[[], Any]]


@dataclass
class Timing:
    """The fastest of `calls` calls."""

    seconds: float = math.inf
    calls: int = 0
    spent: float = 0.0

    def add(self, seconds: float) -> None:
        self.seconds = min(self.seconds, seconds)
        self.calls += 1
        self.spent += seconds

    def wants_more(self, seconds: float) -> bool:
        """Whether it has had less than `seconds`; up to MOST_OVERTIME of it for MIN_CALLS calls."""
        return self.spent < (seconds if self.calls >= MIN_CALLS else seconds * MOST_OVERTIME)


def interleaved(candidates: Mapping[str, Candidate], device: Device, seconds: float) -> dict[str, Timing]:
    """Time candidates in turns, each for up to `seconds`.

    One that has used up its time drops out. When a single one is left, nothing takes turns with it and all
    is done, once it has had MIN_CALLS calls. So two fast candidates get the same number of calls, and slow
    ones do not hold them up.
    """
    timings = {name: Timing() for name in candidates}
    while True:
        waiting = [name for name, timing in timings.items() if timing.wants_more(seconds)]
        alone = len(waiting) == 1 and len(timings) > 1 and timings[waiting[0]].calls >= MIN_CALLS
        if not waiting or alone:
            return timings
        for name in waiting:
            timings[name].add(device.seconds(candidates[name]()))
