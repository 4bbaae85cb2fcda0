"""Timing on NVIDIA GPUs: many calls in one CUDA graph, so that launches of the host do not count.

A graph holds one call for each copy of the weights, or whole rounds of them until it takes a while, so that
no call finds its weight in the L2 cache. Graphs are replayed in bursts with events between: the first replay
of a burst covers the host's delay in sending the next ones and is not a sample. Between bursts the GPU rests,
so that its power does not hold it back: what came before would count otherwise.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from abc import abstractmethod
from collections.abc import Sequence

import torch

from aoext_bench.clocks import Candidate, Clock

# A sample takes at least so long, which is much against an event's 0.5 µs, and so many calls at most.
SAMPLE_SECONDS = 1e-3
MOST_CALLS = 2048

# Samples of a burst, fewer where they take long.
BURST = 4
BURST_SECONDS = 40e-3
REST_SECONDS = 5e-3


class _BurstClock(Clock):
    """Samples between events in a stream."""

    def __init__(self, candidate: Candidate, device: torch.device) -> None:
        self.candidate = candidate
        self.device = device
        self.calls = 1
        self.stream = torch.cuda.current_stream(device)
        self._expected = SAMPLE_SECONDS

    @abstractmethod
    def run(self) -> None:
        """Send the work of one sample."""

    def samples(self) -> Sequence[float]:
        burst = max(1, min(BURST, int(BURST_SECONDS / self._expected)))
        events = [torch.cuda.Event(enable_timing=True) for _ in range(burst + 1)]
        time.sleep(REST_SECONDS)
        with torch.cuda.stream(self.stream):
            self.run()
            for event in events[:-1]:
                event.record()
                self.run()
            events[-1].record()
        self.stream.synchronize()
        times = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]
        self._expected = max(times)
        return [time / self.calls for time in times]


class EventClock(_BurstClock):
    """Calls sent one by one: what the GPU waits for the host in between counts too."""

    way = "calls between events"

    def __init__(self, candidate: Candidate, device: torch.device) -> None:
        super().__init__(candidate, device)
        self.calls = _calls_of_a_sample(candidate, device)

    def run(self) -> None:
        for _ in range(self.calls):
            self.candidate.prepare()()


class GraphClock(_BurstClock):
    """Replays of a CUDA graph; RuntimeError where the calls cannot be captured."""

    way = "graph replays"

    def __init__(self, candidate: Candidate, device: torch.device) -> None:
        super().__init__(candidate, device)
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream):
            self.calls = _calls_of_a_sample(candidate, device)
            self.graph = _capture(candidate, self.calls)
        self.run()  # the first replay sends the graph to the GPU
        self.stream.synchronize()

    def run(self) -> None:
        with torch.cuda.stream(self.stream):
            self.graph.replay()


def clock_for(candidate: Candidate, device: torch.device) -> Clock:
    """By a graph, or by events where the candidate cannot be captured."""
    with torch.cuda.device(device):
        try:
            return GraphClock(candidate, device)
        except RuntimeError:
            torch.cuda.synchronize(device)
            return EventClock(candidate, device)


def _calls_of_a_sample(candidate: Candidate, device: torch.device) -> int:
    """Whole rounds of the copies, as many as SAMPLE_SECONDS takes; warms up besides."""
    candidate.prepare()()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    candidate.prepare()()
    end.record()
    torch.cuda.current_stream(device).synchronize()
    seconds = max(begin.elapsed_time(end) / 1e3, 1e-6)
    rounds = math.ceil(SAMPLE_SECONDS / seconds / candidate.copies)
    return min(MOST_CALLS, max(1, rounds) * candidate.copies)


def _capture(candidate: Candidate, calls: int) -> torch.cuda.CUDAGraph:
    """A graph of so many calls in the current stream.

    Not by torch.cuda.graph, which collects garbage and empties caches, both slow.
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    try:
        for _ in range(calls):
            candidate.prepare()()
    except BaseException:
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()
    return graph
