"""Finds the library, libaoext.so on Linux, checks that it may be loaded, and loads it."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, files, requires
from pathlib import Path

import torch

from aoext.library.loaded_files import loaded_files, name_of

NAMESPACE = "ao"
FILE_NAMES = {"win32": "aoext.dll", "darwin": "libaoext.dylib"}  # elsewhere libaoext.so
_LIBRARY = Path("lib") / FILE_NAMES.get(sys.platform, "libaoext.so")


def find_library(package_path: Iterable[str]) -> Path:
    """The library below one of a package's directories; an editable install has several.

    The environment variable AOEXT_LIBRARY names another build of it, such as one with sanitizers.
    Raises ImportError if there is none.
    """
    override = os.environ.get("AOEXT_LIBRARY")
    tried = [Path(override)] if override else [Path(directory) / _LIBRARY for directory in package_path]
    for path in tried:
        if path.is_file():
            return path
    raise ImportError(
        "aoext: its library was not found: looked for "
        + ", ".join(map(str, tried))
        + "; reinstall aoext (pip install --force-reinstall aoext)"
    )


def _owner(operator: str) -> str:
    """Where an operator was defined, in the words of PyTorch's dispatcher."""
    described = re.search(r"^debug: (.*)$", torch._C._dispatch_dump(operator), re.MULTILINE)
    return described.group(1) if described else "an unknown place"


def defined_by(library: Path) -> set[str]:
    """The names of the operators that the library defines, as in ao::name.

    The text of a schema, `name(arguments) -> results`, lies in a shared library as it is, with zeros around.
    """
    content = library.read_bytes()
    arrows = (match.start() for match in re.finditer(rb"\) -> ", content))
    texts = (content[content.rfind(b"\0", 0, arrow) + 1 : arrow] for arrow in arrows)
    names = (re.match(rb"(\w+)\(", text) for text in texts)
    return {f"{NAMESPACE}::{name[1].decode()}" for name in names if name}


def check_namespace(library: Path) -> None:
    """Raises ImportError where somebody else has defined an operator of this library.

    Others may have operators of their own names in the namespace; torch and torchao do. The dispatcher would
    end the process if the library defined a name that is taken.
    """
    # A device may have registered a kernel already: its operators have no schema until we define one.
    defined = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(f"{NAMESPACE}::") and "schema: (none)" not in torch._C._dispatch_dump(name)
    }
    taken = sorted(defined & defined_by(library)) if defined else []
    if taken:
        raise ImportError(
            f"aoext: another package has defined {', '.join(taken)} ({_owner(taken[0])}), which aoext "
            "defines: import aoext in a process without that package"
        )


def check_copies(library: Path, loaded: Iterable[str]) -> bool:
    """Whether this process has loaded this file already, as a C++ program does that embeds Python.

    loaded: the files that it has loaded. Raises ImportError where another copy of the library is among them,
    as of another environment: the operators of torch.ops.ao are that one's.
    """
    copies = {Path(file) for file in loaded if name_of(file).lower() == _LIBRARY.name}
    others = sorted(path for path in copies if not (path.is_file() and path.samefile(library)))
    if others:
        raise ImportError(
            f"aoext: another copy of its library is loaded in this process, {others[0]}, and the operators "
            f"of torch.ops.ao are that one's: load {library} alone, or set AOEXT_LIBRARY to {others[0]}"
        )
    return bool(copies)


def needed_for_xpu(library: Path) -> list[str]:
    """What the linker must find for a build with kernels for Intel GPUs, such as libsycl.so.9; else nothing.

    The names of needed libraries lie in a shared library as they are, with zeros around.
    """
    names = re.findall(rb"\0(lib(?:sycl|dnnl)\.so\.\d+)(?=\0)", library.read_bytes())
    return sorted({name.decode() for name in names}, reverse=True)


def check_libsycl(needed: Iterable[str], loaded: Iterable[str]) -> None:
    """Raises ImportError where this process has loaded another major version of libsycl than is needed.

    loaded: the files that it has loaded. Two of them in one process crash.
    """
    wanted = next((name for name in needed if name.startswith("libsycl")), None)
    for path in loaded:
        name = re.match(r"libsycl\.so\.\d+", name_of(path))
        if wanted and name and name[0] != wanted:
            raise ImportError(
                f"aoext: this build has kernels for Intel GPUs and needs {wanted}, but torch "
                f"{torch.__version__} or another package has loaded {name[0]} ({path}), and the two in one "
                f"process crash: use a torch that brings {wanted}, or a +cpu wheel of aoext"
            )


def _installed(name: str) -> Path | None:
    """The file of a library among those of the packages from PyPI that bring libsycl and oneDNN."""
    for package in ("intel-sycl-rt", "onednn"):
        try:
            listed = files(package) or ()
        except PackageNotFoundError:
            continue
        for file in listed:
            if file.name == name:
                return Path(str(file.locate())).resolve()
    return None


def _open_with_needed(file: Path) -> None:
    """Opens a library for good, and first what it needs of those beside it, where no search path may lead."""
    while True:
        try:
            ctypes.CDLL(str(file))
            return
        except OSError as error:
            missing = re.match(r"(lib\S+): cannot open shared object file", str(error))
            if missing is None or not (beside := file.with_name(missing[1])).is_file():
                raise
        _open_with_needed(beside)


def open_needed(needed: Iterable[str], loaded: Iterable[str]) -> None:
    """Opens what this process has not loaded of the libraries that a build for Intel GPUs needs.

    They lie in the environment's lib folder. One that is not found is left to the linker.
    """
    here = {name_of(file) for file in loaded}
    for name in needed:
        file = None if any(other.startswith(name) for other in here) else _installed(name)
        if file is not None:
            _open_with_needed(file)


def _refused(path: Path, needed: list[str], linker: str) -> str:
    """The text of the error where the linker refuses the library, from the linker's own."""
    missing = re.match(r"(lib\S+): cannot open shared object file", linker)
    if not needed or missing is None:
        return (
            f"aoext: {path} does not load with torch {torch.__version__} (2.10 or newer is needed): {linker}"
        )
    try:
        required = requires("aoext") or []
    except PackageNotFoundError:  # a source tree on the path that nobody has installed
        required = []
    listed = [r.split(";") for r in required if re.search(r"extra == .xpu.", r)]
    versions = ", ".join(requirement.strip() for requirement, *_ in listed)
    return (
        f"aoext: this build has kernels for Intel GPUs and needs {' and '.join(needed)}, but {missing[1]} "
        f"was not found: pip install 'aoext[xpu]' ({versions}), or use a +cpu wheel of aoext"
    )


def load_library(package_path: Iterable[str]) -> None:
    """Loads the library once per process.

    Raises ImportError if it is missing, if this process has another copy of it, if somebody else has defined
    one of its operators, if this process has another libsycl than it needs, or if the linker refuses it.
    """
    path = find_library(package_path)
    if str(path) in torch.ops.loaded_libraries:
        return
    loaded = loaded_files()
    if not check_copies(path, loaded):
        check_namespace(path)
    needed = needed_for_xpu(path)
    if needed:
        check_libsycl(needed, loaded)
    try:
        open_needed(needed, loaded)
        torch.ops.load_library(str(path))
    except OSError as error:
        # torch gives the path alone; what the linker said is its cause.
        raise ImportError(_refused(path, needed, str(error.__cause__ or error))) from error
    torch.ops.ao._build_config()  # raises here, not in a first call, where AOEXT_CPU_ISA is wrong
