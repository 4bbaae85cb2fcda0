"""How one candidate is timed: a clock gives samples, each the time of one call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Makes one call ready, outside the timed part.
Prepare = Callable[[], Callable[[], Any]]


@dataclass(frozen=True)
class Candidate:
    """One of the ways to compute a problem."""

    prepare: Prepare
    copies: int = 1  # after so many calls the first memory is read again


class Clock(ABC):
    """Times one candidate on one device."""

    way: str  # what a sample is, in a few words
    calls: int = 1  # of a sample

    @abstractmethod
    def samples(self) -> Sequence[float]:
        """Run for a little while; seconds of one call, one or several times."""


class CallClock(Clock):
    """One call a sample, by the host's clock: `seconds` runs a call and waits until its work is done."""

    way = "calls"

    def __init__(self, candidate: Candidate, seconds: Callable[[Callable[[], Any]], float]) -> None:
        self._candidate = candidate
        self._seconds = seconds

    def samples(self) -> Sequence[float]:
        return (self._seconds(self._candidate.prepare()),)
