"""Finding and loading what the simulator stands on: libsycl and the OpenCL CPU device."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path

import torch

PACKAGES = "pip install intel-sycl-rt intel-opencl-rt"


def _find(package: str, library: str) -> Path | None:
    """A package's shared library: where the package lists it, else in the environment's lib folder."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    listed = [Path(file.locate()).resolve() for file in files]
    # With or without a version behind the name; the shortest name first.
    candidates = [*listed, *(Path(sys.prefix) / "lib").glob(f"{library}*")]
    candidates.sort(key=lambda path: len(path.name))
    pattern = re.compile(re.escape(library) + r"[.\d]*")
    return next((path for path in candidates if pattern.fullmatch(path.name) and path.exists()), None)


def find_libsycl() -> Path | None:
    return _find("intel-sycl-rt", "libsycl.so")


def find_opencl_cpu() -> Path | None:
    return _find("intel-opencl-rt", "libintelocl.so")


def problem() -> str | None:
    """Why the simulator cannot be installed in this process, as far as files tell; None if it can."""
    if torch._C._has_xpu and not is_loaded():
        return f"torch {torch.__version__} has XPU support of its own; xpu_sim is for builds without it"
    if importlib.util.find_spec("xpu_sim._C") is None:
        return "xpu_sim was not built: install it with pip, a source folder alone does not do"
    if find_libsycl() is None:
        return f"libsycl is missing: {PACKAGES}"
    if not os.environ.get("OCL_ICD_FILENAMES") and find_opencl_cpu() is None:
        return f"the OpenCL CPU device (libintelocl.so) is missing: {PACKAGES}"
    return None


def is_loaded() -> bool:
    return "xpu_sim._C" in sys.modules


def load() -> None:
    """Imports `xpu_sim._C`, which makes the device.

    Raises:
        ImportError: something is missing; the text names the packages.
        RuntimeError: torch has real XPU support, or SYCL sees no OpenCL CPU device.
    """
    reason = problem()
    if reason is not None:
        raise (RuntimeError if torch._C._has_xpu else ImportError)(f"xpu_sim: {reason}")
    # The OpenCL loader reads this when SYCL first asks for devices. The file by which the package announces
    # itself has a path that does not exist, so that without this the device is not found.
    os.environ.setdefault("OCL_ICD_FILENAMES", str(find_opencl_cpu()))

    try:
        from . import _C
    except ImportError as error:
        raise ImportError(f"xpu_sim: {error}. Built for another libsycl or torch? {PACKAGES}") from error
    # Only the library of torch XPU's C functions becomes global, for dlsym(RTLD_DEFAULT, ...): were it the
    # module, libtorch and libsycl would be global with it and hide what a library forgets to link.
    ctypes.CDLL(str(Path(_C.__file__).parent / "libxpu_sim_queue.so"), ctypes.RTLD_GLOBAL)
    _C.device_facts()  # raises where SYCL finds no device
