"""tools/ptxas.py: what it reads out of machine code, and that it fails on what it should.

cuobjdump is a stand-in that prints prepared text; .ci/run has the real one look at the wheel of cu130.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "ptxas.py"
pytestmark = pytest.mark.skipif(not TOOL.is_file(), reason="needs the project's sources")

ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_90a")
FINE = "_ZN5aoext4cuda4fineILi2EEEvPf"
SPILLING = "_ZN5aoext4cuda12_GLOBAL__N__8spillingEPf"
THEIRS = "_ZN5other6kernelEPf"


def code(architecture: str, **stacks: int) -> str:
    lines = ["Fatbin elf code:", "================", f"arch = {architecture}", "Resource usage:", " Common:"]
    for name, stack in stacks.items():
        lines += [
            f" Function {name}:",
            f"  REG:40 STACK:{stack} SHARED:1024 LOCAL:0 CONSTANT[0]:364 TEXTURE:0",
        ]
    return "\n".join(lines)


def look(folder: Path, usage: str, ptx: str = "PTX file    1: x.1.sm_90.ptx", name: str = "x.so") -> str:
    """The tool's output on a library of this machine code; its last line is the exit code."""
    stand_in = folder / "cuobjdump"
    stand_in.write_text(f"#!/bin/sh\nif [ $1 = --list-ptx ]; then echo '{ptx}'; else echo '{usage}'; fi\n")
    stand_in.chmod(0o755)
    library = folder / name
    if name.endswith(".whl"):
        with zipfile.ZipFile(library, "w") as archive:
            archive.writestr("aoext/lib/libaoext.so", b"")
    else:
        library.touch()
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, TOOL, library], env=environment, capture_output=True, text=True)
    return f"{done.stdout}{done.stderr}\n{done.returncode}"


@pytest.mark.parametrize("name", ["x.so", "aoext-1-py3-none-any.whl"])
def test_kernels_without_spills_pass(name: str, tmp_path: Path) -> None:
    # A stack frame of another's kernel is none of ours.
    usage = "\n".join(code(architecture, **{FINE: 0, THEIRS: 64}) for architecture in ARCHITECTURES)
    output = look(tmp_path, usage, name=name)
    assert output.endswith("\n0"), output
    assert "fine<2>" in output
    assert "1 kernels, 4 with architectures, 0 spilling" in output


def test_a_spilling_kernel_is_named(tmp_path: Path) -> None:
    usage = "\n".join(
        code(architecture, **{FINE: 0, SPILLING: 400 * (architecture == "sm_80")})
        for architecture in ARCHITECTURES
    )
    output = look(tmp_path, usage)
    assert output.endswith("\n1"), output
    assert "400 bytes a thread on sm_80: aoext::cuda::spilling: SPILLS" in output


def test_missing_architectures_are_named(tmp_path: Path) -> None:
    usage = "\n".join(code(architecture, **{FINE: 0}) for architecture in ("sm_80", "sm_90"))
    output = look(tmp_path, usage, ptx="PTX file    1: x.1.sm_90a.ptx")
    assert output.endswith("\n1"), output
    assert "no machine code for sm_89\nno machine code for sm_90a\nno PTX of compute_90" in output
    assert "PTX of sm_90a, which no later GPU takes" in output


def test_a_library_without_kernels_is_no_success(tmp_path: Path) -> None:
    output = look(tmp_path, code("sm_80", **{THEIRS: 0}))
    assert output.endswith("\n1"), output
    assert "holds no kernel of aoext::cuda::" in output
