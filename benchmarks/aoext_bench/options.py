"""Types of command line arguments that only measurements have."""

from __future__ import annotations

from typing import Any

import click

from aoext.cli.options import DeviceType, OutputFile
from aoext_bench.devices import Device, measured


class MeasuredDeviceType(DeviceType):
    """A device with its clock."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Device:
        return value if isinstance(value, Device) else measured(super().convert(value, param, ctx))


CHART_FILE = OutputFile(".png", ".svg", ".pdf")
