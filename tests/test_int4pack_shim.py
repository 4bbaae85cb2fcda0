"""libaoext_int4pack_shim.a: weight_int4pack_mm on tensors that are not torch's, in programs without torch."""

from __future__ import annotations

import functools
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import aoext
from aoext import reference
from aoext.library.info import build_config
from aoext.library.loading import find_library
from aoext.reference import Problem
from conftest import loaded_libraries
from test_cpu_isa import OTHERS

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "tests" / "int4pack_shim"
INCLUDE = ROOT / "csrc" / "int4pack_shim" / "include"
PAGE = ROOT / "docs" / "int4pack_shim.md"
SANITIZE = os.environ.get("AOEXT_SANITIZE", "")  # what the library was compiled with: tools/sanitize.sh

pytestmark = [
    pytest.mark.skipif(not SOURCES.is_dir(), reason="needs the project's sources"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

# M, N, K, group_size, inner_k_tiles: every layout with every group size, rows that plans tell apart.
PRODUCTS = [
    (M, N, K, group_size, inner)
    for inner in (2, 4, 8)
    for group_size in (32, 64, 128, 256)
    for M, N, K in [(1, 8, 256), (3, 40, 768), (16, 264, 512), (17, 24, 256), (33, 72, 512)]
] + [
    (0, 24, 128, 64, 8),
    (5, 0, 128, 64, 8),
    (0, 0, 128, 64, 8),
    (7, 16, 96, 32, 2),
    (20, 136, 1024, 128, 4),
    (64, 104, 320, 32, 2),
    (65, 40, 640, 128, 8),
    (130, 520, 256, 64, 8),
    (2, 1032, 4096, 128, 8),
]


def archive() -> Path:
    return find_library(aoext.__path__).with_name("libaoext_int4pack_shim.a")


def libraries(device: str) -> list[str]:
    """What a program for a device links beside the archive."""
    if device == "cuda":
        cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
        return [f"-I{cuda}/include", f"-L{cuda}/lib64", "-lcudart_static", "-ldl", "-lrt"]
    if device == "xpu":
        prefix = Path(sys.prefix)
        options = [
            "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING",
            f"-isystem{prefix}/include",
            "-Wno-deprecated-declarations",
        ]
        return [*options, f"-L{prefix}/lib", "-lsycl", f"-Wl,-rpath,{prefix}/lib"]
    return []


def compile_program(source: Path, program: Path, device: str) -> Path:
    sanitize = [f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=undefined"] if SANITIZE else []
    command = ["g++", "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *sanitize, f"-I{INCLUDE}"]
    command += [f"-DAOEXT_TEST_DEVICE={device}", str(source), str(archive()), *libraries(device)]
    done = subprocess.run([*command, "-pthread", "-o", str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return program


def run(program: Path, *arguments: str | Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    environment |= {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    done = subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def is_compiled_in(device: str) -> bool:
    return device == "cpu" or build_config()[{"cuda": "cuda", "xpu": "sycl"}[device]] == "ON"


@pytest.fixture(scope="module")
def program_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """device -> tests/int4pack_shim/main.cpp, compiled for it at first use."""
    folder = tmp_path_factory.mktemp("int4pack_shim")

    @functools.cache
    def compiled(device: str) -> Path:
        return compile_program(SOURCES / "main.cpp", folder / f"main_{device}", device)

    return compiled


@pytest.fixture
def program(device: torch.device, program_for: Callable[[str], Path]) -> Path:
    part = {"cpu": "cpu", "cuda": "cuda", "xpu": "sycl"}[device.type]
    if part != "cpu" and build_config()[part] != "ON":
        pytest.skip(f"aoext was built without {device.type}")
    return program_for(device.type)


def raw(t: torch.Tensor) -> bytes:
    return bytes(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


def write_products(path: Path, device: torch.device, generator: torch.Generator) -> None:
    """A file for `main products` with what the operator gives."""
    with path.open("wb") as file:
        file.write(struct.pack("q", len(PRODUCTS)))
        for M, N, K, group_size, inner in PRODUCTS:
            call = reference.weight_int4pack_mm(Problem(M, N, K, group_size), generator, inner)
            x, packed, _, scales = call.on(device)
            y = torch.ops.ao.weight_int4pack_mm(x, packed, group_size, scales)
            file.write(struct.pack("5q", M, N, K, group_size, inner))
            for tensor in (x, packed, scales, y):
                file.write(raw(tensor))


def test_products_are_those_of_the_operator(program, device, generator, tmp_path):
    write_products(tmp_path / "products", device, generator)
    assert run(program, "products", tmp_path / "products") == f"products: {len(PRODUCTS)}, failed: 0\n"


def test_a_wrong_product_is_noticed(program, device, generator, tmp_path):
    """The program above can fail: the lowest bit of the last number is turned."""
    write_products(tmp_path / "products", device, generator)
    content = bytearray((tmp_path / "products").read_bytes())
    content[-2] ^= 1
    (tmp_path / "products").write_bytes(content)
    done = subprocess.run([program, "products", tmp_path / "products"], capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED: 2 x 1032 x 4096" in done.stdout


def test_every_failure_is_told_and_leaves_nothing(program):
    said = run(program, "failures")
    assert said.endswith("failed: 0\n")
    assert "allocations of the traits" in said


@pytest.mark.skipif(bool(SANITIZE), reason="sanitizers bring symbols of their own")
def test_neither_program_nor_archive_knows_torch(program):
    needed = loaded_libraries(program)
    assert "libstdc++" in needed
    assert not re.search(r"torch|c10|python", needed), needed
    symbols = subprocess.run(["nm", "-u", "-C", archive()], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"torch|aoti|c10|Py", symbols), re.findall(r".*(?:torch|aoti|c10|Py).*", symbols)


def test_the_symbols_belong_to_the_program_alone(program, device):
    """torch exports one of them for its own tensors, so libaoext.so must not."""
    symbol = f"aoti_torch_{device.type}__weight_int4pack_mm"

    def defined(*arguments: str | Path) -> str:
        return subprocess.run(["nm", *arguments], capture_output=True, text=True, check=True).stdout

    assert f" T {symbol}\n" in defined("--defined-only", program)
    assert "__weight_int4pack_mm" not in defined("-D", "--defined-only", find_library(aoext.__path__))
    assert "__weight_int4pack_mm" not in defined("--defined-only", archive())


@pytest.mark.parametrize("isa", OTHERS)
def test_another_instruction_set_gives_the_bits_of_the_operator_with_it(isa):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "those and cpu",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "AOEXT_CPU_ISA": isa})
    assert done.returncode == 0, done.stdout[-4000:]
    assert "1 passed" in done.stdout


def test_an_unknown_instruction_set_is_named(program_for):
    environment = {**os.environ, "AOEXT_CPU_ISA": "sse9"}
    done = subprocess.run([program_for("cpu"), "failures"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "__weight_int4pack_mm: aoext: AOEXT_CPU_ISA must be one that this machine runs" in done.stdout


def test_the_example_of_the_page_compiles_and_runs(tmp_path):
    (example,) = re.findall(r"```cpp\n(// example.cpp.*?)```", PAGE.read_text(), re.DOTALL)
    source = tmp_path / "example.cpp"
    source.write_text(example)
    options = ["-fno-exceptions", "-fno-rtti"] if not SANITIZE else [f"-fsanitize={SANITIZE}"]
    command = ["g++", "-std=c++17", *options, "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", str(source)]
    subprocess.run([*command, str(archive()), "-o", str(tmp_path / "example")], check=True)
    said = run(tmp_path / "example")
    (wanted,) = re.findall(r"```console\n\$ \./example\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert said == wanted
