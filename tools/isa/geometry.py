"""What a tile kernel's main loop multiplies, read back from its code.

Once through the loop, a lane loads W weights: of `columns` rows of the weight, `piece` of each. A DPAS
adds up `depth` of them for up to 8 rows of the input. So there must be

    blocks · (columns + sums) · piece / depth      DPAS,  with W = columns · piece

(sums is 1 where the rows of the input are added up too, by a product with ones). A built-in that is misspelt
compiles to nothing: then there is no such loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from disassembly import Kernel, Way

DPAS_ROWS = 8  # at most
LOAD_BYTES = 16  # of weights, a lane


@dataclass(frozen=True)
class Family:
    """What the kernels of a source file have in common."""

    bits: int  # of a weight
    sums: int
    step: int  # of K: a piece is some of them
    # Tiles of columns, by the rows of y; not needed where sums tell the columns from the piece.
    columns: Callable[[int], int] | None = None
    # How many operations multiply a weight: float16 by e5m2 goes as two parts of the input.
    parts: tuple[int, ...] = (1,)


# By the source's name. The rows of a kernel stand in its name, _m<rows>.
FAMILIES = {
    "int4_tile": Family(bits=4, sums=1, step=32),
    "rowwise_tile": Family(
        bits=8, sums=0, step=32, columns=lambda rows: 2 if rows >= 16 else 1, parts=(1, 2)
    ),
}


@dataclass(frozen=True)
class Geometry:
    """Of a sub-group: the part of y that it makes, and what one pass of its loop takes of K."""

    rows: int
    columns: int  # tiles of 16
    piece: int

    @property
    def weights(self) -> int:
        """Weights a lane and pass."""
        return self.columns * self.piece


def rows_of(kernel: str) -> int | None:
    found = re.search(r"_m(\d+)(_|$)", kernel)
    return int(found[1]) if found else None


def read_geometry(source: str, kernel: Kernel, loop: Way) -> Geometry | None:
    """None where the code does not fit the formula."""
    family, rows = FAMILIES.get(source), rows_of(kernel.name)
    if family is None or rows is None or not loop.dpas:
        return None
    blocks = -(-rows // DPAS_ROWS)
    weights = loop.gathers * LOAD_BYTES * 8 // family.bits
    for parts in family.parts:
        products = loop.dpas // (blocks * parts) * loop.dpas_depth  # = weights + sums · piece
        piece = weights // family.columns(rows) if family.columns else products - weights
        fits = piece > 0 and piece % family.step == 0 and weights % piece == 0
        if fits and loop.dpas % (blocks * parts) == 0 and products == weights + family.sums * piece:
            return Geometry(rows, weights // piece, piece)
    return None
