"""benchmarks/cuts: a tiny run times configurations of every kernel and checks each result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aoext import ops

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "cuts" / "time_cuts.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the project's sources")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so() -> None:
    done = run("--gpu", "H200", "--m", "1")
    assert done.returncode == 1
    assert "there is no NVIDIA GPU here" in done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.skipif(not ops._has_plans(), reason="aoext was built without CUDA")
@pytest.mark.parametrize(
    ("format", "decode", "mma"),
    [
        ("int4", "int4_ring", "int4_mma"),
        ("int8", "rowwise_decode", "rowwise_mma"),
        ("float8", "rowwise_decode", "rowwise_mma"),
        ("int8-weight-only", "rowwise_decode", "rowwise_mma"),
        ("float8-weight-only", "rowwise_decode", "rowwise_mma"),
        ("mxfp4", "fp4_decode", "blocks_mma"),
        ("nvfp4", "fp4_decode", "blocks_mma"),
        ("mxfp8", "blocks_decode", "blocks_mma"),
    ],
)
def test_configurations_are_right_and_timed(format: str, decode: str, mma: str, tmp_path: Path) -> None:
    gpu = "H200" if torch.cuda.get_device_capability() == (9, 0) else "A100"
    options = ["--m", "3,40", "--shape", "256x1024", "--samples", "1", "--most", "8"]
    done = run("--gpu", gpu, "--format", format, *options, "--json", str(tmp_path / "cuts.jsonl"))
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "cuts.jsonl").read_text().splitlines()]
    assert {(r["kernel"], r["M"]) for r in records} >= {(decode, 3), (mma, 3), (mma, 40)}
    for record in records:
        times = {tuple(config): us for config, us in record["us"]}
        assert tuple(record["plan"]) in times
        assert len(times) <= 8
        assert min(times.values()) > 0
