"""PyTorch's XPU device made real on a CPU, for tests.

`xpu_sim.install()`, and `torch.empty(4, device="xpu")` works.
"""

from __future__ import annotations

import atexit
import sys

from . import _runtime
from ._probes import (
    Fault,
    canaries,
    check_canaries,
    delay,
    fallbacks,
    guard_pages,
    host_waits,
    inject_fault,
    memory_in_use,
    reset_fallbacks,
)

__all__ = [
    "Fault",
    "available",
    "canaries",
    "check_canaries",
    "delay",
    "fallbacks",
    "guard_pages",
    "host_waits",
    "inject_fault",
    "install",
    "install_triton",
    "memory_in_use",
    "reset_fallbacks",
]

_installed = False


def available() -> tuple[bool, str]:
    """Whether `install` can be expected to work, and if not, why. Loads nothing."""
    error = _runtime.problem()
    return error is None, str(error or "")


def install() -> None:
    """Makes the device "xpu" of this process two simulated ones. A second call does nothing.

    Call it before the first backward pass of the process: PyTorch counts its devices then.

    Raises:
        ImportError: libsycl or the OpenCL CPU device is missing; the text says what to install.
        RuntimeError: this is another torch than the one built for, or one with an accelerator of its own, or
            SYCL sees no OpenCL CPU device.
    """
    global _installed
    if _installed:
        return
    _runtime.load()
    from . import _torch_xpu

    _torch_xpu.patch()
    atexit.register(_at_exit)
    _installed = True


def install_triton() -> None:
    """Makes torch.compile's Inductor work on the device, its kernels run by Triton's interpreter.

    A second call does nothing. Call it before anything imports Triton.

    Raises:
        ImportError: there is no Triton, or what `install` raises it for.
        RuntimeError: Triton was imported before, to compile; or what `install` raises it for.
    """
    install()
    from . import _triton

    _triton.install()


def _at_exit() -> None:
    """Lets queued work end while its memory is still there, and reports damage that nobody asked for."""
    from . import _C

    if _C.forked():
        return
    _C.synchronize_quietly()
    for text in _C.take_damage():
        print(f"xpu_sim: canary overwritten, never checked: {text}", file=sys.stderr)
