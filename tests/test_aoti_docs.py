"""docs/aoti.md, every command of it, and the C++ program of examples/cpp_runner that it ends with."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import aoext
from aoext_bench.tiny_lm import load_tiny_lm
from conftest import devices, environment_of_programs, loaded_libraries, packages_run_on

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "aoti.md").read_text(encoding="utf-8")
PROMPT = "def main("
HERE = [torch.device(name) for name, here in devices().items() if here]
DEVICES = [device.type for device in HERE if packages_run_on(device)]

Finished = subprocess.CompletedProcess


def run(*command: object, directory: Path) -> Finished:
    """Commands find this Python, and the tools that came with it, before others."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # The speed of a package's own code is of no interest here.
    quick = {"AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0"}
    words = [str(c) for c in command]
    return subprocess.run(
        words,
        cwd=directory,
        env={**environment_of_programs(), "PATH": path, **quick},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def outputs(device: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The directory in which the page's commands were run, one after the other, and what each printed.

    The page is written for the CPU, and every other device follows it with its own name.
    """
    scripts = Path(sys.executable).parent
    if not (scripts / "cmake").exists() and shutil.which("cmake") is None:
        pytest.skip("docs/aoti.md cannot be followed without CMake")
    directory = tmp_path_factory.mktemp(f"aoti_{device}")
    (directory / "examples").symlink_to(ROOT / "examples")
    commands = {"python": [sys.executable, "-c"], "sh": ["bash", "-euo", "pipefail", "-c"]}
    printed = []
    for language, code in re.findall(r"```(python|sh)\n(.*?)```", PAGE, re.DOTALL):
        code = code.replace('device = "cpu"', f'device = "{device}"')
        done = run(*commands[language], code, directory=directory)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        printed.append(done.stdout)
    return directory, printed


@pytest.fixture(scope="session")
def directory(outputs: tuple[Path, list[str]]) -> Path:
    return outputs[0]


def generate(directory: Path, *arguments: object) -> Finished:
    return run(directory / "build" / "cpp_runner" / "generate", *arguments, directory=directory)


def test_the_page_ends_with_a_text_that_cpp_and_python_agree_on(outputs):
    _, (*_, from_python, _, from_cpp) = outputs
    assert from_cpp.startswith(PROMPT)
    assert len(from_cpp.strip("\n")) > len(PROMPT)
    assert from_cpp.startswith(from_python.rstrip("\n"))


def test_a_text_longer_than_the_context_goes_on_from_its_end(directory, device):
    long = "x = 1\n" * 100
    done = generate(directory, aoext.library_path(), "tiny.pt2", long, 3)
    assert done.returncode == 0, done.stderr
    model = torch._inductor.aoti_load_package(str(directory / "tiny.pt2"))
    text = long.encode()
    for _ in range(3):
        text += bytes([model(torch.tensor([list(text[-512:])], device=device))[0, -1].argmax()])
    assert done.stdout == text.decode() + "\n"


def test_no_python_is_in_the_program_nor_in_what_it_loads(directory):
    package = next((directory / "unpacked").rglob("*.so"), None) or unpack(directory)
    program = directory / "build" / "cpp_runner" / "generate"
    for file in (program, aoext.library_path(), package):
        needed = loaded_libraries(file)
        assert "libtorch_cpu.so" in needed
        assert "python" not in needed


def unpack(directory: Path) -> Path:
    with zipfile.ZipFile(directory / "tiny.pt2") as package:
        package.extractall(directory / "unpacked")
    return next((directory / "unpacked").rglob("*.so"))


def changed(directory: Path, name: str, **metadata: str | None) -> Path:
    """The package with other metadata; None takes an entry away."""
    with zipfile.ZipFile(directory / "tiny.pt2") as old, zipfile.ZipFile(directory / name, "w") as new:
        for item in old.infolist():
            content = old.read(item)
            if item.filename.endswith("_metadata.json"):
                entries = json.loads(content) | metadata
                content = json.dumps({k: v for k, v in entries.items() if v is not None}).encode()
            # The folder in a package goes by the name of its file.
            new.writestr(item.filename.replace("tiny/", f"{Path(name).stem}/", 1), content)
    return directory / name


def missing_device() -> str:
    return "cuda" if not torch.cuda.is_available() else "xpu"


@pytest.mark.parametrize(
    ("code", "arguments", "text"),
    [
        (2, [], r"^generate: usage: generate libaoext.so model.pt2 PROMPT \[BYTES\]$"),
        (2, ["LIBRARY", "tiny.pt2", ""], r"^generate: usage: "),
        (2, ["LIBRARY", "tiny.pt2", "x", "1", "2"], r"^generate: usage: "),
        (2, ["LIBRARY", "tiny.pt2", "x", "0"], r"^generate: BYTES must be a positive number, got '0'$"),
        (2, ["LIBRARY", "tiny.pt2", "x", "7b"], r"^generate: BYTES must be a positive number, got '7b'$"),
        (3, ["./libno.so", "tiny.pt2", "x"], r"^generate: cannot load the library: ./libno.so: cannot open"),
        (3, ["./tiny.pt2", "tiny.pt2", "x"], r"^generate: cannot load the library: ./tiny.pt2: invalid ELF"),
        (4, ["LIBRARY", "no.pt2", "x"], r"^generate: no package at no.pt2$"),
        (4, ["LIBRARY", ".", "x"], r"^generate: no package at \.$"),
        (4, ["LIBRARY", "text.pt2", "x"], r"^generate: cannot load text.pt2: .*zip"),
        (4, ["LIBRARY", "half.pt2", "x"], r"^generate: cannot load half.pt2: .*zip"),
        (
            4,
            ["LIBRARY", "other.pt2", "x"],
            r"^generate: cannot load other.pt2: its metadata has no `context`$",
        ),
        (
            4,
            ["LIBRARY", "odd.pt2", "x"],
            r"^generate: its metadata `context` must be a positive number, got 'y'$",
        ),
        (
            5,
            ["LIBRARY", "far.pt2", "x"],
            r"^generate: the package was compiled for DEVICE, which is not here: ",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line_and_by_the_exit_code(directory, code, arguments, text):
    whole = (directory / "tiny.pt2").read_bytes()
    (directory / "text.pt2").write_text("not a package")
    (directory / "half.pt2").write_bytes(whole[: len(whole) // 2])
    changed(directory, "other.pt2", context=None)
    changed(directory, "odd.pt2", context="y")
    changed(directory, "far.pt2", AOTI_DEVICE_KEY=missing_device())
    done = generate(directory, *[aoext.library_path() if a == "LIBRARY" else a for a in arguments])
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert re.search(text.replace("DEVICE", missing_device()), done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_package_without_the_library_says_what_is_missing(directory):
    program = "import torch; torch._inductor.aoti_load_package('tiny.pt2')"
    done = run(sys.executable, "-c", program, directory=directory)
    assert done.returncode == 1
    assert re.search(r"libaoext\.so: cannot open shared object file", done.stderr)


def test_the_package_holds_the_weights_as_they_were_quantised(directory):
    """3.7 of 4 million parameters take 4.25 bits; the rest and the tables of angles take 16."""
    model = load_tiny_lm()
    summary = aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=128))
    sections = run("readelf", "-SW", unpack(directory), directory=directory).stdout
    constants = int(re.search(r"\.lrodata\s+\S+\s+\S+\s+\S+\s+(\w+)", sections)[1], 16)
    assert summary.model_bytes_after <= constants < 1.01 * summary.model_bytes_after
    assert constants < 0.3 * summary.model_bytes_before
