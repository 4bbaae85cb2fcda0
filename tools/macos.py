"""Compiles the library for macOS on Apple's processors, with NEON's kernels, and links it against PyTorch's.

    python tools/macos.py

Nothing here runs it: what it shows is that every source compiles by another system's clang and C++ library,
and that libtorch_cpu has all that the library asks of it. torch's wheel comes from PyPI into build/macos/.
"""

from __future__ import annotations

import sys

import wheel as wheels
from cross import ROOT, is_done, note, zig
from requirements import pinned_torch

PLATFORM = "macosx_14_0_arm64"
MACHO_ARM64 = bytes.fromhex("cffaedfe0c000001")  # how its 64-bit files begin


def main() -> None:
    folder = ROOT / "build" / "macos"
    site, build = folder / "site", folder / "cmake"
    if not is_done(site, pinned_torch()):
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:")
        where = ("--upgrade", "--target", site, "--python-version", "3.11", "--platform", PLATFORM)
        wheels.run(*pip, *where, pinned_torch())
        note(site, pinned_torch())
    defines = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_TOOLCHAIN_FILE": ROOT / "cmake" / "macos.cmake",
        "AOEXT_ZIG": zig(),
        "AOEXT_TORCH": site / "torch",
        "AOEXT_CUDA": "OFF",
        "AOEXT_SYCL": "OFF",
        "AOEXT_UNITY": "OFF",  # here files are compiled one by one, as developers may
        "Python_EXECUTABLE": sys.executable,
    }
    wheels.run("cmake", "-G", "Ninja", "-S", ROOT, "-B", build, *(f"-D{k}={v}" for k, v in defines.items()))
    wheels.run("cmake", "--build", build)
    library = build / "libaoext.dylib"
    if not library.read_bytes().startswith(MACHO_ARM64):
        sys.exit(f"macos: {library.relative_to(ROOT)} must be a 64-bit library for arm64")
    print(f"macos: {library.relative_to(ROOT)}, {library.stat().st_size / 1e6:.1f} MB, compiled and linked")


if __name__ == "__main__":
    main()
