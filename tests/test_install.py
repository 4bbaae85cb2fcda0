"""Every way to install the project gives an `import aoext` that finds its library."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs the project's sources")

# Ways that share a build, which compiles for minutes.
WAYS = {
    "isolated": [["."]],
    "not isolated": [["--no-build-isolation", "."], ["--no-build-isolation", "--editable", "."]],
}


def virtual_environment(folder: Path) -> Path:
    """The Python of one without aoext that shares this one's torch and build tools."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    (Path(site) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
def test_an_installed_aoext_imports_and_computes(ways, tmp_path):
    settings = [
        f"--config-settings=build-dir={tmp_path / 'build'}",
        # Minutes of compilers that change nothing here; wheels are built with them.
        "--config-settings=cmake.define.AOEXT_CUDA=OFF",
        "--config-settings=cmake.define.AOEXT_SYCL=OFF",
    ]
    program = (
        "import aoext, torch\n"
        "from aoext.library.loading import find_library\n"
        "x = torch.eye(4, dtype=torch.int8)\n"
        "assert torch.equal(torch.ops.ao.int8_mm(x, x), x.int())\n"
        "print(aoext.__file__, find_library(aoext.__path__))"
    )
    for number, way in enumerate(ways):
        python = virtual_environment(tmp_path / f"venv{number}")
        pip = [sys.executable, "-m", "pip", "--python", python]
        subprocess.run([*pip, "install", "--quiet", "--no-deps", *settings, *way], cwd=ROOT, check=True)
        done = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        source, library = done.stdout.split()
        assert str(tmp_path / f"venv{number}") in library
        assert (str(ROOT) in source) == ("--editable" in way)


def configure(
    python: Path, build: Path, *options: str, cmake: str | Path = "cmake", **variables: str
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [cmake, "-S", ROOT, "-B", build, f"-DPython_EXECUTABLE={python}", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", **variables},
    )


def test_a_device_that_cannot_be_built_is_a_configure_error(tmp_path):
    """In an environment without the SYCL packages: AUTO leaves the device out, ON says what to install."""
    environment = virtual_environment(tmp_path / "venv")
    plain = configure(environment, tmp_path / "plain")
    assert plain.returncode == 0, plain.stderr
    assert "SYCL OFF" in plain.stdout
    for options, message in (
        (["-DAOEXT_CUDA=ON"], r"AOEXT_CUDA=ON, but no CUDA compiler was found: install the CUDA toolkit"),
        (
            ["-DAOEXT_CUDA=AUTO", "-DAOEXT_SYCL=ON"],
            r"AOEXT_SYCL=ON, but the SYCL headers or oneDNN's were not found: pip install",
        ),
        (["-DAOEXT_CUDA=perhaps"], r"AOEXT_CUDA must be AUTO, ON or OFF, got perhaps"),
    ):
        done = configure(environment, tmp_path / "build", *options, CUDACXX="/nonexistent/nvcc")
        assert done.returncode != 0
        assert re.search(message, re.sub(r"\s+", " ", done.stderr)), done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("generator", "code_of"),  # what code a choice of GPUs comes to is the same for any generator
    [("Ninja", {"90": "sm_90", "86;80": "sm_80", "120": "compute_90"}), ("Unix Makefiles", {"90": "sm_90"})],
    ids=["Ninja", "Unix Makefiles"],
)
def test_a_build_can_be_configured_again_with_cuda(generator, code_of, tmp_path):
    """And for other GPUs; a device that comes in recompiles next to nothing of the others."""
    build, path = tmp_path / "build", f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def commands(*options: str) -> dict[str, str]:
        done = configure(
            Path(sys.executable), build, f"-G{generator}", "-DAOEXT_SYCL=OFF", *options, PATH=path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        entries: list[dict[str, Any]] = json.loads((build / "compile_commands.json").read_text())
        return {entry["file"]: entry["command"] for entry in entries}

    without = commands("-DAOEXT_CUDA=OFF")
    everything = commands("-DAOEXT_CUDA=ON")
    assert commands("-DAOEXT_CUDA=ON") == everything
    changed = [Path(file).name for file, command in without.items() if everything[file] != command]
    # The latter two are the shim's, which is compiled with the options of its devices' parts.
    assert set(changed) <= {"build_config.cpp", "check.cpp", "cpu.cpp"}
    kernel = next(file for file in everything if file.endswith("kernels/int4_any.cu"))
    for capabilities, code in code_of.items():
        compiled = re.findall(
            r"code=\[([\w,]+)\]", commands(f"-DAOEXT_CUDA_ARCHITECTURES={capabilities}")[kernel]
        )
        assert compiled == [code]
    refused = configure(Path(sys.executable), build, "-DAOEXT_CUDA_ARCHITECTURES=75", PATH=path)
    assert "must be ALL or a list of compute capabilities from 80 on" in re.sub(r"\s+", " ", refused.stderr)


def test_the_oldest_cmake_that_is_promised_configures_every_device(tmp_path):
    promised = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", (ROOT / "CMakeLists.txt").read_text())
    oldest = promised[1]
    assert f'"cmake>={oldest}"' in (ROOT / "pyproject.toml").read_text()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "cmake"]
    subprocess.run([*install, f"cmake=={oldest}.*"], check=True)
    program = tmp_path / "cmake" / "cmake" / "data" / "bin" / "cmake"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith(f"cmake version {oldest}.")
    nvcc = shutil.which("nvcc")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    device = f"-DAOEXT_CUDA={'ON' if nvcc else 'OFF'}"
    done = configure(Path(sys.executable), tmp_path / "build", "-GNinja", device, cmake=program, PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    entries = json.loads((tmp_path / "build" / "compile_commands.json").read_text())
    assert [
        entry["file"] for entry in entries if not re.search(r"-std=(c|gnu)\+\+20 ", entry["command"])
    ] == []
    assert any(entry["file"].endswith(".cu") for entry in entries) == bool(nvcc)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """tools/environment.py as a module."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("environment")


def chosen(tool: Any, what: str, record: Any, *capabilities: str) -> tuple[str, ...]:
    options = tool.options_for(what, record, list(capabilities))
    return tuple(options[f"AOEXT_{name}"] for name in ("CUDA", "CUDA_ARCHITECTURES", "SYCL"))


def test_the_demo_builds_what_runs_here_and_the_tests_build_everything(tool):
    assert chosen(tool, "demo", tool.Record()) == ("OFF", "ALL", "OFF")
    assert chosen(tool, "demo", tool.Record(), "80", "90") == ("ON", "80;90", "OFF")
    for what in ("develop", "test"):
        assert chosen(tool, what, tool.Record()) == ("AUTO", "ALL", "AUTO")


def test_the_demo_takes_the_library_of_the_tests_and_the_tests_complete_the_demos(tool):
    everything = {"AOEXT_CUDA": "AUTO", "AOEXT_CUDA_ARCHITECTURES": "ALL", "AOEXT_SYCL": "AUTO"}
    for built in ({"AOEXT_CUDA": "ON", "AOEXT_SYCL": "ON"}, {"AOEXT_CUDA": "OFF", "AOEXT_SYCL": "OFF"}):
        tested = tool.Record(options=everything, built=built)
        assert tool.options_for("demo", tested, ["90"]) == everything
    shown = tool.Record(
        options={"AOEXT_CUDA": "ON", "AOEXT_CUDA_ARCHITECTURES": "90", "AOEXT_SYCL": "OFF"},
        built={"AOEXT_CUDA": "ON", "AOEXT_SYCL": "OFF"},
    )
    assert tool.options_for("test", shown, []) == everything


def test_a_choice_about_the_environment_holds(tool):
    record = tool.Record(chosen={"AOEXT_CUDA": "OFF", "AOEXT_SYCL": "ON", "TORCH": "torch"})
    assert chosen(tool, "demo", record, "90") == ("OFF", "90", "ON")
    assert chosen(tool, "test", record) == ("OFF", "ALL", "ON")


def test_the_tools_of_the_demo_are_a_part_of_the_developers(tool):
    needed = {*tool.bench_requirements(), *tool.requirements("build")}
    assert needed < {*tool.requirements("dev"), *tool.bench_requirements()}
    assert any(requirement.startswith("click") for requirement in needed)
    large = ("intel", "onednn", "transformers", "torchao", "mypy", "clang")
    assert not [requirement for requirement in needed if requirement.startswith(large)]
    assert re.fullmatch(r"torch==[\d.]+", tool.pinned_torch())


def test_aoext_bench_has_the_version_of_the_aoext_that_it_measures():
    version = (ROOT / "VERSION").read_text().strip()
    project = (ROOT / "benchmarks" / "pyproject.toml").read_text()
    assert f'\nversion = "{version}"' in project
    assert f'"aoext[cli]=={version}"' in project
