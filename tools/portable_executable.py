"""What a DLL of Windows needs, exports and is hardened with, read from its headers."""

from __future__ import annotations

import re
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

# All that the library may need: torch, what is part of Windows, and the C runtime that Windows brings.
NEEDED = r"torch_cpu\.dll|kernel32\.dll|ntdll\.dll|advapi32\.dll|api-ms-win-crt-\w+-l\d-\d-\d\.dll"
# Flags of its header: addresses of 64 bits drawn by lot, at which it can be loaded, and no data that runs.
HARDENED = {"HIGH_ENTROPY_VA": 0x20, "DYNAMIC_BASE": 0x40, "NX_COMPAT": 0x100}


@dataclass(frozen=True)
class Image:
    flags: int
    needs: list[str]
    exports: list[str]


def read(content: bytes) -> Image:
    """The image of a DLL for 64-bit x86; ValueError for another file."""

    def number(form: str, at: int) -> int:
        return int(struct.unpack_from("<" + form, content, at)[0])

    def text(at: int) -> str:
        return content[at : content.index(b"\0", at)].decode()

    header = number("I", 0x3C)
    if content[header : header + 4] != b"PE\0\0" or number("H", header + 4) != 0x8664:
        raise ValueError("read: content must be a DLL for 64-bit x86")
    sections, optional = number("H", header + 6), header + 24
    first_section = optional + number("H", header + 20)

    def place(address: int) -> int:
        """Where in the file what is loaded at an address lies."""
        for i in range(sections):
            section = first_section + 40 * i
            start, size = number("I", section + 12), max(number("I", section + 8), number("I", section + 16))
            if start <= address < start + size:
                return address - start + number("I", section + 20)
        raise ValueError(f"read: content has nothing at {address:#x}")

    export_table, import_table = (number("I", optional + 112 + 8 * i) for i in range(2))
    exports, needs = [], []
    if export_table:
        table = place(export_table)
        names = place(number("I", table + 32))
        exports = [text(place(number("I", names + 4 * i))) for i in range(number("I", table + 24))]
    if import_table:
        entry = place(import_table)
        while name := number("I", entry + 12):
            needs.append(text(place(name)))
            entry += 20
    return Image(number("H", optional + 70), needs, exports)


def check_dll(content: bytes, built_in: Path) -> None:
    """Exits where aoext.dll is not what a wheel may hold."""
    image = read(content)
    strangers = [name for name in image.needs if not re.fullmatch(NEEDED, name, re.IGNORECASE)]
    if strangers or "torch_cpu.dll" not in image.needs:
        sys.exit(f"wheel: aoext.dll must need torch_cpu.dll and Windows alone, got {image.needs}")
    others = [name for name in image.exports if not name.startswith("aoti_torch_")]
    if others or not image.exports:
        sys.exit(f"wheel: aoext.dll must export AOTInductor's C shims and nothing else, got {others}")
    lacks = [name for name, flag in HARDENED.items() if not image.flags & flag]
    if lacks:
        sys.exit(f"wheel: aoext.dll must have {', '.join(lacks)}")
    if str(built_in).encode() in content:
        sys.exit("wheel: aoext.dll names the folder that it was built in")
