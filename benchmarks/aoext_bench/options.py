"""Types of command line arguments that only measurements have."""

from __future__ import annotations

import re
from typing import Any

import click

from aoext.cli.options import DeviceType, OutputFile
from aoext_bench.devices import Device, measured


class MeasuredDeviceType(DeviceType):
    """A device with its clock."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Device:
        return value if isinstance(value, Device) else measured(super().convert(value, param, ctx))


class PlanType(click.ParamType):
    """A plan as `aoext.explain` prints one: a kernel and any fields of it."""

    name = "plan"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"\w+( \w+=-?\d+)*", value):
            self.fail(f'must be "kernel field=value …" with whole numbers, got {value!r}', param, ctx)
        return str(value)


CHART_FILE = OutputFile(".png", ".svg", ".pdf")
