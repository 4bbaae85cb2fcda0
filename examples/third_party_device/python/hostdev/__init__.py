"""The PyTorch device "hostdev": `import hostdev`, then `tensor.to("hostdev")` works.

Its memory is the host's. It computes `torch.ops.ao.bf16i4bf16_rowwise` by a kernel of its own, and
everything else by what serves any device. The order of `import hostdev` and `import aoext` is free.

This module is also `torch.hostdev`, where PyTorch looks up the functions below.
"""

import contextlib
import sys
from pathlib import Path

import torch

torch.utils.rename_privateuse1_backend("hostdev")
torch.ops.load_library(next(Path(__file__).parent.glob("_C*.so")))


def kernel_calls() -> int:
    """How often the device's own kernel has run in this process."""
    return torch.ops.hostdev.kernel_calls()


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


# `with torch.hostdev.device(0):`, as torch.load has it; with one device there is nothing to switch.
device = contextlib.nullcontext


def manual_seed_all(seed: int) -> None:
    """Does nothing: random numbers come from the CPU's generator, which PyTorch seeds."""


def _is_in_bad_fork() -> bool:
    return False


torch._register_device_module("hostdev", sys.modules[__name__])
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
