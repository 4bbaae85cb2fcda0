"""`aoext report`: all that it promises is in it, on every device, and what is wrong is not passed over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import aoext
from aoext.cli import bench, report_checks
from aoext.cli.devices import default_device
from aoext.cli.report import TIMED, report
from aoext.cli.report_checks import CASES
from aoext.cli.report_run import CHOICE_ROWS, versions
from aoext.formats.table import FORMATS
from aoext.ops import ERROR_BOUND
from aoext.reference import DEQUANTIZE_CALLS, SUBJECTS, Problem
from aoext_bench import ceilings, report_speed
from aoext_bench.busy import Load, Observer
from aoext_bench.devices import MIB
from formats import OPERATORS


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "SECONDS", 0.01)
    monkeypatch.setattr(report_speed, "QUICK_POOL", MIB)


@pytest.fixture
def _few_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All operators are checked, three are timed."""
    few = ("weight_int4pack_mm", "int8_mm", "quantize")
    monkeypatch.setattr("aoext.cli.report.TIMED", [s for s in TIMED if s.operator in few])


SMALL = ("--quick", "--shape", "64x128", "--m", "1,9", "--seconds", "0.001")


def invoke(folder: Path, *arguments: object) -> Result:
    return CliRunner().invoke(report, [*SMALL, "--output-dir", str(folder), *map(str, arguments)])


def read(folder: Path) -> tuple[str, dict[str, Any]]:
    return (folder / "report.txt").read_text(), json.loads((folder / "report.json").read_text())


def test_report_holds_all_that_it_promises(device: torch.device, tmp_path: Path) -> None:
    result = invoke(tmp_path / "out", "--device", device, "--seed", 7)
    assert result.exit_code == 0, result.output
    text, content = read(tmp_path / "out")

    assert content["schema"] == "aoext.report/4"
    assert content["passed"]
    assert content["problems"] == []
    assert content["environment"]["aoext"] == aoext.__version__
    assert content["environment"]["device"]["type"] == str(device)
    assert content["versions"]["aoext, compiler"]
    assert content["versions"]["system"]
    assert bool(content["properties"]) == (device.type != "cpu")
    assert set(content["warmup"]["families"].values()) <= {"ok", "not checked"}

    checks = content["checks"]
    assert {check["operator"] for check in checks} == set(OPERATORS)
    assert {check["case"] for check in checks} == {case.name for case in CASES}
    assert all(check["passed"] and 0 <= check["error"] <= check["bound"] for check in checks)
    assert all(check["bound"] in ERROR_BOUND.values() for check in checks)

    timed = [(subject.operator, subject.format) for subject in TIMED]
    assert [(choice["operator"], choice["format"]) for choice in content["choices"]] == timed
    for choice in content["choices"]:
        assert set(choice["plans"]) == {str(M) for M in CHOICE_ROWS}
        assert all(plan.strip() for plan in choice["plans"].values())

    bench = content["bench"]
    assert bench["schema"] == "aoext.bench/3"
    assert bench["settings"]["seed"] == 7
    assert list(dict.fromkeys((p["operator"], p["format"]) for p in bench["results"])) == timed
    (reached,) = bench["ceilings"]
    read_seconds = {int(size): seconds for size, seconds in reached["read_seconds"].items()}
    known = ceilings.Ceilings(reached["read_gb_per_s"], "", 1.0, "", read_seconds)
    for point in bench["results"]:
        floor = known.reading(point["bytes_from_memory"])
        assert point["times_read_floor"] == pytest.approx(point["seconds"]["aoext"] / floor)
        assert ("linear" in point["speedup"]) == (
            point["M"] is not None and "quantize" not in point["operator"]
        )

    assert text.startswith("aoext report: PASSED")
    assert max(map(len, text.splitlines())) <= 120
    assert len(text.splitlines()) <= 130
    for operator in OPERATORS:
        assert operator in text
    for words in ("seed 7", "µs", aoext.__version__, torch.__version__):
        assert words in text
    assert all(line.rstrip() in result.output for line in text.splitlines())


def test_report_without_aoext_bench_has_all_but_the_speeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    result = invoke(tmp_path, "--device", "cpu")
    assert result.exit_code == 0, result.output
    text, content = read(tmp_path)
    assert content["passed"]
    assert content["bench"] is None
    assert content["busy"] is False
    assert {check["operator"] for check in content["checks"]} == set(OPERATORS)
    assert len(content["choices"]) == len(TIMED)
    assert "speed: not measured. It needs aoext-bench: pip install aoext-bench" in text
    assert "µs" not in text


@pytest.mark.usefixtures("_few_timed")
@pytest.mark.parametrize("busy", [False, True])
def test_speeds_of_a_busy_machine_are_not_valid(
    busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = ["the timed calls had a core for 41% of their time"] if busy else []
    monkeypatch.setattr(Observer, "verdict", lambda self: Load(2, 0.41 if busy else 1.0, 2.0, reasons))
    result = invoke(tmp_path, "--device", "cpu")
    assert result.exit_code == 0, result.output  # that is no fault of the device
    text, content = read(tmp_path)
    assert content["passed"]
    assert content["busy"] is content["bench"]["busy"] is busy
    assert content["bench"]["load"]["reasons"] == reasons
    assert content["bench"]["load"]["cpu_share"] == (0.41 if busy else 1.0)
    assert text.splitlines()[0].startswith("aoext report: PASSED")
    assert ("NOT VALID" in text.splitlines()[0]) == busy
    assert (f"BUSY MACHINE, no figure is valid: {reasons[0] if busy else ''}" in text) == busy
    # Nothing is claimed: no multiple of F.linear's speed or of the read floor, nothing slower or faster.
    for claim in ("× /", "slower than F.linear", "GB/s read"):
        assert (claim in text) != busy, claim


# Formats whose blocks are longer than some of the cases' rows.
GGUF = {format.name for format in FORMATS.values() if format.scales == "inside"}


def test_every_operator_is_checked_with_every_case_that_applies(tmp_path: Path) -> None:
    checks = list(report_checks.check_operators(torch.device("cpu"), 1))
    names = {case.name for case in CASES}
    for subject in SUBJECTS:
        own = {c.case for c in checks if (c.operator, c.format) == (subject.operator, subject.format)}
        served = {c.name for c in CASES if subject.serves(Problem(c.M, c.N, c.K, c.group_size, c.dtype))}
        long_blocks = subject.format.split()[0] in GGUF
        assert served == names or "int4pack" in subject.operator or long_blocks
        awkward = {"outliers", "a row of NaN"}
        has_none = subject.kind in ("int8_mm", *DEQUANTIZE_CALLS, "convert_weight_to_int4pack")
        has_none |= subject.operator.startswith("scaled_mm")
        assert own == (served - awkward if has_none else served) != set(), subject.name


Spoil = Callable[[Any], Any]


def nan_in_every_row(result: torch.Tensor) -> torch.Tensor:
    result[:, 0] = torch.nan
    return result


def refuse(result: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("device lost\nand more")


@pytest.mark.usefixtures("_few_timed")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda result: result * 1.05, "differs from float64 by 5"),
        (lambda result: result.nan_to_num(), "the row of NaN has other values"),
        (nan_in_every_row, "differs from float64 by nan"),
        (refuse, "raised: device lost"),
    ],
    ids=["wrong", "NaN lost", "NaN spread", "raises"],
)
def test_wrong_result_fails(
    spoil: Spoil, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = report_checks._run

    def spoilt(subject: Any, *arguments: Any) -> Any:
        result = run(subject, *arguments)
        return spoil(result) if subject.operator == "weight_only_linear" else result

    monkeypatch.setattr(report_checks, "_run", spoilt)
    result = invoke(tmp_path, "--device", "cpu")
    assert result.exit_code == 1, result.output
    text, content = read(tmp_path)
    assert text.startswith("aoext report: FAILED")
    assert words in " ".join(text.split())
    assert not content["passed"]
    failed = {check["operator"] for check in content["checks"] if not check["passed"]}
    assert failed == {"weight_only_linear"}
    assert any(words in problem for problem in content["problems"])
    assert content["bench"]["results"]


@pytest.mark.usefixtures("_few_timed")
def test_failed_self_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    families = {"int4_tile.dpas": "ok", "onednn.int8": "off by 3e-01", "any": "not checked"}
    monkeypatch.setattr(aoext, "warmup", lambda device: families)
    result = invoke(tmp_path, "--device", "cpu")
    assert result.exit_code == 1
    text, content = read(tmp_path)
    assert content["warmup"]["families"] == families
    assert content["problems"] == ["self-check of onednn.int8: off by 3e-01"]
    assert "off by 3e-01: onednn.int8" in text


@pytest.mark.usefixtures("_few_timed")
def test_wrong_result_while_timing_leaves_the_other_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ERROR_BOUND, torch.bfloat16, 1e-9)
    result = invoke(tmp_path, "--device", "cpu")
    assert result.exit_code == 1
    _, content = read(tmp_path)
    assert any(problem.startswith("timing weight_int4pack_mm: ") for problem in content["problems"])
    assert {"int8_mm", "quantize"} <= {p["operator"] for p in content["bench"]["results"]}


def test_device_is_the_accelerator_at_hand_unless_told() -> None:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    assert default_device().type == (accelerator.type if accelerator else "cpu")


def test_home_folder_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZE_TEST", f"{Path.home()}/drivers")
    monkeypatch.setenv("SECRET", "not to be sent")
    assert versions()["ZE_TEST"] == "~/drivers"
    assert "SECRET" not in versions()


def test_shape_that_no_group_divides_is_refused(tmp_path: Path) -> None:
    result = invoke(tmp_path, "--shape", "64x100")
    assert result.exit_code == 2
    assert "a multiple of 128" in result.output
