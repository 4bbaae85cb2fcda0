"""The report as tables: for a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from check import Image, Report
from disassembly import Kernel
from rich import box
from rich.console import Console
from rich.table import Table
from targets import TARGETS

SHOWN = ("bmg", "pvc")  # with figures; of the others it is said what is wrong
FIGURES = ("registers", "code", "loop", "scalar", "sends")
HEADERS = ("kernel", "DPAS", *(f"{target} {figure}" for target in SHOWN for figure in FIGURES))
LEGEND = (
    "code: instructions. loop: instructions of the longest way once through the main loop (the innermost "
    "one that multiplies, or the longest); of them scalar ones, and sends (loads and other messages). DPAS: "
    "in the code."
)


def _figures(kernel: Kernel | None) -> tuple[str, ...]:
    if kernel is None:
        return ("–",) * len(FIGURES)
    code = kernel.code
    loop = code.way(*code.main_loop) if code.main_loop else None
    of_loop = (str(len(loop)), str(loop.scalar), str(loop.sends)) if loop else ("–",) * 3
    return (str(kernel.registers), str(len(code.instructions)), *of_loop)


def _rows(report: Report, image: Image) -> Iterator[tuple[str, ...]]:
    for name, on in report.kernels(image).items():
        dpas = "/".join(map(str, sorted({kernel.code.dpas for kernel in on.values()})))
        yield name, dpas, *(figure for target in SHOWN for figure in _figures(on.get(target)))


def _reasons(report: Report) -> Iterator[tuple[str, list[str]]]:
    """Why a device is left out, and for which images."""
    reasons: dict[str, list[str]] = {}
    for (image, target), reason in report.left_out.items():
        reasons.setdefault(f"not for {target} ({TARGETS[target].product}): {reason}", []).append(image)
    yield from reasons.items()


def grid(
    title: str, headers: Iterable[str], rows: Iterable[Iterable[str]], text: Iterable[str] = ("kernel",)
) -> Table:
    """A table for the terminal; columns of `text` are aligned to the left."""
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    for header in headers:
        table.add_column(
            header, justify="left" if header in text else "right", no_wrap=header != "matrix engine"
        )
    for row in rows:
        table.add_row(*row)
    return table


def lines(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A table in Markdown."""
    headers = list(headers)
    return [f"| {' | '.join(row)} |" for row in (headers, ["---"] * len(headers), *rows)]


def show(console: Console, report: Report) -> None:
    for image in report.images:
        headers = [header.replace(" ", "\n", 1).replace("registers", "regs") for header in HEADERS]
        rows = ((name.removeprefix(f"{image.source}_"), *cells) for name, *cells in _rows(report, image))
        console.print(grid(image.name, headers, rows))
    for reason, images in _reasons(report):
        console.print(f"{', '.join(images)}: {reason}")
    console.print(LEGEND)


def markdown(report: Report) -> str:
    """The matrix images kernel by kernel, the others in a line each."""
    rows = (
        (f"`{i.name}`: `{name}`", *cells)
        for i in report.images
        if i.is_matrix
        for name, *cells in _rows(report, i)
    )
    found = [*lines(HEADERS, rows), "", LEGEND, ""]
    found += [f"- `{image.name}`: {_range(report, image)}" for image in report.images if not image.is_matrix]
    found += [f"- {', '.join(f'`{i}`' for i in images)}: {reason}" for reason, images in _reasons(report)]
    found += [f"- {note}" for note in report.notes]
    products = ", ".join(target.product for target in TARGETS.values())
    verdict = (
        "no kernel that is chosen spills, calls, or keeps arrays in memory"
        if not report.problems
        else "NOT SOUND"
    )
    return "\n".join([*found, f"- {products}: {verdict}; ocloc {report.compiler}"])


def _range(report: Report, image: Image) -> str:
    kernels = report.kernels(image)
    shown = [on[target] for on in kernels.values() for target in SHOWN if target in on]
    sizes = sorted(len(kernel.code.instructions) for kernel in shown) or [0]
    registers = sorted({kernel.registers for kernel in shown})
    count = f"{len(kernels)} kernels, {'/'.join(map(str, registers))} registers"
    return f"{count}, {sizes[0]} to {sizes[-1]} instructions"
