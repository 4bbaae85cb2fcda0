"""What torch.xpu asks of its C++ part, which a torch without XPU does not have.

torch.xpu itself stays as it is. It finds here the functions `torch._C._xpu_...` and the base classes of its
Stream and Event.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any

import torch

from . import _C

XPU = int(torch._C._autograd.DeviceType.XPU.value)


class XpuStreamBase(torch.Stream):
    """A stream of torch's generic API that knows its SYCL queue."""

    def __new__(cls, priority: int = 0, **which: int) -> XpuStreamBase:
        if "stream_id" in which:
            return super().__new__(cls, **which)
        return super().__new__(cls, torch.device("xpu", _C.current_device()), priority=priority)

    @property
    def sycl_queue(self) -> int:
        return _C.queue(self.device_index, self.stream_id)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, 0


class XpuEventBase(torch.Event):
    """An event of torch's generic API, on XPU."""

    _enable_timing: bool

    def __new__(cls, enable_timing: bool = False) -> XpuEventBase:
        event = super().__new__(cls, "xpu", enable_timing=enable_timing)
        event._enable_timing = enable_timing
        return event

    # torch.Event's own refuses subclasses of itself.
    def elapsed_time(self, end_event: torch.Event) -> float:
        if not (self._enable_timing and getattr(end_event, "_enable_timing", False)):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return _C.elapsed_milliseconds(self.event_id, end_event.event_id)

    @property
    def sycl_event(self) -> int:
        return self.event_id


@dataclasses.dataclass(frozen=True)
class XpuDeviceProperties:
    """The fields of torch.xpu.get_device_properties; what only a GPU has is 0 or False."""

    name: str
    platform_name: str
    vendor: str
    driver_version: str
    version: str
    max_compute_units: int
    max_work_group_size: int
    max_num_sub_groups: int
    sub_group_sizes: list[int]
    local_mem_size: int
    last_level_cache_size: int
    total_memory: int
    has_fp16: bool
    has_fp64: bool
    has_atomic64: bool
    type: str = "cpu"
    device_id: int = 0
    gpu_eu_count: int = 0
    gpu_subslice_count: int = 0
    memory_clock_rate: int = 0
    memory_bus_width: int = 0
    architecture: int = 0
    has_bfloat16_conversions: bool = False
    has_subgroup_matrix_multiply_accumulate: bool = False
    has_subgroup_matrix_multiply_accumulate_tensor_float32: bool = False
    has_subgroup_2d_block_io: bool = False
    is_integrated_gpu: bool = False
    uuid: bytes = bytes(16)


def _properties(device: int) -> XpuDeviceProperties:
    _check(device)
    return XpuDeviceProperties(**_C.device_facts())


def _check(device: int) -> None:
    if not 0 <= device < _C.device_count():
        raise RuntimeError(f"xpu_sim: device index must be 0 to {_C.device_count() - 1}, got {device}")


def _exchange_device(device: int) -> int:
    previous = _C.current_device()
    if device >= 0:
        _C.set_current_device(device)
    return previous


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    if device_type != XPU:
        raise RuntimeError(f"xpu_sim: not an XPU stream: device type {device_type}")
    _C.set_current_stream(device_index, stream_id)
    _C.set_current_device(device_index)


def _can_access_peer(device: int, peer: int) -> bool:
    _check(device)
    _check(peer)
    return True  # the two have one memory


def _no_external_stream(*_: Any) -> None:
    raise NotImplementedError("xpu_sim: streams around queues of others are not simulated")


def _empty_strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="xpu")


FUNCTIONS: dict[str, Any] = {
    "_xpu_init": lambda: None,
    "_xpu_isInBadFork": _C.forked,
    "_xpu_getDeviceCount": _C.device_count,
    "_xpu_getDevice": _C.current_device,
    "_xpu_setDevice": _C.set_current_device,
    "_xpu_exchangeDevice": _exchange_device,
    "_xpu_maybeExchangeDevice": _exchange_device,
    "_xpu_canDeviceAccessPeer": _can_access_peer,
    "_xpu_getCurrentStream": lambda device: (_C.current_stream(device), device, XPU),
    "_xpu_getCurrentRawStream": lambda device: _C.queue(device, _C.current_stream(device)),
    "_xpu_getStreamFromExternal": _no_external_stream,
    "_xpu_setStream": _set_stream,
    "_xpu_synchronize": _C.synchronize,
    "_xpu_getArchFlags": lambda: None,
    "_xpu_emptyCache": lambda: None,
    "_xpu_memoryStats": lambda device: torch._C._accelerator_getDeviceStats(device),
    "_xpu_resetPeakMemoryStats": lambda device: torch._C._accelerator_resetPeakStats(device),
    "_xpu_resetAccumulatedMemoryStats": lambda device: torch._C._accelerator_resetAccumulatedStats(device),
    "_xpu_getMemoryInfo": lambda device: torch._C._accelerator_getMemoryInfo(device),
    "_xpu_isCurrentStreamCapturing": lambda: False,
    "_XpuStreamBase": XpuStreamBase,
    "_XpuEventBase": XpuEventBase,
    "_XpuDeviceProperties": XpuDeviceProperties,
}


def patch() -> None:
    """Makes torch.xpu work in this process, for good."""
    torch._C._has_xpu = True  # what torch.xpu._is_compiled reads
    for name, value in FUNCTIONS.items():
        setattr(torch._C, name, value)
    # What Inductor's code calls to get memory.
    torch._C._dynamo.guards._empty_strided_xpu = _empty_strided
    # torch.xpu looked these up when it was imported, and took dummies.
    torch.xpu.streams = importlib.reload(sys.modules["torch.xpu.streams"])
    names = {
        "Stream": torch.xpu.streams.Stream,
        "Event": torch.xpu.streams.Event,
        "_XpuDeviceProperties": XpuDeviceProperties,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "_is_in_bad_fork": _C.forked,
        # What the real _xpu_init sets.
        "_get_device_properties": _properties,
        "default_generators": (torch.default_generator,) * _C.device_count(),
    }
    for name, value in names.items():
        setattr(torch.xpu, name, value)
    vars(torch.xpu.graphs)["_xpu_isCurrentStreamCapturing"] = FUNCTIONS["_xpu_isCurrentStreamCapturing"]
    # So did torch.compile, if it was imported already.
    dynamo = sys.modules.get("torch._dynamo.device_interface")
    if dynamo is not None:
        interface = dynamo.XpuInterface
        interface.Stream, interface.Event = torch.xpu.Stream, torch.xpu.Event
        interface.get_raw_stream = staticmethod(FUNCTIONS["_xpu_getCurrentRawStream"])
        interface.exchange_device = staticmethod(_exchange_device)
        interface.maybe_exchange_device = staticmethod(_exchange_device)
    torch.xpu.init()
