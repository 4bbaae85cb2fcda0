"""Finds libaoext.so, checks that it may be loaded, and loads it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import torch

NAMESPACE = "ao"
_LIBRARY = Path("lib") / "libaoext.so"


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


def check_namespace() -> None:
    """Raises ImportError where another package has defined operators in the namespace already."""
    # A device may have registered a kernel already: its operators have no schema until we define one.
    defined = [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(f"{NAMESPACE}::") and "schema: (none)" not in torch._C._dispatch_dump(name)
    ]
    if defined:
        raise ImportError(
            f"aoext: the operator namespace `{NAMESPACE}` is taken: another package has defined "
            f"{', '.join(sorted(defined))} ({_owner(defined[0])}); import aoext in a process "
            "without that package"
        )


def load_library(package_path: Iterable[str]) -> None:
    """Loads the library once per process.

    Raises ImportError if it is missing, if the namespace is taken, or if the linker refuses it.
    """
    path = find_library(package_path)
    if str(path) in torch.ops.loaded_libraries:
        return
    check_namespace()
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"aoext: {path} does not load with torch {torch.__version__} (2.10 or newer is needed): {error}"
        ) from error
    torch.ops.ao._build_config()  # raises here, not in a first call, where AOEXT_CPU_ISA is wrong
