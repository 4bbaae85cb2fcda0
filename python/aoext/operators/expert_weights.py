"""Weights of experts of which few are plain at a time: those of one, or of some in a batch."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from aoext.formats.table import FORMATS, TABLE_SIZE, Code

ao = torch.ops.ao


class PlainWeights:
    """The weights [E, A, B] of experts."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.shape = weight.shape[1:]

    def of_expert(self, e: int) -> Tensor:
        return self.weight[e]

    def of_experts(self, index: Tensor) -> Tensor:
        return self.weight.index_select(0, index)


class QuantizedWeights:
    """Quantised weights [E, N, K] as plain ones of a dtype."""

    def __init__(
        self,
        dtype: torch.dtype,
        transposed: bool,
        weight: Tensor,
        scale: Tensor,
        code: int,
        block_size: list[int] | None,
        zero_point: Tensor | None,
        table: Tensor | None,
        global_scale: Tensor | None,
    ) -> None:
        nested = table is not None and len(table) > TABLE_SIZE
        if global_scale is not None and global_scale.numel() < len(weight):
            global_scale = global_scale.expand(len(weight)).contiguous()
        # Not every device gathers floats of 8 bits.
        self.scale_dtype = scale.dtype
        self.weight_dtype = weight.dtype
        self.of_each = [_as_bytes(weight), _as_bytes(scale), zero_point, global_scale]
        self.code, self.block_size, self.table = code, block_size, table
        self.dtype, self.transposed = dtype, transposed
        self.format = FORMATS[Code(code)]
        N, K = weight.shape[1], self.format.columns(weight.shape[1:])
        # Whether the weights of several experts are one, of more rows.
        by_blocks = block_size is None or N % block_size[0] == 0
        self.rows_are_apart = self.format.scales != "inside" and by_blocks and not nested
        self.shape = torch.Size((K, N) if transposed else (N, K))

    def _dequantized(self, of_expert: list[Tensor | None]) -> Tensor:
        weight, scale, zero_point, global_scale = of_expert
        assert weight is not None
        assert scale is not None
        return ao.dequantize(
            weight.view(self.weight_dtype),
            scale.view(self.scale_dtype) if scale.itemsize == 1 else scale,
            self.code,
            self.block_size,
            zero_point,
            self.table,
            global_scale,
            dtype=self.dtype,
        )

    def of_expert(self, e: int) -> Tensor:
        plain = self._dequantized([None if part is None else part[e] for part in self.of_each])
        return plain.mT if self.transposed else plain

    def of_experts(self, index: Tensor) -> Tensor:
        chosen = [None if part is None else part.index_select(0, index) for part in self.of_each]
        if self.rows_are_apart:
            return self._below_each_other(chosen)
        each = ([None if part is None else part[i] for part in chosen] for i in range(len(index)))
        plain = torch.stack([self._dequantized(of_expert) for of_expert in each])
        return plain.mT if self.transposed else plain

    def of_all(self) -> Tensor:
        """[E, A, B], of weights whose rows are apart."""
        return self._below_each_other(self.of_each)

    def _below_each_other(self, of_each: list[Tensor | None]) -> Tensor:
        """Experts [E, …] as one weight that has the rows of all, in one call."""
        weight, scale, zero_point, global_scale = of_each
        assert weight is not None
        assert scale is not None
        if global_scale is not None:
            factors = global_scale.reshape(-1, *[1] * (scale.dim() - 1))
            scale = scale.view(self.scale_dtype).float() * factors
        others = [None if part is None else self._joined(part) for part in (scale, zero_point)]
        plain = self._dequantized([weight.flatten(0, 1), *others, None]).unflatten(0, (len(weight), -1))
        return plain.mT if self.transposed else plain

    def _joined(self, part: Tensor) -> Tensor:
        """Scales or zero points of several experts; those by groups have rows in columns."""
        return part.transpose(0, 1).flatten(1) if self.format.scales == "groups" else part.flatten(0, 1)


Weights: TypeAlias = PlainWeights | QuantizedWeights


def _as_bytes(t: Tensor) -> Tensor:
    return t.view(torch.uint8) if t.itemsize == 1 else t
