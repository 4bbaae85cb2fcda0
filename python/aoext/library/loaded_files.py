"""The libraries that this process has loaded, on every system that PyTorch runs on."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path


def loaded_files() -> list[str]:
    """The paths of the libraries that this process has loaded; of other mapped files too on Linux."""
    if sys.platform == "win32":
        return _of_windows()
    if sys.platform == "darwin":
        return _of_macos()
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.is_file() else []
    return list(dict.fromkeys(line[line.index("/") :] for line in lines if "/" in line))


def _of_windows() -> list[str]:
    # The flags of ctypes.WinDLL, which mypy knows on Windows alone.
    kernel = ctypes.CDLL("kernel32")
    process = ctypes.c_void_p(-1)  # this one
    modules, size, needed = None, 0, ctypes.c_ulong(1)
    while size < needed.value:
        size = needed.value
        modules = (ctypes.c_void_p * (size // ctypes.sizeof(ctypes.c_void_p)))()
        if not kernel.K32EnumProcessModules(process, modules, size, ctypes.byref(needed)):
            return []
    files, text = [], ctypes.create_unicode_buffer(32768)
    for module in modules or ():
        if module and kernel.GetModuleFileNameW(ctypes.c_void_p(module), text, len(text)):
            files.append(text.value)
    return files


def _of_macos() -> list[str]:
    dyld = ctypes.CDLL(None)
    dyld._dyld_get_image_name.restype = ctypes.c_char_p
    return [dyld._dyld_get_image_name(i).decode() for i in range(dyld._dyld_image_count())]


def name_of(file: str) -> str:
    """The last part of a path, of whichever system."""
    return re.split(r"[/\\]", file)[-1]
