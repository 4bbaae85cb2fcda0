"""Which cases run: `-m quick` takes one of each body, and what is left out is there and shown elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import selection
from conftest import XPU_SIM

TESTS = Path(__file__).parent


def collected(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


def bodies(cases: list[str]) -> list[str]:
    return [re.sub(r"\[.*", "", case) for case in cases]


def test_quick_is_the_first_case_of_each_body() -> None:
    files = ("test_layers.py", "test_int4_fields.py")
    everything, chosen = collected(*files), collected(*files, "-m", "quick")
    assert len(everything) > len(set(bodies(everything)))
    first = {body: case for case, body in reversed(list(zip(everything, bodies(everything), strict=True)))}
    assert set(chosen) == set(first.values())


def test_all_that_quick_leaves_out_is_there() -> None:
    for name in selection.LEFT_OUT:
        file, _, body = name.partition("::")
        text = (TESTS / file).read_text(encoding="utf-8")
        assert not body or f"def {body}(" in text, name


@pytest.mark.skipif(XPU_SIM is None, reason="needs the simulated XPU")
def test_every_generic_kernel_still_runs_on_a_simulated_xpu() -> None:
    cases = collected("test_contract.py", "test_operators.py", "-k", "within_the_bound_of_float64")
    on = {device: [case for case in cases if f"[{device}-generic-" in case] for device in ("cpu", "xpu")}
    operators = {device: {case.split("-")[2] for case in own} for device, own in on.items()}
    assert operators["xpu"] == operators["cpu"]
    assert len(on["xpu"]) == len(operators["xpu"]) < len(on["cpu"])
