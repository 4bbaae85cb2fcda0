"""What is wrong with a kernel on a device: spills, arrays in memory, calls, missing matrix products."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from disassembly import Kernel
from geometry import FAMILIES, read_geometry
from ocloc import Compiler, Result, build
from targets import MATRIX_VARIANTS, TARGETS, Target, not_chosen, not_meant

EXPECTED = Path(__file__).parent / "expected.json"
PROCESSES = 2


@dataclass(frozen=True)
class Image:
    """A file <source>.<variant>.spv."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def source(self) -> str:
        return self.path.stem.partition(".")[0]

    @property
    def variant(self) -> str:
        return self.path.stem.rpartition(".")[2]

    @property
    def is_matrix(self) -> bool:
        return self.variant in MATRIX_VARIANTS


@dataclass
class Report:
    """Every image on every device."""

    compiler: str
    images: list[Image]
    results: dict[
        tuple[str, str], Result
    ]  # (image, target); devices that an image is not meant for are left out
    left_out: dict[tuple[str, str], str]  # and why
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def kernels(self, image: Image) -> dict[str, dict[str, Kernel]]:
        """{kernel: {target: what it is there}}, in the image's order."""
        found: dict[str, dict[str, Kernel]] = {}
        for target in TARGETS:
            result = self.results.get((image.name, target))
            for name, kernel in (result.kernels if result else {}).items():
                found.setdefault(name, {})[target] = kernel
        return found

    def is_fallback(self, image: Image, kernel: str, target: Target) -> bool:
        """Whether a kernel runs there only where its twin in a matrix image has failed its self-check."""
        if image.is_matrix:
            return False
        twins = (self.results.get((f"{image.source}.{variant}", target.name)) for variant in MATRIX_VARIANTS)
        return any(twin is not None and kernel in twin.kernels for twin in twins)


def compile_all(compiler: Compiler, folder: Path) -> Report:
    images = [Image(path) for path in sorted(folder.glob("*.spv"))]
    if not images:
        raise SystemExit(f"isa: there is no .spv in {folder}: build with AOEXT_SYCL=ON first")
    pairs = [(image, target) for image in images for target in TARGETS.values()]
    left_out = {(i.name, t.name): reason for i, t in pairs if (reason := not_meant(i.variant, t))}
    todo = [(i, t) for i, t in pairs if (i.name, t.name) not in left_out]
    with ThreadPoolExecutor(PROCESSES) as pool:
        results = pool.map(lambda pair: build(compiler, pair[0].path, pair[1]), todo)
        found = {(i.name, t.name): result for (i, t), result in zip(todo, results, strict=True)}
    return Report(compiler.version, images, found, left_out)


def flaws(kernel: Kernel, image: Image) -> list[str]:
    """What no kernel may have; what DPAS it must have, as far as its own code tells."""
    found = [f"{what} in memory" for what in kernel.scratch]
    if kernel.stack_calls:
        found.append("stack calls")
    if image.is_matrix and not kernel.code.dpas:
        found.append("no DPAS: is a built-in misspelt?")
    elif image.is_matrix and image.source in FAMILIES:
        loop = kernel.code.main_loop
        if loop is None or read_geometry(image.source, kernel, kernel.code.way(*loop)) is None:
            found.append("its loop's DPAS do not go with the weights that it loads (geometry.py)")
    return found


def inspect(report: Report, expected: dict[str, dict[str, int]]) -> None:
    """Fill in the report's problems and notes."""
    for (image_name, target), result in report.results.items():
        if result.error:
            report.problems.append(f"{image_name} does not build for {target}: {result.error}")
    found: dict[tuple[bool, str], list[str]] = {}  # (whether it is a problem, what) -> targets
    for image in report.images:
        for name, on in report.kernels(image).items():
            for target, kernel in on.items():
                reason = not_chosen(name, TARGETS[target])
                if reason is None and report.is_fallback(image, name, TARGETS[target]):
                    reason = "a fallback, where its twin for the matrix engine fails its self-check"
                for flaw in flaws(kernel, image):
                    what = f"{image.name}, {name}: {flaw}" + (f" ({reason})" if reason else "")
                    found.setdefault((reason is None, what), []).append(target)
                if kernel.compiled_twice:
                    what = f"{image.name}, {name}: spilled at first, compiled again with fewer optimisations"
                    found.setdefault((False, what), []).append(target)
    for (is_problem, what), targets in found.items():
        (report.problems if is_problem else report.notes).append(f"{what}: {', '.join(targets)}")
    _compare(report, expected)


def _compare(report: Report, expected: dict[str, dict[str, int]]) -> None:
    counts = dpas_counts(report)
    for image_name in sorted({*counts, *expected}):
        kernels, wanted = counts.get(image_name, {}), expected.get(image_name, {})
        for name in sorted({*kernels, *wanted}):
            if kernels.get(name) != wanted.get(name):
                report.problems.append(
                    f"{image_name}, {name}: {kernels.get(name, 'no such kernel,')} DPAS, expected "
                    f"{wanted.get(name, 'none, it is new')} (--update, and look at the difference)"
                )


def dpas_counts(report: Report) -> dict[str, dict[str, int]]:
    """{image: {kernel: DPAS}} of the matrix images; devices differ in nothing but what is wrong."""
    counts: dict[str, dict[str, int]] = {}
    for image in report.images:
        if image.is_matrix:
            kernels = report.kernels(image)
            counts[image.name] = {name: min(k.code.dpas for k in on.values()) for name, on in kernels.items()}
    return counts


def read_expected() -> dict[str, dict[str, int]]:
    return json.loads(EXPECTED.read_text())["dpas"] if EXPECTED.is_file() else {}


def write_expected(report: Report) -> None:
    content = {"compiler": report.compiler, "dpas": dpas_counts(report)}
    EXPECTED.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def summary(report: Report, images: Sequence[Image]) -> str:
    kernels = sum(len(report.kernels(image)) for image in images)
    return f"{kernels} kernels of {len(images)} images on {', '.join(TARGETS)}"
