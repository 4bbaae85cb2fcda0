"""`aoext bench`, `demo` and `quality`, which aoext-bench brings, a distribution of its own (benchmarks/)."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import click

WHAT_TO_INSTALL = "It needs aoext-bench: pip install aoext-bench"
COMMANDS = ("bench", "demo", "quality")


def find(module: str, name: str) -> Any:
    """What a module of aoext-bench has under a name; None where aoext-bench is not installed."""
    if find_spec("aoext_bench") is None:
        return None
    return getattr(importlib.import_module(f"aoext_bench.{module}"), name)


def load(name: str) -> click.Command:
    """The command of this name; where aoext-bench is missing, one that says what to install."""
    command = find(name, name)
    assert command is None or isinstance(command, click.Command)
    return command or _missing(name)


def _missing(name: str) -> click.Command:
    def refuse(arguments: tuple[str, ...]) -> None:
        raise click.ClickException(f"aoext {name} measures. {WHAT_TO_INSTALL}")

    anything = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        name,
        callback=refuse,
        params=[anything],
        help=WHAT_TO_INSTALL,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
