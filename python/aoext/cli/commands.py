"""The group of all commands."""

from __future__ import annotations

import click

import aoext
from aoext.cli.bench import bench
from aoext.cli.convert import convert
from aoext.cli.demo import demo
from aoext.cli.device_report import report
from aoext.cli.info import info


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(aoext.__version__, prog_name="aoext")
def cli() -> None:
    """Quantised PyTorch operators: see what they cost, save and gain on this machine."""


for command in (demo, bench, convert, info, report):
    cli.add_command(command)
