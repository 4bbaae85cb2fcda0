"""benchmarks/int4_cuts: a tiny run times every configuration of every kernel and checks each result."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "int4_cuts" / "time_cuts.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the project's sources")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so() -> None:
    done = run("--m", "1")
    assert done.returncode == 1
    assert "there is no NVIDIA GPU here" in done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_every_configuration_is_right_and_timed(tmp_path: Path) -> None:
    options = ["--m", "3,40", "--shape", "256x1024", "--samples", "1", "--build-folder", str(tmp_path)]
    done = run(*options, "--json", str(tmp_path / "cuts.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    records = json.loads((tmp_path / "cuts.json").read_text())
    assert {(r["kernel"], r["M"]) for r in records} >= {("decode", 3), ("mma", 3), ("mma", 40)}
    for record in records:
        times = {tuple(config): us for config, us in record["us"]}
        assert tuple(record["plan"]) in times
        assert min(times.values()) > 0
