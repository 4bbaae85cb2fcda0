"""What measuring must know about a device. A new device is a class here and its line in DEVICES."""

from __future__ import annotations

import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from aoext_bench.busy import Watch
from aoext_bench.clocks import CallClock, Candidate, Clock
from aoext_bench.cuda_clock import clock_for

MIB = 1 << 20


class Device(ABC):
    """Clock and caches of one device."""

    # What a pool of weights holds: so many times the largest cache (caches do not simply forget what is
    # oldest, so a little more than their size still finds much of it there), and at least so much.
    CACHES = 2
    SMALLEST_POOL = 256 * MIB

    STATISTIC = "fastest"  # what `typical` takes of some samples
    BEHIND = False  # whether kernels are timed behind one of PyTorch's too, as a model calls them

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.watch: Watch | None = None  # of the timed calls, where threads of the host compute them

    @abstractmethod
    def seconds(self, call: Callable[[], Any]) -> float:
        """Run `call` once and return the time until its work was done."""

    def clock(self, candidate: Candidate) -> Clock:
        """What times a candidate's calls."""
        return CallClock(candidate, self.seconds)

    def typical(self, samples: Sequence[float]) -> float:
        """The sample that counts."""
        return min(samples)

    def generator(self, seed: int) -> torch.Generator:
        """Random numbers where they are drawn fastest."""
        return torch.Generator().manual_seed(seed)

    def release_memory(self) -> None:  # noqa: B027, most devices have nothing to do here
        """Give back what was freed, before other sizes are asked for."""

    @abstractmethod
    def cache_bytes(self) -> int:
        """Bytes of the largest cache."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Bytes of memory that can be had."""


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Let torch and aoext use so many threads of the CPU inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class CPU(Device):
    """All cores that torch may use."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.watch: Watch = Watch()

    def seconds(self, call: Callable[[], Any]) -> float:
        return self.watch.seconds(call)

    def cache_bytes(self) -> int:
        sizes = [
            path.read_text().strip()
            for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
        ]
        return max((int(size[:-1]) * 1024 for size in sizes if size.endswith("K")), default=64 * MIB)

    def free_bytes(self) -> int:
        if "SC_AVPHYS_PAGES" not in os.sysconf_names:  # only Linux tells
            return 4096 * MIB
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class GPU(Device):
    """A call's time runs from an idle GPU to the end of its work, launches included."""

    def seconds(self, call: Callable[[], Any]) -> float:
        torch.accelerator.synchronize(self.device)
        begin = time.perf_counter()
        call()
        torch.accelerator.synchronize(self.device)
        return time.perf_counter() - begin


class CUDA(GPU):
    """One NVIDIA GPU; candidates are timed by replays of CUDA graphs, without the host's launches."""

    CACHES = 6  # the L2 replaces at random in parts: after one round of these next to nothing is left
    SMALLEST_POOL = 320 * MIB

    STATISTIC = "median"
    BEHIND = True

    def clock(self, candidate: Candidate) -> Clock:
        return clock_for(candidate, self.device)

    def typical(self, samples: Sequence[float]) -> float:
        return statistics.median(samples)

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def release_memory(self) -> None:
        torch.cuda.empty_cache()

    def cache_bytes(self) -> int:
        return torch.cuda.get_device_properties(self.device).L2_cache_size

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0]


class XPU(GPU):
    """One Intel GPU, or what stands in for it."""

    # For a torch that does not tell; no Intel GPU has more than the 408 MiB of a Data Center GPU Max.
    LARGEST_CACHE = 408 * MIB

    def cache_bytes(self) -> int:
        properties = torch.xpu.get_device_properties(self.device)
        return getattr(properties, "last_level_cache_size", self.LARGEST_CACHE)

    def free_bytes(self) -> int:
        try:
            return torch.xpu.mem_get_info(self.device)[0]
        except RuntimeError:  # some drivers do not tell how much is free
            return torch.xpu.get_device_properties(self.device).total_memory // 2


DEVICES: dict[str, type[Device]] = {"cpu": CPU, "cuda": CUDA, "xpu": XPU}


def measured(device: torch.device) -> Device:
    """With its clock."""
    return DEVICES[device.type](device)
