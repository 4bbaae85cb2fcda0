"""The shared library and its import: ABI, names, what happens when it cannot be loaded."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import aoext
from aoext.library.loading import defined_by, find_library
from conftest import PRELUDE, environment_of_programs


@pytest.fixture(scope="module")
def library() -> Path:
    return find_library(aoext.__path__)


def output(*command: object) -> str:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout


def run_python(program: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)


def test_library_holds_to_the_stable_abi_of_the_oldest_torch(library):
    pytest.importorskip("torch_abi_audit")
    audit = output(Path(sys.executable).parent / "torch-abi-audit", "--check", "torch", library)
    assert re.search(r"Torch ABI:\s+STABLE", audit)
    assert re.search(r"Min torch:\s+2\.10", audit)


def test_library_has_a_soname_an_rpath_to_torch_and_no_python(library):
    dynamic = output("readelf", "-d", library)
    assert "soname: [libaoext.so]" in dynamic
    assert re.search(r"\(R(UN)?PATH\).*\[\$ORIGIN:\$ORIGIN/\.\./\.\./torch/lib[:\]]", dynamic)
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert "libtorch_cpu.so" in needed
    assert not any("python" in name for name in needed)
    assert not re.search(r"\bPy[A-Z_]", output("nm", "-D", library))


def test_version_has_the_label_of_its_variant_and_one_home():
    assert aoext.__version__ == importlib.metadata.version("aoext")
    assert re.fullmatch(r"\d+\.\d+\.\d+\+(cpu|cu130|xpu)", aoext.__version__)
    assert f"version: {aoext.__version__}" in aoext.show_config()


def test_show_config_tells_what_a_bug_report_needs():
    text = aoext.show_config()
    for expected in (
        "cuda: O",
        "sycl: O",
        "cpu instruction set: ",
        torch.__version__,
        "cpu (own kernels)",
    ):
        assert expected in text
    assert f"threads: {torch.get_num_threads()}" in text


def test_import_names_the_package_that_took_the_name_of_an_operator():
    done = run_python(
        "import torch\n"
        "other = torch.library.Library('ao', 'DEF')\n"
        "other.define('somebody_elses(Tensor x) -> Tensor')\n"
        "other.define('int8_mm(Tensor x) -> Tensor')\n"
        "import aoext"
    )
    assert done.returncode == 1, "the process must end with an exception, not a signal"
    assert re.search(
        r"ImportError: aoext: another package has defined ao::int8_mm \(registered at .* which aoext defines",
        done.stderr,
    ), done.stderr


INT8_MM = "print(torch.ops.ao.int8_mm(*2 * [torch.ones(2, 4, dtype=torch.int8)]).tolist())\n"


@pytest.fixture(scope="module")
def copy(library, tmp_path_factory) -> Path:
    """The same library in another file."""
    return Path(shutil.copy(library, tmp_path_factory.mktemp("another environment") / library.name))


def test_a_second_copy_says_so_and_leaves_the_first_at_work(library, copy):
    done = run_python(
        PRELUDE + "import ctypes, torch, aoext\n"
        f"torch.ops.load_library({str(copy)!r})\n"
        f"second = ctypes.CDLL({str(copy)!r})\n"
        "result = ctypes.c_void_p()\n"
        "print(second.aoti_torch_cpu_int8_mm(None, None, ctypes.byref(result)))\n" + INT8_MM
    )
    assert done.stdout.split("\n")[:2] == ["1", "[[4, 4], [4, 4]]"], done.stderr
    said = f"aoext: {copy} is a second copy of this library in one process and stays idle: .* {library}\n"
    assert len(re.findall(said, done.stderr)) == 1, done.stderr


def test_an_import_beside_another_copy_names_it(copy):
    program = PRELUDE + f"import torch\ntorch.ops.load_library({str(copy)!r})\nimport aoext"
    done = run_python(program, environment_of_programs())
    assert done.returncode == 1, "the process must end with an exception, not a signal"
    assert (
        f"ImportError: aoext: another copy of its library is loaded in this process, {copy}, " in done.stderr
    )


def test_an_import_finds_its_own_library_loaded(library):
    """As by a C++ program that embeds Python."""
    program = PRELUDE + f"import ctypes, torch\nctypes.CDLL({str(library)!r})\nimport aoext\n" + INT8_MM
    done = run_python(program, environment_of_programs())
    assert done.stdout.strip() == "[[4, 4], [4, 4]]", done.stderr


@pytest.mark.parametrize("kind", ["DEF", "FRAGMENT"])
@pytest.mark.parametrize("first", ["aoext", "other"])
def test_the_namespace_is_shared(kind, first):
    steps = {
        "aoext": "import aoext",
        "other": f"other = torch.library.Library('ao', '{kind}'); other.define('theirs(Tensor x) -> Tensor')",
    }
    order = sorted(steps, key=lambda name: name != first)
    done = run_python(
        "import torch\n"
        + "\n".join(steps[name] for name in order)
        + "\nprint(torch.ops.ao.theirs.default, torch.ops.ao.int8_mm.default)"
        + "\nprint('theirs' in aoext.ops.operators())"
    )
    assert done.stdout.split() == ["ao.theirs.default", "ao.int8_mm.default", "False"], done.stderr


# What people import in the same program; some of it defines operators in the namespace ao.
NEIGHBOURS = {
    "transformers": "from transformers import LlamaForCausalLM",
    "peft": "import peft",
    "diffusers": "import diffusers",
    "sentence_transformers": "import sentence_transformers",
    "torchao": "import torchao.prototype.mx_formats",
}


@pytest.mark.parametrize("first", ["aoext", "neighbour"])
@pytest.mark.parametrize("package", NEIGHBOURS)
def test_other_packages_may_be_imported_before_or_after(package, first):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    lines = ["import aoext", NEIGHBOURS[package]]
    done = run_python(
        "\n".join([*(lines if first == "aoext" else lines[::-1]), "print(aoext.ops.operators())"])
    )
    assert "int8_mm" in done.stdout, done.stderr


def test_all_operators_that_the_library_defines_are_found_in_it(library):
    found = defined_by(library)
    assert {f"ao::{name}" for name in aoext.ops.operators()} < found
    assert all(torch._C._dispatch_has_kernel(name) for name in found)


def test_a_device_may_register_its_kernel_before_aoext_is_imported():
    done = run_python(
        "import torch\n"
        "device = torch.library.Library('ao', 'IMPL', 'PrivateUse1')\n"
        "device.impl('int8_mm', lambda input, weight: 1 / 0)\n"
        "import aoext\n"
        "print(torch._C._dispatch_has_kernel_for_dispatch_key('ao::int8_mm', 'PrivateUse1'))"
    )
    assert done.stdout.strip() == "True", done.stderr


def test_a_missing_library_is_an_import_error_that_says_where_it_was_sought(tmp_path):
    with pytest.raises(ImportError, match=rf"looked for {re.escape(str(tmp_path))}/lib/libaoext.so"):
        find_library([str(tmp_path)])


def test_another_build_of_the_library_can_be_named(library, monkeypatch, tmp_path):
    monkeypatch.setenv("AOEXT_LIBRARY", str(library))
    assert find_library([str(tmp_path)]) == library
    monkeypatch.setenv("AOEXT_LIBRARY", str(tmp_path / "other.so"))
    with pytest.raises(ImportError, match=r"looked for .*other\.so"):
        find_library(aoext.__path__)


def test_a_broken_library_is_an_import_error(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libaoext.so").write_text("not a library")
    done = run_python(
        "from aoext.library import loading\n"
        "loading.check_namespace = lambda path: None\n"
        "loading.check_copies = lambda path, loaded: False\n"
        f"loading.load_library(['{tmp_path}'])"
    )
    assert done.returncode == 1
    assert re.search(r"does not load with torch .*: .*libaoext\.so: file too short", done.stderr), done.stderr


def test_import_brings_no_optional_package():
    done = run_python(
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import aoext\n"
        "optional = {'safetensors', 'tqdm', 'click', 'rich', 'matplotlib', 'transformers', 'torchao',\n"
        "            'peft', 'diffusers', 'sentence_transformers', 'accelerate'}\n"
        "print(sorted(optional & (set(sys.modules) - before)))"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_import_brings_no_compiler():
    done = run_python(
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import aoext\n"
        "aoext.aoti_options()\n"
        "print([n for n in set(sys.modules) - before if n.startswith(('torch._inductor', 'torch._dynamo'))])"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_source_tree_that_nobody_has_installed_can_be_imported():
    program = """
import torch
import importlib.metadata as metadata

def missing(name):
    raise metadata.PackageNotFoundError(name)

metadata.version = metadata.requires = missing
import aoext
print(aoext.__version__)
"""
    done = run_python(program)
    assert done.stdout == "unknown\n", done.stderr
