"""What both commands write: where they ran, JSON, and lines of progress."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

import aoext
from aoext.cli.devices import Device

# Tables are made for so many columns; in fewer, numbers would be cut off.
WIDTH = 118


def environment(device: Device) -> dict[str, Any]:
    """Versions, machine and device: what a number means depends on them."""
    return {
        "aoext": aoext.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": {"type": str(device.device), **device.describe()},
    }


def summary_line(environment: Mapping[str, Any]) -> str:
    """The environment in one line."""
    device = environment["device"]
    return (
        f"aoext {environment['aoext']}, torch {environment['torch']}, {device['type']}: {device['name']}, "
        f"{device['instruction_set']}, {device['threads']} threads"
    )


def console() -> Console:
    """Where tables go: with colours on a terminal, plain text elsewhere; never narrower than WIDTH."""
    width = max(WIDTH, shutil.get_terminal_size().columns)
    return Console(width=width if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)


def progress_line(text: str) -> None:
    """A line about what is being done, where no progress bar shows it."""
    if not sys.stderr.isatty():
        click.echo(text, err=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
