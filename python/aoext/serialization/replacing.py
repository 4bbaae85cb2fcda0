"""Files that appear whole or not at all: written beside their place, then renamed.

A temporary is locked by the process that writes it. One that nobody locks was left by a process that was
killed, and goes when the next file is written into its folder.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

# Read, write and execute; no setuid and the like.
PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO

# Names have one length whatever they stand for: names of files may be as long as the system allows.
PREFIX, SUFFIX = ".aoext-", ".tmp"


def target_of(path: Path) -> Path:
    """The file that a path leads to through symbolic links, which need not exist.

    ValueError for a directory, a device or whatever else is no regular file.
    """
    target = Path(os.path.realpath(path))
    if os.path.lexists(target) and not target.is_file():
        raise ValueError(f"save_model: {path} is there and no regular file")
    return target


def is_temporary(path: Path) -> bool:
    """Whether this is, by its name, a file that is being written or was left by a process that was killed."""
    return path.name.startswith(PREFIX) and path.name.endswith(SUFFIX)


class Replacement:
    """A file that is written beside `target` and takes its place when it is complete.

    Its mode is that of the target, or where there is none the umask's.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.file = _locked_temporary(target)

    def finish(self) -> None:
        """Put what was written to the disk, and there in the target's place."""
        self.file.flush()
        os.fsync(self.file.fileno())
        if sys.platform == "win32":
            self.file.close()  # Windows renames no open file
        os.replace(self.file.name, self.target)
        self.file.close()  # which gives the lock up, so that it comes last

    def discard(self) -> None:
        """Remove what was written, unless it is in the target's place."""
        if sys.platform == "win32":
            self.file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file.name)
        self.file.close()


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A file to write, which replaces `target` when the block ends without an exception."""
    replacement = Replacement(target)
    try:
        yield replacement.file
        replacement.finish()
    finally:
        replacement.discard()


def _locked_temporary(target: Path) -> BinaryIO:
    """A new file beside `target` that this process holds the lock of."""
    _remove_abandoned(target.parent)
    while True:
        try:
            file = open(target.parent / f"{PREFIX}{secrets.token_hex(4)}{SUFFIX}", "xb")  # noqa: SIM115
        except FileExistsError:
            continue
        # Another process may have taken it for an abandoned one before it was locked.
        if _lock(file) is not False and os.fstat(file.fileno()).st_nlink:
            break
        file.close()
    if sys.platform != "win32" and target.exists():
        os.fchmod(file.fileno(), target.stat().st_mode & PERMISSIONS)
    return file


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporaries in a folder that no process holds the lock of."""
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            if sys.platform == "win32":
                path.unlink()  # fails for open files
            else:
                with open(path, "r+b") as file:
                    if _lock(file):
                        path.unlink()


def _lock(file: BinaryIO) -> bool | None:
    """Whether this process has the lock of an open file; None where the file system knows no locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
