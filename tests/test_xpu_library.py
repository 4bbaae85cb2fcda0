"""A library with kernels for Intel GPUs: what it finds and loads, and what it says where that is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import aoext
from aoext.library.info import build_config
from aoext.library.loading import check_libsycl, find_library, needed_for_xpu

ROOT = Path(__file__).parent.parent

with_sycl = pytest.mark.skipif(build_config()["sycl"] != "ON", reason="aoext was built with AOEXT_SYCL=OFF")


@pytest.fixture(scope="module")
def library() -> Path:
    return find_library(aoext.__path__)


def run_python(program: str, **variables: str) -> subprocess.CompletedProcess:
    """A process that finds libraries as a user's does."""
    inherited = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**inherited, **variables}
    )


def install_xpu() -> str:
    """The line of a program that gives it XPU tensors; skips where there is no way to have them."""
    xpu_sim = pytest.importorskip("xpu_sim", reason="xpu_sim is not installed")
    available, why = xpu_sim.available()
    if available:
        return "import xpu_sim; xpu_sim.install()"
    if torch.xpu.is_available():
        return ""
    pytest.skip(f"no XPU: {why}")


def dynamic_section(library: Path) -> str:
    return subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout


@with_sycl
def test_libsycl_and_onednn_are_what_it_needs(library):
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic_section(library)))
    assert set(needed_for_xpu(library)) == {
        name for name in needed if name.startswith(("libsycl", "libdnnl"))
    }
    assert len(needed_for_xpu(library)) == 2


def without_search_path(library: Path, folder: Path) -> Path:
    """The library somewhere else, with a search path as long as its own that leads nowhere."""
    found = re.search(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic_section(library))[1].encode()
    elsewhere = folder / "libaoext.so"
    elsewhere.write_bytes(library.read_bytes().replace(found, b"/" * len(found)))
    return elsewhere


@with_sycl
def test_libsycl_and_onednn_are_found_without_a_search_path(library, tmp_path):
    elsewhere = without_search_path(library, tmp_path)
    done = run_python("import aoext\nprint(open('/proc/self/maps').read())", AOEXT_LIBRARY=str(elsewhere))
    assert done.returncode == 0, done.stderr
    for name in (*needed_for_xpu(library), str(elsewhere)):
        assert name in done.stdout


def test_a_build_without_sycl_needs_nothing_of_it(library):
    if build_config()["sycl"] != "ON":
        assert needed_for_xpu(library) == []
    assert needed_for_xpu(Path(torch._C.__file__)) == []


@with_sycl
def test_kernels_run_without_the_compiler_that_made_them():
    done = run_python(
        f"{install_xpu()}\n"
        "import aoext, torch\n"
        "from pathlib import Path\n"
        "w = torch.randint(-128, 128, (64, 64), dtype=torch.int8, device='xpu')\n"
        "scale, zero_point = torch.rand(2, 2, 64, dtype=torch.bfloat16).to('xpu')\n"
        "for M in (1, 40):\n"
        "    x = torch.randn(M, 128, dtype=torch.bfloat16, device='xpu')\n"
        "    torch.ops.ao.bf16i4bf16_rowwise(x, w, scale, zero_point).cpu()\n"
        "    torch.ops.ao.quantize(x, torch.int8)[1].cpu()\n"
        "print(Path('/proc/self/maps').read_text())"
    )
    assert done.returncode == 0, done.stderr
    assert "libsycl.so" in done.stdout
    assert "libsycl-jit" not in done.stdout


@with_sycl
def test_import_without_libsycl_says_what_to_install(library, tmp_path):
    elsewhere = without_search_path(library, tmp_path)
    (tmp_path / "sitecustomize.py").write_text(  # an environment without the packages that bring them
        "import importlib.metadata\nimportlib.metadata.files = lambda package: None\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run_python("import aoext", AOEXT_LIBRARY=str(elsewhere), PYTHONPATH=path)
    assert done.returncode == 1
    assert re.search(
        r"ImportError: aoext: this build has kernels for Intel GPUs and needs libsycl\.so\.\d+ and "
        r"libdnnl\.so\.\d+, but lib(sycl|dnnl)\.so\.\d+ was not found: pip install 'aoext\[xpu\]' "
        r"\(.*\), or use a \+cpu wheel",
        done.stderr,
    ), done.stderr


@with_sycl
def test_import_beside_another_libsycl_is_refused(library, tmp_path):
    other = tmp_path / "libsycl.so.7.0.0"
    other.write_bytes(bytes(4096))
    done = run_python(
        "import mmap\n"
        f"file = open({str(other)!r}, 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "import aoext"
    )
    assert done.returncode == 1
    assert re.search(
        rf"ImportError: aoext: .*needs libsycl\.so\.\d+, but torch .*has loaded libsycl\.so\.7 \({other}\)",
        done.stderr,
    ), done.stderr


@pytest.mark.parametrize(
    ("needed", "loaded", "refused"),
    [
        (["libsycl.so.9", "libdnnl.so.3"], "/opt/a b/libsycl.so.8.0.0", True),
        (["libsycl.so.9", "libdnnl.so.3"], "/opt/libsycl.so.9.0.0", False),
        (["libsycl.so.9", "libdnnl.so.3"], "/opt/libsycl-jit.so.22.1", False),
        ([], "/opt/libsycl.so.8", False),
    ],
)
def test_two_major_versions_of_libsycl_do_not_meet(needed, loaded, refused):
    files = ["/usr/lib/libc.so.6", loaded]
    if refused:
        with pytest.raises(ImportError, match=r"needs libsycl\.so\.9, but .* loaded libsycl\.so\.8"):
            check_libsycl(needed, files)
    else:
        check_libsycl(needed, files)


# Takes the place of tools/spirv/sycl_to_spirv.cpp: what is tested is when it is called.
WRITER = """
#include <filesystem>
#include <fstream>
int main(int, char** argv) {
  std::filesystem::create_directories(argv[2]);
  std::ofstream(std::string(argv[2]) + "/modules.inc") << "// " << argv[1];
}
"""


@with_sycl
def test_a_change_in_a_kernel_rebuilds_its_own_images_alone(tmp_path):
    if not (ROOT / "cmake" / "sycl.cmake").is_file():
        pytest.skip("needs the project's sources")
    tools = Path(sys.executable).parent
    if not ((tools / "cmake").exists() and (tools / "ninja").exists()):
        pytest.skip("needs cmake and ninja")
    source, build = tmp_path / "source", tmp_path / "build"
    for folder in ("cmake", "csrc", "tools/spirv"):
        shutil.copytree(ROOT / folder, source / folder)
    shutil.copy(ROOT / "CMakeLists.txt", source)
    (source / "tools" / "spirv" / "sycl_to_spirv.cpp").write_text(WRITER)
    options = ("-DAOEXT_SYCL=ON", "-DAOEXT_CUDA=OFF", f"-DPython_EXECUTABLE={sys.executable}")
    make = f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"
    configure = [tools / "cmake", "-G", "Ninja", "-S", source, "-B", build, make, *options]
    subprocess.run(configure, check=True, capture_output=True, text=True)
    every = set(re.findall(r'#include "(.*/modules\.inc)"', (build / "sycl_modules.cpp").read_text()))
    lists = [str(Path(modules).relative_to(build)) for modules in every]

    def rebuilt() -> set[str]:
        """The images that this build made."""
        done = subprocess.run(
            [tools / "ninja", "-v", "-j1", *lists], cwd=build, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout
        made = (Path(modules).parent for modules in lists)
        return {image.name for image in made if re.search(rf"{re.escape(str(image))} ", done.stdout)}

    names = {Path(modules).parent.name for modules in lists}
    assert names
    assert rebuilt() == names
    assert rebuilt() == set()
    kernel = source / "csrc" / "sycl" / "kernels" / f"{sorted(names)[0].partition('.')[0]}.cpp"
    kernel.write_text(kernel.read_text() + "\n")
    own = {name for name in names if name.startswith(kernel.stem + ".")}
    assert rebuilt() == own != names
