"""`aoext convert`: a checkpoint that transformers or llama.cpp reads becomes one of aoext's, or another's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from aoext.configs.groups import AUTO
from aoext.configs.per_module import AnyConfig, PerModuleConfig
from aoext.configs.schemes import ARGUMENTS, SCHEMES, as_config
from aoext.convert import AOEXT, FORMATS, convert_checkpoint
from aoext.convert.calibrated import convert_calibrated
from aoext.quality.scales import ALGORITHMS

GGUF = "gguf"
# Formats of a GGUF file's matrices.
GGUF_SCHEMES = ("Q4_0", "Q4_K", "Q8_0")


# Schemes of integers in groups.
_IN_GROUPS = [name for name, arguments in ARGUMENTS.items() if "group_size" in arguments]


class SchemeType(click.ParamType):
    """A name of a scheme, or a file in JSON that has one for each module, as `aoext search` writes it."""

    name = "|".join((*SCHEMES, *GGUF_SCHEMES, "FILE.json"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in SCHEMES or value in GGUF_SCHEMES or isinstance(value, PerModuleConfig):
            return value
        if not value.endswith(".json"):
            self.fail(
                f"{value!r} is none of {', '.join((*SCHEMES, *GGUF_SCHEMES))}, nor a .json file", param, ctx
            )
        try:
            return PerModuleConfig.load(value)
        except (OSError, ValueError) as error:
            self.fail(str(error), param, ctx)


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
@click.option(
    "--scheme",
    type=SchemeType(),
    help=f"For a checkpoint that is not quantised; {', '.join(GGUF_SCHEMES)} with --format gguf. A file in "
    "JSON, as aoext search writes it, has a scheme for each layer.",
)
@click.option(
    "--group-size",
    type=_GroupSize(),
    help="For integers in groups (int2 to int6): a number, -1 for whole rows, "
    'or "auto", the default: the largest of 128 to 16 that fits each layer.',
)
@click.option("--symmetric", is_flag=True, help="Integers without zero points, as gptq's format wants them.")
@click.option(
    "--algorithm",
    help="How scales and zero points are chosen: by rounding, the default, by a search for the least error, "
    "or by hqq. With --data, how values are: gptq, the default, awq+gptq, smoothquant, signround and what "
    "else docs/calibrate.md has.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="A text file by whose tokens weights are calibrated; may be given several times.",
)
@click.option("--samples", type=int, default=128, help="With --data: how many samples of it count.")
@click.option("--length", type=int, default=512, help="With --data: of how many tokens a sample is.")
@click.option("--seed", type=int, default=0, help="With --data: chooses the samples.")
@click.option(
    "--device", help="With --data: where blocks are calibrated, such as cuda; the CPU if not given."
)
@click.option(
    "--quantize-embeddings", is_flag=True, help="Embeddings too, and the output layer that is tied to one."
)
@click.option(
    "--double-quantization",
    is_flag=True,
    help="Of --format bitsandbytes: scales of 8 bits, which rounds floats.",
)
@click.option(
    "--format", type=click.Choice((*FORMATS, GGUF)), default=AOEXT, help="Whose checkpoint TARGET is."
)
@click.option(
    "--dtype",
    type=click.Choice(("bfloat16", "float16", "float32")),
    help="The dtype of a GGUF file's activations and of what is not quantised in it; bfloat16 if not given.",
)
def convert(
    source: Path,
    target: Path,
    scheme: str | PerModuleConfig | None,
    group_size: int | str | None,
    symmetric: bool,
    algorithm: str | None,
    data: tuple[Path, ...],
    samples: int,
    length: int,
    seed: int,
    device: str | None,
    quantize_embeddings: bool,
    double_quantization: bool,
    format: str,
    dtype: str | None,
) -> None:
    """Write SOURCE as a checkpoint of aoext in the folder TARGET, which from_pretrained loads.

    SOURCE is a folder of transformers, plain or quantised by aoext, GPTQ, AWQ, compressed-tensors, ModelOpt,
    bitsandbytes, HQQ or torchao, or as "fp8", "mxfp8" or "gemma", or a GGUF file. What was interrupted goes
    on when it is called again.

    With --format TARGET becomes another library's checkpoint where its format can say exactly what the
    weights are; else the layers are named, and why. With --format gguf it becomes a file that llama.cpp
    reads: matrices in the format that --scheme names, those that lie in GGUF's blocks as they are. More:
    docs/models.md.
    """
    arguments: dict[str, Any] = {} if group_size is None else {"group_size": group_size}
    if symmetric:
        arguments["symmetric"] = True
    ours = isinstance(scheme, PerModuleConfig) or scheme in SCHEMES
    if arguments and scheme not in _IN_GROUPS:
        raise click.UsageError(f"--group-size and --symmetric are for --scheme {', '.join(_IN_GROUPS)}")
    if (algorithm is not None or data) and not ours:
        raise click.UsageError("--algorithm and --data are for --scheme of aoext's")
    if data and (format != AOEXT or source.is_file()):
        raise click.UsageError(f"--data is for a folder and --format {AOEXT}, which other formats come of")
    if algorithm is not None and not data:
        if algorithm not in ALGORITHMS:
            raise click.UsageError(
                f"--algorithm {algorithm} needs --data, or is none of {', '.join(ALGORITHMS)}"
            )
        arguments["algorithm"] = algorithm
    if quantize_embeddings and (not ours or format != AOEXT):
        raise click.UsageError(f"--quantize-embeddings is for --scheme and --format {AOEXT}")
    try:
        if source.is_file():
            if scheme is not None or format != AOEXT:
                raise click.UsageError("a GGUF file keeps its scheme: leave out --scheme and --format")
            import torch

            from aoext.integrations.gguf.convert import convert_gguf

            click.echo(convert_gguf(source, target, getattr(torch, dtype or "bfloat16")))
            return
        if dtype is not None:
            raise click.UsageError("--dtype is for a GGUF file: a checkpoint's own stays")
        if format == GGUF:
            if scheme is not None and scheme not in GGUF_SCHEMES:
                raise click.UsageError(f"--format gguf has --scheme {', '.join(GGUF_SCHEMES)}, got {scheme}")
            from aoext.integrations.gguf.export import write_gguf

            click.echo(write_gguf(source, target, scheme))
            return
        if scheme in GGUF_SCHEMES:
            raise click.UsageError(f"--scheme {scheme} is for --format gguf")
        if isinstance(scheme, PerModuleConfig):
            config: AnyConfig | None = scheme.with_algorithm(None if data else algorithm)
        else:
            config = None if scheme is None else as_config("convert", {"scheme": scheme, **arguments})
        if data:
            assert config is not None
            given: dict[str, Any] = {"samples": samples, "length": length, "seed": seed, "device": device}
            given |= {"algorithm": algorithm or "gptq", "quantize_embeddings": quantize_embeddings}
            click.echo(convert_calibrated(source, target, config, data, **given))
            return
        options: dict[str, Any] = {
            "format": format,
            "double_quantization": double_quantization,
            "quantize_embeddings": quantize_embeddings,
        }
        click.echo(convert_checkpoint(source, target, config, **options, each=_with_progress))
    except (OSError, ValueError, ImportError) as error:
        raise click.ClickException(str(error)) from error


def _with_progress(names: list[str]) -> Iterator[str]:
    yield from tqdm(names, desc="converting", unit="file", disable=None)
