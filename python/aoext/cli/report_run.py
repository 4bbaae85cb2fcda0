"""What `aoext report` finds out: versions, self-checks, operators in brief, choices of kernels, speed."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console

import aoext
from aoext.cli.page import environment
from aoext.cli.report_checks import Check, check_operators
from aoext.cli.shapes import Shape
from aoext.library.info import build_config
from aoext.reference import SUBJECTS, Problem, Subject

# Whose versions say something about a result; those that are not installed are left out.
PACKAGES = (
    *("intel-sycl-rt", "intel-opencl-rt", "intel-cmplr-lib-rt", "intel-cmplr-lib-ur", "onednn", "umf"),
    *("pytorch-triton-xpu", "triton-xpu", "triton", "torchao", "transformers", "numpy"),
)
# Settings of the drivers and of aoext.
VARIABLES = (
    "AOEXT_",
    "ONEAPI_",
    "ONEDNN_",
    "DNNL_",
    "SYCL_",
    "UR_",
    "ZE_",
    "ZES_",
    "OCL_",
    "NEO_",
    "IGC_",
    "XPU_SIM_",
)
KERNEL_DRIVERS = ("xe", "i915", "nvidia")

CHOICE_ROWS = (1, 16, 64, 512)
FINE = ("ok", "not checked")  # of a family of kernels


@dataclass(frozen=True)
class Settings:
    """What to look at; rows, seconds and quick are about speed alone."""

    device: torch.device
    subjects: Sequence[Subject]
    shapes: Sequence[Shape]
    rows: Sequence[int]  # the M of each shape
    group_size: int
    seed: int
    seconds: float  # for each candidate of a point
    quick: bool


class Speed(Protocol):
    """What aoext_bench.report_speed has measured."""

    failures: list[str]

    @property
    def busy(self) -> bool: ...

    def as_json(self, environment: dict[str, Any]) -> dict[str, Any] | None: ...

    def show(self, out: Console) -> None: ...


# aoext_bench.report_speed.measure: it calls the function that it is given after each operator.
Measure = Callable[[Settings, Callable[[Subject], None]], Speed]


@dataclass
class Choice:
    """Which kernel an operator gets, by the rows of its input."""

    operator: str
    format: str
    N: int
    K: int
    plans: dict[int, str]


@dataclass
class Content:
    """All of the report."""

    settings: Settings
    environment: dict[str, Any]
    versions: dict[str, str]
    properties: dict[str, Any]  # of the device, as its driver gives them
    warmup_seconds: float = 0.0
    families: dict[str, str] = field(default_factory=dict)  # of kernels -> "ok" or what was wrong
    checks: list[Check] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    speed: Speed | None = None  # None where aoext-bench is not installed
    failures: list[str] = field(default_factory=list)  # that no other field holds

    @property
    def problems(self) -> list[str]:
        """All that is wrong, a line each; empty on a sound device."""
        found = [f"self-check of {name}: {said}" for name, said in self.families.items() if said not in FINE]
        found += [
            f"{c.operator} [{c.format}], {c.case} (M={c.M} N={c.N} K={c.K}, {c.dtype}): {c.problem}"
            for c in self.checks
            if not c.passed
        ]
        return found + self.failures + (self.speed.failures if self.speed else [])

    @property
    def busy(self) -> bool:
        """Whether other work took the cores, so that no speed is valid."""
        return self.speed is not None and self.speed.busy


def versions() -> dict[str, str]:
    """The versions of everything below the operators."""
    found = {f"aoext, {name}": value for name, value in build_config().items()}
    found["system"] = _system()
    found["kernel"] = platform.release()
    drivers = [name for name in KERNEL_DRIVERS if Path("/sys/module", name).is_dir()]
    found["kernel drivers"] = ", ".join(drivers) or "none for a GPU"
    found["torch's XPU"] = str(getattr(torch.version, "xpu", None) or "not built in")
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
    home = str(Path.home())
    return found | {name: value.replace(home, "~") for name, value in variables.items()}


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()


def properties(device: torch.device) -> dict[str, Any]:
    """What torch tells about a device, as plain values, without what would identify this very one."""
    module = getattr(torch, device.type)
    if not hasattr(module, "get_device_properties"):
        return {}
    try:
        given = module.get_device_properties(device)
    except (RuntimeError, AssertionError) as error:
        return {"unknown": str(error).splitlines()[0]}
    names = [name for name in dir(given) if not name.startswith("_") and name != "uuid"]
    values = {name: getattr(given, name, None) for name in names}
    plain = (str, int, float, bool, list, tuple)
    return {name: value for name, value in values.items() if isinstance(value, plain)}


def warm_up(content: Content) -> None:
    """Build and check the device's kernels."""
    begin = time.perf_counter()
    try:
        content.families = aoext.warmup(content.settings.device)
    except RuntimeError as error:
        content.failures.append(f"warmup raised: {str(error).splitlines()[0]}")
    content.warmup_seconds = time.perf_counter() - begin


def choose(subject: Subject, settings: Settings, shape: Shape) -> Choice:
    """What aoext.explain says at some numbers of rows."""
    generator = torch.Generator().manual_seed(settings.seed)

    def arguments() -> Iterator[tuple[int, tuple[Any, ...]]]:
        rotated = None
        for M in CHOICE_ROWS:
            p = Problem(M, shape.N, shape.K, settings.group_size, scale_dtype=None)
            if rotated is None or not subject.depends_on_rows_of_the_weight:  # the input is what rotates
                rotated = tuple(t.to(settings.device) for t in subject.rotated(p, generator))
            inputs = tuple(t.to(settings.device) for t in subject.inputs(p, generator))
            yield M, subject.arguments(p, inputs, rotated)

    plans = {
        M: str(aoext.explain(subject.operator, *given, **options)) for M, (given, options) in arguments()
    }
    return Choice(subject.operator, subject.format, shape.N, shape.K, plans)


def measured(settings: Settings, measure: Measure, progress: Callable[[str], None]) -> Speed:
    """The speeds."""
    count = len(settings.subjects)
    progress(f"speed: {count} operators at {len(settings.shapes)} shapes")
    done: list[str] = []

    def report(subject: Subject) -> None:
        done.append(subject.name)
        progress(f"speed: {len(done)} of {count}, {subject.name}")

    return measure(settings, report)


def collect(settings: Settings, measure: Measure | None, progress: Callable[[str], None]) -> Content:
    """Everything, the speeds where something measures them; `progress` gets a line before each part."""
    device = settings.device
    content = Content(settings, environment(device), versions(), properties(device))
    progress("building kernels and checking them")
    warm_up(content)
    progress(f"operators in brief, {len(SUBJECTS)} of them")
    content.checks = list(check_operators(device, settings.seed))
    progress("choices of kernels")
    content.choices = [choose(subject, settings, settings.shapes[0]) for subject in settings.subjects]
    if measure:
        content.speed = measured(settings, measure, progress)
    return content
