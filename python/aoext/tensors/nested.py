"""Weights of 4 bits whose scales have 8 bits and scales themselves, as bitsandbytes quantises twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor

from aoext.formats.checks import has_values
from aoext.formats.table import TABLE_SIZE
from aoext.packing.nested import TOGETHER, float_scales, nested
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.each_expert import by_expert
from aoext.tensors.fields import (
    BLOCK,
    FIXED,
    NESTED,
    Axis,
    E,
    Field,
    K,
    N,
    ceil_div,
    gathered,
    nested_blocks,
)
from aoext.tensors.lut4 import Lut4Tensor

if TYPE_CHECKING:
    from typing_extensions import Self

Weight = TypeVar("Weight", bound=QuantizedTensor)


class NestedLut4Tensor(Lut4Tensor):
    """A weight [N, K] as w = table[qdata]·(table[16 + scale]·global_scale + zero_point): nf4 and fp4 of
    bitsandbytes that are quantised twice, 4.13 bits a weight.

    qdata: uint8 [N, K/2], two indices into the table to a byte, the even k in the low nibble
    table: float32 [272], 16 values of the weight's codes and 256 of its scales'
    scale: uint8 [N, K/block_k]
    block_size: [1, block_k], where block_k divides K
    dtype: bfloat16, float16, float32 or float64, that of the activations
    global_scale: float32 [⌈N/rows⌉, columns], one for each 256 scales, row by row: the fewest rows whose
        scales are whole blocks of 256 have so many columns of them
    zero_point: float32 [1], or [E, 1] of experts

    Slices along N that begin and end between blocks of 256 scales keep their bytes, as whole experts do.
    Other slices, and what is put together of unlike weights, are copies with scales of float32: Lut4Tensors.

    TypeError for wrong types and dtypes, ValueError for shapes that do not fit each other.

    >>> weight = NestedLut4Tensor.from_hp(torch.randn(64, 256), "nf4")
    >>> torch.nn.functional.linear(torch.randn(3, 256), weight).shape
    torch.Size([3, 64])
    """

    fields: ClassVar[dict[str, Field]] = {
        "qdata": Lut4Tensor.fields["qdata"],
        "table": Field((Axis(FIXED, TABLE_SIZE + 256),), (torch.float32,)),
        "scale": Field((Axis(N), Axis(K, BLOCK)), (torch.uint8,)),
        "global_scale": Field((Axis(N, NESTED), Axis(FIXED, NESTED)), (torch.float32,)),
        "zero_point": Field((Axis(FIXED, 1),), (torch.float32,), each_expert=True),
    }
    encoding: ClassVar[dict[str, str]] = {
        "format": Lut4Tensor.encoding["format"],
        "packing": Lut4Tensor.encoding["packing"],
        "zero_point": "of scales: w = table[code] * (table[16 + scale] * global_scale + zero_point)",
    }

    global_scale: Tensor
    zero_point: Tensor

    def __new__(
        cls,
        qdata: Tensor,
        table: Tensor,
        scale: Tensor,
        block_size: Sequence[int],
        dtype: torch.dtype,
        global_scale: Tensor,
        zero_point: Tensor,
    ) -> Self:
        tensors = {"qdata": qdata, "table": table, "scale": scale}
        tensors |= {"global_scale": global_scale, "zero_point": zero_point}
        return cls.from_fields(tensors, dtype, block_size=block_size)

    @classmethod
    def from_hp(cls, w: Tensor, format: str = "nf4", **options: Any) -> Self:
        """Quantise a weight [N, K] or [E, N, K] as Lut4Tensor does, to nf4 or fp4, and then its scales."""
        return by_expert(cls.of, Lut4Tensor.from_hp(w, format, **options))

    @classmethod
    def of(cls, weight: Lut4Tensor, table: Tensor | None = None) -> Self:
        """A weight [N, K] whose scales, of float32 for parts of rows, become codes of 8 bits; see nested."""
        who, (_, columns), (block_n, block_k) = cls.__name__, weight.weight_shape, weight.block_size
        if block_n != 1 or columns % block_k:
            raise ValueError(
                f"{who}: block_size must be [1, block_k] with a block_k that divides K = {columns}, "
                f"got {weight.block_size}"
            )
        if weight.scale.dtype is not torch.float32 or weight.global_scale is not None:
            raise ValueError(f"{who}: scales must be float32 with none of the whole weight, got {weight}")
        codes, table, factors, offset = nested(weight.scale, table)
        return cls(
            weight.qdata,
            torch.cat((weight.table, table)),
            codes,
            weight.block_size,
            weight.dtype,
            as_global_scale(factors, weight.weight_shape, weight.block_size),
            offset,
        )

    def _check(self) -> None:
        rows, columns = self.block_size
        if rows != 1 or self.weight_shape[K] % columns:
            raise ValueError(
                f"{type(self).__name__}: block_size must be [1, block_k] with a block_k that divides "
                f"K = {self.weight_shape[K]}, got {self.block_size}"
            )

    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        plain = with_float_scales(self)
        rounded = plain.remade({**dict(plain.named_fields()), **plain._quantized(weight)})
        return dict(self.of(rounded, self.table[TABLE_SIZE:]).named_fields())

    def _divisible(self, dim: int, *at: int) -> QuantizedTensor:
        length = self.weight_shape[dim]
        rows = 1 if dim == E else nested_blocks(self.weight_shape, self.block_size).rows
        whole = dim != K and all(i % rows == 0 and i >= 0 for i in at if i != length)
        return self if whole or all(i in (0, length) for i in at) else with_float_scales(self)


# Functions, which torch.compile traces: a method of a tensor it would take for an operation.


def _dequantized_rows(weight: NestedLut4Tensor, indices: Tensor) -> Tensor:
    """As computing.dequantized_rows."""
    qdata, codes = gathered(weight.qdata, indices), gathered(weight.scale, indices)
    groups = codes.shape[1]
    at = indices.unsqueeze(1) * groups + torch.arange(groups, device=indices.device)
    factors = weight.global_scale.flatten()[at // TOGETHER]
    values, of_scales = _tables(weight)
    scale = float_scales(codes, of_scales, factors, weight.zero_point)
    return torch.ops.ao.dequantize(
        qdata, scale, weight.code, weight.block_size, None, values, dtype=weight.operator_dtype
    )


NestedLut4Tensor._rows = _dequantized_rows  # type: ignore[assignment]


def _tables(weight: NestedLut4Tensor) -> tuple[Tensor, Tensor]:
    """The values of a weight's codes, and those of its scales'."""
    return weight.table[:TABLE_SIZE], weight.table[TABLE_SIZE:]


def as_global_scale(factors: Tensor, weight_shape: Sequence[int], block_size: Sequence[int]) -> Tensor:
    """The field `global_scale` of factors in a row, one for each 256 scales."""
    rows, columns = nested_blocks(weight_shape, block_size)
    entries = ceil_div(weight_shape[N], rows) * columns
    return torch.nn.functional.pad(factors, (0, entries - len(factors))).view(-1, columns)


def factors_of(weight: NestedLut4Tensor) -> Tensor:
    """The factors of a weight [N, K] in a row, one for each 256 scales."""
    return weight.global_scale.flatten()[: ceil_div(weight.scale.numel(), TOGETHER)]


def with_float_scales(weight: Weight) -> Weight:
    """The weight as it is, but one with nested scales as the Lut4Tensor that it stands for, of its codes."""
    return cast(Weight, by_expert(_expanded, weight)) if isinstance(weight, NestedLut4Tensor) else weight


def _expanded(weight: NestedLut4Tensor) -> Lut4Tensor:
    codes, (values, of_scales) = weight.scale, _tables(weight)
    factors = weight.global_scale.flatten().repeat_interleave(TOGETHER)[: codes.numel()].view(codes.shape)
    fields = {
        "qdata": weight.qdata,
        "table": values.clone(),
        "scale": float_scales(codes, of_scales, factors, weight.zero_point),
    }
    attributes = {"block_size": list(weight.block_size)}
    return Lut4Tensor._make(fields, attributes, weight.weight_shape, weight.dtype, weight.transposed)


def joinable(weights: Sequence[QuantizedTensor], dim: int) -> list[QuantizedTensor]:
    """Weights as those whose fields can be put behind each other along `dim`: nested alike or not at all."""
    nested = [weight for weight in weights if isinstance(weight, NestedLut4Tensor)]
    if len(nested) == len(weights) and _continue_each_other(nested, dim):
        return list(weights)
    return [with_float_scales(weight) for weight in weights]


def _continue_each_other(weights: Sequence[NestedLut4Tensor], dim: int) -> bool:
    if dim != N:
        return dim == E
    first, whole = weights[0], has_values(weights[0].qdata)
    rows = nested_blocks(first.weight_shape, first.block_size).rows
    if any(weight.weight_shape[N] % rows for weight in weights[:-1]):
        return False
    return not whole or all(torch.equal(first.zero_point, weight.zero_point) for weight in weights)
