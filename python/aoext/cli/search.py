"""`aoext search`: a scheme for each layer of a model, within so many bits a weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from torch import nn

from aoext.cli.language_models import load, of_text, windows_of
from aoext.cli.options import OutputFile
from aoext.quality.mixed_precision import CANDIDATES, SENSITIVITIES
from aoext.quality.mixed_precision import search as find
from aoext.quality.scales import ALGORITHMS


@click.command()
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@of_text(24)
@click.option(
    "--target-bits", type=float, default=4.5, show_default=True, help="Stored bits a weight at most."
)
@click.option(
    "--candidates",
    help="Names of schemes with commas between, such as int4,int8,nf4, for groups that fit each layer; "
    "weight-only schemes of 3 to 8 bits if it is not given.",
)
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS), help="How candidates choose scales and zero points."
)
@click.option(
    "--sensitivity",
    type=click.Choice(SENSITIVITIES),
    default="fisher",
    show_default=True,
    help="Rounding errors weighed by squared gradients, or KL with one layer changed, which takes long.",
)
@click.option("--quantize-embeddings", is_flag=True, help="Embeddings too.")
@click.option(
    "-o", "--output", type=OutputFile(".json"), required=True, help="The file that gets the schemes."
)
def search(
    model: Path,
    data: tuple[Path, ...],
    length: int,
    windows: int,
    device: str,
    dtype: str,
    target_bits: float,
    candidates: str | None,
    algorithm: str | None,
    sensitivity: Any,
    quantize_embeddings: bool,
    output: Path,
) -> None:
    """Choose a scheme for each layer of MODEL, a folder of transformers that is not quantised.

    The file that -o names goes to aoext convert --scheme, to aoext.PerModuleConfig.load and so to quantize_
    and AoextConfig. The output layer stays as it is, as it does there.
    """
    batches = windows_of(model, data, length, windows)
    loaded: Any = load(model, device, dtype)
    head = loaded.get_output_embeddings()

    def is_meant(module: nn.Module, name: str) -> bool:
        embedding = isinstance(module, nn.Embedding)
        return quantize_embeddings if embedding or module is head else True

    try:
        found = find(
            loaded,
            batches,
            target_bits,
            CANDIDATES if candidates is None else candidates.split(","),
            sensitivity=sensitivity,
            algorithm=algorithm,
            filter_fn=is_meant,
            quantize_embeddings=quantize_embeddings,
        )
    except (ValueError, TypeError) as error:
        raise click.ClickException(str(error)) from error
    found.save(output)
    click.echo(found)
