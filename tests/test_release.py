"""What a release publishes: indices that pip reads, a wheel without a label, the notes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


ARM = "manylinux_2_17_aarch64.manylinux2014_aarch64"


def make_wheel(folder: Path, version: str, platform: str = "linux_x86_64") -> Path:
    """A package of one file under the project's name."""
    name = f"aoext-{version}"
    wheel = folder / f"{name}-py3-none-{platform}.whl"
    files = {
        "aoext_probe.py": "answer = 42\n",
        f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: aoext\nVersion: {version}\n",
        f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n"
        "Tag: py3-none-linux_x86_64\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{name}.dist-info/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in {**files, f"{name}.dist-info/RECORD": record}.items():
            archive.writestr(file, text)
    return wheel


def index(dist: Path, target: Path, tag: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "index.py", dist, target, "--tag", tag]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    dist = tmp_path / "dist"
    dist.mkdir()
    for variant in ("cpu", "cu130"):
        make_wheel(dist, f"7.8.9+{variant}")
    make_wheel(dist, "7.8.9+cpu", ARM)
    done = index(dist, tmp_path / "index", "v7.8.9")
    assert done.returncode == 0, done.stderr
    return tmp_path / "index"


def test_pip_reads_the_index_of_a_device(released: Path, tmp_path: Path) -> None:
    """By its hashes, and no other device's wheel is there."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path / "got"]
    url = (released / "cu130").as_uri()
    done = subprocess.run([*command, "--index-url", url, "aoext"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "got").iterdir()] == [
        "aoext-7.8.9+cu130-py3-none-linux_x86_64.whl"
    ]


def test_the_wheel_for_pypi_is_whole_and_has_no_label(released: Path, tmp_path: Path) -> None:
    wheel, of_arm = sorted((released / "pypi").glob("*.whl"))
    assert of_arm.name == f"aoext-7.8.9-py3-none-{ARM}.whl"
    assert wheel.name == "aoext-7.8.9-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert "Version: 7.8.9\n" in archive.read("aoext-7.8.9.dist-info/METADATA").decode()
        rows = archive.read("aoext-7.8.9.dist-info/RECORD").decode().splitlines()
        assert {row.split(",")[0] for row in rows} == set(archive.namelist())
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        tmp_path / "site",
        wheel,
    ]
    assert subprocess.run(command).returncode == 0
    assert (tmp_path / "site" / "aoext_probe.py").read_text() == "answer = 42\n"


def test_the_notes_are_of_the_changelog(released: Path) -> None:
    text = (released / "notes.md").read_text()
    assert text.strip()
    assert text in (ROOT / "CHANGELOG.md").read_text() + "\n"


def test_a_tag_of_another_version_is_refused(tmp_path: Path) -> None:
    make_wheel(tmp_path, "7.8.9+cpu")
    done = index(tmp_path, tmp_path / "index", "v7.9.0")
    assert done.returncode == 1
    assert "must be aoext 7.9.0" in done.stderr


def test_the_index_says_the_hashes_of_its_wheels(released: Path) -> None:
    page = (released / "cpu" / "aoext" / "index.html").read_text()
    wheels = list((released / "cpu" / "aoext").glob("*.whl"))
    assert len(wheels) == 2
    for wheel in wheels:
        assert f"sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}" in page
