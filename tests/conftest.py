"""Fixtures of all tests: the devices at hand, and fresh random numbers from a printed seed."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# OpenMP's threads sleep while they wait: several processes with a thread for each core run these tests, and
# one that spins keeps off its core the thread that it waits for. OpenMP reads this when torch loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# And each process takes its share of the cores, or their threads wait for each other. Tests that ask what
# threads do set their number; below sanitizers and from wheels the operators run with a thread for each core.
if processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))

import pytest
import torch
from torch.autograd import forward_ad


def _simulated_xpu() -> ModuleType | None:
    """xpu_sim, which makes the device xpu real, or None where an Intel GPU does, or where it is missing."""
    if os.environ.get("AOEXT_SIMULATE_XPU") == "0":  # below AddressSanitizer SYCL finds no device
        return None
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return None
    try:
        import xpu_sim
        from xpu_sim import available  # which the folder of that name has not, where pytest was started
    except ImportError:
        return None
    if not available()[0]:
        return None
    # Kernels are compiled once, and not by each process of a run.
    os.environ.setdefault("XPU_SIM_PROGRAMS", str(Path(__file__).parent.parent / "build" / "xpu_programs"))
    xpu_sim.install()
    xpu_sim.canaries(True)
    return xpu_sim


XPU_SIM = _simulated_xpu()  # before aoext is imported: its kernels go to the simulator's queues
# `make test-inductor-xpu` puts a Triton on the path, which interprets what Inductor writes for that device.
INTERPRETED = XPU_SIM is not None and importlib.util.find_spec("triton") is not None
if XPU_SIM and INTERPRETED:
    XPU_SIM.install_triton()

import aoext  # noqa: E402
import selection  # noqa: E402

SEED = int(os.environ.setdefault("AOEXT_TEST_SEED", str(torch.seed() % 2**31)))  # of all processes


def devices() -> dict[str, bool]:
    """Every device that has tests, and whether it is here."""
    return {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "xpu": hasattr(torch, "xpu") and torch.xpu.is_available(),
    }


def pytest_report_header(config: pytest.Config) -> list[str]:
    present = [name for name, here in devices().items() if here]
    missing = [name for name, here in devices().items() if not here]
    simulated = f" (xpu is simulated, {'with' if INTERPRETED else 'without'} Inductor)" if XPU_SIM else ""
    return [
        f"aoext devices: {', '.join(present)}{simulated}; missing, so their tests do not run: "
        f"{', '.join(missing) or 'none'}",
        f"aoext seed: AOEXT_TEST_SEED={SEED}",
    ]


def pytest_configure(config: pytest.Config) -> None:
    required = set(filter(None, os.environ.get("AOEXT_REQUIRE_DEVICES", "").split(",")))
    here = devices() | {"inductor-xpu": INTERPRETED or (devices()["xpu"] and XPU_SIM is None)}
    absent = {name for name in required if not here.get(name, False)}
    if absent:
        raise pytest.UsageError(f"AOEXT_REQUIRE_DEVICES names {sorted(absent)}, which this machine lacks")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    repeated = selection.repetitions(items, XPU_SIM is not None)
    config.hook.pytest_deselected(items=repeated)
    left_out = set(repeated)
    items[:] = [item for item in items if item not in left_out]
    selection.mark_quick(items)
    selection.longest_first(items)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Processes of a run ask nobody how often a test died: before each test pytest-rerunfailures asks the
    one that started them, which takes 20 ms. A test that ends its process is reported, and not repeated.
    """
    if hasattr(session.config, "workerinput") and hasattr(session.config, "failures_db"):
        from pytest_rerunfailures import StatusDB  # a wheel's tests do without it

        session.config.failures_db = StatusDB()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names what `--reruns` repeated: tests that fail with some random numbers, each a fault to be mended."""
    repeated = terminalreporter.stats.get("rerun", [])
    if repeated:
        terminalreporter.section(f"failed, and were repeated with other random numbers (seed {SEED})")
    for report in repeated:
        terminalreporter.line(f"{report.nodeid}: {report.longreprtext.strip().splitlines()[-1]}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Garbage is not looked for in what was imported: benchmarks collect it before each measurement."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=[name for name, here in devices().items() if here])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


# What another process has to run before it can use the devices of this one.
INSTALL = "install_triton" if INTERPRETED else "install"
PRELUDE = f"import xpu_sim; xpu_sim.{INSTALL}()\n" if XPU_SIM else ""


def compiler_for(device: torch.device) -> str:
    """The backend of torch.compile: Inductor has a compiler for a simulated device where Triton is."""
    return "aot_eager" if XPU_SIM and device.type == "xpu" and not INTERPRETED else "inductor"


def packages_run_on(device: torch.device) -> bool:
    """Whether AOTInductor's do: nothing simulates libtorch_xpu and Level Zero, which they are linked with."""
    return not (XPU_SIM and device.type == "xpu")


def zero_point_slack(x: torch.Tensor, N: int, group_size: int, zero_over_scale: float) -> float:
    """Bounds that such zero points may cost: CUDA's kernels for many rows round them with their weights."""
    K = x.shape[1]
    weight = torch.empty(N, K // 2, dtype=torch.int8, device=x.device)
    groups = torch.empty(K // group_size, N, dtype=x.dtype, device=x.device)
    plan = aoext.explain("bf16i4bf16_rowwise", x, weight, groups, groups)
    rounds = plan.kernel in ("int4_wgmma", "int4_mma")
    return max(1, zero_over_scale / 8) if rounds else 1


@contextlib.contextmanager
def on_the_device_alone() -> Iterator[None]:
    """Fails where a simulated XPU hands ATen operators to the CPU meanwhile, or writes around its blocks."""
    if XPU_SIM is None:
        yield
        return
    before = XPU_SIM.fallbacks()
    yield
    after = XPU_SIM.fallbacks()
    assert after == before, {
        name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name)
    }
    XPU_SIM.check_canaries()


def _dispatch_state() -> tuple[Any, ...]:
    """What PyTorch keeps for this thread that a transform, or a kernel that raised, might leave changed."""
    keys = ("FuncTorchDynamicLayerFrontMode", "AutogradCPU", "Python", "PythonTLSSnapshot", "ADInplaceOrView")
    excluded = [torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in keys]
    return torch._C._functorch.peek_interpreter_stack(), forward_ad._current_level, excluded


def _programs() -> dict[str, str | None]:
    """What the environment says of programs and libraries, which those that tests start go by."""
    return {name: os.environ.get(name) for name in ("PATH", "LD_LIBRARY_PATH", "CC", "CXX", "LDFLAGS")}


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    """The test that leaves a transform, a guard or another compiler behind fails, and not those after it."""
    before = _dispatch_state(), _programs()
    yield
    assert (_dispatch_state(), _programs()) == before


@pytest.fixture(autouse=True)
def default_dtype() -> Iterator[None]:
    """AOEXT_TEST_DEFAULT_DTYPE=bfloat16 runs tests as a program runs that sets it. Tests that rely on another
    default themselves fail then.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, os.environ.get("AOEXT_TEST_DEFAULT_DTYPE", "float32")))
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number that differs from run to run, and again where `--reruns` repeats a test; failures show it.

    `AOEXT_TEST_SEED` set to it repeats what the test did.
    """
    seed = SEED + getattr(request.node, "execution_count", 1) - 1
    print(f"AOEXT_TEST_SEED={seed}")
    return seed


@pytest.fixture
def generator(request: pytest.FixtureRequest, seed: int) -> torch.Generator:
    """Random numbers that differ from run to run and from test to test."""
    return torch.Generator().manual_seed(seed + sum(request.node.nodeid.encode()))


def environment_of_programs() -> dict[str, str]:
    """This process's, for programs that open the library before aoext has opened what it needs.

    A build with kernels for Intel GPUs needs libsycl and oneDNN, which pip puts into the environment's lib.
    """
    return {**os.environ, "LD_LIBRARY_PATH": str(Path(sysconfig.get_path("data")) / "lib")}


def script_of_benchmarks(path: str) -> ModuleType:
    """A program of benchmarks/ as a module; the test is skipped where the sources are not here."""
    script = Path(__file__).parent.parent / "benchmarks" / path
    if not script.is_file():
        pytest.skip("needs the project's sources")
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def loaded_libraries(file: Path) -> str:
    """The names of all libraries that a program or library loads, without their directories and addresses.

    A directory may be called after Python, and an address may well read 0x7f6fc101e000.
    """
    listed = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
    return " ".join(Path(line.split()[0]).name for line in listed.splitlines())
