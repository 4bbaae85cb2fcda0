"""How candidates are timed: in turns, each with a pool of weights, behind a kernel of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aoext.cli.shapes import Shape
from aoext.reference import SUBJECTS
from aoext_bench import bench_points, bench_run, bench_view, floor_view
from aoext_bench.bench_points import Settings
from aoext_bench.ceilings import Ceilings
from aoext_bench.clocks import Candidate
from aoext_bench.devices import CPU
from aoext_bench.pool import Pool
from aoext_bench.timing import interleaved
from test_bench import printed


class ScriptedDevice(CPU):
    """A device on which a call takes as long as it says."""

    def seconds(self, call: Callable[[], Any]) -> float:
        return float(call())


def test_slow_candidates_do_not_hold_up_fast_ones() -> None:
    times = {"fast": iter([0.03, 0.01] + 1000 * [0.02]), "slow": iter(1000 * [5.0])}
    candidates = {name: Candidate(lambda t=t: lambda: next(t)) for name, t in times.items()}
    timings = interleaved(candidates, ScriptedDevice(torch.device("cpu")), seconds=0.1)
    assert timings["slow"].calls == 1
    assert timings["fast"].calls == 5
    assert timings["fast"].seconds == 0.01


class BehindDevice(CPU):
    """A device whose kernels are timed behind others', where each costs what it says."""

    BEHIND = True

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.costs = {"produced": 1.0, "product": 5.0}  # seconds
        self.ran: list[str] = []

    def seconds(self, call: Callable[[], Any]) -> float:
        self.ran.clear()
        call()
        back_to_back = self.ran == ["product"]
        return sum(self.costs[name] for name in self.ran) - back_to_back * 2.0  # what overlaps


def test_what_counts_is_a_product_behind_a_kernel_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    device = BehindDevice()
    produce = bench_run.produced

    def produced(x: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        device.ran.append("produced")
        fresh = produce(x)
        assert torch.equal(fresh[0].float(), x[0].float())
        assert fresh[0].data_ptr() != x[0].data_ptr()
        return fresh

    def product(self: Any, call: Any, x: Any, pool: Any) -> None:
        def counted(*arguments: Any) -> Any:
            device.ran.append("product")
            return call(*arguments)

        for name, value in (("call", counted), ("x", x), ("pool", pool)):
            object.__setattr__(self, name, value)

    monkeypatch.setattr(bench_run, "produced", produced)
    monkeypatch.setattr(bench_run.Way, "__init__", product)
    subjects = [s for s in SUBJECTS if s.kind in ("weight_only_linear int8", "scaled_mm_rowwise", "int8_mm")]
    subjects += [s for s in SUBJECTS if s.kind == "quantize rows"]
    shapes = [Shape(32, 64)]
    settings = Settings(
        device, subjects, shapes, (1, 3), torch.bfloat16, (32,), (1,), 0, 1e-9, 10**4, True, False
    )
    runner = bench_run.Bench(settings)
    points = [point for subject in subjects for point in runner.points(subject)]
    assert len(points) >= 2 * len(subjects)
    for point in points:
        alone = set(point.back_to_back.values())
        assert alone == {3.0}
        if point.operator == "quantize":  # its input is what rotates
            assert point.behind == {}
            assert point.seconds == point.back_to_back
        else:
            assert set(point.behind) == set(point.back_to_back)
            assert set(point.behind.values()) == {5.0}
            assert point.seconds == point.behind
            assert {"aoext", "linear"} <= set(point.seconds)
    known = {1: Ceilings(1e3, "", 1e6, "", {10**3: 1.0, 10**9: 2.0})}
    products = [point for point in points if point.behind]
    (mean, *_) = floor_view.geomeans(products, known)
    assert mean.times_floor_back_to_back == pytest.approx(mean.times_floor["aoext"] * 3 / 5)
    text = printed(floor_view.at_each_shape(bench_points.sections(products)[0], known))
    assert "back to" in text
    own = [point for point in products if point.operator == "int8_mm"]
    (subject,) = (s for s in subjects if s.operator == "int8_mm")
    text = printed(bench_view.table(subject, own, settings, known))
    assert "back to back" in text
    assert "3,000,000" in text
    assert "5,000,000" in text


def test_equal_candidates_get_equally_many_calls() -> None:
    candidates = {name: Candidate(lambda: lambda: 0.01) for name in "abc"}
    timings = interleaved(candidates, ScriptedDevice(torch.device("cpu")), seconds=0.1)
    assert len({timing.calls for timing in timings.values()}) == 1


def test_pool_goes_round_through_distinct_copies() -> None:
    original = (torch.randn(30, 7), torch.randint(-9, 9, (5,), dtype=torch.int8))
    pool = Pool(size=5000)
    pool.fill(original)
    copies = [pool.next() for _ in range(8)]
    for copy in copies:
        assert all(torch.equal(a, b) for a, b in zip(copy, original, strict=True))
        assert all(tensor.is_contiguous() for tensor in copy)
    addresses = [copy[0].data_ptr() for copy in copies]
    assert len(set(addresses)) == 4  # 840 and 5 bytes, padded to 1024 and 256
    assert addresses[4:] == addresses[:4]
