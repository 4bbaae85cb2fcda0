"""torch.compile for Intel GPUs without one: Inductor writes Triton as for them, Triton's interpreter runs it.

`make test-inductor-xpu` runs these tests, and those of other files that compile on `xpu`. Our operators run
the kernels that they always run there; the interpreter runs Inductor's.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sysconfig
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import config, cpp_builder
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

import aoext
from aoext.configs.schemes import SCHEMES, as_config
from aoext.inductor.passes import rewrites
from aoext.reference import randn, rowwise_values
from conftest import INTERPRETED, XPU_SIM
from formats import bits
from test_aoti import QUICK, every_operator, own_loops, source
from test_aoti_shims import new_handles, tensor

if not INTERPRETED:
    pytest.skip("there is no Triton for the simulated xpu: make test-inductor-xpu", allow_module_level=True)
test_transformers = pytest.importorskip("test_transformers")

ao = torch.ops.ao
XPU = torch.device("xpu")
BF16 = torch.bfloat16

# Those that quantise their input too.
DYNAMIC = {"int8_dynamic", "float8_dynamic", "float8_block", "mxfp8", "int4_int8", "int4_float8"}
LAYERS = 2  # of test_transformers.llama


def calls_of(scheme: str) -> Counter[str]:
    """What compiled code of the model calls: 7 linears in a layer and the head.

    q, k and v quantise their input once, and so do gate and up.
    """
    if scheme not in DYNAMIC:
        return Counter({"weight_only_linear": 7 * LAYERS + 1})
    return Counter(
        {
            "quantize": 2 * LAYERS,
            "scaled_mm": 5 * LAYERS,
            "scaled_linear": 2 * LAYERS + 1,
        }
    )


def body(code: str) -> str:
    """Generated code without its head, where kernels are defined that bear operators' names too."""
    return code[code.index("def call(") :]


def relative_error(result: Tensor, expected: Tensor) -> float:
    result, expected = result.cpu().double(), expected.cpu().double()
    return float((result - expected).norm() / expected.norm())


@pytest.fixture(autouse=True)
def _fresh(generator):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(generator.initial_seed())
    with config.patch(force_disable_caches=True):
        yield


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_llama_of_every_scheme_gives_the_logits_of_eager(scheme, generator):
    assert SCHEMES.keys() >= DYNAMIC
    model = test_transformers.llama().to(XPU)
    options = {"group_size": 32} if scheme in ("int4", "int4_float8") else {}
    aoext.quantize_(model, as_config("test", {"scheme": scheme, **options}))
    tokens = torch.randint(test_transformers.VOCABULARY, (2, 12), generator=generator).to(XPU)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
        XPU_SIM.reset_fallbacks()
        result, (code,) = run_and_get_code(lambda: compiled(tokens, use_cache=False).logits)
    # The products of attention are PyTorch's own kernels, which a simulated device has from the CPU.
    assert XPU_SIM.fallbacks() == {"aten::bmm": 2 * LAYERS}
    XPU_SIM.check_canaries()
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    names = re.findall(r"torch\.ops\.ao\.(\w+)\.default\(", body(code))
    assert Counter(names) == calls_of(scheme)
    assert "@triton.jit" in code
    # Inductor rounds to bfloat16 less often than eager does, and a rounding may move an 8-bit value: the
    # steps of float8 are up to 1/8 wide.
    error = relative_error(result, expected)
    assert error < (5e-2 if scheme in DYNAMIC and "int8" not in scheme else 2e-2), f"{error:.1e}"


def test_the_passes_find_what_they_find_elsewhere(generator):
    w, s = (t.to(XPU) for t in rowwise_values((48,), 64, torch.int8, generator))
    group_scale, zero = (torch.rand(2, 48, generator=generator).to(XPU, BF16) for _ in range(2))
    packed = torch.randint(-128, 128, (48, 32), generator=generator, dtype=torch.int8).to(XPU)
    bias = randn(generator, 48, dtype=BF16).to(XPU)
    x = randn(generator, 5, 64, dtype=BF16).to(XPU)

    def function(x: Tensor) -> list[Tensor]:
        x = F.silu(x)
        q, scale = ao.quantize(x, torch.int8)
        return [
            F.linear(x, ao.dequantize(packed, group_scale, 0, None, zero), bias),
            F.linear(x, w.to(BF16) * s.to(BF16)),
            (torch._int_mm(q, w.t()).float() * scale).to(BF16) * s.reshape(-1).to(BF16),
        ]

    rewrites.clear()
    with torch.no_grad():
        results, (code,) = run_and_get_code(torch.compile(function, fullgraph=True), x)
        expected = function(x)
    found = Counter(re.findall(r"torch\.ops\.ao\.(\w+)\.default\(", body(code)))
    assert found == {
        "weight_only_linear": 2,
        "quantize": 1,
        "scaled_mm": 1,
    }
    assert rewrites["weight_only"] == 2
    assert rewrites["scaled_products"] == 1
    for result, other in zip(results, expected, strict=True):
        assert relative_error(result, other) < 2e-2


@pytest.mark.parametrize("scheme", ["int4", "int8_dynamic"])
def test_gradients_of_a_compiled_model_are_those_of_eager(scheme, generator):
    model = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32)).to(XPU, BF16)
    options = {"group_size": 32} if scheme == "int4" else {}
    aoext.quantize_(model, as_config("test", {"scheme": scheme, **options}))
    x = randn(generator, 6, 64, dtype=BF16)
    gradients = []
    for run in (model, torch.compile(model, fullgraph=True)):
        model.zero_grad()
        leaf = x.to(XPU).requires_grad_()
        y = run(leaf)
        y.float().square().mean().backward()
        gradients.append((y.detach(), leaf.grad, model[0].weight.grad))
    for result, expected in zip(*reversed(gradients), strict=True):
        assert relative_error(result, expected) < 3e-2


class StopError(Exception):
    """Code is generated; what comes next needs a device."""


def cpp_of(compile_it: Callable[[], Any], where: Any, name: str, position: int) -> str:
    """The code that `where.name` would be given, and compile."""
    found: list[str] = []

    def stop(*arguments: Any, **_: Any) -> None:
        found.append(arguments[position])
        raise StopError

    with mock.patch.object(where, name, staticmethod(stop)), pytest.raises(Exception, match=r"StopError|^$"):
        compile_it()
    return found[-1]


def assert_calls_shims(code: str, operators: list[str]) -> None:
    """The code calls the shims of exactly these operators, and nothing goes by the dispatcher."""
    called = re.findall(r"AOTI_TORCH_ERROR_CODE_CHECK\(aoti_torch_xpu_(\w+)\(", code)
    assert sorted(name for name in called if name in aoext.ops.operators()) == sorted(operators)
    assert "aoti_torch_proxy_executor_call_function" not in code
    assert "custom_op_wrapper" not in code


def test_the_cpp_wrapper_calls_every_operator_by_its_shim(generator):
    calls = every_operator(XPU, generator)
    options = {"cpp_wrapper": True, **aoext.aoti_options()}
    compiled = torch.compile(calls, fullgraph=True, options=options)
    with torch.no_grad():
        code = cpp_of(lambda: compiled(calls.tensors), GraphLowering, "save_output_code", 0)
    by_rows = own_loops(calls)
    assert len(by_rows) == 1
    assert_calls_shims(code, [call[0] for call in calls.calls if call not in by_rows])
    assert "dequantize" in code


def open_stand_ins(folder: Path) -> None:
    """Make, in a new folder, the libraries that a package is linked with and no CPU has, and open them."""
    folder.mkdir()
    code = Path(__file__).parent / "aoti_xpu" / "stand_ins.cpp"
    for name in ("libtorch_xpu.so", "libze_loader.so"):
        command = ["g++", "-shared", "-fPIC", code, "-o", folder / name, f"-Wl,-soname,{name}"]
        subprocess.run(command, check=True)
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)


def run_package(package: Path, inputs: list[Tensor], count: int) -> list[Tensor]:
    """By the C functions that its library exports: PyTorch's own runner for XPU is in libtorch_xpu."""
    with zipfile.ZipFile(package) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".so"))
        library = ctypes.CDLL(archive.extract(name, package.parent))
    container, outputs = ctypes.c_void_p(), (ctypes.c_void_p * count)()
    one, many = ctypes.c_size_t(1), ctypes.c_size_t(len(inputs))
    code = library.AOTInductorModelContainerCreateWithDevice(ctypes.byref(container), one, b"xpu:0", None)
    assert code == 0
    stream = ctypes.c_void_p(torch.xpu.current_stream().sycl_queue)
    given = (ctypes.c_void_p * len(inputs))(*new_handles(inputs))  # which it takes over
    code = library.AOTInductorModelContainerRun(
        container, given, many, outputs, ctypes.c_size_t(count), stream, None
    )
    assert code == 0
    results = [tensor(ctypes.c_void_p(output)) for output in outputs]
    assert library.AOTInductorModelContainerDelete(container) == 0
    return results


def test_a_package_of_every_operator_runs_and_gives_the_bits_of_eager(generator, tmp_path, monkeypatch):
    """Compiled by AOTInductor for XPU, but for its own loops: Level Zero loads their kernels on a GPU."""
    calls = every_operator(XPU, generator)
    calls.calls = [call for call in calls.calls if call[0] != "dequantize"]  # Inductor makes a loop
    open_stand_ins(tmp_path / "lib")
    data = Path(sysconfig.get_path("data"))  # where pip puts SYCL
    monkeypatch.setenv("CPATH", f"{Path(__file__).parent / 'aoti_xpu'}:{data / 'include'}")
    monkeypatch.setenv("LIBRARY_PATH", f"{tmp_path / 'lib'}:{data / 'lib'}")
    monkeypatch.setattr(cpp_builder, "find_library", lambda name: name)  # of Level Zero's loader

    program = torch.export.export(calls, (calls.tensors,))
    package = tmp_path / "calls.pt2"
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(package), inductor_configs={**aoext.aoti_options(), **QUICK}
    )
    assert_calls_shims(source(package), [name for name, _, _ in calls.calls])
    expected = calls(calls.tensors)
    results = run_package(package, calls.tensors, len(expected))
    XPU_SIM.check_canaries()
    for result, other in zip(results, expected, strict=True):
        assert result.device == other.device
        assert torch.equal(bits(result), bits(other))
