"""Timing that stands noise: candidates take turns, and of each one's samples the typical one counts.

Which sample is typical is the device's to say: on a shared CPU a call can only be slowed down, so the fastest
one is what the code takes; on a GPU of one's own it is the median. Turns spread what comes and goes (clock
speeds, other work) over all candidates alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from aoext_bench.clocks import Candidate, Clock
from aoext_bench.devices import Device

Name = TypeVar("Name", bound=Hashable)

# A call that is slower than a candidate's whole time still gets a chance to be timed warm.
MIN_SAMPLES = 5
MOST_OVERTIME = 10.0


@dataclass
class Timing:
    """What the samples of one candidate came to."""

    device: Device
    clock: Clock
    samples: list[float] = field(default_factory=list)
    spent: float = 0.0

    def add(self, samples: Sequence[float]) -> None:
        self.samples += samples
        self.spent += sum(samples) * self.clock.calls

    def wants_more(self, seconds: float) -> bool:
        """Whether it has had less than `seconds`; up to MOST_OVERTIME of it for MIN_SAMPLES samples."""
        enough = len(self.samples) >= MIN_SAMPLES
        return self.spent < (seconds if enough else seconds * MOST_OVERTIME)

    @property
    def seconds(self) -> float:
        """The typical time of one call."""
        return self.device.typical(self.samples)

    @property
    def calls(self) -> int:
        """How many calls were timed."""
        return len(self.samples) * self.clock.calls


def most_spent(call: float, seconds: float) -> float:
    """Seconds that a candidate is timed for, at most, where a call takes `call` and it has `seconds`."""
    return max(seconds, min(MIN_SAMPLES * call, MOST_OVERTIME * seconds)) + call


def interleaved(candidates: Mapping[Name, Candidate], device: Device, seconds: float) -> dict[Name, Timing]:
    """Time candidates in turns, each for up to `seconds`.

    One that has used up its time drops out. When a single one is left, nothing takes turns with it and all
    is done, once it has had MIN_SAMPLES samples. So two fast candidates get the same number of samples, and
    slow ones do not hold them up.
    """
    timings = {name: Timing(device, device.clock(candidate)) for name, candidate in candidates.items()}
    while True:
        waiting = [timing for timing in timings.values() if timing.wants_more(seconds)]
        alone = len(waiting) == 1 and len(timings) > 1 and len(waiting[0].samples) >= MIN_SAMPLES
        if not waiting or alone:
            return timings
        for timing in waiting:
            timing.add(timing.clock.samples())
