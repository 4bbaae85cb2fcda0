"""`aoext info`: how this library was built and what it uses here; or what a file of a model holds."""

from __future__ import annotations

from pathlib import Path

import click

import aoext
from aoext.cli.info_files import describe


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
def info(file: Path | None) -> None:
    """Print what was compiled in, which instruction set runs and which devices are served.

    With FILE (a file, an index or a folder): print what it holds. Checksums of what save_model wrote are
    verified; exit with 1 where anything is wrong. Other checkpoints and GGUF files: whose they are.
    """
    if file is None:
        click.echo(aoext.show_config())
        return
    try:
        click.echo(describe(file))
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
