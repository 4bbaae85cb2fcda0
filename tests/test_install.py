"""Every way to install the project gives an `import aoext` that finds its library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs the project's sources")

WAYS = {
    "isolated": ["."],
    "no_build_isolation": ["--no-build-isolation", "."],
    "editable": ["--no-build-isolation", "--editable", "."],
}


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment without aoext that shares this one's torch and build tools."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    (Path(site) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.parametrize("way", WAYS)
def test_an_installed_aoext_imports_and_computes(way, environment, tmp_path):
    settings = [
        f"--config-settings=build-dir={tmp_path / 'build'}",
        # Minutes of nvcc that change nothing here; the wheel of cu130 is built with it.
        "--config-settings=cmake.define.AOEXT_CUDA=OFF",
    ]
    subprocess.run(
        [environment, "-m", "pip", "install", "--quiet", "--no-deps", *settings, *WAYS[way]],
        cwd=ROOT,
        check=True,
    )
    program = (
        "import aoext, torch\n"
        "from aoext._library import find_library\n"
        "x = torch.eye(4, dtype=torch.int8)\n"
        "assert torch.equal(torch.ops.ao.int8_mm(x, x), x.int())\n"
        "print(aoext.__file__, find_library(aoext.__path__))"
    )
    done = subprocess.run([environment, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    source, library = done.stdout.split()
    assert str(tmp_path / "venv") in library
    assert (str(ROOT) in source) == (way == "editable")


def configure(python: Path, build: Path, *options: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["cmake", "-S", ROOT, "-B", build, f"-DPython_EXECUTABLE={python}", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", **variables},
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "-DAOEXT_CUDA=ON",
            r"AOEXT_CUDA=ON, but no CUDA compiler was found: install the CUDA toolkit",
        ),
        (
            "-DAOEXT_SYCL=ON",
            r"AOEXT_SYCL=ON, but the SYCL headers or oneDNN's were not found: pip install",
        ),
        ("-DAOEXT_CUDA=perhaps", r"AOEXT_CUDA must be AUTO, ON or OFF, got perhaps"),
    ],
)
def test_a_device_that_cannot_be_built_is_a_configure_error(option, message, environment, tmp_path):
    """In an environment without the SYCL packages: AUTO leaves the device out, ON says what to install."""
    plain = configure(environment, tmp_path / "plain")
    assert plain.returncode == 0, plain.stderr
    assert "SYCL OFF" in plain.stdout
    done = configure(environment, tmp_path / "build", option, CUDACXX="/nonexistent/nvcc")
    assert done.returncode != 0
    assert re.search(message, re.sub(r"\s+", " ", done.stderr)), done.stderr
