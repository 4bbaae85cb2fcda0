"""Lints comments, docstrings and documents: sentences that begin with "Of", and paths that lead nowhere.

A sentence like "Of a weight: its scale" leaves out what it is about; say the subject first.

A path is checked where it begins with a folder of this project or, in a document's `code`, ends like a
source. It may be the end of one (`kernels/gemm.h`), with braces and *.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLES = ("tools/prose.py", "tests/test_prose.py")
OF = re.compile(r"\bOf [a-z0-9`]")
IN_CODE = re.compile(r"`([\w./{},*-]+)`")
SOURCE = re.compile(r"\.(py|cpp|h|cu|cuh|inc|cmake|sh)$")


def sources() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    names = done.stdout.splitlines()
    return [name for name in names if (ROOT / name).is_file()]


def pattern_of(path: str) -> re.Pattern[str]:
    """What a path, whole or its end, stands for."""
    parts = {"{": "(?:", "}": ")", ",": "|", "*": "[^/]*", "**": ".*"}
    pattern = "".join(parts.get(part) or re.escape(part) for part in re.split(r"([{},]|\*+)", path))
    return re.compile(rf"(?:^|/){pattern}$")


def paths_in(name: str, line: str, folders: str) -> Iterator[str]:
    """What in a line should be there."""
    yield from re.findall(rf"(?<![\w./-])(?:{folders})/[\w./{{}},*-]*\w\.\w+", line)
    if name.endswith(".md"):
        # A path of the installed package begins with its name.
        yield from (path.removeprefix("aoext/") for path in IN_CODE.findall(line) if SOURCE.search(path))


def faults(files: list[str]) -> Iterator[str]:
    folders = "|".join(sorted({name.partition("/")[0] for name in files if "/" in name}))
    known: dict[str, bool] = {}
    for name in sorted({*files} - {*EXAMPLES}):
        try:
            lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # no text
        for number, line in enumerate(lines, 1):
            if OF.search(line):
                yield f'{name}:{number}: a sentence begins with "Of": {line.strip()}'
            for path in paths_in(name, line, folders):
                if path not in known:
                    pattern = pattern_of(path)
                    known[path] = any(pattern.search(file) for file in files)
                if not known[path]:
                    yield f"{name}:{number}: no file is {path}"


if __name__ == "__main__":
    found = list(faults(sources()))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))
