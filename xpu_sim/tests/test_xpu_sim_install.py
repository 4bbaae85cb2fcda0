"""Installing the simulator, or learning why it cannot be. (Processes cost seconds, so they are few.)"""

from __future__ import annotations

import pytest
import torch

xpu_sim = pytest.importorskip("xpu_sim")


def test_installing_again_does_nothing():
    stream, event = torch.xpu.Stream, torch.xpu.Event
    xpu_sim.install()
    assert torch.xpu.Stream is stream
    assert torch.xpu.Event is event
    assert xpu_sim.available() == (True, "")


BEFORE = """
import os, sys, torch, xpu_sim
from xpu_sim import _runtime

def refusal(kind):
    ok, reason = xpu_sim.available()
    assert not ok
    try:
        xpu_sim.install()
    except kind as error:
        assert str(error) == "xpu_sim: " + reason
        return reason

environment = dict(os.environ)
assert xpu_sim.available() == (True, ""), xpu_sim.available()
assert os.environ == environment
try:
    xpu_sim.fallbacks()
except RuntimeError as error:
    print(error)

find = _runtime._find
for missing in ("intel-sycl-rt", "intel-opencl-rt"):
    _runtime._find = lambda package, library: None if package == missing else find(package, library)
    print(refusal(ImportError))
_runtime._find = find

for has in ("_has_xpu", "_has_cuda"):
    setattr(torch._C, has, True)
    print(refusal(RuntimeError))
    setattr(torch._C, has, False)
version, torch.__version__ = torch.__version__, "2.0"
print(refusal(RuntimeError))
torch.__version__ = version

assert "libsycl" not in open("/proc/self/maps").read()
assert not torch.xpu.is_available()
assert torch.accelerator.current_accelerator() is None
print("nothing happened")
"""


def test_what_is_missing_is_said_and_nothing_is_loaded_before(run_python):
    done = run_python(BEFORE, OCL_ICD_FILENAMES="")
    assert done.returncode == 0, done.stderr
    not_installed, sycl, opencl, xpu, cuda, version, end = done.stdout.splitlines()
    assert not_installed == "xpu_sim: call xpu_sim.install() first"
    assert sycl == "libsycl is missing: pip install intel-sycl-rt intel-opencl-rt"
    assert opencl.startswith("the OpenCL CPU device (libintelocl.so) is missing: pip install intel-sycl-rt")
    assert xpu == f"torch {torch.__version__} has XPU support of its own; xpu_sim is for a torch of the CPU"
    assert "has CUDA support of its own" in cuda
    assert version == f"built for torch {torch.__version__}, this is 2.0: build it anew"
    assert end == "nothing happened"


def test_a_missing_opencl_device_is_named(run_python):
    done = run_python("import xpu_sim; xpu_sim.install()", OCL_ICD_FILENAMES="/nowhere/libintelocl.so")
    assert done.returncode != 0
    assert "RuntimeError: xpu_sim: SYCL finds no OpenCL CPU device; pip install" in done.stderr


LATE = """
import os, torch, torch._dynamo.device_interface
assert torch.accelerator.current_accelerator() is None
torch.manual_seed(1)

import xpu_sim
xpu_sim.install()
assert torch.accelerator.current_accelerator().type == "xpu"
assert torch.ones(1).pin_memory().is_pinned()
plus_one = torch.compile(lambda x: x + 1, backend="aot_eager")
assert plus_one(torch.ones(1, device="xpu")).item() == 2

if os.fork() == 0:
    try:
        torch.ones(1, device="xpu")
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
assert plus_one(torch.ones(1, device="xpu")).item() == 2
print("the parent lives")
"""


def test_a_late_install_works_and_a_forked_child_is_told_to_spawn(run_python):
    done = run_python(LATE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "xpu_sim: the device does not survive fork(); to use it in several processes, spawn them",
        "the parent lives",
    ]
