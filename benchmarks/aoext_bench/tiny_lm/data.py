"""The text that every Python installation has: the source of its own standard library.

It needs no download, it is a few megabytes of one kind of text, and a held-out part of it exists on
the machine of whoever wants to measure what quantisation costs.
"""

from __future__ import annotations

import functools
import hashlib
import sysconfig
from pathlib import Path

from .model import SEPARATOR

# Folders, at any depth, that hold no library source.
_SKIPPED_FOLDERS = frozenset(
    {
        "site-packages",
        "dist-packages",  # Debian's site-packages
        "__pycache__",
        "test",
        "tests",
        "idle_test",
        "encodings",  # generated tables, so alike that held-out ones would measure memory
    }
)

HELD_OUT_PERCENT = 5


@functools.cache
def _root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _is_library_source(path: Path) -> bool:
    # config-3.x-…/ and _sysconfigdata*.py hold compiler flags and paths of one machine.
    of_one_machine = path.parts[0].startswith(("config-", "_sysconfigdata"))
    return not of_one_machine and not _SKIPPED_FOLDERS.intersection(path.parts)


def standard_library_files() -> list[Path]:
    """Paths of the running Python's own .py files, relative to its standard library, sorted.

    Left out: tests, site-packages, generated tables, files that are not UTF-8.
    """
    found = (path.relative_to(_root()) for path in _root().rglob("*.py"))
    return sorted(path for path in found if _is_library_source(path) and _read(path) is not None)


def _read(path: Path) -> bytes | None:
    """A file's content, \\n at its line ends; None if it is not UTF-8."""
    content = (_root() / path).read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return content.replace(b"\r\n", b"\n")


def _hash(path: Path) -> int:
    return int.from_bytes(hashlib.sha256(path.as_posix().encode()).digest()[:8], "big")


def split(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """(train, held out) of paths relative to the standard library; about 5% are held out.

    A file's side follows from a hash of its relative path alone. So a file that was held out when
    the shipped model was trained is held out under every other Python version too.
    """
    held_out = [path for path in files if _hash(path) % 100 < HELD_OUT_PERCENT]
    return sorted(set(files).difference(held_out)), held_out


def join_documents(files: list[Path]) -> bytes:
    """The files' text in the given order, SEPARATOR before each."""
    return b"".join(SEPARATOR + (_read(path) or b"") for path in files)


def held_out_text(max_bytes: int) -> bytes:
    """Up to max_bytes of the held-out files, in the order of their hashes: a fixed mix of packages.

    >>> text = held_out_text(65536)
    """
    _, held_out = split(standard_library_files())
    return join_documents(sorted(held_out, key=_hash))[:max_bytes]
