"""Whether a machine was busy is found out by clocks that are given here, and by a process that really is."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aoext_bench import busy
from aoext_bench.busy import LEAST, Observer, System, Watch, judge


def ticking(*steps: float) -> Iterator[float]:
    """A clock that is so much later at each look, and then does not stop."""
    return iter(itertools.accumulate(itertools.chain(steps, itertools.repeat(0.0))))


def watch_of(calls: list[tuple[float, float]]) -> Watch:
    """One whose calls take so much time, and of that have a core for so long."""
    wall = ticking(*(step for seconds, _ in calls for step in (100.0, seconds)))
    cpu = ticking(*(step for _, had in calls for step in (50.0, had)))
    return Watch(wall=lambda: next(wall), cpu=lambda: next(cpu))


def test_share_is_that_of_the_timed_calls_alone() -> None:
    watch = watch_of([(2.0, 2.0), (4.0, 1.0), (2.0, 2.0)])
    assert watch.share() is None
    assert watch.seconds(lambda: None) == pytest.approx(2.0)
    assert watch.share() == pytest.approx(1.0)
    mark = watch.mark()
    assert watch.seconds(lambda: None) == pytest.approx(4.0)
    assert watch.share(mark) == pytest.approx(0.25)
    assert watch.seconds(lambda: None) == pytest.approx(2.0)
    assert watch.share() == pytest.approx(5 / 8)


def test_reading_the_clock_hides_no_waiting() -> None:
    # Ten short calls, to which the thread's clock adds as much again, and one that waited.
    watch = watch_of([*(10 * [(1.0, 2.0)]), (10.0, 1.0)])
    for _ in range(11):
        watch.seconds(lambda: None)
    assert watch.share() == pytest.approx(11 / 20)


@pytest.mark.parametrize(
    ("threads", "share", "free", "reasons"),
    [
        (1, 1.0, 2.0, 0),
        (1, LEAST, None, 0),
        (1, 0.41, 2.0, 1),  # a spell of other work on this core
        (1, 1.0, 0.5, 1),
        (1, None, 0.5, 1),  # the host computes nothing
        (1, None, None, 0),  # nothing is known
        (1, 0.5, 0.5, 2),
    ],
)
def test_verdict(threads: int, share: float | None, free: float | None, reasons: int) -> None:
    load = judge(threads, share, free)
    assert len(load.reasons) == reasons
    assert load.busy == bool(reasons)
    assert load.as_json() == {
        "threads": threads,
        "cpu_share": share,
        "free_cores": free,
        "reasons": load.reasons,
    }


def test_threads_want_a_core_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "_allowed", lambda: {0, 1, 2, 3})
    assert judge(2, 1.0, 1.2).busy
    assert not judge(2, 1.0, 1.9).busy
    assert not judge(64, 1.0, 4.0).busy  # more threads than cores are nobody else's doing


def system_of(idle: list[int], own: float, others_core: int = 0) -> System:
    """Two cores of four; 10 seconds between two looks, with so much idle time of each, and of its own."""
    tick = os.sysconf("SC_CLK_TCK")
    looks = iter([[0, 0, 0, 0], [seconds * tick for seconds in idle]])
    wall, used = iter([0.0, 10.0]), iter([5.0, 5.0 + own])

    def stat() -> str:
        lines = [f"cpu{core} 7 0 7 {ticks} 0 0 0 0 0 0" for core, ticks in enumerate(next(looks))]
        return "\n".join(["cpu  9 9 9 9 9 0 0 0 0 0", *lines, "intr 1 2 3"])

    return System(stat=stat, cores=lambda: {1, 2}, own=lambda: next(used), wall=lambda: next(wall))


@pytest.mark.parametrize(
    ("idle", "own", "free"),
    [
        ([0, 10, 10, 0], 0.0, 2.0),  # what runs on cores that this process may not use is no matter
        ([0, 0, 0, 0], 20.0, 2.0),  # it used both itself
        ([10, 0, 10, 10], 0.0, 1.0),  # another process has one
        ([10, 0, 0, 10], 13.0, 1.3),
        ([10, 0, 0, 10], 30.0, 2.0),  # counted coarsely
    ],
)
def test_free_cores_are_what_others_leave(idle: list[int], own: float, free: float) -> None:
    system = system_of(idle, own)
    assert system.free(system.ticks()) == pytest.approx(free)


def test_a_system_that_does_not_tell_is_not_called_busy() -> None:
    def nothing() -> str:
        raise FileNotFoundError

    for system in (System(stat=nothing), System(stat=lambda: "cpu  1 2 3 4 5"), System(cores=set)):
        assert system.ticks() is None
        assert system.free(None) is None
        assert not Observer([2], None, system).verdict().busy


def test_observer_asks_for_one_thread_where_the_host_only_sends() -> None:
    assert Observer([1, 8], None).threads == 1
    assert Observer([1, 8], Watch()).threads == 8


def test_observer_leaves_out_what_was_timed_before() -> None:
    watch = watch_of([(10.0, 1.0), (10.0, 9.5)])
    watch.seconds(lambda: None)
    observer = Observer([1], watch, System(cores=set))
    watch.seconds(lambda: None)
    assert observer.verdict().share == pytest.approx(0.95)
    assert not observer.verdict().busy


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_a_neighbour_on_the_same_core_is_noticed() -> None:
    before = os.sched_getaffinity(0)
    core = {min(before)}
    spin = "print(flush=True)\nwhile True: pass"
    try:
        os.sched_setaffinity(0, core)
        with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as neighbour:
            try:
                assert neighbour.stdout
                neighbour.stdout.readline()  # it runs
                observer, watch = None, Watch()
                observer = Observer([1], watch)
                for _ in range(20):
                    watch.seconds(lambda: sum(range(10**6)))
                load = observer.verdict()
            finally:
                neighbour.kill()
    finally:
        os.sched_setaffinity(0, before)
    assert load.busy
    assert load.share is not None
    assert load.share < LEAST
    assert "had a core" in load.reasons[0]
