"""The operator tests again with every instruction set that this machine runs but did not choose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aoext.library.info import build_config

CHOSEN = build_config()["cpu instruction set"]
OTHERS = [name for name in build_config()["usable here"].split(", ") if name != CHOSEN]


def python(isa: str, *arguments: str) -> subprocess.CompletedProcess:
    the_cpu_alone = {"AOEXT_SIMULATE_XPU": "0", "AOEXT_REQUIRE_DEVICES": "cpu"}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **the_cpu_alone, "AOEXT_CPU_ISA": isa},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("isa", OTHERS)
def test_operators_are_right_with_another_instruction_set(isa):
    subset = ("test_operators.py", "test_magnitudes.py", "test_cpu_plans.py")
    subset = (*subset, "-k", "(cpu and own and not 2_31) or magnitudes or forced")
    done = python(isa, "-m", "pytest", "-q", "-p", "no:cacheprovider", *subset)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("isa", OTHERS)
def test_the_forced_instruction_set_is_the_one_that_runs(isa):
    program = "from aoext.library.info import build_config; print(build_config()['cpu instruction set'])"
    assert python(isa, "-c", program).stdout.strip() == isa


def test_an_unknown_instruction_set_is_named():
    done = python("sse9", "-c", "import aoext")
    assert "AOEXT_CPU_ISA must be one that this machine runs" in done.stderr
    assert "got sse9" in done.stderr
