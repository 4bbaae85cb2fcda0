"""`aoext bench` and `aoext demo`, which aoext-bench brings: a distribution of its own, in benchmarks/."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import click

WHAT_TO_INSTALL = "It needs aoext-bench: pip install aoext-bench"
COMMANDS = ("bench", "demo")


def find_bench() -> bool:
    """Whether aoext-bench is installed."""
    return find_spec("aoext_bench") is not None


def load(name: str) -> click.Command:
    """The command of this name; where aoext-bench is missing, one that says what to install."""
    if not find_bench():
        return _missing(name)
    command = getattr(importlib.import_module(f"aoext_bench.{name}"), name)
    assert isinstance(command, click.Command)
    return command


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
