"""Runs Intel's offline compiler for GPUs on an image."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from disassembly import Kernel, read_kernels
from targets import Target

SCRIPT = Path(__file__).parent.parent / "intel_gpu_compiler.sh"
FOLDER = Path("build") / "intel-gpu-compiler"


class UnavailableError(Exception):
    """There is no compiler here and none can be had."""


class Compiler:
    """The command `ocloc`: OCLOC names it, or a script of ours lays it into a folder."""

    def __init__(self) -> None:
        self.command = os.environ.get("OCLOC") or self._lay()
        with tempfile.TemporaryDirectory() as folder:  # it writes what it is asked into a file
            try:
                self.run("query", "OCL_DRIVER_VERSION", folder=Path(folder))
            except OSError as error:
                raise SystemExit(f"isa: cannot run OCLOC={self.command}: {error.strerror}") from error
            found = Path(folder) / "OCL_DRIVER_VERSION"
            self.version = found.read_text().strip() if found.is_file() else "unknown"

    @staticmethod
    def _lay() -> str:
        done = subprocess.run(["bash", SCRIPT, FOLDER], capture_output=True, text=True)
        if done.returncode != 0:
            raise UnavailableError(done.stderr.strip())
        return done.stdout.strip()

    def run(self, *arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [self.command, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder)


@dataclass
class Result:
    """An image on a device."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    error: str = ""  # why it does not build


def build(compiler: Compiler, modules: Iterable[Path], target: Target) -> Result:
    """Compile and disassemble an image's modules."""
    image = Result()
    for module in modules:
        result = _build_module(compiler, module, target)
        if result.error:
            return Result(error=f"{module.stem}: {result.error}")
        image.kernels.update(result.kernels)
    return image


def _build_module(compiler: Compiler, module: Path, target: Target) -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = ("-file", module.resolve(), "-spirv_input", "-device", target.name)
        output = ("-output", "module", "-output_no_suffix", "-out_dir", folder)
        compiled = compiler.run("compile", *arguments, *output)
        binary, dump = folder / "module.bin", folder / "dump"
        text = compiled.stdout + compiled.stderr
        if compiled.returncode != 0 or not binary.is_file():
            lines = [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines()[-1:]
            return Result(error=(lines or ["ocloc said nothing"])[0].strip())
        disassembled = compiler.run("disasm", "-file", binary, "-device", target.name, "-dump", dump)
        if not (dump / ".ze_info").is_file():
            last = (disassembled.stdout + disassembled.stderr).strip().splitlines()[-1:]
            return Result(error=f"cannot be disassembled: {''.join(last)}")
        kernels = read_kernels(dump)
    for name, warning in re.findall(r"in kernel '(?:__sycl_kernel_)?(\w+)': (.*)", text):
        if name in kernels:
            kernels[name].stack_calls |= "tack call" in warning
            kernels[name].compiled_twice |= "recompilation" in warning
    return Result(kernels)
