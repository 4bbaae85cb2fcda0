"""Weights of int8 with a scale for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from aoext import packing
from aoext.formats.table import Code
from aoext.tensors.rowwise import RowScaledTensor, row_scaled

if TYPE_CHECKING:
    from typing_extensions import Self


class Int8Tensor(RowScaledTensor):
    """A row-scaled weight whose qdata is int8; fields and errors as those of RowScaledTensor.

    >>> weight = Int8Tensor.from_hp(torch.randn(64, 256), dynamic_activation=True)
    >>> torch.nn.functional.linear(torch.randn(3, 256), weight).shape
    torch.Size([3, 64])
    """

    codes = (Code.INT8,)
    fields = row_scaled(*codes)
    encoding: ClassVar[dict[str, str]] = {
        "format": "int8",
        "sign": "two's complement, -127..127",
        "zero_point": "none: w = q * scale",
    }

    @classmethod
    def from_hp(cls, w: Tensor, *, dynamic_activation: bool = False) -> Self:
        """Quantise a weight [N, K] or [E, N, K] as packing.int8_row_quantize does."""
        return cls._of_rows(packing.int8_row_quantize, w, dynamic_activation)

    def _quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return packing.int8_row_quantize(weight)
