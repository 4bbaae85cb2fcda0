"""What the inner loops of the Arm kernels cost a weight, counted in their machine code, and what that predicts.

    python tools/arm_loops.py build/py3-none-linux_aarch64-cpu              a build folder that has the objects
    python tools/arm_loops.py build/py3-none-linux_aarch64-cpu --markdown   the table of benchmarks/cpu.md
    python tools/arm_loops.py OBJECT --list PATTERN                         all inner loops of functions that match

A loop counts as a kernel's where its products, by how many weights each takes and for how many rows of x, and its
conversions tell it from the others (LOOPS); the tool fails where no loop does. Nothing here is measured: a loop
takes as long as the fullest of a core's resources (CORES), with all operands in the first cache.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OBJDUMP = "aarch64-linux-gnu-objdump"
PRODUCTS = ("fmla", "sdot", "smmla", "bfdot", "bfmmla")

_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
_TARGET = re.compile(r"\b([0-9a-f]+) <")
_NAMESPACES = "aoext::cpu::", "(anonymous namespace)::", "mmla::"


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
    command = [OBJDUMP, "--disassemble", "--demangle", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    name, code = "", []
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
    """Of a clock. Which vector instructions take two of the four vector units, and as how many operations."""

    name: str
    ghz: float
    dispatched: int
    vectors: int
    loads: int
    halves: dict[str, int]


# Neoverse: Arm's software optimization guides, as LLVM's scheduling models have them; all products take any vector
# unit. Of Apple's cores only widths are known, from measurements that others published: all that is known of
# Neoverse's halves is left out there.
_NEOVERSE = {"shift": 1, "convert": 2, "look up": 2}
CORES = (
    Core("Neoverse V1", 2.6, dispatched=8, vectors=4, loads=3, halves=_NEOVERSE),
    Core("Neoverse V2", 2.8, dispatched=8, vectors=4, loads=3, halves=_NEOVERSE | {"look up": 1}),
    Core("Apple M2", 3.5, dispatched=8, vectors=4, loads=3, halves={}),
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
        half = sum(core.halves.get(kind, 0) * count for kind, count in self.others.items())
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
            loads += 1
            others["load"] += i.name == "ld1r"
        elif i.name.startswith("st") and vector_register:
            stores += 1
        elif i.name in PRODUCTS:
            products += 1
        elif i.is_vector:
            others[kind_of(i.name)] += 1
    return Cost(len(loop), products, loads, stores, +others)


# ---- kernels -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """An inner loop: where it is, and what tells it."""

    title: str
    unit: str  # csrc/cpu/kernels/<unit>.cpp
    function: str
    product: str
    weights: int  # of an iteration
    rows: int  # of x
    products: int  # of an iteration; 0 where it packs
    needs: str = ""  # an instruction that it has

    def matches(self, loop: list[Instruction]) -> bool:
        names = Counter(i.name for i in loop)
        return names[self.product] == self.products and (not self.needs or names[self.needs] > 0)
