"""tools/ptxas.py: what it reads out of machine code, and that it fails on what it should.

cuobjdump and ptxas are stand-ins that print prepared text; .ci/run has the real ones look at the wheel of
cu130, in its turn.
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
LATER = ("sm_100", "sm_120")
FINE = "_ZN5aoext4cuda4fineILi2EEEvPf"
SPILLING = "_ZN5aoext4cuda12_GLOBAL__N__8spillingEPf"
THEIRS = "_ZN5other6kernelEPf"


def cubin(**stacks: int) -> str:
    lines = ["Resource usage:", " Common:"]
    for name, stack in stacks.items():
        lines += [
            f" Function {name}:",
            f"  REG:40 STACK:{stack} SHARED:1024 LOCAL:0 CONSTANT[0]:364 TEXTURE:0",
        ]
    return "\n".join(lines)


def code(architecture: str, **stacks: int) -> str:
    return "\n".join(["Fatbin elf code:", "================", f"arch = {architecture}", cubin(**stacks)])


# Gives a library's architectures of PTX, its PTX and its machine code, and what stands in a cubin.
CUOBJDUMP = """#!/bin/sh
case "$1 $3" in
  --list-ptx*) cat {folder}/listed ;;
  --extract-ptx*) cp {folder}/ptx x.1.sm_90.ptx ;;
  *) case "$2" in *.cubin) cat "$2" ;; *) cat {folder}/usage ;; esac ;;
esac
"""
# Its arguments: -arch=..., -o, the cubin, the PTX.
PTXAS = """#!/bin/sh
grep -q "^of ${1#-arch=}$" "$4" || exit 1
awk -v header="of ${1#-arch=}" '/^of / { on = $0 == header; next } on' "$4" > "$3"
"""


def look(
    folder: Path,
    usage: str,
    later: dict[str, int] | None = None,
    ptx: str = "PTX file    1: x.1.sm_90.ptx",
    name: str = "x.so",
    options: tuple[str, ...] = (),
) -> str:
    """The tool's output on a library of this machine code; its last line is the exit code.

    `later`: stack bytes of the kernel that ptxas makes of the PTX, by architecture.
    """
    stacks = later or dict.fromkeys(LATER, 0)
    (folder / "usage").write_text(usage)
    (folder / "listed").write_text(ptx)
    lines = (f"of {a}\n{cubin(**{FINE: stack})}" for a, stack in stacks.items())
    (folder / "ptx").write_text("\n".join(lines) + "\n")
    for tool, text in (("cuobjdump", CUOBJDUMP), ("ptxas", PTXAS)):
        (folder / tool).write_text(text.replace("{folder}", str(folder)))
        (folder / tool).chmod(0o755)
    library = folder / name
    if name.endswith(".whl"):
        with zipfile.ZipFile(library, "w") as archive:
            archive.writestr("aoext/lib/libaoext.so", b"")
    else:
        library.touch()
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, TOOL, library, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return f"{done.stdout}{done.stderr}\n{done.returncode}"


@pytest.mark.parametrize("name", ["x.so", "aoext-1-py3-none-any.whl"])
def test_kernels_without_spills_pass(name: str, tmp_path: Path) -> None:
    # A stack frame of another's kernel is none of ours.
    usage = "\n".join(code(architecture, **{FINE: 0, THEIRS: 64}) for architecture in ARCHITECTURES)
    output = look(tmp_path, usage, name=name)
    assert output.endswith("\n0"), output
    assert "fine<2>" in output
    assert "1 kernels, 6 with architectures, 0 spilling" in output


def test_a_spilling_kernel_is_named(tmp_path: Path) -> None:
    usage = "\n".join(
        code(architecture, **{FINE: 0, SPILLING: 400 * (architecture == "sm_80")})
        for architecture in ARCHITECTURES
    )
    output = look(tmp_path, usage)
    assert output.endswith("\n1"), output
    assert "400 bytes a thread on sm_80: aoext::cuda::spilling: SPILLS" in output


@pytest.mark.parametrize("architecture", LATER)
def test_a_kernel_that_spills_where_a_later_gpu_compiles_its_ptx_is_named(
    architecture: str, tmp_path: Path
) -> None:
    usage = "\n".join(code(name, **{FINE: 0}) for name in ARCHITECTURES)
    output = look(tmp_path, usage, {name: 64 * (name == architecture) for name in LATER})
    assert output.endswith("\n1"), output
    assert f"64 bytes a thread on {architecture}: aoext::cuda::fine<2>: SPILLS" in output
    assert "1 spilling" in output


def test_ptx_that_a_later_gpu_cannot_compile_is_an_error(tmp_path: Path) -> None:
    usage = "\n".join(code(name, **{FINE: 0}) for name in ARCHITECTURES)
    output = look(tmp_path, usage, {"sm_100": 0})
    assert output.endswith("\n1"), output
    assert "failed:" in output
    assert "-arch=sm_120" in output


def test_later_gpus_are_looked_at_that_are_asked_for(tmp_path: Path) -> None:
    usage = "\n".join(code(name, **{FINE: 0}) for name in ARCHITECTURES)
    for architecture, exit_code in (("sm_100", 0), ("sm_120", 1)):
        output = look(tmp_path, usage, {"sm_100": 0, "sm_120": 64}, options=("--later", architecture))
        assert output.endswith(f"\n{exit_code}"), output
        assert "1 kernels, 5 with architectures" in output


def test_excuses_hold_for_their_architectures_and_bytes_alone(tmp_path: Path) -> None:
    kernel = "_ZN5aoext4cuda8tinygemm9mm_kernelILi8ELi1ELi2EEEvNS1_5ShapeE"
    for architecture, stack, exit_code in (("sm_80", 8, 0), ("sm_80", 16, 1), ("sm_90", 8, 1)):
        usage = "\n".join(code(name, **{kernel: stack * (name == architecture)}) for name in ARCHITECTURES)
        output = look(tmp_path, usage)
        assert output.endswith(f"\n{exit_code}"), output


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


def test_architectures_that_were_not_compiled_for_are_not_missing(tmp_path: Path) -> None:
    usage = "\n".join(code(architecture, **{FINE: 0}) for architecture in ("sm_90", "sm_90a"))
    for capabilities, exit_code in (("90", 0), ("80;90", 1), ("ALL", 1)):
        output = look(tmp_path, usage, options=("--capabilities", capabilities))
        assert output.endswith(f"\n{exit_code}"), output
        assert ("no machine code for sm_80" in output) == bool(exit_code), output
