"""Weights of int8 with a scale for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from aoext import packing
from aoext.formats.table import Code
from aoext.tensors.fields import Field
from aoext.tensors.ranges import RANGES, check_ranges
from aoext.tensors.rowwise import RowScaledTensor, row_scaled

if TYPE_CHECKING:
    from typing_extensions import Self


class Int8Tensor(RowScaledTensor):
    """A row-scaled weight whose qdata is int8; fields and errors as those of RowScaledTensor.

    input_scale, output_scale: as Int4Tensor has them, without dynamic_activation

    >>> weight = Int8Tensor.from_hp(torch.randn(64, 256), dynamic_activation=True)
    >>> torch.nn.functional.linear(torch.randn(3, 256), weight).shape
    torch.Size([3, 64])
    """

    codes = (Code.INT8,)
    fields: ClassVar[dict[str, Field]] = {**row_scaled(*codes), **RANGES}
    encoding: ClassVar[dict[str, str]] = {
        "format": "int8",
        "sign": "two's complement, -127..127",
        "zero_point": "none: w = q * scale",
    }

    def __new__(
        cls,
        qdata: Tensor,
        scale: Tensor,
        block_size: Sequence[int],
        dtype: torch.dtype,
        dynamic_activation: bool = False,
        *,
        input_scale: Tensor | None = None,
        output_scale: Tensor | None = None,
    ) -> Self:
        ranges = {"input_scale": input_scale, "output_scale": output_scale}
        return cls.from_fields(
            {"qdata": qdata, "scale": scale, **ranges},
            dtype,
            block_size=block_size,
            dynamic_activation=dynamic_activation,
        )

    def _check(self) -> None:
        super()._check()
        check_ranges(self)

    @classmethod
    def from_hp(cls, w: Tensor, *, dynamic_activation: bool = False) -> Self:
        """Quantise a weight [N, K] or [E, N, K] as packing.int8_row_quantize does."""
        return cls._of_rows(packing.int8_row_quantize, w, dynamic_activation)

    def _quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return packing.int8_row_quantize(weight)
