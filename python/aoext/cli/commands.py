"""The group of all commands."""

from __future__ import annotations

import click

import aoext
from aoext.cli import bench
from aoext.cli.convert import convert
from aoext.cli.evaluate import evaluate
from aoext.cli.info import info
from aoext.cli.report import report
from aoext.cli.search import search

_DOCUMENTS = """\b
Documents, in the folder docs of the sources:
  schemes.md    which scheme do I choose?
  quality.md    better numbers at the same bits
  calibrate.md  quantising with data
  qat.md        training for a scheme, mixed precision, evaluating
  models.md     load, save and convert models
  lora.md       LoRA on a quantised model
  migrating.md  coming from torchao, bitsandbytes, GPTQModel, llama.cpp
  operators.md  what each operator takes and gives
"""


class Commands(click.Group):
    """The commands of this distribution, and those of aoext-bench, imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *bench.COMMANDS])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return bench.load(name) if name in bench.COMMANDS else super().get_command(ctx, name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_DOCUMENTS)
@click.version_option(aoext.__version__, prog_name="aoext")
def cli() -> None:
    """Quantised PyTorch operators: see what they cost, save and gain on this machine."""


for command in (convert, evaluate, info, report, search):
    cli.add_command(command)
