"""Reads what `ocloc disasm` writes: a kernel's instructions, its loops, and what they cost.

An instruction is a line such as

    (W&f0.1) add (16|M0)  r16.0<1>:q  r14.0<1;1,0>:q  r3.2<0;1,0>:q  {Compacted}  // comment

(predicate, name, lanes, operands, scheduling); `L1760:` is a label. Code lies in the order of its labels, so
a jump to a smaller one closes a loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

# What a vector engine computes in a clock: Xe-HPC, Xe2 and Xe3 are 512 bits wide.
CLOCK_BITS = 512
# Transcendental functions have a unit of a quarter of that width (Intel's oneAPI GPU optimization guide).
MATH_CLOCKS = 4

_LINE = re.compile(
    r"\s*(?P<predicate>\([^)]*\))?\s*(?P<name>[a-z]\w*(?:\.\w+)*)\s*(?:\((?P<lanes>\d+)\|M\d+\))?(?P<rest>.*)"
)
_LABEL = re.compile(r"(L\d+):")
_TARGET = re.compile(r"\bL\d+\b")
_TYPE = re.compile(r":(ub|b|uw|w|hf|bf|ud|d|f|uq|q|df)\b")
_BITS = {
    "ub": 8,
    "b": 8,
    "uw": 16,
    "w": 16,
    "hf": 16,
    "bf": 16,
    "ud": 32,
    "d": 32,
    "f": 32,
    "uq": 64,
    "q": 64,
    "df": 64,
}
_MESSAGE = re.compile(
    r"(?P<what>load|store)\.(?P<unit>\w+)\.d(?P<bits>\d+)(?:u\d+)?(?:x(?P<count>\d+))?(?P<block>t?)\b"
)

_LINE_BYTES = 64  # of the first cache
_NOT_CODE = {"nop", "illegal"}
_JUMPS = {"jmpi", "goto", "brd", "brc", "while", "break", "cont", "else", "endif", "if"}
_CALLS = {"call", "calla", "ret"}


@dataclass(frozen=True)
class Instruction:
    """One instruction of a sub-group."""

    name: str  # with its suffixes, "dpas.8x4"
    lanes: int
    predicated: bool
    targets: tuple[str, ...]  # labels that it may jump to
    bits: int  # of its widest operand's type; of a DPAS the weights'
    comment: str
    last: bool  # ends the thread

    @property
    def kind(self) -> str:
        return self.name.partition(".")[0]

    @property
    def dpas_rows(self) -> int:
        """Rows of the tile that it multiplies; 0 where it is no DPAS."""
        return int(self.name.rpartition("x")[2]) if self.kind == "dpas" else 0

    @property
    def dpas_depth(self) -> int:
        """Products that it adds up to each value: 8 deep, 32 bits of each operand a step."""
        return 8 * 32 // self.bits

    @property
    def is_scalar(self) -> bool:
        return self.lanes <= 2 and self.kind not in ("send", "sends", "sync", *_JUMPS)

    @property
    def clocks(self) -> int:
        """Clocks for which it keeps a vector engine's issue port or lanes busy."""
        if self.kind == "math":
            return MATH_CLOCKS
        if self.kind in ("send", "sends", "dpas"):
            return 1
        return max(1, self.lanes * self.bits // CLOCK_BITS)

    @property
    def load_bytes(self) -> int:
        """Bytes a lane that it loads from memory; 0 for other instructions and block loads."""
        found = _MESSAGE.search(self.comment)
        if not found or found["what"] != "load" or found["unit"] == "slm" or found["block"]:
            return 0
        return int(found["bits"]) // 8 * int(found["count"] or 1)

    @property
    def is_gather(self) -> bool:
        """Whether each lane loads 16 bytes: in a tile kernel, of a row of the weight of its own."""
        return self.load_bytes == 16

    @property
    def cache_lines(self) -> int:
        """Cache lines that a load touches at most: one a lane for gathers, consecutive values otherwise."""
        return self.lanes if self.is_gather else -(-self.lanes * self.load_bytes // _LINE_BYTES)


@dataclass(frozen=True)
class Way:
    """The longest way, in clocks, through a piece of code; each loop in it is gone through once."""

    instructions: Sequence[Instruction]

    @property
    def clocks(self) -> int:
        return sum(i.clocks for i in self.instructions)

    @property
    def dpas(self) -> int:
        return sum(i.kind == "dpas" for i in self.instructions)

    @property
    def dpas_rows(self) -> int:
        return sum(i.dpas_rows for i in self.instructions)

    @property
    def dpas_depth(self) -> int:
        return next((i.dpas_depth for i in self.instructions if i.kind == "dpas"), 0)

    @property
    def scalar(self) -> int:
        return sum(i.is_scalar for i in self.instructions)

    @property
    def sends(self) -> int:
        return sum(i.kind in ("send", "sends") for i in self.instructions)

    @property
    def gathers(self) -> int:
        return sum(i.is_gather for i in self.instructions)

    @property
    def cache_lines(self) -> int:
        return sum(i.cache_lines for i in self.instructions)

    def __len__(self) -> int:
        return len(self.instructions)


@dataclass
class Code:
    """A kernel's instructions, and where its labels and loops are."""

    instructions: list[Instruction]
    labels: dict[str, int]  # index of the instruction that follows

    @cached_property
    def loops(self) -> list[tuple[int, int]]:
        """(first instruction, the jump back) of every loop, in order; two jumps to one label are one loop."""
        ends: dict[int, int] = {}
        for index, instruction in enumerate(self.instructions):
            for target in instruction.targets:
                begin = self.labels[target]
                if begin <= index:
                    ends[begin] = max(index, ends.get(begin, 0))
        return sorted(ends.items())

    @cached_property
    def innermost(self) -> list[tuple[int, int]]:
        return [
            (a, b)
            for a, b in self.loops
            if not any((c, d) != (a, b) and a <= c and d <= b for c, d in self.loops)
        ]

    @cached_property
    def main_loop(self) -> tuple[int, int] | None:
        """The innermost loop that multiplies most; the longest one where none does."""
        loops = [(self.way(*loop), loop) for loop in self.innermost]
        best = max(loops, key=lambda item: (item[0].dpas_rows, item[0].clocks), default=None)
        return best[1] if best else None

    @cached_property
    def dpas(self) -> int:
        return sum(i.kind == "dpas" for i in self.instructions)

    @cached_property
    def calls(self) -> int:
        return sum(i.kind in _CALLS for i in self.instructions)

    def way(self, begin: int = 0, end: int | None = None, *, shortest: bool = False) -> Way:
        """The longest, or shortest, way from instruction `begin` to `end`, forward jumps only."""
        end = len(self.instructions) - 1 if end is None else end
        best: list[int | None] = [None] * (end - begin + 1)  # clocks up to here, None where nothing leads to
        before = [-1] * (end - begin + 1)
        best[0] = self.instructions[begin].clocks
        for index in range(begin, end):
            here = best[index - begin]
            if here is None:
                continue
            for following in self._followers(index):
                at = following - begin
                if index < following <= end:
                    clocks = here + self.instructions[following].clocks
                    known = best[at]
                    if known is None or (clocks < known if shortest else clocks > known):
                        best[at], before[at] = clocks, index - begin
        found, at = [], end - begin
        if best[at] is None:  # code that only a jump from outside reaches
            return Way([])
        while at >= 0:
            found.append(self.instructions[begin + at])
            at = before[at]
        return Way(found[::-1])

    def _followers(self, index: int) -> Iterable[int]:
        instruction = self.instructions[index]
        yield from (self.labels[target] for target in instruction.targets[:1])
        if not instruction.targets or instruction.predicated or instruction.kind in ("join", "endif"):
            yield index + 1


def parse(text: str) -> Code:
    """The code of one kernel; what follows its end is padding."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
            continue
        code, _, comment = line.partition("//")
        code, _, scheduling = code.partition("{")
        found = _LINE.fullmatch(code.rstrip())
        if not found or found["name"] in _NOT_CODE:
            continue
        predicate = (found["predicate"] or "").strip("()")
        rest = found["rest"]
        # A jump needs its targets, a join's only says where to go on when no lane is left.
        kind = found["name"].partition(".")[0]
        targets = tuple(_TARGET.findall(rest)) if kind in _JUMPS else ()
        sizes = [] if kind in ("send", "sends") else [_BITS[name] for name in _TYPE.findall(rest)]
        if kind == "dpas":
            sizes = [min(sizes, default=16)]  # sums are wider
        instructions.append(
            Instruction(
                found["name"],
                int(found["lanes"] or 1),
                predicate not in ("", "W"),
                targets,
                max(sizes, default=32),
                comment.strip(),
                "EOT" in scheduling,
            )
        )
    ends = [index for index, instruction in enumerate(instructions) if instruction.last]
    if ends:
        del instructions[ends[-1] + 1 :]
    labels = {label: min(index, max(len(instructions) - 1, 0)) for label, index in labels.items()}
    return Code(instructions, labels)


@dataclass
class Kernel:
    """One kernel on one device."""

    name: str
    compiled_twice: bool = False  # the first attempt spilled, this one has fewer optimisations
    registers: int = 0
    scratch: dict[str, int] = field(default_factory=dict)  # spill, private: bytes a lane group
    stack_calls: bool = False
    code: Code = field(default_factory=lambda: Code([], {}))


_PREFIX = "__sycl_kernel_"
_VALUE = re.compile(r"\s+(grf_count|spill_size|private_size|has_stack_calls):\s+(\w+)")


def read_kernels(folder: Path) -> dict[str, Kernel]:
    """The kernels of an image, from the folder that `ocloc disasm -dump` has filled."""
    kernels: dict[str, Kernel] = {}
    kernel: Kernel | None = None
    listing = False
    for line in (folder / ".ze_info").read_text().splitlines():
        if line and not line[0].isspace():  # "kernels:", "kernels_misc_info:", …
            kernel, listing = None, line.startswith("kernels:")
        elif listing and (found := re.fullmatch(r"  - name:\s+(\S+)", line)):
            if not found[1].startswith((_PREFIX, "triton_")):  # the compiler's own
                kernel = None
                continue
            kernel = Kernel(found[1].removeprefix(_PREFIX))
            text = folder / f".text.{found[1]}.asm"
            kernel.code = parse(text.read_text())
            kernel.stack_calls = kernel.code.calls > 0
            kernels[kernel.name] = kernel
        elif kernel and (found := _VALUE.match(line)):
            if found[1] == "grf_count":
                kernel.registers = int(found[2])
            elif found[1] == "has_stack_calls":
                kernel.stack_calls = kernel.stack_calls or found[2] == "true"
            else:
                kernel.scratch[found[1].removesuffix("_size")] = int(found[2])
    return kernels
