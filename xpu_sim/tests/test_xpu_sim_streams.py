"""Streams, events, and who waits for whom. A delay of a stream makes what does not wait come too early."""

from __future__ import annotations

import ctypes
import time

import pytest
import torch

xpu_sim = pytest.importorskip("xpu_sim")

DELAY = 200.0  # milliseconds; everything else in these tests takes a fraction of it


def draw(size: int = 1000) -> torch.Tensor:
    return torch.randn(size).to("xpu")


def exported_queues(device: int) -> tuple[int, int]:
    """What a C library gets from torch XPU's two functions."""
    library = ctypes.CDLL(None)
    current, of_device = ctypes.c_void_p(), ctypes.c_void_p()
    assert library.aoti_torch_get_current_sycl_queue(ctypes.byref(current)) == 0
    assert library.aoti_torch_get_current_xpu_stream(device, ctypes.byref(of_device)) == 0
    return current.value, of_device.value


def test_the_exported_queue_is_that_of_the_current_stream_and_device():
    default = torch.xpu.current_stream()
    assert exported_queues(0) == (default.sycl_queue, default.sycl_queue)
    other = torch.xpu.current_stream(1).sycl_queue
    assert exported_queues(1) == (default.sycl_queue, other)
    assert other != default.sycl_queue
    with torch.xpu.stream(torch.xpu.Stream()) as _, torch.xpu.device(0):
        side = torch.xpu.current_stream()
        assert side.sycl_queue != default.sycl_queue
        assert exported_queues(0) == (side.sycl_queue, side.sycl_queue)
    with torch.xpu.device(1):
        assert exported_queues(1) == (other, other)
    assert ctypes.CDLL(None).aoti_torch_get_current_xpu_stream(2, ctypes.byref(ctypes.c_void_p())) != 0


def test_new_streams_are_queues_of_their_own():
    streams = [torch.xpu.Stream() for _ in range(8)] + [torch.xpu.Stream(device="xpu:1")]
    assert len({s.sycl_queue for s in streams}) == 9
    assert streams[-1].device == torch.device("xpu:1")
    assert torch.xpu.current_stream() not in streams
    first = streams[0]
    again = torch.xpu.Stream(stream_id=first.stream_id, device_index=0, device_type=first.device_type)
    assert again == first
    assert isinstance(streams[0], torch.Stream)


def test_the_stream_context_changes_the_current_stream_of_one_device():
    default, side, other = torch.xpu.current_stream(), torch.xpu.Stream(), torch.xpu.Stream(device=1)
    with torch.xpu.stream(side):
        assert torch.xpu.current_stream() == side
        with torch.xpu.stream(other):
            assert torch.xpu.current_device() == 1
            assert torch.xpu.current_stream() == other
            assert torch.xpu.current_stream(0) == side
        assert torch.xpu.current_device() == 0
    assert torch.xpu.current_stream() == default
    with torch.Stream(device="xpu") as generic:
        assert torch.accelerator.current_stream() == generic
        assert torch.xpu.current_stream().stream_id == generic.stream_id


def test_a_copy_on_the_device_waits_for_its_stream_and_not_for_the_host():
    x, y = draw(), torch.zeros(1000, device="xpu")
    waits, start = xpu_sim.host_waits(), time.perf_counter()
    xpu_sim.delay(torch.xpu.current_stream(), DELAY)
    y.copy_(x)
    y[:10].fill_(3)
    assert time.perf_counter() - start < DELAY / 2000
    assert xpu_sim.host_waits() == waits
    assert not torch.xpu.current_stream().query()
    got = y.cpu()  # waits
    assert time.perf_counter() - start >= DELAY / 1000
    assert xpu_sim.host_waits() == waits + 1
    assert torch.equal(got[10:], x.cpu()[10:])
    assert (got[:10] == 3).all()


@pytest.mark.parametrize("ordered", [False, True])
def test_work_on_another_stream_comes_too_early_unless_it_waits(ordered):
    x, y, z = draw(), torch.zeros(1000, device="xpu"), torch.zeros(1000, device="xpu")
    first, second = torch.xpu.Stream(), torch.xpu.Stream()
    xpu_sim.delay(first, DELAY)
    with torch.xpu.stream(first):
        y.copy_(x)
    if ordered:
        second.wait_stream(first)
    with torch.xpu.stream(second):
        z.copy_(y)
        got = z.cpu()
    assert torch.equal(got, x.cpu()) is ordered
    first.synchronize()
    assert torch.equal(y, x)


@pytest.mark.parametrize("wait", ["stream", "event", "device", "accelerator", "none"])
def test_a_read_by_the_host_comes_too_early_unless_it_waits(wait):
    x = draw()
    result = torch.zeros(1000).pin_memory()
    side = torch.xpu.Stream()
    xpu_sim.delay(side, DELAY)
    with torch.xpu.stream(side):
        result.copy_(x, non_blocking=True)
        event = side.record_event()
    assert not event.query()
    waits = xpu_sim.host_waits()
    {
        "stream": side.synchronize,
        "event": event.synchronize,
        "device": torch.xpu.synchronize,
        "accelerator": torch.accelerator.synchronize,
        "none": lambda: None,
    }[wait]()
    assert xpu_sim.host_waits() == waits + (wait != "none")
    assert torch.equal(result.to("xpu"), x) is (wait != "none")
    assert event.query() is (wait != "none")
    side.synchronize()


def test_operators_that_fall_back_keep_the_order_of_their_stream():
    x, y = draw(), torch.zeros(1000, device="xpu")
    side = torch.xpu.Stream()
    xpu_sim.delay(side, DELAY)
    with torch.xpu.stream(side):
        y.copy_(x)
        waits = xpu_sim.host_waits()
        z = y * 2
        assert xpu_sim.host_waits() == waits  # it stands for a kernel, which makes nobody wait
        assert torch.equal(z.cpu(), x.cpu() * 2)


@pytest.mark.parametrize("wait", [False, True])
def test_events_order_streams_of_two_devices(wait):
    x, y = draw(), torch.zeros(1000, device="xpu")
    xpu_sim.delay(torch.xpu.current_stream(0), DELAY)
    y.copy_(x)
    event = torch.Event("xpu")
    event.record()
    pinned = torch.zeros(1000).pin_memory()
    with torch.xpu.device(1):
        start = time.perf_counter()
        if wait:
            event.wait()
        torch.zeros(1, device="xpu:1").fill_(1).cpu()
        assert (time.perf_counter() - start >= DELAY / 2000) is wait
    pinned.copy_(y, non_blocking=True)
    torch.xpu.synchronize()
    assert torch.equal(pinned, x.cpu())


def test_events_measure_time():
    start, end = torch.xpu.Event(enable_timing=True), torch.xpu.Event(enable_timing=True)
    assert start.query()  # never recorded
    start.record()
    xpu_sim.delay(torch.xpu.current_stream(), DELAY)
    end.record()
    with pytest.raises(RuntimeError, match="completed"):
        start.elapsed_time(end)
    end.synchronize()
    assert DELAY <= start.elapsed_time(end) < 10 * DELAY
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(torch.xpu.Event())


def test_host_waits_count_what_a_device_would_make_wait():
    x, flags = draw(16), torch.tensor([True, False], device="xpu")

    def waits_of(call) -> int:
        before = xpu_sim.host_waits()
        call()
        return xpu_sim.host_waits() - before

    assert waits_of(lambda: x[0].item()) == 1
    assert waits_of(lambda: x.cpu()) == 1
    assert waits_of(lambda: torch.ones(3).to("xpu")) == 1
    assert waits_of(lambda: torch.ones(3).pin_memory().to("xpu", non_blocking=True)) == 0
    assert waits_of(lambda: torch.xpu.synchronize()) == 1
    assert waits_of(lambda: flags.nonzero()) == 1
    assert waits_of(lambda: torch.equal(x, x.clone())) == 1
    assert waits_of(lambda: (x.clone() * 2 + x).sum()) == 0
    assert waits_of(lambda: torch.empty(100, device="xpu").fill_(2)) == 0


def test_memory_that_is_freed_early_is_not_reused_early():
    x = draw(100_000)
    side = torch.xpu.Stream()
    result = torch.zeros(100_000, device="xpu")
    waits = xpu_sim.host_waits()
    with torch.xpu.stream(side):
        source = x.clone()
        torch.xpu.current_stream().synchronize()
        xpu_sim.delay(side, DELAY)
        result.copy_(source)
    source.record_stream(side)
    del source
    others = [torch.full((100_000,), 7.0, device="xpu") for _ in range(4)]  # would take the freed memory
    assert xpu_sim.host_waits() == waits + 1
    side.synchronize()
    assert torch.equal(result, x)
    assert all((o == 7).all() for o in others)


def test_gradients_flow_on_the_stream_of_the_forward_pass():
    x, y = draw(), torch.zeros(1000, device="xpu", requires_grad=True)
    side = torch.xpu.Stream()
    side.wait_stream(torch.xpu.current_stream())
    with torch.xpu.stream(side):
        loss = (y * x).sum()
        xpu_sim.delay(side, DELAY)
        loss.backward()
    torch.xpu.synchronize()
    assert torch.equal(y.grad, x)
