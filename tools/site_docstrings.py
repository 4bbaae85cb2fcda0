"""Docstrings for the site as they are written: their lines stay, code is in backticks, examples are code."""

from __future__ import annotations

import re
from typing import Any

_SPECIAL = re.compile(r"([\\*|_])")


def as_written(app: Any, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """What Sphinx calls with the lines of a docstring, which it takes as reStructuredText afterwards."""
    lines[:] = converted(lines)


def converted(lines: list[str]) -> list[str]:
    result: list[str] = []
    in_code = False
    for line in lines:
        is_code = line.startswith((">>> ", "... ")) or (in_code and bool(line.strip()))
        if is_code and not in_code:
            result += ["", ".. code-block:: python", ""]
        if in_code and not is_code:
            result.append("")
        if is_code:
            result.append(f"    {line}")
        else:
            result.append(f"| {_text(line.removesuffix('::'))}".rstrip() if line.strip() else "")
        in_code = is_code
    return result


def _text(line: str) -> str:
    """A line with its code in two backticks and all else literal."""
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(f"`{p}`" if p.startswith("`") else _SPECIAL.sub(r"\\\1", p) for p in parts)
