"""Types of command line arguments: each turns a text into a value or says what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import torch

from aoext.cli.devices import find_device
from aoext.cli.shapes import Shape, named


class DeviceType(click.ParamType):
    """A device that the commands know: `cpu`."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, torch.device):
            return value
        try:
            return find_device(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ShapeType(click.ParamType):
    """The shape of a weight: `4096x1024` is N = 4096 rows of K = 1024."""

    name = "NxK"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Shape:
        if isinstance(value, Shape):
            return value
        sizes = str(value).lower().split("x")
        if len(sizes) != 2 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
            self.fail(f"{value!r} is not NxK with two positive integers, such as 4096x1024", param, ctx)
        return named(int(sizes[0]), int(sizes[1]))


class CountsType(click.ParamType):
    """Positive integers with commas between: `1,4,16`."""

    name = "counts"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        counts = str(value).split(",")
        if not all(count.strip().isdecimal() and int(count) > 0 for count in counts):
            self.fail(f"{value!r} is not a list of positive integers, such as 1,4,16", param, ctx)
        return tuple(dict.fromkeys(int(count) for count in counts))


class OutputFile(click.ParamType):
    """A file to write at the end; found out at the start if that will fail. Missing folders are made."""

    name = "path"

    def __init__(self, *suffixes: str) -> None:
        """suffixes: the endings that are allowed; any if none is given."""
        self.suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if self.suffixes and path.suffix.lower() not in self.suffixes:
            self.fail(f"{str(path)!r} must end in {' or '.join(self.suffixes)}", param, ctx)
        existed = path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            self.fail(f"cannot write {str(path)!r}: {error.strerror}", param, ctx)
        if not existed:
            path.unlink()
        return path


JSON_FILE = OutputFile()
