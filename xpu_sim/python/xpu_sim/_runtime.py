"""Finding and loading what the simulator stands on: libsycl and the OpenCL CPU device."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
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


def find_opencl_cpu() -> Path | None:
    return _find("intel-opencl-rt", "libintelocl.so")


def is_loaded() -> bool:
    return "xpu_sim._C" in sys.modules


def problem() -> Exception | None:
    """What stands against loading the simulator into this process, as far as files and torch tell."""
    if is_loaded():
        return None
    if torch._C._has_xpu or torch._C._has_cuda:
        own = "XPU" if torch._C._has_xpu else "CUDA"
        return RuntimeError(
            f"torch {torch.__version__} has {own} support of its own; xpu_sim is for a torch of the CPU"
        )
    try:
        built_for = importlib.import_module("xpu_sim._built_for").TORCH
    except ImportError:
        return ImportError("xpu_sim is not built: install it with pip, its source folder alone does not do")
    if built_for != torch.__version__:
        return RuntimeError(f"built for torch {built_for}, this is {torch.__version__}: build it anew")
    if _find("intel-sycl-rt", "libsycl.so") is None:
        return ImportError(f"libsycl is missing: {PACKAGES}")
    if not os.environ.get("OCL_ICD_FILENAMES") and find_opencl_cpu() is None:
        return ImportError(f"the OpenCL CPU device (libintelocl.so) is missing: {PACKAGES}")
    return None


def _keep_programs() -> None:
    """Has the OpenCL loader keep compiled kernels in the folder that XPU_SIM_PROGRAMS names, if it does."""
    folder = os.environ.get("XPU_SIM_PROGRAMS")
    layers = [layer for layer in os.environ.get("OPENCL_LAYERS", "").split(":") if layer]
    layer = str(Path(__file__).parent / "libxpu_sim_programs.so")
    if folder and layer not in layers:
        Path(folder).mkdir(parents=True, exist_ok=True)
        os.environ["OPENCL_LAYERS"] = ":".join([*layers, layer])


def load() -> None:
    """Imports `xpu_sim._C`, which makes the device.

    Raises:
        ImportError: something is missing; the text names the packages.
        RuntimeError: this is another torch than the one built for, or one with an accelerator of its own, or
            SYCL sees no OpenCL CPU device.
    """
    error = problem()
    if error is not None:
        raise type(error)(f"xpu_sim: {error}")
    # The OpenCL loader reads this when SYCL first asks for devices. The file by which the package announces
    # itself has a path that does not exist, so that without this the device is not found.
    if not os.environ.get("OCL_ICD_FILENAMES"):
        os.environ["OCL_ICD_FILENAMES"] = str(find_opencl_cpu())
    _keep_programs()

    try:
        from . import _C
    except ImportError as error:
        raise ImportError(f"xpu_sim: {error}. Built for another libsycl or torch? {PACKAGES}") from error
    # Only the library of torch XPU's C functions becomes global, for dlsym(RTLD_DEFAULT, ...): were it the
    # module, libtorch and libsycl would be global with it and hide what a library forgets to link.
    ctypes.CDLL(str(Path(_C.__file__).parent / "libxpu_sim_queue.so"), ctypes.RTLD_GLOBAL)
    _C.device_facts()  # raises where SYCL finds no device
