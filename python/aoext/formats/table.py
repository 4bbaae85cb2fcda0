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


@dataclass(frozen=True)
class Format:
    """How a weight [N, K] of a code is stored.

    storage: the dtype of its elements
    codes_a_byte: the lowest k in the lowest bits
    scales: "groups", [K/group_size, N] for group_size columns each; "blocks", [⌈N/block_n⌉, ⌈K/block_k⌉]
    zero: "none"; "added", w = code · scale + zero_point, a float of scale's dtype; "subtracted",
        w = (code − zero_point) · scale, an integer of the code's type, which may be left out
    has_table: whether codes are indices into 16 float32 values, w = table[code] · scale, beside which there
        may be one scale more for the whole weight
    """

    code: Code
    storage: torch.dtype
    codes_a_byte: int
    scales: Literal["groups", "blocks"]
    zero: Literal["none", "added", "subtracted"]
    has_table: bool

    @property
    def name(self) -> str:
        return self.code.name.lower()

    @property
    def bits(self) -> int:
        return 8 // self.codes_a_byte

    @property
    def lowest(self) -> int:
        """The smallest integer that a code is; those of a signed dtype are signed."""
        return -(1 << (self.bits - 1)) if self.storage.is_signed else 0

    @property
    def highest(self) -> int:
        return self.lowest + (1 << self.bits) - 1

    @property
    def scale_dtypes(self) -> tuple[torch.dtype, ...]:
        return FLOAT_DTYPES if self.scales == "groups" else BLOCK_SCALE_DTYPES

    def stored_shape(self, rows: int, columns: int) -> list[int]:
        """The shape of a weight [rows, columns]."""
        return [rows, columns // self.codes_a_byte]

    def scale_shape(self, rows: int, columns: int, block_size: Sequence[int]) -> list[int]:
        """The shape of its scales, and of its zero points."""
        block_n, block_k = block_size
        blocks = [-(-rows // block_n), -(-columns // block_k)]
        return blocks[::-1] if self.scales == "groups" else blocks


def _rows() -> dict[Code, Format]:
    """The library's rows; ImportError where it has other codes than `Code`."""
    found = {}
    for number, line in enumerate(torch.ops.ao._formats().splitlines()):
        name, storage, count, scales, zero, values = line.split()
        if [name] != [code.name.lower() for code in Code if code == number]:
            raise ImportError(
                f"aoext: libaoext.so has the format {name}, which these Python files do not know"
            )
        code = Code(number)
        found[code] = Format(code, getattr(torch, storage), int(count), scales, zero, values == "table")
    return found


FORMATS: dict[Code, Format] = _rows()

_CODES = {row.storage: code for code, row in FORMATS.items() if row.codes_a_byte == 1}


def code_of(dtype: torch.dtype) -> Code:
    """The code of a weight that has one element of `dtype` for each of its own; KeyError for other dtypes."""
    return _CODES[dtype]
