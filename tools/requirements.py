"""What pyproject.toml requires: for an extra, nested extras resolved, and the torch to build against.

`pip install` of an extra would install aoext too, which tools/environment.py does in a step of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pip carries the same parser
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]


PYPROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())


def pinned_torch() -> str:
    """The torch that the library is compiled against, such as torch==2.13.0."""
    return next(r for r in PYPROJECT["build-system"]["requires"] if r.startswith("torch"))


def requirements(extra: str) -> list[str]:
    found: list[str] = []
    for requirement in PYPROJECT["project"]["optional-dependencies"][extra]:
        nested = re.fullmatch(r"aoext\[(\w+)\]", requirement)
        found += requirements(nested.group(1)) if nested else [requirement]
    return found
