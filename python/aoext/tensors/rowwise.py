"""What the weights of 8 bits share: values and one float32 scale for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aoext import packing
from aoext.formats.checks import shown
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.fields import BLOCK, Axis, Field, K, N, gathered

if TYPE_CHECKING:
    from typing_extensions import Self


def row_scaled(*dtypes: torch.dtype) -> dict[str, Field]:
    """The fields of a row-scaled weight whose values are of one of `dtypes`."""
    return {
        "qdata": Field((Axis(N), Axis(K)), dtypes),
        "scale": Field((Axis(N), Axis(K, BLOCK)), (torch.float32,)),
    }


class RowScaledTensor(QuantizedTensor):
    """A weight [N, K] as w = qdata·scale.

    qdata: [N, K], of a dtype that the subclass names
    scale: float32 [N, 1]
    block_size: [1, K]
    dtype: bfloat16, float16, float32 or float64, that of the activations
    dynamic_activation: whether activations are quantised to qdata's dtype too, row by row, so that
        8-bit numbers are multiplied; else they meet the weight as they are

    TypeError for wrong types and dtypes, ValueError for shapes that do not fit each other.
    """

    attributes = ("block_size", "dynamic_activation")
    blocks_are_rows = True

    scale: Tensor
    dynamic_activation: bool

    def __new__(
        cls,
        qdata: Tensor,
        scale: Tensor,
        block_size: Sequence[int],
        dtype: torch.dtype,
        dynamic_activation: bool = False,
    ) -> Self:
        return cls.from_fields(
            {"qdata": qdata, "scale": scale},
            dtype,
            block_size=block_size,
            dynamic_activation=dynamic_activation,
        )

    def _check(self) -> None:
        who, columns = type(self).__name__, self.shape[K]
        if not isinstance(self.dynamic_activation, bool):
            raise TypeError(f"{who}: dynamic_activation must be a bool, got {shown(self.dynamic_activation)}")
        if self.block_size[K] != columns:
            raise ValueError(f"{who}: block_size must be [1, K] = [1, {columns}], got {self.block_size}")

    @property
    def quantizes_input_to(self) -> torch.dtype | None:
        return self.qdata.dtype if self.dynamic_activation else None

    def _dequantize(self) -> Tensor:
        return packing.dequantize(self.qdata, self.scale, dtype=self.operator_dtype)

    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        return dict(zip(("qdata", "scale"), self._quantize(weight), strict=True))

    def _quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Values of qdata's dtype and scales of a weight [N, K]."""
        raise NotImplementedError

    def _rows(self, indices: Tensor) -> Tensor:
        qdata, scale = gathered(self.qdata, indices), gathered(self.scale, indices)
        return torch.ops.ao.dequantize_rowwise(qdata, scale, dtype=self.operator_dtype)

    def _linear(self, input: Tensor, bias: Tensor | None) -> Tensor:
        qdata, scale = self.qdata.contiguous(), self.scale.contiguous()
        if self.dynamic_activation:
            return torch.ops.ao.scaled_linear_rowwise(input, qdata, scale, bias)
        return self._weight_only(input, qdata, scale, bias)

    @staticmethod
    def _weight_only(input: Tensor, qdata: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        """The product with activations as they are, by the operator for qdata's kind of numbers."""
        raise NotImplementedError
