"""`aoext convert`: a checkpoint that transformers or llama.cpp reads becomes one of aoext's, or another's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from aoext.configs.int4 import AUTO
from aoext.configs.schemes import SCHEMES, as_config
from aoext.convert import AOEXT, FORMATS, convert_checkpoint


class _GroupSize(click.ParamType):
    name = "auto|INTEGER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == AUTO:
            return AUTO
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither {AUTO!r} nor a number", param, ctx)


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--scheme", type=click.Choice(list(SCHEMES)), help="For a checkpoint that is not quantised.")
@click.option(
    "--group-size",
    type=_GroupSize(),
    help="For int4 and its like: a number, -1 for whole rows, "
    'or "auto", the default: the largest of 128 to 16 that fits each layer.',
)
@click.option("--symmetric", is_flag=True, help="int4 without zero points, as gptq's format wants it.")
@click.option(
    "--double-quantization",
    is_flag=True,
    help="Of --format bitsandbytes: scales of 8 bits, rounded.",
)
@click.option("--format", type=click.Choice(FORMATS), default=AOEXT, help="Whose checkpoint TARGET is.")
@click.option(
    "--dtype",
    type=click.Choice(("bfloat16", "float16", "float32")),
    help="The dtype of a GGUF file's activations and of what is not quantised in it; bfloat16 if not given.",
)
def convert(
    source: Path,
    target: Path,
    scheme: str | None,
    group_size: int | str | None,
    symmetric: bool,
    double_quantization: bool,
    format: str,
    dtype: str | None,
) -> None:
    """Write SOURCE as a checkpoint of aoext in the folder TARGET, which from_pretrained loads.

    SOURCE is a folder of transformers, plain or quantised by aoext, GPTQ, AWQ, compressed-tensors, ModelOpt,
    bitsandbytes, HQQ or torchao, or as "fp8" or "mxfp8", or a GGUF file. What was interrupted goes on when it
    is called again.

    With --format TARGET becomes another library's checkpoint where its format can say exactly what the
    weights are; else the layers are named, and why. More: docs/models.md.
    """
    arguments: dict[str, Any] = {} if group_size is None else {"group_size": group_size}
    if symmetric:
        arguments["symmetric"] = True
    if arguments and not (scheme or "").startswith("int4"):
        raise click.UsageError("--group-size and --symmetric are for --scheme int4 and its like")
    try:
        if source.is_file():
            if scheme is not None or format != AOEXT:
                raise click.UsageError("a GGUF file keeps its scheme: leave out --scheme and --format")
            import torch

            from aoext.integrations.gguf_convert import convert_gguf

            click.echo(convert_gguf(source, target, getattr(torch, dtype or "bfloat16")))
            return
        if dtype is not None:
            raise click.UsageError("--dtype is for a GGUF file: a checkpoint's own stays")
        config = None if scheme is None else as_config("convert", {"scheme": scheme, **arguments})
        options: dict[str, Any] = {"format": format, "double_quantization": double_quantization}
        click.echo(convert_checkpoint(source, target, config, **options, each=_with_progress))
    except (OSError, ValueError, ImportError) as error:
        raise click.ClickException(str(error)) from error


def _with_progress(names: list[str]) -> Iterator[str]:
    yield from tqdm(names, desc="converting", unit="file", disable=None)
