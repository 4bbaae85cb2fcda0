"""Prints the requirements of one of the project's extras, nested extras resolved, one a line.

`pip install` of an extra would install aoext too, which make does in a step of its own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pip carries the same parser
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]


def requirements(extra: str) -> list[str]:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    found: list[str] = []
    for requirement in project["optional-dependencies"][extra]:
        nested = re.fullmatch(r"aoext\[(\w+)\]", requirement)
        found += requirements(nested.group(1)) if nested else [requirement]
    return found


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
