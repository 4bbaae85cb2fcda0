"""`aoext info`: how this library was built and what it uses here."""

from __future__ import annotations

import click

import aoext


@click.command()
def info() -> None:
    """Print what was compiled in, which instruction set runs and which devices are served."""
    click.echo(aoext.show_config())
