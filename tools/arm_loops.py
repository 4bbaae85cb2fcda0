"""What the inner loops of the Arm kernels cost a weight, counted in machine code, and what that predicts.

    make arm-loops FOLDER=build/py3-none-linux_aarch64-cpu      a build folder that has the objects
    python tools/arm_loops.py FOLDER --json                     benchmarks/figures/arm-predicted.json
    python tools/arm_loops.py OBJECT --list PATTERN             the inner loops of functions that match

A kernel's loop is told from others by counts of its instructions (LOOPS); the tool fails where none has them.
Nothing here is measured: a loop takes as long as the fullest of a core's resources (CORES), all operands in
the first cache.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
OBJDUMP = "aarch64-linux-gnu-objdump"  # on PATH, or where tools/cross.py has unpacked it
PRODUCTS = ("fmla", "sdot", "smmla", "bfdot", "bfmmla")  # any vector unit

_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
_TARGET = re.compile(r"\b([0-9a-f]+) <")
_NAMESPACES = "aoext::cpu::", "aoext::", "(anonymous namespace)::", "mmla::"


@dataclass(frozen=True)
class Instruction:
    address: int
    name: str
    operands: str

    @property
    def is_vector(self) -> bool:
        return re.search(r"\bv\d+\.", self.operands) is not None

    @property
    def target(self) -> int | None:
        """Where a jump goes."""
        jumps = self.name == "b" or self.name.startswith(("b.", "cb", "tb"))
        found = _TARGET.search(self.operands) if jumps else None
        return int(found[1], 16) if found else None


def functions(path: Path) -> Iterator[tuple[str, list[Instruction]]]:
    """Each function's demangled name and its instructions."""
    program = shutil.which(OBJDUMP) or str(ROOT / "build" / "aarch64" / "tools" / "usr" / "bin" / OBJDUMP)
    command = [program, "--disassemble", "--demangle", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    name = ""
    code: list[Instruction] = []
    for line in text.splitlines():
        if header := _FUNCTION.match(line):
            if code:
                yield name, code
            name, code = header[1], []
            for namespace in _NAMESPACES:
                name = name.replace(namespace, "")
        elif instruction := _INSTRUCTION.match(line):
            code.append(Instruction(int(instruction[1], 16), instruction[2], instruction[3]))
    if code:
        yield name, code


def inner_loops(code: list[Instruction]) -> list[list[Instruction]]:
    """The loops that have no loop within."""
    spans = [
        (i.target, i.address)
        for i in code
        if i.target is not None and code[0].address <= i.target <= i.address
    ]
    inner = [
        span for span in spans if not any(s != span and span[0] <= s[0] and s[1] <= span[1] for s in spans)
    ]
    return [[i for i in code if start <= i.address <= end] for start, end in inner]


# ---- cores ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Core:
    """What a core does in a clock; which instructions two of four units take, as how many operations."""

    name: str
    dispatched: int
    vectors: int
    loads: int
    halves: dict[str, int]


# Neoverse: Arm's software optimization guides, as LLVM's scheduling models have them. Apple publishes none:
# widths are what others measured, and every vector instruction may take any unit.
_NEOVERSE = {"shift": 1, "convert": 2, "look up": 2}
CORES = (
    Core("Neoverse V1", dispatched=8, vectors=4, loads=3, halves=_NEOVERSE),
    Core("Neoverse V2", dispatched=8, vectors=4, loads=3, halves=_NEOVERSE | {"look up": 1}),
    Core("Apple M2", dispatched=8, vectors=4, loads=3, halves={}),
)

_KINDS = (
    ("shift", re.compile(r"[su]?shll?2?|[su]shr|[su]xtl2?|shrn2?|sli|sri")),
    ("convert", re.compile(r"fcvt\w*|[su]cvtf|bfcvt\w*")),
    ("look up", re.compile(r"tb[lx]")),
)


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(name)), "")


@dataclass(frozen=True)
class Cost:
    instructions: int
    products: int
    loads: int  # of vectors
    stores: int
    others: Counter[str]  # vector instructions by kind

    @property
    def vectors(self) -> int:
        return self.products + self.others.total()

    def clocks(self, core: Core) -> float:
        half = max((core.halves.get(kind, 0) * count for kind, count in self.others.items()), default=0)
        vectors = self.products + sum(
            max(1, core.halves.get(kind, 1)) * count for kind, count in self.others.items()
        )
        return max(
            self.instructions / core.dispatched,
            vectors / core.vectors,
            half / (core.vectors / 2),
            (self.loads + self.stores) / core.loads,
        )


def cost_of(loop: list[Instruction]) -> Cost:
    loads = stores = products = 0
    others: Counter[str] = Counter()
    for i in loop:
        vector_register = re.match(r"\{?\s*[vqds]\d+", i.operands) is not None
        if i.name.startswith("ld") and vector_register:
            loads += 2 if i.name == "ldp" else 1
            others["load"] += i.name == "ld1r"
        elif i.name.startswith("st") and vector_register:
            stores += 2 if i.name == "stp" else 1
        elif i.name in PRODUCTS:
            products += 1
        elif i.is_vector:
            others[kind_of(i.name)] += 1
    return Cost(len(loop), products, loads, stores, +others)


# ---- kernels -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """An inner loop: where it is, and the instructions that tell it; the shortest that has them."""

    title: str
    unit: str  # csrc/cpu/kernels/<unit>.cpp
    function: str
    counts: dict[str, int]
    weights: int  # of an iteration
    rows: int = 1  # of x; 0 where it packs, for all of them

    def matches(self, loop: list[Instruction]) -> bool:
        names = Counter(i.name for i in loop)
        return all(names[name] == count for name, count in self.counts.items())


_ELEMENT = r"micro_kernel_8bit<Weights8Bit<\(Element\){}>, 1, 4>"  # csrc/common/element.h numbers them
LOOPS = (
    Loop("int4, neon", "neon", r"^void dot_int4<", {"fmla": 32, "scvtf": 32}, weights=128),
    Loop("int4, dotprod", "dotprod", r"dot_limbs<HighNibbles, 2>", {"sdot": 16}, weights=128),
    Loop("int4", "i8mm", r"dot_limbs<HighNibbles, 2>", {"smmla": 8}, weights=128),
    Loop("int4, 4 rows", "i8mm", r"dot_limbs<HighNibbles, 2>", {"smmla": 32}, weights=128, rows=4),
    Loop("int8", "i8mm", _ELEMENT.format(3), {"fmla": 8}, weights=32),
    Loop("float8", "i8mm", _ELEMENT.format(4), {"fmla": 8}, weights=32),
    Loop("fp4, dotprod", "dotprod", r"dot_limbs<DoubledE2m1, 2>", {"sdot": 16, "tbl": 8}, weights=128),
    Loop("fp4", "i8mm", r"dot_limbs<DoubledE2m1, 2>", {"smmla": 8, "tbl": 8}, weights=128),
    Loop("fp4 by 16", "i8mm", r"dot_limbs<DoubledE2m1, 2>", {"smmla": 8, "scvtf": 2}, weights=128),
    Loop("bf16 table", "i8mm", r"Lut4AsBf16", {"bfdot": 4, "tbl": 5}, weights=32),
    Loop("nf4", "i8mm", r"Lut4ByPlanes<4>", {"fmla": 9, "tbl": 9}, weights=32),
    Loop("packing 4 bits", "i8mm", r"^pack_int4_codes", {"tbl": 8, "and": 2, "str": 8}, weights=64, rows=0),
    Loop("packing int8", "i8mm", r"with_8bit_type<pack_8bit", {"scvtf": 8, "ldr": 2}, weights=32, rows=0),
    Loop("packing float8", "i8mm", r"with_8bit_type<pack_8bit", {"fmul": 8, "ldr": 2}, weights=32, rows=0),
    Loop("8 rows, packed", "i8mm", r"<DotBf16, 1, OfGroups<true>", {"bfmmla": 16}, weights=32, rows=8),
)


def find(loop: Loop, of_unit: dict[str, list[list[Instruction]]]) -> Cost | None:
    found = [
        candidate
        for function, loops in of_unit.items()
        if re.search(loop.function, function)
        for candidate in loops
        if loop.matches(candidate)
    ]
    return cost_of(min(found, key=len)) if found else None


def loops_of(path: Path) -> dict[str, list[list[Instruction]]]:
    return {f"{name} {code[0].address:x}": inner_loops(code) for name, code in functions(path)}


def table(folder: Path, as_json: bool) -> int:
    objects = {path.name.removesuffix(".cpp.o"): path for path in sorted(folder.rglob("kernels/*.cpp.o"))}
    if absent := sorted({loop.unit for loop in LOOPS} - set(objects)):
        sys.exit(
            f"arm_loops: {folder} must have csrc/cpu/kernels compiled for aarch64, got no {absent[0]}.cpp.o"
        )
    loops = {unit: loops_of(objects[unit]) for unit in {loop.unit for loop in LOOPS}}
    # Instructions a weight, then weights a clock; one row of x, by i8mm, where a title says nothing.
    headings = ["instructions", *(core.name for core in CORES)]
    rows, lost = [], []
    for loop in LOOPS:
        if (cost := find(loop, loops[loop.unit])) is None:
            lost.append(loop.title)
            continue
        rates = [loop.weights / cost.clocks(core) for core in CORES]
        rows.append((loop.title, [cost.instructions / loop.weights, *rates]))
    if as_json:
        print(json.dumps(figures(headings, rows), indent=1))
    else:
        print(" " * 16, *(f"{heading:>14}" for heading in headings))
        for title, values in rows:
            print(f"{title:16}", *(f"{value:14.2f}" for value in values))
    for title in lost:
        print(f"arm_loops: no loop has the instructions of {title!r}", file=sys.stderr)
    return 1 if lost else 0


def figures(headings: list[str], rows: list[tuple[str, list[float]]]) -> dict[str, object]:
    """As benchmarks/figures.py takes them."""
    return {
        "schema": "aoext.figures/1",
        "machine": "No Arm CPU: machine code of GCC",
        "what": "Inner loops: instructions a weight, and weights a clock. **Predicted, not measured.**",
        "commands": ["python tools/arm_loops.py build/py3-none-linux_aarch64-cpu"],
        "columns": headings,
        "rows": [{"name": title, "values": [[float(f"{v:.4g}")] for v in values]} for title, values in rows],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="a build folder for aarch64, or one of its objects")
    parser.add_argument("--json", action="store_true", help="print benchmarks/figures/arm-predicted.json")
    parser.add_argument("--list", metavar="PATTERN", help="print the inner loops of functions that match")
    arguments = parser.parse_args()
    if arguments.list is None:
        return table(arguments.path, arguments.json)
    for function, loops in loops_of(arguments.path).items():
        for loop in loops if re.search(arguments.list, function) else ():
            names = Counter(i.name for i in loop)
            print(function[:90], len(loop), dict(names.most_common(12)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
