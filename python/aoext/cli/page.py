"""What commands write: where they ran, tables, JSON, and lines of progress."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import aoext
from aoext.cli.devices import describe

# Tables are made for so many columns; in fewer, numbers would be cut off.
WIDTH = 118


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, machine and device: what a number means depends on them."""
    return {
        "aoext": aoext.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": {"type": str(device), **describe(device)},
    }


def summary_line(environment: Mapping[str, Any], threads: Sequence[int] = ()) -> str:
    """The environment in one line; `threads` where they were not torch's choice."""
    device = environment["device"]
    return (
        f"aoext {environment['aoext']}, torch {environment['torch']}, {device['type']}: {device['name']}, "
        f"{device['instruction_set']}, {in_words(*(threads or [device['threads']]))}"
    )


def in_words(*threads: int) -> str:
    """Numbers of threads."""
    return f"{' and '.join(map(str, threads))} thread{'' if threads == (1,) else 's'}"


def console() -> Console:
    """Where tables go: with colours on a terminal, plain text elsewhere; never narrower than WIDTH."""
    width = max(WIDTH, shutil.get_terminal_size().columns)
    return Console(width=width if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)


def grid(title: str = "") -> Table:
    """A table without columns yet, in the style of all of them."""
    return Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )


def section(out: Console, title: str) -> None:
    """The title of a part of a page."""
    out.print()
    out.print(Text(title, style="bold"))


def part_grid(*headers: str) -> Table:
    """A table without rows yet, for a part of a page: names on the left, numbers on the right."""
    table = grid()
    table.show_edge = False
    for header in headers:
        table.add_column(header, justify="left" if header == headers[0] else "right", no_wrap=True)
    return table


def progress_line(text: str) -> None:
    """A line about what is being done, where no progress bar shows it."""
    if not sys.stderr.isatty():
        click.echo(text, err=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def present(measured: Mapping[str, Any], view: Table, path: Path) -> None:
    """Write what was measured, with its `environment`, as JSON, and show it in a table."""
    write_json(path, measured)
    out = console()
    out.print(summary_line(measured["environment"]))
    out.print(f"JSON   {path}")
    out.print(view)
