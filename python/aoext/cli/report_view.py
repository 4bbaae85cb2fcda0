"""The report as a page of text and as JSON."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aoext.cli.bench import WHAT_TO_INSTALL
from aoext.cli.page import part_grid, section, summary_line
from aoext.cli.report_checks import Check
from aoext.cli.report_run import Choice, Content
from aoext.reference import full_name

SCHEMA = "aoext.report/4"


def show(out: Console, content: Content) -> None:
    """The page."""
    verdict = "PASSED" if not content.problems else "FAILED"
    if content.busy:
        verdict += "; its speeds are NOT VALID, for the machine was busy"
    out.print(Text(f"aoext report: {verdict}", style="bold"))
    out.print(f"{content.environment['time']}, seed {content.settings.seed}")
    out.print(summary_line(content.environment))
    out.print(_joined(content.versions))
    if content.properties:
        out.print(f"device: {_joined(content.properties)}")
    for problem in content.problems:
        out.print(Text(f"PROBLEM {problem}", style="red"))
    section(out, f"kernels built and checked in {content.warmup_seconds:.1f} s")
    out.print(_families(content.families))
    section(out, "operators in brief: largest relative error of a row against float64, allowed in brackets")
    out.print(_checks(content.checks))
    for shape, choices in itertools.groupby(content.choices, key=lambda choice: (choice.N, choice.K)):
        section(out, f"kernels chosen at N x K = {shape[0]} x {shape[1]}")
        out.print("\n".join(_choices(choices)))
    if content.speed:
        content.speed.show(out)
    else:
        section(out, f"speed: not measured. {WHAT_TO_INSTALL}")


def _joined(values: dict[str, Any]) -> str:
    return "; ".join(f"{name} {value}" for name, value in values.items())


def _families(families: dict[str, str]) -> str:
    if not families:
        return "this device has no kernels to build"
    by_result: dict[str, list[str]] = {}
    for name, said in families.items():
        by_result.setdefault(said, []).append(name)
    return "\n".join(f"{said}: {', '.join(names)}" for said, names in by_result.items())


def _checks(checks: Sequence[Check]) -> Table:
    """A line for each operator, of all its formats; a column for each dtype's bound."""
    dtypes = list(dict.fromkeys(check.dtype for check in checks))
    table = part_grid("operator", "formats", "calls", *dtypes, "verdict")
    by_operator: dict[str, list[Check]] = {}
    for check in checks:
        by_operator.setdefault(check.operator, []).append(check)
    for operator, own in by_operator.items():
        formats = dict.fromkeys(check.format for check in own)
        wrong = dict.fromkeys(check.format for check in own if not check.passed)
        verdict = Text(f"wrong: {', '.join(wrong)}", style="red") if wrong else Text("ok", style="green")
        cells = (_worst([check for check in own if check.dtype == dtype]) for dtype in dtypes)
        table.add_row(operator, str(len(formats)), str(len(own)), *cells, verdict)
    return table


def _worst(checks: Sequence[Check]) -> str:
    """The error that takes the most of its bound, and that bound."""
    known = [(check.error, check.bound) for check in checks if check.error is not None]
    if not known:
        return "–"
    error, bound = max(known, key=lambda pair: pair[0] / pair[1] if pair[1] else pair[0] * math.inf)
    if bound:
        return f"{error:.1e} ({bound:.0e})"
    return "exact" if not error else f"{error:.1e} (0)"


def _choices(choices: Iterable[Choice]) -> Iterator[str]:
    """A line for each operator and way in which formats choose; rows with the same kernel together."""
    for operator, group in itertools.groupby(choices, key=lambda choice: choice.operator):
        formats: dict[str, list[str]] = {}
        for choice in group:
            by_plan: dict[str, list[str]] = {}
            for M, plan in choice.plans.items():
                by_plan.setdefault(plan, []).append(str(M))
            plans = (f"{', '.join(rows)}: {plan}" for plan, rows in by_plan.items())
            formats.setdefault("; M = ".join(plans), []).append(choice.format)
        for plans_said, names in formats.items():
            yield f"{full_name(operator, ', '.join(names))}  M = {plans_said}"


def as_json(content: Content) -> dict[str, Any]:
    """The content of report.json.

    schema       "aoext.report/4"
    passed       whether nothing is wrong with the device; problems says what is, a line each
    busy         whether other work took the cores, so that no speed is valid; bench has why
    environment  versions, machine and device (report.environment)
    versions     of what lies below, and the settings of its environment variables
    properties   of the device, as its driver gives them
    warmup       seconds, and families of kernels: {name: "ok", "not checked" or what was wrong}
    checks       a list: operator, format, case, dtype, M, N, K, error (largest of a row, null where none
                 is finite), bound, problem (empty where all is well), passed
    choices      a list: operator, format, N, K, plans ({M: what aoext.explain says})
    bench        as `aoext bench` writes it; null where nothing could be measured, or nothing can measure
    """
    return {
        "schema": SCHEMA,
        "passed": not content.problems,
        "problems": content.problems,
        "busy": content.busy,
        "environment": content.environment,
        "versions": content.versions,
        "properties": content.properties,
        "warmup": {"seconds": content.warmup_seconds, "families": content.families},
        "checks": [{**asdict(check), "passed": check.passed} for check in content.checks],
        "choices": [asdict(choice) for choice in content.choices],
        "bench": content.speed.as_json(content.environment) if content.speed else None,
    }
