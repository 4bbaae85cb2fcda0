"""What tools/cross.py knows of platforms, against what is compiled for them."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

cross = importlib.import_module("cross")


def test_every_instruction_set_of_aarch64_has_a_cpu_that_runs_none_better() -> None:
    """Its list is in the order of choice, of which `portable` stands beside all."""
    source = (ROOT / "csrc" / "cpu" / "isa.cpp").read_text(encoding="utf-8")
    table = source[source.index("kInstructionSets[]") :]
    of_arm = table[table.index("__aarch64__") :].split("#endif")[0]
    names = re.findall(r"\{Isa::(\w+),", of_arm)
    isas = cross.PLATFORMS["aarch64"].isas
    assert names == list(isas)
    assert len({variables["QEMU_CPU"] for variables in isas.values()}) == len(names)
    build = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    assert all(re.search(rf"^ *aoext_instruction_set\({name}\b", build, re.MULTILINE) for name in names)


def test_what_compilers_and_systems_do_differently_has_one_home() -> None:
    """But for what is compiled for SPIR-V alone, and the header of another library."""
    others = ("common/portability", "sycl/kernels/", "int4pack_shim/")
    differs = re.compile(r"__attribute__|<dlfcn\.h>|__builtin_cpu_supports|_WIN32")
    found = [
        path.relative_to(ROOT / "csrc").as_posix()
        for path in (ROOT / "csrc").rglob("*")
        if path.suffix in (".h", ".cpp") and differs.search(path.read_text(encoding="utf-8"))
    ]
    assert any(name.startswith("common/portability") for name in found)
    assert not [name for name in found if not name.startswith(others)]


def test_an_empty_dist_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cross, "ROOT", tmp_path)
    monkeypatch.setattr(cross.Target, "install", lambda self: None)
    monkeypatch.setattr(cross, "unpack_packages", lambda *arguments: None)
    with pytest.raises(SystemExit, match="must have a wheel for aarch64"):
        cross.Target("aarch64").unpack_wheel()
