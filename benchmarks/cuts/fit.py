"""Fits the constants of the kernels' models of time to what time_cuts.py measured, and writes their table.

    python benchmarks/cuts/time_cuts.py --gpu "H100 SXM" --format int4 --most 30 --json out/int4.jsonl
    python benchmarks/cuts/fit.py --table kH100Fits out/int4.jsonl

The library itself says what its models make of other constants. They are searched for what the choice then
takes, not fitted to the times, which brings the choice nearer to the fastest; times count a little beside it,
so that constants that no choice hangs on stay what they mean. Every fourth problem is held out of the search
and shows whether what was found is more than chance. The table of a GPU that was never measured begins as a
copy of another, with bandwidths (`bandwidth`, and `memory` in proportion) as they were measured;
csrc/cuda/gpus.h says which GPUs have it.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from aoext.formats.table import code_of
from aoext_bench.considered import Considered

TABLES = Path(__file__).parents[2] / "csrc" / "cuda" / "fitted.h"

# Kernels whose times the plan compares, and the parts of a table that these hang on.
CONTESTS = {
    ("int4_ring", "int4_decode"): ("reduction", "int4_ring", "int4_decode"),
    ("int4_batch", "int4_wgmma"): ("int4_batch", "int4_wgmma"),
    ("int4_mma",): ("int4_mma",),
    ("rowwise_decode",): ("rowwise_decode",),
    ("rowwise_wgmma",): ("rowwise_wgmma",),
    ("weight_only_wgmma",): ("weight_only_wgmma",),
    ("rowwise_mma",): ("rowwise_mma",),
}
HELD_OUT = 4  # one problem of so many
WEIGHT_OF_TIMES = 0.005  # of how far off times are, beside how far off the choice is
STEPS = (1.3, 1.1, 1.03)  # factors that constants are tried with, one after the other
JUMPS, JUMP = 4, 0.2  # how often all of them are moved at random, by about so much, to look again from there


# ---- Tables -----------------------------------------------------------------------------------------------


class Table:
    """A table of fitted.h, as text: numbers with a point are its constants."""

    CONSTANT = re.compile(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?")

    def __init__(self, text: str) -> None:
        self.text = text
        self.constants = [float(number) for number in self.CONSTANT.findall(text)]

    @classmethod
    def all_of(cls, source: str) -> dict[str, Table]:
        found = re.finditer(r"^constexpr Fits (\w+)\{.*?^\};", source, re.DOTALL | re.MULTILINE)
        return {match[1]: cls(match[0]) for match in found}

    def parts(self) -> list[str]:
        """The part of the table that each constant is of, a member of Fits."""
        members = [(m.start(), m[1]) for m in re.finditer(r"^    \.(\w+) =", self.text, re.MULTILINE)]
        return [
            next(name for start, name in reversed(members) if start < match.start())
            for match in self.CONSTANT.finditer(self.text)
        ]

    def with_constants(self, constants: Sequence[float]) -> Table:
        """The same with others: of those that differ three digits are written."""
        both = iter(zip(self.constants, constants, strict=True))

        def written(match: re.Match[str]) -> str:
            old, new = next(both)
            return match[0] if new == old else as_written(new)

        return Table(self.CONSTANT.sub(written, self.text))


def as_written(constant: float) -> str:
    """Three digits and a point."""
    mantissa, _, exponent = f"{constant:.3g}".partition("e")
    mantissa = mantissa if "." in mantissa else mantissa + ".0"
    return mantissa + (f"e{int(exponent)}" if exponent else "")


# ---- Problems and their times -----------------------------------------------------------------------------


@dataclass
class Cuts:
    """A kernel's configurations of a problem, and the µs that were measured, NaN where none were."""

    considered: Considered
    measured: Tensor


class Problem:
    """One call, and the kernels of a contest that serve it.

    What was not measured is taken to be as fast as the GPU's own table says, on the scale of what was, and no
    faster than the fastest: constants that may choose what nobody has seen choose what is slow.
    """

    def __init__(self, kernels: list[Cuts]) -> None:
        self.kernels = kernels
        measured = torch.cat([cuts.measured for cuts in kernels])
        self.known = ~measured.isnan()
        own = self.model(())
        self.fastest = measured[self.known].min().item()
        said = own * (measured / own)[self.known].median()
        self.times = torch.where(self.known, measured, said.clamp(min=self.fastest))

    def model(self, constants: Sequence[float]) -> Tensor:
        return torch.cat([cuts.considered.microseconds(constants) for cuts in self.kernels])

    def outcome(self, constants: Sequence[float]) -> tuple[float, float]:
        """How much longer than the fastest the choice takes, and how far off the model is on average."""
        model = self.model(constants)
        off = (model / self.times)[self.known].log().abs().mean().item()
        return self.times[model.argmin()].item() / self.fastest - 1, off


def meta_arguments(record: dict[str, Any]) -> tuple[str, tuple[Tensor, ...], dict[str, Any]]:
    """The operator's name and its call on meta tensors."""

    def empty(dtype: torch.dtype, *sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=dtype, device="meta")

    M, N, K, format = record["M"], record["N"], record["K"], record["format"]
    x = empty(torch.bfloat16, M, K)
    if format == "int4":
        scales = [empty(torch.bfloat16, K // record["group_size"], N)] * 2
        return "bf16i4bf16_rowwise", (x, empty(torch.int8, N, K // 2), *scales), {}
    int8 = format.startswith("int8")
    weight = empty(torch.int8 if int8 else torch.float8_e4m3fn, N, K)
    scale, row_scale = empty(torch.float32, N, 1), empty(torch.float32, M, 1)
    if format.endswith("weight-only"):
        return "weight_only_linear", (x, weight, scale), {"code": int(code_of(weight.dtype))}
    return "scaled_mm_rowwise", (empty(weight.dtype, M, K), weight, row_scale, scale), {}


def cuts_of(record: dict[str, Any]) -> Cuts:
    operator, arguments, options = meta_arguments(record)
    considered = Considered(record["gpu"], record["kernel"], operator, *arguments, **options)
    us = {tuple(config): time for config, time in record["us"]}
    measured = [us.get(config, torch.nan) for config in considered.configs]
    return Cuts(considered, torch.tensor(measured, dtype=torch.float64))


def problems_of(records: Iterable[dict[str, Any]], kernels: tuple[str, ...]) -> list[Problem]:
    """In the order of their sizes."""

    def key(record: dict[str, Any]) -> tuple[Any, ...]:
        return record["format"], record["group_size"] or 0, record["N"], record["K"], record["M"]

    wanted = sorted((r for r in records if r["kernel"] in kernels), key=key)
    return [Problem([cuts_of(record) for record in group]) for _, group in itertools.groupby(wanted, key=key)]


# ---- The search -------------------------------------------------------------------------------------------


def objective(problems: list[Problem], constants: Sequence[float]) -> float:
    outcomes = [problem.outcome(constants) for problem in problems]
    return sum(regret + WEIGHT_OF_TIMES * off for regret, off in outcomes) / len(outcomes)


def search(
    problems: list[Problem], constants: Sequence[float], movable: Sequence[int], jumps: int
) -> list[float]:
    """Constants with a lower objective, by descents from these and from random ones around the best."""
    chance = random.Random(0)
    best = descend(problems, constants, movable)
    for _ in range(jumps):
        start = list(best)
        for at in movable:
            start[at] *= math.exp(chance.gauss(0, JUMP))
        best = min(best, descend(problems, start, movable), key=lambda found: objective(problems, found))
    return best


def descend(problems: list[Problem], constants: Sequence[float], movable: Sequence[int]) -> list[float]:
    """Constants with a lower objective: those at `movable` are moved one after the other by factors."""
    best = list(constants)
    least = objective(problems, best)

    def improve(at: int, factor: float) -> bool:
        nonlocal best, least
        trial = [*best[:at], best[at] * factor, *best[at + 1 :]]
        now = objective(problems, trial)
        if now < least * (1 - 1e-4):
            best, least = trial, now
            return True
        return False

    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for at in movable:
                if best[at] == 0:  # there is no such tile or cost
                    continue
                for factor in (step, 1 / step):
                    while improve(at, factor):
                        improved = True
    return best


def fit(table: Table, problems: list[Problem], parts: Sequence[str], jumps: int = JUMPS) -> list[float]:
    """A contest's constants, from those of a table on."""
    movable = [i for i, part in enumerate(table.parts()) if part in parts]
    return search(problems, table.constants, movable, jumps)


def split(problems: list[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Those to fit to, and those held out: by chance, the same in every run."""
    mixed = random.Random(0).sample(problems, len(problems))
    held_out = len(problems) // HELD_OUT
    return mixed[held_out:], mixed[:held_out]


def regrets(problems: list[Problem], constants: Sequence[float]) -> str:
    """On average, and at most."""
    all_of_them = [problem.outcome(constants)[0] for problem in problems] or [torch.nan]
    return f"{100 * sum(all_of_them) / len(all_of_them):.1f}% ({100 * max(all_of_them):.0f}%)"


def records_of(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        yield from map(json.loads, path.read_text().splitlines())


@click.command()
@click.argument(
    "times", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--table", "name", default="kH200Fits", show_default=True, help="A table of csrc/cuda/fitted.h."
)
@click.option("--kernel", "only", multiple=True, help="Fit what its times hang on. Default: all kernels.")
@click.option("--write", is_flag=True, help="Write the table into csrc/cuda/fitted.h.")
def main(times: tuple[Path, ...], name: str, only: tuple[str, ...], write: bool) -> None:
    """Fit the constants of a table to times, files that time_cuts.py wrote."""
    records = list(records_of(times))
    source = TABLES.read_text()
    table = before = Table.all_of(source)[name]
    click.echo("How much longer than the fastest the choice takes, on average and at most:")
    for kernels, parts in CONTESTS.items():
        problems = problems_of(records, kernels) if not only or set(only) & set(kernels) else []
        if not problems:
            continue
        kept, held_out = split(problems)
        table = table.with_constants(fit(table, kept, parts))
        was, now, was_out, now_out = (
            regrets(some, t.constants) for some in (kept, held_out) for t in (before, table)
        )
        click.echo(
            f"{', '.join(kernels)}: {len(kept)} problems, {was}, fitted {now}; "
            f"{len(held_out)} held out, {was_out}, fitted {now_out}"
        )
    if write:
        TABLES.write_text(source.replace(before.text, table.text))
    else:
        click.echo(table.text)


if __name__ == "__main__":
    main()
