"""Stubs of an older glibc to link against, so that a library runs where that is the newest.

    python tools/glibc_stubs.py x86_64 2.28 build/glibc

The package ziglang knows the symbols of every glibc and writes libraries that have those of one version and
no code. The folder gets libc.so.6, libm.so.6, libdl.so.2, libpthread.so.0, librt.so.1, libld.so.2 (the
loader) and libc_nonshared.a.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

STUBS = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libld.so.2")


def main() -> None:
    machine, version, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    target = f"{machine}-linux-gnu.{version}"
    wanted = (*STUBS, "libc_nonshared.a")
    done = folder / "version"
    if done.is_file() and done.read_text() == target and all((folder / name).is_file() for name in wanted):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "empty.c"
        source.write_text("int empty(void) { return 0; }\n")
        cache = {"ZIG_GLOBAL_CACHE_DIR": f"{scratch}/cache", "ZIG_LOCAL_CACHE_DIR": f"{scratch}/local"}
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            target,
            "-shared",
            "-fPIC",
        ]
        command += [str(source), "-o", f"{scratch}/empty.so", "-ldl", "-lpthread", "-lm", "-lrt"]
        made = subprocess.run(command, env={**os.environ, **cache}, capture_output=True, text=True)
        if made.returncode:
            sys.exit(f"glibc_stubs: {made.stderr.strip()} (pip install ziglang)")
        for name in wanted:
            (found,) = Path(scratch).rglob(name)
            shutil.copy2(found, folder)
    done.write_text(target)


if __name__ == "__main__":
    main()
