"""The GPUs that images are compiled for, and what Intel publishes about two of them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A device as ocloc calls it."""

    name: str
    product: str
    tile_columns: int  # of its matrix engine


TARGETS = {
    target.name: target
    for target in (
        Target("bmg", "Arc B580", 16),
        Target("pvc", "Data Center Max", 16),
        Target("lnl-m", "Core Ultra 200V", 16),
        Target("ptl-h", "Core Ultra 300", 16),
        Target("dg2", "Arc A770", 8),
    )
}

# The kinds of images (csrc/sycl/kernels/images.cmake) for a matrix engine, and the columns of its tile.
MATRIX_KINDS = {"dpas": 16}


def not_meant(kind: str, target: Target) -> str | None:
    """Why a device does not get the images of a kind; csrc/sycl/device.cpp keeps them from it."""
    if kind == "emulated":
        return "the kernels of the matrix engine with lanes in its place, for tests on a CPU"
    columns = MATRIX_KINDS.get(kind, target.tile_columns)
    if columns == target.tile_columns:
        return None
    return (
        f"its matrix engine multiplies tiles of {target.tile_columns} columns, these kernels' have {columns}"
    )


@dataclass(frozen=True)
class NotChosen:
    """Kernels that build for a device, but not well, so that its plan leaves them out."""

    kernels: str  # a regular expression for the whole name
    targets: tuple[str, ...]
    reason: str


# Each line here has its twin in the plans of csrc/sycl.
NOT_CHOSEN: tuple[NotChosen, ...] = ()


def not_chosen(kernel: str, target: Target) -> str | None:
    """Why a device's plan leaves out a kernel."""
    reasons = (n.reason for n in NOT_CHOSEN if target.name in n.targets and re.fullmatch(n.kernels, kernel))
    return next(reasons, None)


@dataclass(frozen=True)
class Hardware:
    """A device's limits. Engines are vector engines, each with a matrix engine beside it."""

    product: str
    cores: int
    engines: int
    clock: float  # Hz
    macs: int  # products of 16-bit floats that a matrix engine adds up in a clock; twice as many of int8
    bandwidth: float  # bytes/s
    threads_of_an_engine: int = 8


# Intel's product specifications (Xe-cores, engines, clock, bandwidth). The matrix engines' speed is that of
# the published peak: 117 TFLOP/s of dense bfloat16 for the B580, 839 for the Max 1550.
HARDWARE = {
    "bmg": Hardware("Arc B580", 20, 160, 2.67e9, 128, 456e9),
    "pvc": Hardware("Data Center Max 1550, both stacks", 128, 1024, 1.6e9, 256, 3276.8e9),
}
