"""What tests ask the simulator: what ran where, who waited, who wrote where they should not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import _runtime


class _Loaded:
    """`xpu_sim._C`, which exists once the simulator is installed."""

    def __getattr__(self, name: str) -> Any:
        if not _runtime.is_loaded():
            raise RuntimeError("xpu_sim: call xpu_sim.install() first")
        from . import _C

        return getattr(_C, name)


if TYPE_CHECKING:
    from . import _C
else:
    _C = _Loaded()


def _index(device: torch.device | str | int | None) -> int:
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return _C.current_device() if index is None else index


# Streams


def delay(stream: torch.Stream, milliseconds: float) -> None:
    """Queues work of the given length on a stream. What is queued there later starts after it.

    Whatever should wait for the stream and does not comes too early by that much: a kernel on another
    stream, a read by the host. Returns at once.
    """
    _C.delay(stream.device_index, stream.stream_id, milliseconds)


def host_waits() -> int:
    """How often the host has waited for a device since the start of the process.

    Counted is what makes the host of a real device wait: copies to and from the host (without
    non_blocking), item(), synchronize() of devices, streams and events, and operators of ATen whose answer
    the host needs (nonzero, equal, ...). An operator that runs on the CPU in place of a kernel is not.
    """
    return _C.host_waits()


# Memory


class _Mode(contextlib.AbstractContextManager[None]):
    """A mode that was just set; `with` sets it back."""

    def __init__(self, restore: Callable[[], None]) -> None:
        self._restore = restore

    def __exit__(self, *_: object) -> None:
        self._restore()


def canaries(on: bool = True) -> _Mode:
    """Puts 256 random bytes before and after each block that is allocated from now on.

    New memory is 0xFF throughout (NaN as a floating point number), so that results nobody wrote are seen.
    Ends with the `with` block that it heads, or at `canaries(False)`.
    """
    before = _C.canaries()
    _C.set_canaries(on)
    return _Mode(lambda: _C.set_canaries(before))


def check_canaries() -> None:
    """Waits for all devices and raises if a canary was overwritten, also one of a block freed since.

    Each damage is reported once.

    Raises:
        RuntimeError: names each block's size and device, the side and the offset nearest to the block.
    """
    damage = _C.take_damage()
    if damage:
        raise RuntimeError("xpu_sim: canaries overwritten:\n" + "\n".join(damage))


def guard_pages(on: bool = True, alignment: int = 64) -> _Mode:
    """Ends each block that is allocated from now on at a page that can be neither read nor written.

    An access behind the block, a read too, crashes the process. A block starts at a multiple of `alignment`
    bytes, so up to `alignment` - 1 bytes behind its end stay accessible; they, and the bytes before the
    block, are a canary. Ends like `canaries`.

    Raises:
        ValueError: `alignment` is not a power of 2 up to 4096.
    """
    if not (0 < alignment <= 4096 and alignment & (alignment - 1) == 0):
        raise ValueError(f"alignment must be a power of 2 up to 4096, got {alignment}")
    before = _C.guard_pages()
    _C.set_guard_pages(on, alignment)
    return _Mode(lambda: _C.set_guard_pages(*before))


def memory_in_use(device: torch.device | str | int | None = None) -> int:
    """Bytes of the blocks that tensors hold on a device (default: the current one)."""
    return _C.memory_in_use(_index(device))


# Operators


def fallbacks() -> dict[str, int]:
    """Calls of operators that ran on the CPU in place of a kernel, by name without overload ("aten::mul")."""
    return _C.fallbacks()


def reset_fallbacks() -> None:
    _C.reset_fallbacks()


class Fault:
    """A fault in force."""

    def __init__(self, operator: str) -> None:
        self.operator = operator

    @property
    def hits(self) -> int:
        """Calls whose results were falsified so far."""
        return _C.fault_hits(self.operator)


@contextlib.contextmanager
def inject_fault(operator: str, factor: float = 1.5) -> Iterator[Fault]:
    """Multiplies all results of an operator of ATen that runs on the CPU in place of a kernel.

    An operator that PyTorch composes of others ("aten::linear") or that the simulator implements
    ("aten::copy_") never does: see `Fault.hits`.

    Args:
        operator: the name in `fallbacks()`, such as "aten::mm"; it stands for all overloads.
        factor: integers are rounded toward zero after it, booleans stay as they are.

    Raises:
        ValueError: there is no such operator, or it has a fault already.
    """
    _C.set_fault(operator, factor)
    try:
        yield Fault(operator)
    finally:
        _C.clear_fault(operator)
