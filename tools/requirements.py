"""What the pyproject.toml of aoext and of aoext-bench require, and the torch to build against.

`pip install` of an extra would install aoext too, which tools/environment.py does in a step of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pip carries the same parser
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]


ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BENCH = tomllib.loads((ROOT / "benchmarks" / "pyproject.toml").read_text())


def pinned_torch() -> str:
    """The torch that the library is compiled against, such as torch==2.13.0."""
    return next(r for r in PYPROJECT["build-system"]["requires"] if r.startswith("torch"))


def requirements(extra: str) -> list[str]:
    """What an extra of aoext needs, nested extras resolved."""
    return _resolved(PYPROJECT["project"]["optional-dependencies"][extra])


def bench_requirements() -> list[str]:
    """What aoext-bench needs beside torch and aoext."""
    return [r for r in _resolved(BENCH["project"]["dependencies"]) if not r.startswith("torch")]


def _resolved(listed: list[str]) -> list[str]:
    found: list[str] = []
    for requirement in listed:
        nested = re.fullmatch(r"aoext\[(\w+)\](?:==.*)?", requirement)
        found += requirements(nested.group(1)) if nested else [requirement]
    return found
