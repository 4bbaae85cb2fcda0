"""Compiles the Triton kernels that Inductor writes around our operators, for Intel GPUs and without one.

    python tools/isa/inductor.py

Inductor of the installed PyTorch compiles a Llama of each kind of scheme for a simulated XPU that claims to
be a GPU of Intel's; Intel's Triton makes SPIR-V of its kernels, in every configuration that Inductor would
try, and Intel's offline compiler machine code of that. Exits with 1 where a configuration does not compile
or makes calls, and where a kernel spills in all of them: Inductor measures them and keeps the fastest.
Nothing is launched.

A model is also packaged by AOTInductor, up to its C++ code, which must launch Triton kernels and call our C
functions. To compile that code needs Level Zero's headers and PyTorch's libtorch_xpu.

`make isa-inductor` installs what this needs: xpu_sim, and the only one of Intel's Tritons that PyPI has, 3.3,
which is older than the one that PyTorch's own index has for XPU. OCLOC names the offline compiler, as for
`make isa`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(sys.prefix) / "triton-xpu"))  # tools/environment.py puts it there
# Without this Inductor asks Triton for machine code of Data Center Max alone.
os.environ["TORCHINDUCTOR_XPU_KERNEL_FORMAT"] = "spv"

import torch
from ocloc import Compiler, Result, UnavailableError, build
from targets import TARGETS

DEVICES = ("bmg", "pvc", "lnl-m")
# What these have in common, as torch.xpu.get_device_properties tells it.
GPU = {
    "sub_group_sizes": [16, 32],
    "max_work_group_size": 1024,
    "max_num_sub_groups": 64,
    "gpu_eu_count": 160,
    "gpu_subslice_count": 20,
    "local_mem_size": 131072,
    "has_fp16": True,
    "has_fp64": True,
    "has_bfloat16_conversions": True,
    "has_subgroup_2d_block_io": True,
    "has_subgroup_matrix_multiply_accumulate": True,
}
# One of weights alone, one that quantises rows, one that quantises blocks.
SCHEMES = ("int4", "int8_dynamic", "float8_block")
TOKENS = 32


def intels_triton() -> None:
    """Let Triton compile for XPU with no driver there: binaries get handles that are never used."""
    import triton
    from triton.backends import Backend, backends
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase
    from triton.backends.intel import compiler

    class Architecture:
        """Its own is C++ on top of SYCL, which says what the device is called for queries of ocloc."""

        @staticmethod
        def parse_device_arch(_: int) -> str:
            return ""

    class Utils:
        def get_device_properties(self, _: int) -> dict[str, int]:
            return {"max_shared_mem": GPU["local_mem_size"], "multiprocessor_count": 20, "warpSize": 32}

        def load_binary(self, *_: Any) -> tuple[int, int, int, int]:
            return 0, 0, 0, 0  # module, kernel, registers, spills

    class Driver(DriverBase):
        utils = Utils()

        def __init__(self) -> None:
            pass

        @staticmethod
        def is_active() -> bool:
            return True

        def launcher_cls(self, *_: Any) -> Any:
            return lambda *arguments, **named: None

        def get_current_target(self) -> Any:
            return GPUTarget("xpu", torch.xpu.get_device_capability(), 32)

        def get_active_torch_device(self) -> torch.device:
            return torch.device("xpu")

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, _: int) -> int:
            return 0

        def get_benchmarker(self) -> Any:  # asked for by kernels of others that are only defined
            return None

    compiler.compile_module_from_src = lambda *_: Architecture
    backends["intel"] = Backend(compiler=compiler.XPUBackend, driver=Driver)
    triton.runtime.driver.set_active(Driver())


def simulated_gpu() -> None:
    import xpu_sim

    xpu_sim.install()
    asked = torch.xpu._get_device_properties
    torch.xpu._get_device_properties = lambda device: replace(asked(device), **GPU)


@dataclass(frozen=True)
class Binary:
    """A kernel in one of its configurations."""

    name: str
    configuration: str
    spirv: bytes


@contextmanager
def recorded(found: dict[tuple[str, str], Binary]) -> Iterator[None]:
    """Every kernel that Inductor compiles meanwhile; the first configuration counts as the fastest."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    theirs = CachingAutotuner._precompile_worker

    def precompile(kernel: Any) -> None:
        theirs(kernel)
        for result in kernel.compile_results:
            name, configuration = kernel.inductor_meta["kernel_name"], str(result.config)
            found[name, configuration] = Binary(name, configuration, result.kernel.asm["spv"])

    def first(kernel: Any, *_: Any, **__: Any) -> dict[Any, float]:
        return {launcher: float(i) for i, launcher in enumerate(kernel.launchers)}

    with (
        mock.patch.object(CachingAutotuner, "_precompile_worker", precompile),
        mock.patch.object(CachingAutotuner, "benchmark_all_configs", first),
        torch._inductor.config.patch(compile_threads=1, force_disable_caches=True),
    ):
        yield


def llama(scheme: str) -> torch.nn.Module:
    """One layer, whose rows are so long that Inductor reduces them in several pieces."""
    import transformers

    import aoext
    from aoext.configs.schemes import as_config

    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=2048,
        num_hidden_layers=1,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=512,
    )
    with torch.device("xpu"):
        model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    # An embedding by rows is one more loop of Inductor's own.
    aoext.quantize_(model, as_config("isa", scheme), quantize_embeddings=scheme == "int8_dynamic")
    return model


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(tokens, use_cache=False).logits


class GeneratedError(Exception):
    """The C++ code is there."""


def cpp_package(model: torch.nn.Module, tokens: torch.Tensor) -> str:
    """The C++ code of the model's package by AOTInductor."""
    from torch._inductor.codecache import AotCodeCompiler

    import aoext

    found: list[str] = []

    def stop(_: Any, wrapper: str, *__: Any, **___: Any) -> None:
        found.append(wrapper)
        raise GeneratedError

    program = torch.export.export(model, (tokens,))
    with mock.patch.object(AotCodeCompiler, "compile", staticmethod(stop)):
        try:
            torch._inductor.aoti_compile_and_package(program, inductor_configs=aoext.aoti_options())
        except Exception:  # Inductor wraps it
            if not found:
                raise
    return found[0]


def compiled(binaries: list[Binary], compiler: Compiler) -> Iterator[tuple[Binary, str, Result]]:
    """Each on each device."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        paths = [Path(folder) / f"{i}.spv" for i in range(len(binaries))]
        for path, binary in zip(paths, binaries, strict=True):
            path.write_bytes(binary.spirv)
        todo = [(b, p, d) for b, p in zip(binaries, paths, strict=True) for d in DEVICES]
        results = pool.map(lambda t: build(compiler, [t[1]], TARGETS[t[2]]), todo)
        for (binary, _, device), result in zip(todo, results, strict=True):
            yield binary, device, result


def problems_of(binary: Binary, device: str, result: Result) -> list[str]:
    where = f"{binary.name} ({binary.configuration}) on {device}"
    if result.error:
        return [f"{where} does not compile: {result.error}"]
    found = [] if binary.name in result.kernels else [f"{where}: there is no such kernel in its module"]
    return found + [f"{where}: stack calls" for kernel in result.kernels.values() if kernel.stack_calls]


def spills_of(results: list[tuple[Binary, str, Result]]) -> tuple[list[str], list[str]]:
    """Kernels that use memory in every configuration, and those that do so in some."""
    configurations: dict[tuple[str, str], list[bool]] = {}
    for binary, device, result in results:
        spills = any(kernel.scratch for kernel in result.kernels.values())
        configurations.setdefault((binary.name, device), []).append(spills)
    always = [f"{name} on {device} spills" for (name, device), s in configurations.items() if all(s)]
    sometimes = [
        f"{name} on {device} spills in {sum(s)} of {len(s)} configurations"
        for (name, device), s in configurations.items()
        if any(s) and not all(s)
    ]
    return always, sometimes


def problems_of_package(code: str, kernels: set[str], scheme: str) -> list[str]:
    import aoext

    body = code[code.index("::run_impl(") :]
    launched = set(re.findall(r"\bcall_(triton_\w+)\(", body))
    ours = re.findall(r"AOTI_TORCH_ERROR_CODE_CHECK\(aoti_torch_xpu_(\w+)\(", body)
    ours = [name for name in ours if name in aoext.ops.operators()]
    print(f"  package: {len(launched)} Triton kernels launched, {len(ours)} calls of our C functions")
    found = [f"the package of {scheme} launches no Triton kernel"] if not launched else []
    found += [f"the package of {scheme} launches {k}, which was not compiled" for k in launched - kernels]
    if len(ours) < 8:  # linears
        found.append(f"the package of {scheme} calls our C functions {len(ours)} times, for 8 linears")
    if "aoti_torch_proxy_executor_call_function" in body:
        found.append(f"the package of {scheme} calls operators by the proxy")
    return found


def main() -> int:
    try:
        compiler = Compiler()
    except UnavailableError as error:
        print(f"isa-inductor: SKIPPED, no offline compiler: {error}", file=sys.stderr)
        return int(os.environ.get("AOEXT_REQUIRE_ISA") == "1")
    simulated_gpu()
    intels_triton()
    tokens = torch.arange(TOKENS, device="xpu")[None]
    found: dict[tuple[str, str], Binary] = {}
    problems: list[str] = []
    with torch.no_grad(), recorded(found):
        for scheme in SCHEMES:
            begin, before = time.monotonic(), len(found)
            model = Logits(llama(scheme))
            torch._dynamo.reset()
            torch.compile(model, fullgraph=True)(tokens)
            took = time.monotonic() - begin
            print(f"{scheme}: {len(found) - before} new binaries, {took:.0f} s", flush=True)
            if scheme == SCHEMES[0]:
                code = cpp_package(model, tokens)
                problems += problems_of_package(code, {name for name, _ in found}, scheme)
    binaries = list(found.values())
    results = list(compiled(binaries, compiler))
    for binary, device, result in results:
        problems += problems_of(binary, device, result)
        for kernel in result.kernels.values():
            size = len(kernel.code.instructions)
            print(f"  {device:6} {kernel.registers:4} registers {size:5} instructions  {binary.name}")
    always, sometimes = spills_of(results)
    for note in sometimes:
        print(f"note: {note}")
    problems += always
    for problem in problems:
        print(f"isa-inductor: {problem}", file=sys.stderr)
    import triton

    names = len({binary.name for binary in binaries})
    what = f"{names} kernels in {len(binaries)} configurations on {', '.join(DEVICES)}"
    verdict = f"FAILED, {len(problems)} problems" if problems else "ok"
    print(f"isa-inductor: {verdict}: {what}; Triton {triton.__version__}, ocloc {compiler.version}")
    return int(bool(problems or not binaries))


if __name__ == "__main__":
    sys.exit(main())
