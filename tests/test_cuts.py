"""benchmarks/cuts: a tiny run times every configuration of every kernel and checks each result."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "cuts" / "time_cuts.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the project's sources")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def cuts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("time_cuts", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so() -> None:
    done = run("--m", "1")
    assert done.returncode == 1
    assert "there is no NVIDIA GPU here" in done.stderr


@pytest.mark.parametrize("M", [1, 16, 64, 300])
def test_every_kernel_has_candidates_of_one_length(cuts: ModuleType, M: int) -> None:
    candidates = cuts.Candidates(cuts.Gpu(132, 232448, 1), SimpleNamespace(M=M, N=4096, K=4096))
    for kernel in cuts.KERNELS:
        if kernel == "int4_batch" and M > 64:
            continue
        configs = list(candidates.of(kernel))
        assert configs
        assert len({len(config) for config in configs}) == 1
        assert all(isinstance(value, int) for config in configs for value in config)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_every_configuration_is_right_and_timed(cuts: ModuleType, tmp_path: Path) -> None:
    for format, kernels in cuts.FORMATS.items():
        options = ["--m", "3,40", "--shape", "256x1024", "--samples", "1", "--build-folder", str(tmp_path)]
        done = run("--format", format, *options, "--json", str(tmp_path / "cuts.json"))
        assert done.returncode == 0, done.stdout + done.stderr
        records = json.loads((tmp_path / "cuts.json").read_text())
        decode, mma = kernels[:2]
        assert {(r["kernel"], r["M"]) for r in records} >= {(decode, 3), (mma, 3), (mma, 40)}
        for record in records:
            times = {tuple(config): us for config, us in record["us"]}
            assert tuple(record["plan"]) in times
            assert min(times.values()) > 0
