"""benchmarks/cuts/fit.py: tables as text, what the library makes of constants, and the search."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from aoext import ops
from aoext.operators.calls import ao
from conftest import script_of_benchmarks

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "cuts" / "fit.py"
pytestmark = [
    pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the project's sources"),
    pytest.mark.skipif(not ops._has_plans(), reason="aoext was built without CUDA"),
]


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    return script_of_benchmarks("cuts/fit.py")


@pytest.fixture(scope="module")
def tables(fit: ModuleType) -> dict[str, Any]:
    return fit.Table.all_of(fit.TABLES.read_text())


def record(kernel: str, format: str, M: int, N: int, K: int, gpu: str = "H200") -> dict[str, Any]:
    group_size = 128 if format == "int4" else None
    names = ("gpu", "kernel", "format", "M", "N", "K", "group_size", "us")
    return dict(zip(names, (gpu, kernel, format, M, N, K, group_size, []), strict=True))


# A problem of each kernel, by the parts of the table that its times hang on.
OF_KERNELS = [
    record("int4_ring", "int4", 4, 4096, 4096),
    record("int4_decode", "int4", 8, 4096, 4096),
    record("int4_batch", "int4", 32, 4096, 4096),
    record("int4_wgmma", "int4", 100, 4096, 4096),
    record("int4_mma", "int4", 100, 4096, 4096),
    record("rowwise_decode", "int8", 4, 4096, 4096),
    record("rowwise_wgmma", "float8", 100, 4096, 4096),
    record("weight_only_wgmma", "int8-weight-only", 100, 4096, 4096),
    record("rowwise_mma", "int8", 100, 4096, 4096),
]


@pytest.mark.parametrize("name", ["kH200Fits"])
def test_constants_as_text_are_those_of_the_library(
    fit: ModuleType, tables: dict[str, Any], name: str
) -> None:
    for of_kernel in OF_KERNELS:
        considered = fit.cuts_of(of_kernel).considered
        own = considered.microseconds()
        assert own.equal(considered.microseconds(tables[name].constants)), of_kernel["kernel"]
        assert considered.configs[own.argmin()] == considered.chosen


@pytest.mark.parametrize("of_kernel", OF_KERNELS, ids=lambda r: r["kernel"])
def test_times_hang_on_the_parts_of_their_kernel_alone(
    fit: ModuleType, tables: dict[str, Any], of_kernel: dict[str, Any]
) -> None:
    parts = next(parts for kernels, parts in fit.CONTESTS.items() if of_kernel["kernel"] in kernels)
    table = tables["kH200Fits"]
    considered = fit.cuts_of(of_kernel).considered
    for inside in (True, False):
        changed = [
            constant * 1.5 if (part in parts) is inside and part != "bandwidth" else constant
            for constant, part in zip(table.constants, table.parts(), strict=True)
        ]
        assert considered.microseconds(changed).equal(considered.microseconds()) is not inside


def test_a_table_is_written_as_it_is_read(fit: ModuleType, tables: dict[str, Any]) -> None:
    table = tables["kH200Fits"]
    assert table.with_constants(table.constants).text == table.text
    others = [c * 1.2345678 for c in table.constants]
    written = table.with_constants(others)
    assert written.constants == pytest.approx(others, rel=5e-3)
    assert written.parts() == table.parts()
    for text in ("12.0", "6.6e-5", "0.125", "4.66e6"):
        assert fit.as_written(float(text)) in (text, "6.6e-05".replace("-0", "-"))


def test_a_wrong_number_of_constants_is_refused(fit: ModuleType, tables: dict[str, Any]) -> None:
    considered = fit.cuts_of(OF_KERNELS[0]).considered
    count = len(tables["kH200Fits"].constants)
    with pytest.raises(RuntimeError, match=rf"constants must be float64 \[{count}\] on the CPU"):
        considered.microseconds([1.0] * (count - 1))
    with pytest.raises(RuntimeError, match="a kernel must be forced"):
        ao._considered(*considered._call, torch.empty(0, dtype=torch.float64))


def test_the_search_finds_choices_as_good_as_those_of_known_constants(
    fit: ModuleType, tables: dict[str, Any]
) -> None:
    """Times are a model's whose constants are up to twice or half those that the search begins with."""
    table, kernels = tables["kH200Fits"], ("rowwise_wgmma",)
    chance = random.Random(torch.seed())
    parts = fit.CONTESTS[kernels]
    known = [
        constant * 2 ** chance.uniform(-1, 1) if part in parts else constant
        for constant, part in zip(table.constants, table.parts(), strict=True)
    ]
    records = [
        record("rowwise_wgmma", format, M, N, K)
        for format in ("int8", "float8")
        for N, K in ((4096, 4096), (6144, 4096), (8192, 8192))
        for M in (16, 64, 200)
    ]
    for of_point in records:
        considered = fit.cuts_of(of_point).considered
        times = considered.microseconds(known).tolist()
        fastest: dict[tuple[int, ...], float] = {}  # some configurations are considered twice
        for config, us in zip(considered.configs, times, strict=True):
            fastest[config] = min(us, fastest.get(config, us))
        of_point["us"] = list(fastest.items())
    problems = fit.problems_of(records, kernels)

    def regret(constants: list[float]) -> float:
        return sum(problem.outcome(constants)[0] for problem in problems) / len(problems)

    assert regret(known) == 0
    found = fit.fit(table, problems, parts, jumps=1)
    assert regret(found) < 0.01
    assert regret(found) < max(0.3 * regret(table.constants), 1e-3)


def test_the_program_writes_the_part_of_a_table_that_it_fits(
    fit: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Times are the model's of the table, of one tile four times as long."""
    table, times = tmp_path / "fitted.h", tmp_path / "cuts.jsonl"
    table.write_text(fit.TABLES.read_text())
    monkeypatch.setattr(fit, "TABLES", table)
    before = fit.Table.all_of(table.read_text())["kH200Fits"]
    with times.open("w") as lines:
        for M in (40, 300):
            of_point = record("rowwise_mma", "int8", M, 4096, 4096)
            considered = fit.cuts_of(of_point).considered
            model = zip(considered.configs, considered.microseconds().tolist(), strict=True)
            of_point["us"] = [[c, 4 * us if c[:2] == considered.chosen[:2] else us] for c, us in model]
            lines.write(json.dumps(of_point) + "\n")
    done = CliRunner().invoke(fit.main, [str(times), "--write"], catch_exceptions=False)
    assert "rowwise_mma: 2 problems" in done.output
    after = fit.Table.all_of(table.read_text())["kH200Fits"]
    changed = {
        part
        for part, old, new in zip(before.parts(), before.constants, after.constants, strict=True)
        if old != new
    }
    assert changed == {"rowwise_mma"}
