"""tools/division_cases.cpp: on CUDA quantize_rowwise divides as IEEE does, in all cases that are hard."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "tools" / "division_cases.cpp"


@pytest.mark.skipif(not SOURCE.is_file(), reason="needs the project's sources")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_no_quotient_is_rounded_wrongly(tmp_path: Path) -> None:
    program = tmp_path / "division_cases"
    options = ["-O2", "-march=native", "-ffp-contract=off"]
    subprocess.run(["g++", *options, str(SOURCE), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    found = re.fullmatch(r"(\d+) hard cases, (\d+) others: 0 wrong\n", done.stdout)
    assert found, done.stdout
    assert int(found[1]) > 90_000_000
