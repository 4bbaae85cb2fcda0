"""Whether two builds of the same sources have the same machine code: for changes that only move or rename.

    python tools/same_code.py before.o after.o [before.o after.o ...]

Functions are compared by what they do, not by name, so that renamed ones count as the same: instructions as
objdump prints them, jumps relative to their function, calls and addresses of data without their names. Prints
what stands in one object only, largest first, and exits with 1 if there is any. It does not see constants in
memory, nor which function a call goes to: tests do.

Of CUDA kernels (nvcc -cubin -arch=sm_90a, or cuobjdump --extract-elf all of a library) it compares bytes.
"""

import re
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

_FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(.*)$")
_RELOCATION = re.compile(r"^\s*[0-9a-f]+: (R_\w+)\s")
_PADDING = {"nop", "nopw", "nopl", "xchg", "cs", "data16", "int3"}  # between functions
_TARGET = re.compile(r"\b([0-9a-f]+) <([^>+]+)(?:\+0x[0-9a-f]+)?>")


_EM_CUDA = 190  # machine of an ELF file


def _kernels(cubin: bytes) -> dict[str, list[str]]:
    """Each CUDA kernel's name and its instructions, of 16 bytes each."""
    (headers,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, headers + i * size) for i in range(count)]
    found = {}
    for name_at, _, _, _, offset, length in sections:
        start = sections[names][4] + name_at
        name = cubin[start : cubin.index(b"\0", start)].decode()
        if name.startswith(".text."):
            code = cubin[offset : offset + length]
            found[name.removeprefix(".text.")] = [code[i : i + 16].hex() for i in range(0, length, 16)]
    return found


def functions(path: Path) -> dict[str, list[str]]:
    """Each function's name and its instructions, normalised."""
    content = path.read_bytes()
    if content[:4] == b"\x7fELF" and struct.unpack_from("<H", content, 0x12)[0] == _EM_CUDA:
        return _kernels(content)
    command = ["objdump", "--disassemble", "--reloc", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, list[str]] = {}
    name, start, lines = "", 0, []
    for line in text.splitlines():
        if header := _FUNCTION.match(line):
            name, start = header[2], int(header[1], 16)
            while name in found:
                name += "'"
            lines = found.setdefault(name, [])
        elif relocation := _RELOCATION.match(line):
            lines.append(relocation[1])
        elif instruction := _INSTRUCTION.match(line):
            words = re.sub(r"\s+", " ", instruction[2].split("#")[0]).strip()
            here = _TARGET.search(words)
            if here and here[2] == name.rstrip("'"):
                words = _TARGET.sub(f"+{int(here[1], 16) - start:x}", words)
            else:
                words = _TARGET.sub("elsewhere", words)
            # An address of data within a section, which moves with its neighbours.
            lines.append(re.sub(r"0x[0-9a-f]+\(%rip\)", "data(%rip)", words))
    for lines in found.values():
        while lines and lines[-1].split(" ")[0] in {
            "nop",
            "nopw",
            "nopl",
            "xchg",
            "cs",
            "data16",
            "int3",
            "ret;nop",
        }:
            lines.pop()
    return found


def _plain(name: str) -> str:
    """A function's name as it stands in the source."""
    return subprocess.run(
        ["c++filt", name.rstrip("'")], check=True, capture_output=True, text=True
    ).stdout.strip()


def differences(before: Path, after: Path) -> int:
    """Prints the functions that stand in one object only. Returns their number."""
    old, new = functions(before), functions(after)
    old_bodies, new_bodies = (Counter("\n".join(lines) for lines in f.values()) for f in (old, new))
    count = 0
    for sign, mine, others in (("-", old, old_bodies - new_bodies), ("+", new, new_bodies - old_bodies)):
        for name, lines in sorted(mine.items(), key=lambda item: -len(item[1])):
            body = "\n".join(lines)
            if others[body] > 0:
                others[body] -= 1
                count += 1
                print(f"  {sign} {len(lines):6} instructions  {_plain(name)}")
    same = sum((old_bodies & new_bodies).values())
    print(f"{after}: {same} functions are the same, {count} stand in one build only")
    return count


def main(arguments: list[str]) -> int:
    """See the top of this file."""
    if not arguments or len(arguments) % 2:
        sys.exit(__doc__)
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    return int(sum([differences(Path(before), Path(after)) for before, after in pairs]) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
