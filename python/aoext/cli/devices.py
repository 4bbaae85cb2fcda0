"""Devices that the command line knows, and what a reader of a result must know about one."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from aoext.library.info import build_config


def _cpu(device: torch.device) -> dict[str, Any]:
    return {
        "name": _cpu_name(),
        "instruction_set": build_config()["cpu instruction set"],
        "torch_instruction_set": torch.backends.cpu.get_cpu_capability(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())


def _cuda(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "instruction_set": f"sm_{properties.major}{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "driver": _nvidia_driver(),
        "cuda": torch.version.cuda,
    }


def _nvidia_driver() -> str:
    """Its version, as the kernel module says it."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        pass
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    return next((word for word in text.split() if word[:1].isdecimal() and "." in word), "unknown")


def _xpu(device: torch.device) -> dict[str, Any]:
    properties = torch.xpu.get_device_properties(device)
    simulated = "simulated XPU on " if properties.type == "cpu" else ""
    # Xe Matrix Extensions: what DPAS instructions run on.
    matrix = getattr(properties, "has_subgroup_matrix_multiply_accumulate", False)
    return {
        "name": simulated + properties.name,
        "instruction_set": "XMX" if matrix else "no XMX",
        "driver": properties.driver_version,
    }


DEVICES = {"cpu": _cpu, "cuda": _cuda, "xpu": _xpu}


def describe(device: torch.device) -> dict[str, Any]:
    """Name, instruction set, driver and threads of the host, by name."""
    return {**DEVICES[device.type](device), "threads": torch.get_num_threads()}


def find_device(name: str) -> torch.device:
    """The device of this name; ValueError, which says why, if it cannot be measured here."""
    known = ", ".join(DEVICES)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"{name!r} is no device; measured are: {known}") from None
    if device.type not in DEVICES:
        raise ValueError(f"{name!r} is not measured yet; measured are: {known}")
    if not getattr(torch, device.type).is_available():
        raise ValueError(f"{name!r} is not here: torch.{device.type}.is_available() is False")
    return device


def default_device() -> torch.device:
    """The accelerator at hand where it can be measured, else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type not in DEVICES:
        return torch.device("cpu")
    return find_device(accelerator.type)
