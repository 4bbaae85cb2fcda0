"""Whether other work takes the cores that a measurement needs: figures of such a run are not valid.

Two signs, neither of which a slow kernel gives:

    share    of the time of all timed calls, how much of it the calling thread had a core. A thread computes
             throughout, or spins until the other threads of its call are done; it loses its core only to
             other work, on that core or on one that it waits for.
    free     cores that this process may use and that other processes left idle, over the whole run, as the
             system counts them (Linux). Fewer than threads means that some thread had to wait.

Other work that takes only memory bandwidth gives neither sign: read differences below 10% on a shared machine
as none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The least share, and free cores a thread. An undisturbed run has 0.97 and more of both.
LEAST = 0.9
WINDOW_SECONDS = 0.3  # for a look at the machine before the run


@dataclass
class Watch:
    """Times calls and adds up how long the calling thread had a core meanwhile."""

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.thread_time
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def seconds(self, call: Callable[[], Any]) -> float:
        """How long one call takes."""
        cpu, begin = self.cpu(), self.wall()
        result = call()
        seconds = self.wall() - begin
        # To read the thread's clock takes as long as a small call: no call had more than its time.
        had = min(self.cpu() - cpu, seconds)
        self.wall_seconds += seconds
        self.cpu_seconds += had
        del result  # freeing is not part of the work
        return seconds

    def mark(self) -> tuple[float, float]:
        """Where it stands, for share()."""
        return self.wall_seconds, self.cpu_seconds

    def share(self, since: tuple[float, float] = (0.0, 0.0)) -> float | None:
        """CPU time over elapsed time of the calls since a mark; None if there were none."""
        wall = self.wall_seconds - since[0]
        return (self.cpu_seconds - since[1]) / wall if wall > 0 else None


@dataclass(frozen=True)
class Ticks:
    """What the system has counted at one moment."""

    idle: float  # seconds of the cores that this process may use
    own: float  # seconds of any core that this process used
    wall: float


def _allowed() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass(frozen=True)
class System:
    """What counts the time of cores; None where the system does not tell."""

    stat: Callable[[], str] = Path("/proc/stat").read_text
    cores: Callable[[], set[int]] = _allowed
    own: Callable[[], float] = _own_seconds
    wall: Callable[[], float] = time.perf_counter

    def ticks(self) -> Ticks | None:
        try:
            lines = self.stat().splitlines()
            each = 1 / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, AttributeError):
            return None
        cores = self.cores()
        # "cpu3 user nice system idle iowait …", in ticks
        idle = {
            int(name[3:]): (int(values[3]) + int(values[4])) * each
            for name, *values in (line.split() for line in lines if line.startswith("cpu"))
            if name[3:].isdecimal()
        }
        if not cores or not cores <= set(idle):
            return None
        return Ticks(sum(idle[core] for core in cores), self.own(), self.wall())

    def free(self, begin: Ticks | None) -> float | None:
        """Cores that others left alone since then, of those that this process may use."""
        end = self.ticks()
        if begin is None or end is None or end.wall <= begin.wall:
            return None
        left = (end.idle - begin.idle + end.own - begin.own) / (end.wall - begin.wall)
        return min(left, float(len(self.cores())))


@dataclass(frozen=True)
class Load:
    """What a run saw of other work."""

    threads: int  # that it needs
    share: float | None = None
    free: float | None = None
    reasons: list[str] = field(default_factory=list)  # why figures are not valid; none where they are

    @property
    def busy(self) -> bool:
        return bool(self.reasons)

    def as_json(self) -> dict[str, Any]:
        """threads, cpu_share, free_cores, reasons."""
        return {
            "threads": self.threads,
            "cpu_share": self.share,
            "free_cores": self.free,
            "reasons": self.reasons,
        }


def judge(threads: int, share: float | None, free: float | None) -> Load:
    """The verdict on a run with so many threads."""
    reasons = []
    if share is not None and share < LEAST:
        reasons.append(f"the timed calls had a core for {share:.0%} of their time")
    # More threads than cores are the user's wish and no other work's doing.
    wanted = min(threads, len(_allowed()) or threads)
    if free is not None and free < LEAST * wanted:
        reasons.append(f"others left {free:.1f} cores to {threads} thread{'' if threads == 1 else 's'}")
    return Load(threads, share, free, reasons)


class Observer:
    """Watches the machine from its making to verdict()."""

    def __init__(self, threads: Iterable[int], watch: Watch | None, system: System | None = None) -> None:
        """watch: of the timed calls, where the host's threads compute them; else one sends them."""
        self.threads, self.watch = max(threads) if watch else 1, watch
        self.system = system or System()
        self.mark = watch.mark() if watch else (0.0, 0.0)
        self.begin = self.system.ticks()

    def before(self) -> Load:
        """A look at the machine before anything runs."""
        begin = self.system.ticks()
        time.sleep(WINDOW_SECONDS)
        return judge(self.threads, None, self.system.free(begin))

    def verdict(self, by_cores: bool = True) -> Load:
        """The load since the beginning; by_cores=False where the program had other processes work."""
        share = self.watch.share(self.mark) if self.watch else None
        return judge(self.threads, share, self.system.free(self.begin) if by_cores else None)
