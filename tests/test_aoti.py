"""Packages by torch.export and AOTInductor, run from Python. docs/aoti.md's is in test_aoti_docs.py."""

from __future__ import annotations

import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aoext
from aoext.configs import QuantizationConfig
from aoext.formats.table import FORMATS, Code
from aoext.reference import ALL_CALLS, Problem, randn
from aoext_bench.tiny_lm import TinyLM, TinyLMConfig
from conftest import packages_run_on
from formats import bits

# What the wrapper's own speed costs to compile is of no interest here.
QUICK = {"aot_inductor.compile_wrapper_opt_level": "O0"}

SCHEMES: dict[str, QuantizationConfig] = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=32),
    "int8": aoext.Int8WeightOnlyConfig(),
    "int8-dynamic": aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": aoext.Float8WeightOnlyConfig(),
    "float8-dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(),
    "float8-block": aoext.Float8DynamicActivationFloat8WeightConfig(
        granularity=(aoext.PerBlock([1, 128]), aoext.PerBlock([128, 128]))
    ),
    "int4-int8": aoext.Int8DynamicActivationInt4WeightConfig(),
    "nvfp4": aoext.NVFP4WeightOnlyConfig(),
}
WEIGHT_ONLY = ("int4", "int8", "float8", "nvfp4")


@pytest.fixture(autouse=True)
def _packages_run(request: pytest.FixtureRequest) -> None:
    if "device" in request.fixturenames:
        device = request.getfixturevalue("device")
        if not packages_run_on(device):
            pytest.skip(f"nothing runs packages on a simulated {device.type}")


def compiled(program: torch.export.ExportedProgram, path: Path) -> Callable[..., Any]:
    options = {**aoext.aoti_options(), **QUICK}
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)
    return torch._inductor.aoti_load_package(str(path))


def source(package: Path) -> str:
    """The C++ code of a package without the declarations at its head."""
    with zipfile.ZipFile(package) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".wrapper.cpp"))
        text = archive.read(name).decode()
    return text[text.index("::run_impl(") :]


def assert_calls(package: Path, device: torch.device, operators: list[str]) -> None:
    """The code of a package calls the shims of just these operators, in any order, and no proxy."""
    code = source(package)
    names = re.findall(rf"AOTI_TORCH_ERROR_CODE_CHECK\(aoti_torch_{device.type}_(\w+)\(", code)
    ours = [name for name in names if name in aoext.ops.operators()]
    assert sorted(ours) == sorted(operators)
    assert "aoti_torch_proxy_executor_call_function" not in code
    with zipfile.ZipFile(package) as archive:  # where the proxy's calls are listed
        assert not [n for n in archive.namelist() if n.endswith(".wrapper.json")]


class Calls(nn.Module):
    """Calls of operators, one after the other, on tensors that are all inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.tensors: list[Tensor] = []

    def add(self, operator: str, *args: Any, **kwargs: Any) -> None:
        """A tensor is replaced by its number among the inputs."""
        self.calls.append((operator, tuple(map(self._put, args)), kwargs))

    def _put(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        self.tensors.append(value)
        return _Number(len(self.tensors) - 1)

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        results: list[Tensor] = []
        for operator, args, kwargs in self.calls:
            values = [tensors[a] if isinstance(a, _Number) else a for a in args]
            result = getattr(torch.ops.ao, operator)(*values, **kwargs)
            results += list(result) if isinstance(result, tuple) else [result]
        return results


class _Number(int):
    """The place of a tensor among the inputs."""


def every_operator(device: torch.device, generator: torch.Generator) -> Calls:
    """Every operator, with what may be None given and not, and a result that nobody reads."""
    calls = Calls()
    for make in ALL_CALLS.values():
        call = make(Problem(5, 24, 64, 32), generator)
        # Exponents as bytes, which operators take too: AOTInductor knows float8_e8m0fnu from torch 2.12 on.
        args = (
            a.view(torch.uint8) if getattr(a, "dtype", None) is torch.float8_e8m0fnu else a
            for a in call.on(device)
        )
        calls.add(call.operator, *args, **call.kwargs)
    x, w = (randn(generator, n, 64).to(device) for n in (3, 8))
    calls.add("quantize", x, torch.float8_e5m2)
    calls.add("quantize", x, torch.int8, [1, 16], power_of_two=True)
    values, scale = torch.ops.ao.quantize(w, torch.int8)
    calls.add("scaled_linear", x, values, scale, code=int(Code.INT8))
    calls.add("scaled_mm_rowwise", values, values, scale, scale)
    calls.add("scaled_mm_rowwise", values, values, scale, scale, None, out_dtype=torch.float16)
    packed = torch.randint(-128, 128, (8, 32), generator=generator, dtype=torch.int8).to(device)
    groups = torch.ones(2, 8, device=device)
    calls.add("dequantize", packed, groups, int(Code.INT4), None, groups)
    return calls


def own_loops(calls: Calls) -> list[tuple[Any, ...]]:
    """Calls that Inductor turns into loops of its own: dequantising a weight by scales of rows alone."""
    return [
        call
        for call in calls.calls
        if call[0] == "dequantize"
        and not FORMATS[Code(call[1][2])].is_packed
        and call[1][3:5] == (None, None)
    ]


def test_every_operator_is_called_directly_and_gives_the_bits_of_eager(device, generator, tmp_path):
    calls = every_operator(device, generator)
    path = tmp_path / "calls.pt2"
    run = compiled(torch.export.export(calls, (calls.tensors,)), path)
    by_rows = own_loops(calls)
    assert len(by_rows) == 1
    assert_calls(path, device, [call[0] for call in calls.calls if call not in by_rows])
    for result, expected in zip(run(calls.tensors), calls(calls.tensors), strict=True):
        assert result.dtype is expected.dtype
        assert torch.equal(bits(result), bits(expected))

    # What an operator refuses ends the run, with its text where this torch can tell it.
    spoilt = [t.narrow(-1, 0, t.shape[-1] - 1) if i == 1 else t for i, t in enumerate(calls.tensors)]
    told = hasattr(torch._C, "_get_exception_what") or torch.__version__ >= "2.13"
    with pytest.raises(RuntimeError, match="ao::bf16i4bf16_rowwise: weight must be" if told else "failed"):
        run(spoilt)


def one_block() -> TinyLM:
    """A language model of the tiny one's shapes, one block deep: what a scheme can do to a package shows."""
    with torch.random.fork_rng(devices=[]):
        return TinyLM(TinyLMConfig(layers=1)).bfloat16().eval()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_model_serves_every_batch_and_length_from_one_package(
    scheme, device, generator, tmp_path
):
    model = one_block().to(device)
    summary = aoext.quantize_(model, SCHEMES[scheme])
    batch, positions = torch.export.Dim("batch", max=8), torch.export.Dim("positions", max=512)
    example = torch.zeros(2, 9, dtype=torch.int64, device=device)
    program = torch.export.export(model, (example,), dynamic_shapes=({0: batch, 1: positions},))
    path = tmp_path / "model.pt2"
    run = compiled(program, path)

    if scheme in WEIGHT_ONLY:
        assert_calls(path, device, 7 * ["weight_only_linear"])
    else:
        # q, k and v quantise their input once, and so do gate and up, whole rows on CUDA in the norm's own
        # loop; the others stay whole.
        calls = 5 * ["scaled_mm"] + 2 * ["scaled_linear"]
        if device.type != "cuda" or scheme == "float8-block":
            calls += 2 * ["quantize"]
        assert_calls(path, device, calls)

    for shape in ((1, 1), (3, 17), (8, 5), (1, 512)):
        tokens = torch.randint(256, shape, generator=generator).to(device)
        with torch.no_grad():
            result, expected = run(tokens).double(), model(tokens).double()
        assert result.shape == expected.shape
        # Inductor rounds to bfloat16 less often than eager does, and a rounding may move an 8-bit value:
        # the steps of float8 are up to 1/8 wide.
        error = (result - expected).norm() / expected.norm()
        assert error < (5e-2 if scheme in ("float8-dynamic", "float8-block") else 2e-2), (
            f"{shape}: {error:.1e}"
        )

    constants = constant_bytes(path, tmp_path)
    # Constants of equal bits are kept once: tables of 16 values, and global scales that happen to be equal.
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    repeated = [getattr(weight, name, None) for weight in weights for name in ("table", "global_scale")]
    once = sum(field.nbytes for field in repeated if field is not None)
    assert summary.model_bytes_after - once <= constants < 1.02 * summary.model_bytes_after
    assert constants < 0.6 * summary.model_bytes_before


def constant_bytes(package: Path, directory: Path) -> int:
    """The bytes of the weights in a package, in the section where AOTInductor puts them."""
    with zipfile.ZipFile(package) as archive:
        library = archive.extract(next(n for n in archive.namelist() if n.endswith(".so")), directory)
    sections = subprocess.run(["readelf", "-SW", library], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\.lrodata\s+PROGBITS\s+\w+\s+\w+\s+(\w+)", sections)
    assert found, sections
    return int(found[1], 16)


def test_the_options_are_those_of_every_operator_and_go_with_others():
    options = aoext.aoti_options()
    shims = options["aot_inductor.custom_ops_to_c_shims"]
    assert {str(op) for op in shims} == {f"ao.{operator}.default" for operator in aoext.ops.operators()}
    handles = ", ".join(4 * ["AtenTensorHandle"])
    assert shims[torch.ops.ao.scaled_mm_rowwise.default][1] == (
        f"AOTITorchError aoti_torch_cuda_scaled_mm_rowwise({handles}, AtenTensorHandle*, int32_t*, "
        "AtenTensorHandle*)"
    )
    assert not set(options) & set(QUICK)
