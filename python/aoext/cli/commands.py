"""The group of all commands."""

from __future__ import annotations

import click

import aoext
from aoext.cli.bench import bench
from aoext.cli.convert import convert
from aoext.cli.demo import demo
from aoext.cli.device_report import report
from aoext.cli.info import info

_DOCUMENTS = """\b
Documents, in the folder docs of the sources:
  schemes.md    which scheme do I choose?
  models.md     load, save and convert models
  lora.md       LoRA on a quantised model
  migrating.md  coming from torchao, bitsandbytes, GPTQModel, llama.cpp
  operators.md  what each operator takes and gives
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_DOCUMENTS)
@click.version_option(aoext.__version__, prog_name="aoext")
def cli() -> None:
    """Quantised PyTorch operators: see what they cost, save and gain on this machine."""


for command in (demo, bench, convert, info, report):
    cli.add_command(command)
