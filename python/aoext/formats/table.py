"""The table of number formats: how a weight [N, K] of a code is stored, what its scales and zero points mean.

The rows are the library's (csrc/common/formats.h). What fake kernels, tensors, references and compilers know
of a format, they ask here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import torch

from aoext.formats.dtypes import BLOCK_SCALE_DTYPES, FLOAT_DTYPES

TABLE_SIZE = 16  # values that codes of 4 bits look up


class Code(IntEnum):
    """What the bits of a weight are: the argument `code` of the operators of `torch.ops.ao`."""

    INT4 = 0
    INT8 = 1
    E4M3 = 2
    E5M2 = 3
    LUT4 = 4
    INT2 = 5
    INT3 = 6
    INT5 = 7
    INT6 = 8
    INT7 = 9
    Q4_0 = 10
    Q4_1 = 11
    Q5_0 = 12
    Q5_1 = 13
    Q8_0 = 14
    Q2_K = 15
    Q3_K = 16
    Q4_K = 17
    Q5_K = 18
    Q6_K = 19
    IQ4_NL = 20
    IQ4_XS = 21
    TQ2_0 = 22
    TQ1_0 = 23


@dataclass(frozen=True)
class Format:
    """How a weight [N, K] of a code is stored.

    storage: the dtype of its elements
    values, bytes: so many codes along k lie in so many bytes (csrc/common/layout.h)
    group: the columns that share a scale, where the blocks of bytes hold their scales; else 0
    scales: "groups", [K/group_size, N] for group_size columns each; "blocks", [⌈N/block_n⌉, ⌈K/block_k⌉];
        "inside", in the blocks of bytes, and one float32 for the whole weight beside these
    zero: "none"; "added", w = code · scale + zero_point, a float of scale's dtype; "subtracted",
        w = (code − zero_point) · scale, an integer of the code's type, which may be left out
    has_table: whether codes are indices into 16 float32 values, w = table[code] · scale, beside which there
        may be one scale more for the whole weight
    """

    code: Code
    storage: torch.dtype
    values: int
    bytes: int
    group: int
    scales: Literal["groups", "blocks", "inside"]
    zero: Literal["none", "added", "subtracted"]
    has_table: bool

    @property
    def name(self) -> str:
        return self.code.name.lower()

    @property
    def bits(self) -> int:
        """The bits of a code, where nothing else lies beside codes."""
        return 8 * self.bytes // self.values

    @property
    def is_packed(self) -> bool:
        """Whether an element holds several codes."""
        return self.values > 1

    @property
    def lowest(self) -> int:
        """The smallest integer that a code is; those of a signed dtype are signed."""
        return -(1 << (self.bits - 1)) if self.storage.is_signed else 0

    @property
    def highest(self) -> int:
        return self.lowest + (1 << self.bits) - 1

    @property
    def scale_dtypes(self) -> tuple[torch.dtype, ...]:
        dtypes = {"groups": FLOAT_DTYPES, "blocks": BLOCK_SCALE_DTYPES, "inside": (torch.float32,)}
        return dtypes[self.scales]

    def stored_shape(self, rows: int, columns: int) -> list[int]:
        """The shape of a weight [rows, columns]."""
        stored = [rows, columns // self.values]
        return [*stored, self.bytes] if self.bytes > 1 else stored

    def columns(self, stored: Sequence[int]) -> int:
        """K of a weight of this shape [N, …]."""
        return self.values * stored[1]

    def scale_shape(self, rows: int, columns: int, block_size: Sequence[int]) -> list[int]:
        """The shape of its scales, and of its zero points."""
        if self.scales == "inside":
            return [1]
        block_n, block_k = block_size
        blocks = [-(-rows // block_n), -(-columns // block_k)]
        return blocks[::-1] if self.scales == "groups" else blocks


def _rows() -> dict[Code, Format]:
    """The library's rows; ImportError where it has other codes than `Code`."""
    found = {}
    for number, line in enumerate(torch.ops.ao._formats().splitlines()):
        name, storage, *numbers, scales, zero, values = line.split()
        if [name] != [code.name.lower() for code in Code if code == number]:
            raise ImportError(
                f"aoext: libaoext.so has the format {name}, which these Python files do not know"
            )
        code = Code(number)
        together, size, group = map(int, numbers)
        dtype = getattr(torch, storage)
        found[code] = Format(code, dtype, together, size, group, scales, zero, values == "table")
    return found


FORMATS: dict[Code, Format] = _rows()

_CODES = {row.storage: code for code, row in FORMATS.items() if not row.is_packed}


def code_of(dtype: torch.dtype) -> Code:
    """The code of a weight that has one element of `dtype` for each of its own; KeyError for other dtypes."""
    return _CODES[dtype]
