"""What a tile kernel's main loop multiplies, read back from its code.

In one pass of the loop a lane loads W weights: `columns` rows of the weight, a k-tile of `tile_k` each. A
DPAS adds `depth` products for up to 8 rows of the input. So there must be

    blocks · (columns + sums) · tile_k / depth      DPAS,  with W = columns · tile_k

(sums is 1 where the rows of the input are summed too, by a product with ones). A built-in that is misspelt
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
    step: int  # the k-step, of which a k-tile is a multiple
    # Columns of y in 16s, by its rows; not needed where sums tell the columns from the k-tile.
    columns: Callable[[int], int] | None = None
    # How many operations multiply a weight: float16 by e5m2 takes the input as two bf16 limbs.
    limbs: tuple[int, ...] = (1,)


def _columns(rows: int) -> int:
    return 2 if rows >= 16 else 1


# By the source's name, and by blocks_tile's codes. The rows of a kernel stand in its name, _m<rows>.
FAMILIES = {
    "int4_tile": Family(bits=4, sums=1, step=32),
    "int4_scaled_tile": Family(bits=4, sums=1, step=32),
    "rowwise_tile": Family(bits=8, sums=0, step=32, columns=_columns, limbs=(1, 2)),
    "blocks_tile": Family(bits=8, sums=0, step=32, columns=_columns, limbs=(1, 2)),
    "blocks_tile_lut4": Family(bits=4, sums=0, step=32, columns=_columns),
}


@dataclass(frozen=True)
class Geometry:
    """A sub-group's tile of y, and the k-tile of one pass of its loop."""

    rows: int
    columns: int  # in 16s
    tile_k: int

    @property
    def weights(self) -> int:
        """Weights a lane and pass."""
        return self.columns * self.tile_k


def rows_of(kernel: str) -> int | None:
    found = re.search(r"_m(\d+)(_|$)", kernel)
    return int(found[1]) if found else None


def read_geometry(family_name: str, kernel: Kernel, loop: Way) -> Geometry | None:
    """None where the code does not fit the formula."""
    family, rows = FAMILIES.get(family_name), rows_of(kernel.name)
    if family is None or rows is None or not loop.dpas:
        return None
    blocks = -(-rows // DPAS_ROWS)
    weights = loop.gathers * LOAD_BYTES * 8 // family.bits
    for limbs in family.limbs:
        products = loop.dpas // (blocks * limbs) * loop.dpas_depth  # = weights + sums · tile_k
        tile_k = weights // family.columns(rows) if family.columns else products - weights
        fits = tile_k > 0 and tile_k % family.step == 0 and weights % tile_k == 0
        if fits and loop.dpas % (blocks * limbs) == 0 and products == weights + family.sums * tile_k:
            return Geometry(rows, weights // tile_k, tile_k)
    return None
