"""`aoext convert`: a checkpoint that transformers or llama.cpp reads becomes one of aoext's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import aoext
from aoext.convert import convert_checkpoint
from aoext.schemes import SCHEMES, as_config


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--scheme", type=click.Choice(list(SCHEMES)), help="For a checkpoint that is not quantised.")
@click.option("--group-size", type=click.IntRange(min=1), help="Of int4.")
def convert(source: Path, target: Path, scheme: str | None, group_size: int | None) -> None:
    """Write SOURCE as a checkpoint of aoext in the folder TARGET, which from_pretrained loads.

    SOURCE is a folder of transformers, plain or quantised by GPTQ, AWQ, compressed-tensors, bitsandbytes,
    HQQ or torchao, or a GGUF file. What was interrupted goes on when it is called again.
    """
    if group_size is not None and scheme != "int4":
        raise click.UsageError("--group-size is for --scheme int4")
    try:
        if source.is_file():
            if scheme is not None:
                raise click.UsageError("a GGUF file keeps its scheme: leave out --scheme")
            if target.exists():
                raise FileExistsError(f"convert: {target} is there already")
            aoext.load_gguf(source).save_pretrained(target)
            return
        arguments = {} if group_size is None else {"group_size": group_size}
        config = None if scheme is None else as_config("convert", {"scheme": scheme, **arguments})
        click.echo(convert_checkpoint(source, target, config, each=_with_progress))
    except (OSError, ValueError, ImportError) as error:
        raise click.ClickException(str(error)) from error


def _with_progress(names: list[str]) -> Iterator[str]:
    yield from tqdm(names, desc="converting", unit="file", disable=None)
