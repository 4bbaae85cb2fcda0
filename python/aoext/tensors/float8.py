"""Weights of float8 with a scale for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from aoext import packing
from aoext.formats.table import Code
from aoext.tensors.rowwise import RowScaledTensor, row_scaled

if TYPE_CHECKING:
    from typing_extensions import Self


class Float8Tensor(RowScaledTensor):
    """A row-scaled weight whose qdata is float8_e4m3fn or float8_e5m2; see RowScaledTensor.

    >>> weight = Float8Tensor.from_hp(torch.randn(64, 256))
    >>> torch.nn.functional.linear(torch.randn(3, 256), weight).shape
    torch.Size([3, 64])
    """

    codes = (
        Code.E4M3,
        Code.E5M2,
    )
    fields = row_scaled(*codes)
    encoding: ClassVar[dict[str, str]] = {
        "format": "float8, of qdata's dtype",
        "zero_point": "none: w = q * scale",
    }

    @classmethod
    def from_hp(
        cls,
        w: Tensor,
        dtype: torch.dtype = torch.float8_e4m3fn,
        *,
        dynamic_activation: bool = False,
    ) -> Self:
        """Quantise a weight [N, K] or [E, N, K] as packing.float8_row_quantize does."""
        return cls._of_rows(lambda rows: packing.float8_row_quantize(rows, dtype), w, dynamic_activation)

    def _quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return packing.float8_row_quantize(weight, self.qdata.dtype)
