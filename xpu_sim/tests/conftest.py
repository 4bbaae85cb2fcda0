"""The simulated device for all tests of this folder, and fresh random numbers from a printed seed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

try:
    import xpu_sim

    AVAILABLE, REASON = xpu_sim.available()
except (ImportError, AttributeError) as error:  # not installed, this folder is taken for the package
    AVAILABLE, REASON = False, str(error)

if AVAILABLE:
    xpu_sim.install()  # here, since PyTorch counts its devices at the first backward pass of the process

SEED = int(os.environ.get("XPU_SIM_TEST_SEED", torch.seed() % 2**31))


def pytest_report_header() -> str:
    return f"xpu_sim: XPU_SIM_TEST_SEED={SEED}" if AVAILABLE else f"xpu_sim: not available, skipped: {REASON}"


@pytest.fixture(autouse=True)
def fresh_simulator(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test starts with idle devices, device 0 and its default stream, and ends without damage."""
    if not AVAILABLE:
        pytest.skip(f"xpu_sim: {REASON}")
    print(f"XPU_SIM_TEST_SEED={SEED}")
    torch.manual_seed(SEED + sum(request.node.nodeid.encode()))
    torch.xpu.synchronize(0)
    torch.xpu.synchronize(1)
    xpu_sim.reset_fallbacks()
    yield
    assert torch.xpu.current_device() == 0
    assert torch.xpu.current_stream().stream_id == 0
    xpu_sim.check_canaries()


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess]:
    """Runs a script in a Python process of its own."""

    def run(script: str, **environment: str) -> subprocess.CompletedProcess:
        command, env = [sys.executable, "-c", script], {**os.environ, **environment}
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)

    return run
