"""Scales and offsets that fit a weight better than those of rounding, without data.

    grid_for(config, weight, importance=None, algorithm="search") -> Grid

weight [N, K] is plain. importance [K] weighs the squared error of each column: second moments of the
activations that meet the weight, E[x²]. What comes back is the grid on which the weight lies best:
`grid.tensor(weight)` has the values next to the weight, and what chooses codes otherwise, such as GPTQ, takes
`grid.columns` and `grid.rounded`.

"search" looks for the least (weighted) squared error of each block. Candidates are shrunk and stretched
ranges, first over a wide span, then closely around the best. Each goes on by turns: codes next to the weight
for this scale and offset; scale and offset by least squares for these codes. Every error is that of scales as
they are stored, and rounding's own are the first candidate, so that no block becomes worse.
"hqq" is Half-Quadratic Quantization (hqq.py), for formats that have offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from aoext.formats.checks import check_dense, has_values, shown
from aoext.formats.dtypes import EXPONENT_DTYPES, FLOAT_DTYPES
from aoext.packing.blockwise import E4M3_TINY, in_tiles
from aoext.packing.scales import is_surely_finite, row_blocks
from aoext.quality.grid import Grid, Integers, divisor
from aoext.quality.hqq import half_quadratic
from aoext.tensors import QuantizedTensor

if TYPE_CHECKING:
    from aoext.configs import QuantizationConfig

Algorithm = Literal["rounding", "search", "hqq"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)

# Elements that are searched at a time: what is alive with them lies in a core's cache, or fills a GPU.
ELEMENTS = {"cpu": 1 << 17}
ELEMENTS_ELSEWHERE = 1 << 22

# Candidates close to the best, and what spreads their anchors evenly, however many there are.
CLOSE, GOLDEN = 16, (5**0.5 - 1) / 2


def check_algorithm(who: str, algorithm: str, has_offsets: bool) -> None:
    """ValueError for what is no algorithm, and for one that a format cannot have."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{who}: algorithm must be one of {', '.join(ALGORITHMS)}, got {shown(algorithm)}")
    if algorithm == "hqq" and not has_offsets:
        raise ValueError(f"{who}: algorithm 'hqq' is for integers with zero points, which this scheme lacks")


@torch.no_grad()
def grid_for(
    config: QuantizationConfig,
    weight: Tensor,
    importance: Tensor | None = None,
    algorithm: str = "search",
) -> Grid:
    """The grid of `config` on which a weight [N, K] lies best; the package says what the arguments are.

    ValueError for NaN or Inf in either, NotImplementedError for formats whose blocks hold their scales.
    """
    return fitted(config.rounded(weight), weight, importance, algorithm)


@torch.no_grad()
def fitted(
    rounded: QuantizedTensor, weight: Tensor, importance: Tensor | None = None, algorithm: str = "search"
) -> Grid:
    """grid_for, of a weight that is rounded already."""
    grid = Grid.of(rounded)
    check_algorithm("grid_for", algorithm, grid.offset is not None)
    if importance is not None:
        _check_importance(importance, weight)
    if algorithm == "rounding" or not has_values(weight):
        return grid
    if algorithm == "search":
        grid = Grid.of(_with_headroom(rounded))
    block_n = grid.block_size[0]
    found: list[tuple[Tensor, Tensor | None]] = []
    for rows in row_blocks(weight, block_n, ELEMENTS.get(weight.device.type, ELEMENTS_ELSEWHERE)):
        part = weight[rows].float()
        of_blocks = slice(rows.start // block_n, -(-min(rows.stop, len(weight)) // block_n))
        scale = grid.scale[of_blocks]
        offset = None if grid.offset is None else grid.offset[of_blocks]
        x, weights = _by_block(part, grid.block_size), _weights(part, importance, grid.block_size)
        flat = None if offset is None else offset.flatten()
        if algorithm == "hqq":
            assert flat is not None
            best: tuple[Tensor, Tensor | None] = half_quadratic(grid, x, scale.flatten(), flat)
        else:
            best = _search(grid, x, weights, scale.flatten(), flat)
        found.append((best[0].view_as(scale), None if best[1] is None else best[1].view_as(scale)))
    scales, offsets = zip(*found, strict=True)
    return grid.at(torch.cat(scales), None if grid.offset is None else torch.cat(offsets))


def _check_importance(importance: Tensor, weight: Tensor) -> None:
    check_dense("grid_for", "importance", importance, FLOAT_DTYPES, "[K]", 1)
    if len(importance) != weight.shape[1]:
        raise ValueError(
            f"grid_for: importance must be [K] = [{weight.shape[1]}], got {list(importance.shape)}"
        )
    if not is_surely_finite(importance) or bool((importance < 0).any()):
        raise ValueError("grid_for: importance must be finite and not negative")


def _with_headroom(rounded: QuantizedTensor) -> QuantizedTensor:
    """The weight with half of its scales in float8 and twice their common one, where nothing is lost.

    Rounding's largest scale is the largest that float8_e4m3fn has, and a larger one may be better: a block of
    e2m1 may map its largest magnitude to 4 instead of 6.
    """
    whole = rounded.global_scale
    if whole is None or rounded.scale.dtype is not torch.float8_e4m3fn:
        return rounded
    scale = rounded.scale.float()
    if bool(scale.amin() < 2 * E4M3_TINY) or not bool((2 * whole).isfinite()):
        return rounded
    halved = (scale / 2).to(rounded.scale.dtype)
    return rounded.remade({**dict(rounded.named_fields()), "scale": halved, "global_scale": 2 * whole})


def _by_block(part: Tensor, block_size: list[int]) -> Tensor:
    """[N, K] as [values of a block, blocks], which every device's kernels go through at once."""
    return in_tiles(part, block_size).permute(1, 3, 0, 2).flatten(2).flatten(0, 1).contiguous()


def _weights(part: Tensor, importance: Tensor | None, block_size: list[int]) -> Tensor | None:
    """How much each value's error counts, as _by_block has them; nothing where blocks reach beyond."""
    rows, columns = part.shape
    if importance is None:
        if rows % block_size[0] == 0 and columns % block_size[1] == 0:
            return None
        return _by_block(torch.ones_like(part), block_size)
    mean = importance.float().mean()
    relative = importance.float() / divisor(mean)
    # A column that is never used still chooses between scales that are equal otherwise.
    return _by_block(relative.clamp(min=1e-6).expand_as(part), block_size)


@dataclass(frozen=True)
class _Span:
    """Candidates: factors of rounding's scales, then (factor, anchor) around the best scales so far.

    anchor: where a range stays as it shrinks, from 0, its lower end, to 1, its upper one; without meaning
        where zero is a level
    turns: how often each candidate chooses codes, and scale and offset for them but for the last time
    last: how many turns the best of all takes at the end
    """

    wide: tuple[float, ...]
    close: tuple[tuple[float, float], ...]
    turns: int = 2
    last: int = 3


def _span(grid: Grid) -> _Span:
    stored, levels = grid.template.scale.dtype, grid.levels
    if stored in EXPONENT_DTYPES:
        return _Span((0.5, 2.0), (), turns=1, last=0)
    if stored is torch.float8_e4m3fn:  # numbers that are about 2^(1/12) apart
        return _Span(tuple(2 ** (i / 12) for i in range(-5, 9) if i), (), turns=1, last=1)
    if not isinstance(levels, Integers):
        return _Span((0.7, 0.8, 0.9, 1.1), tuple((f, 0.5) for f in (0.93, 0.96, 1.03, 1.06)))
    wide: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9)
    if grid.offset is not None:
        steps = levels.highest - levels.lowest
        # Up to a step more or less in the same range, each at another place of it.
        places = ((2 * (i + 0.5) / CLOSE - 1, i * GOLDEN % 1) for i in range(CLOSE))
        return _Span(wide, tuple((steps / (steps + more), anchor) for more, anchor in places))
    most = -levels.lowest
    if levels.lowest != -levels.highest:  # the end with a level more may be the other one
        wide += (-most / levels.highest, -0.9 * most / levels.highest)
    return _Span(wide, tuple((most / (most + d), 0.5) for d in (-0.6, -0.3, 0.3, 0.6, 0.9)))


class _Best:
    """The best scales and offsets [B] so far of blocks x [T, B]."""

    def __init__(
        self, grid: Grid, x: Tensor, weights: Tensor | None, scale: Tensor, offset: Tensor | None
    ) -> None:
        self.grid, self.x, self.weights = grid, x, weights
        self.scale, self.offset = scale, offset
        self.inverse_unit = divisor(scale).abs().reciprocal()  # errors are squares of steps of rounding
        self.total = torch.full_like(scale, len(x)) if weights is None else weights.sum(0)
        self.of_x = self._sum(x)
        self.error = self._error(grid.levels.nearest(self._in_steps(scale, offset)), scale, offset)

    def levels(self, scale: Tensor, offset: Tensor | None) -> Tensor:
        """Levels about next to the values: no error of theirs is less than what the nearest ones have."""
        return self.grid.levels.about(self._in_steps(scale, offset))

    def _in_steps(self, scale: Tensor, offset: Tensor | None) -> Tensor:
        return (self.x if offset is None else self.x - offset) / divisor(scale)

    def consider(self, scale: Tensor, offset: Tensor | None) -> Tensor:
        """Keep what is better than all before; gives the levels that are chosen by it."""
        scale, offset = self.grid.stored(scale, offset)
        levels = self.levels(scale, offset)
        error = self._error(levels, scale, offset)
        better = error < self.error
        self.error = torch.where(better, error, self.error)
        self.scale = torch.where(better, scale, self.scale)
        if self.offset is not None and offset is not None:
            self.offset = torch.where(better, offset, self.offset)
        return levels

    def least_squares(self, levels: Tensor) -> tuple[Tensor, Tensor | None]:
        """The scale and offset of least error for these levels; as they are where any will do."""
        weighted = levels if self.weights is None else levels * self.weights
        with_x, with_itself = (weighted * self.x).sum(0), (weighted * levels).sum(0)
        if self.offset is None:
            return torch.where(with_itself > 0, with_x / divisor(with_itself), self.scale), None
        mean = weighted.sum(0) / self.total
        spread = with_itself - mean * mean * self.total
        scale = torch.where(spread > 0, (with_x - mean * self.of_x) / divisor(spread), self.scale)
        return scale, self.of_x / self.total - scale * mean

    def _sum(self, values: Tensor) -> Tensor:
        return values.sum(0) if self.weights is None else (values * self.weights).sum(0)

    def _error(self, levels: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
        values = levels * scale
        values = values if offset is None else values.add_(offset)
        return self._sum(values.sub_(self.x).mul_(self.inverse_unit).square_())


def _search(
    grid: Grid, x: Tensor, weights: Tensor | None, scale: Tensor, offset: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The best scales and offsets [B] that are stored for blocks x [T, B], from those of rounding on."""
    best, span = _Best(grid, x, weights, scale, offset), _span(grid)
    lowest, highest = _ends(grid)

    def take_turns(scale: Tensor, offset: Tensor | None, turns: int) -> None:
        for turn in range(turns):
            levels = best.consider(scale, offset)
            if turn < turns - 1:
                scale, offset = best.least_squares(levels)

    def stretched(factor: float, anchor: float) -> tuple[Tensor, Tensor | None]:
        scale = best.scale * factor
        if best.offset is None:
            return scale, None
        fixed = lowest + anchor * (highest - lowest)
        return scale, best.offset + fixed * (best.scale - scale)

    for candidate in [stretched(factor, 0.5) for factor in span.wide]:
        take_turns(*candidate, span.turns)
    for candidate in [stretched(*each) for each in span.close]:
        take_turns(*candidate, span.turns)
    for _ in range(span.last):
        best.consider(*best.least_squares(best.levels(best.scale, best.offset)))
    return best.scale, best.offset


def _ends(grid: Grid) -> tuple[float, float]:
    levels = grid.levels
    if isinstance(levels, Integers):
        return float(levels.lowest), float(levels.highest)
    return -levels.largest, levels.largest
