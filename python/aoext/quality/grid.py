"""The values that a quantised weight [N, K] can have: levels of codes, a scale and an offset for each block.

    value = level · scale + offset

Rounding to nearest, a search for scales and GPTQ choose among the same values, whatever the format is. A
block is [block_n, block_k]; scales and offsets are float32 [⌈N/block_n⌉, ⌈K/block_k⌉] and hold only numbers
that the format stores. Weights whose columns lie in another order (`k_order`) have the grid of their codes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aoext.formats.dtypes import EXPONENT_DTYPES, FLOAT_DTYPES
from aoext.formats.table import FORMATS, Code, Format
from aoext.packing import groups
from aoext.packing.blockwise import E4M3_MAX, E4M3_TINY, TableCodes
from aoext.packing.scales import held, row_blocks
from aoext.tensors import QuantizedTensor
from aoext.tensors.nested import with_float_scales

if TYPE_CHECKING:
    from typing_extensions import Self


class Levels(ABC):
    """What codes stand for before they meet a scale, as float32."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """The largest magnitude."""

    @abstractmethod
    def nearest(self, x: Tensor) -> Tensor:
        """The level next to each of `x`."""

    def about(self, x: Tensor) -> Tensor:
        """The same, but where that takes less time either one of two that are about as near."""
        return self.nearest(x)

    def step(self, x: Tensor) -> Tensor | None:
        """How far the two levels around each of `x` are apart; None where levels lie close everywhere."""
        return None

    @abstractmethod
    def codes(self, levels: Tensor) -> Tensor:
        """The codes of levels [N, K], packed as they are stored."""

    @abstractmethod
    def saturated(self, x: Tensor) -> Tensor:
        """Where `x` lies beyond all levels, by more than half of the last step."""


@dataclass(frozen=True)
class Integers(Levels):
    """lowest..highest; code = level + shift"""

    format: Format
    lowest: int
    highest: int
    shift: int = 0

    @property
    def largest(self) -> float:
        return float(max(-self.lowest, self.highest))

    def nearest(self, x: Tensor) -> Tensor:
        return x.round().clamp_(self.lowest, self.highest)

    def step(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)

    def saturated(self, x: Tensor) -> Tensor:
        nearest = x.round()
        return (nearest < self.lowest) | (nearest > self.highest)

    def codes(self, levels: Tensor) -> Tensor:
        q = (levels + self.shift).to(torch.int8)
        return groups.pack("Grid", q, self.format) if self.format.is_packed else q


@dataclass(frozen=True)
class Floats(Levels):
    """What a float8 dtype has."""

    dtype: torch.dtype

    @property
    def largest(self) -> float:
        return torch.finfo(self.dtype).max

    def saturated(self, x: Tensor) -> Tensor:
        step = 2 ** math.floor(math.log2(self.largest)) * torch.finfo(self.dtype).eps
        return x.abs() > self.largest + step / 2

    def nearest(self, x: Tensor) -> Tensor:
        return x.clamp(-self.largest, self.largest).to(self.dtype).float()

    def codes(self, levels: Tensor) -> Tensor:
        return levels.to(self.dtype)


# Into so many bins a table's range is cut, where levels are looked up by these.
BINS = 4096


class Looked(Levels):
    """The 16 values of a table."""

    def __init__(self, table: Tensor, ties_to_even: bool) -> None:
        self.table, self.order = table, TableCodes(table, ties_to_even)
        ascending = table[self.order.order.long()]
        self.low, self.bins_of_one = ascending[0], BINS / (ascending[-1] - ascending[0])
        middles = (
            self.low + (torch.arange(BINS, dtype=torch.float32, device=table.device) + 0.5) / self.bins_of_one
        )
        self.of_bins = ascending[torch.bucketize(middles, self.order.borders)]

    @property
    def largest(self) -> float:
        return float(self.table.abs().amax())

    def saturated(self, x: Tensor) -> Tensor:
        lowest, low, *_, high, highest = self.table.unique().unbind()
        return (x < lowest - (low - lowest) / 2) | (x > highest + (highest - high) / 2)

    def nearest(self, x: Tensor) -> Tensor:
        return self.table[self.order.codes(x).long()]

    def about(self, x: Tensor) -> Tensor:
        bins = (x - self.low).mul_(self.bins_of_one).nan_to_num_(0).clamp_(0, BINS - 1).to(torch.int32)
        return self.of_bins.index_select(0, bins.flatten()).view_as(x)

    def step(self, x: Tensor) -> Tensor:
        values = self.table.unique()
        above = torch.bucketize(x.contiguous(), values).clamp_(1, len(values) - 1)
        return values[above] - values[above - 1]

    def codes(self, levels: Tensor) -> Tensor:
        codes = self.order.codes(levels)
        return (codes[:, 1::2] << 4).bitwise_or_(codes[:, ::2])


@dataclass(frozen=True)
class Grid:
    """What a weight [N, K] in the scheme of `template` can be.

    template: a quantised weight of the same shape, which says how scales are stored
    offset: None where zero is a level and no offset is chosen
    """

    template: QuantizedTensor
    levels: Levels
    scale: Tensor
    offset: Tensor | None

    @property
    def block_size(self) -> list[int]:
        return self.template.block_size

    @classmethod
    def of(cls, weight: QuantizedTensor) -> Self:
        """The grid on which a quantised weight [N, K] lies. NotImplementedError for blocks of GGUF."""
        format, weight = FORMATS[Code(weight.code)], with_float_scales(weight)
        if format.scales == "inside":
            raise NotImplementedError(f"scales of {format.name} are chosen with its codes, not before them")
        scale, zero = _stored_values(weight), weight.zero_point
        if format.scales == "groups":
            assert zero is not None
            symmetric = torch.equal(zero, groups.symmetric_zero_point(weight.scale, format))
            return cls.with_scales(weight, scale, None if symmetric else zero.float().t())
        return cls.with_scales(weight, scale, None if zero is None else -zero.float() * scale)

    @classmethod
    def with_scales(cls, template: QuantizedTensor, scale: Tensor, offset: Tensor | None) -> Self:
        """The grid of a scheme with scales, and offsets where it has them, that are numbers of the format.

        template: what it holds but for `table` and `global_scale` is not looked at
        """
        format = FORMATS[Code(template.code)]
        if format.scales == "groups":
            middle = groups.middle(format) if offset is None else 0
            levels: Levels = Integers(format, format.lowest - middle, format.highest - middle, middle)
        elif format.has_table:
            assert template.table is not None
            levels = Looked(template.table, template.scale.dtype not in FLOAT_DTYPES)
        elif format.storage.is_floating_point:
            levels = Floats(format.storage)
        else:
            levels = Integers(format, -127 if offset is None else -128, 127)
        return cls(template, levels, scale, offset)

    def at(self, scale: Tensor, offset: Tensor | None = None) -> Self:
        """This grid with other scales, and offsets where it has them, each made a number that is stored."""
        if offset is None or self.offset is None:
            return replace(self, scale=self.stored(scale)[0])
        scale, offset = self.stored(scale, offset)
        return replace(self, scale=scale, offset=offset)

    def with_gradients(self, scale: Tensor, offset: Tensor | None) -> Self:
        """This grid, whose gradients go to the scales and offsets that `at` was given."""
        scale = scale + (self.scale - scale).detach()
        if offset is None or self.offset is None:
            return replace(self, scale=scale)
        return replace(self, scale=scale, offset=offset + (self.offset - offset).detach())

    def stored(self, scale: Tensor, offset: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The numbers next to scales and offsets of any blocks that can be stored, as float32."""
        scale = _as_values(self._stored_scale(scale)) * self._unit()
        if offset is None:
            return scale, None
        zero = self.template.zero_point
        if zero is not None and not zero.is_floating_point():
            return scale, -(-offset / divisor(scale)).round().clamp(-128, 127) * scale
        return scale, offset.to(self.template.scale.dtype).float()

    def columns(
        self, k: Tensor | slice = slice(None), rows: slice = slice(None)
    ) -> tuple[Tensor, Tensor | None]:
        """Scales and offsets [m, n] of n columns of the codes, and m rows."""
        block_n, block_k = self.block_size
        device, (N, K) = self.scale.device, self.template.weight_shape
        down = torch.arange(N, device=device)[rows] // block_n
        across = torch.arange(K, device=device)[k] // block_k
        scale = self.scale[down][:, across]
        return scale, None if self.offset is None else self.offset[down][:, across]

    def rounded(self, w: Tensor, k: Tensor | slice = slice(None)) -> Tensor:
        """The values next to w [N, n], float32, which has the columns `k` of the codes."""
        return self.nearest(w, *self.columns(k))

    def nearest(self, w: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
        """The values next to w, float32, by scales and offsets that `columns` gave."""
        levels = self._levels(w, scale, offset)
        return levels * scale if offset is None else levels * scale + offset

    def tensor(self, w: Tensor) -> QuantizedTensor:
        """The weight with the values next to w [N, K], which are w where it lies on the grid."""
        qdata = torch.empty_like(self.template.qdata, device=w.device)
        for rows in row_blocks(w):
            scale, offset = self.columns(rows=rows)
            qdata[rows] = self.levels.codes(self._levels(w[rows].float(), scale, offset))
        fields = {**dict(self.template.named_fields()), "qdata": qdata, "scale": self._stored(self.scale)}
        zero = self._stored_zero(fields["scale"])
        if zero is not None:
            fields["zero_point"] = zero
        return self.template.remade(fields)

    def gradients(self, w: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Those of w [N, K], scales and offsets from that of the values next to w, straight through rounding.

        With x = (w − offset) / scale and its level: ∂value/∂w is 1, and 0 where x saturates; ∂value/∂scale is
        level − x, and the level where x saturates; ∂value/∂offset is 0, and 1 there. Arxiv 1902.08153, and
        2004.09576 for offsets.
        """
        scale, offset = self.columns(slice(None))
        x = (w if offset is None else w - offset) / divisor(scale)
        saturated = self.levels.saturated(x)
        inside = grad.masked_fill(saturated, 0)
        of_scale = self._sums(grad * self.levels.nearest(x) - inside * x)
        return inside, of_scale, None if offset is None else self._sums(grad - inside)

    def _sums(self, values: Tensor) -> Tensor:
        """Sums of values [N, K] over blocks."""
        block_n, block_k = self.block_size
        rows, columns = values.shape
        whole = torch.nn.functional.pad(values, (0, -columns % block_k, 0, -rows % block_n))
        return whole.unflatten(1, (-1, block_k)).unflatten(0, (-1, block_n)).sum((1, 3))

    def _levels(self, w: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
        return self.levels.nearest((w if offset is None else w - offset) / divisor(scale))

    def _unit(self) -> Tensor | float:
        whole = self.template.global_scale
        return 1.0 if whole is None else whole

    def _stored_scale(self, scale: Tensor) -> Tensor:
        """`scale` as it is stored, but for the order of dimensions; of exponents next by the logarithm."""
        dtype = self.template.scale.dtype
        scale = scale / self._unit()
        if dtype in EXPONENT_DTYPES:
            return (torch.log2(scale.abs()).round().clamp_(-127, 127) + 127).to(torch.uint8).view(dtype)
        if dtype is torch.float8_e4m3fn:
            return scale.clamp(E4M3_TINY, E4M3_MAX).to(dtype)
        return torch.where(scale == 0, scale, held(scale.abs(), dtype).copysign(scale)).to(dtype)

    def _stored(self, scale: Tensor) -> Tensor:
        stored = self._stored_scale(scale)
        return stored.t().contiguous() if self._by_groups else stored

    def _stored_zero(self, scale: Tensor) -> Tensor | None:
        zero = self.template.zero_point
        if zero is None:
            return None
        if self.offset is None:
            return groups.symmetric_zero_point(scale, FORMATS[Code(self.template.code)])
        if self._by_groups:
            return self.offset.to(zero.dtype).t().contiguous()
        return (-self.offset / divisor(self.scale)).round().to(zero.dtype)

    @property
    def _by_groups(self) -> bool:
        return FORMATS[Code(self.template.code)].scales == "groups"


def _stored_values(weight: QuantizedTensor) -> Tensor:
    """Scales of a weight [⌈N/block_n⌉, ⌈K/block_k⌉] as float32, with that of all of it."""
    scale = _as_values(weight.scale)
    if FORMATS[Code(weight.code)].scales == "groups":
        scale = scale.t()
    return scale if weight.global_scale is None else scale * weight.global_scale


def _as_values(stored: Tensor) -> Tensor:
    if stored.dtype is torch.uint8:
        u = stored.int()
        return torch.where(u > 0, u << 23, 1 << 22).view(torch.float32)
    return stored.float()


def divisor(scale: Tensor) -> Tensor:
    """`scale` with 1 for 0, of blocks whose values are one and the same."""
    return scale.masked_fill(scale == 0, 1)
