"""What the weights of 8 bits share: values and one float32 scale for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aoext.formats.checks import shown
from aoext.formats.table import Code
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.each_expert import by_expert
from aoext.tensors.fields import BLOCK, Axis, Field, K, N, fields_of
from aoext.tensors.outer import counted_versions

if TYPE_CHECKING:
    from typing_extensions import Self


def row_scaled(*codes: Code) -> dict[str, Field]:
    """The fields of a row-scaled weight of one of these codes."""
    return {
        "qdata": fields_of(*codes)["qdata"],
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

    @classmethod
    def _of_rows(cls, quantize: Callable[[Tensor], tuple[Tensor, Tensor]], w: Tensor, dynamic: bool) -> Self:
        """The weight whose rows `quantize` makes values and scales of."""
        return by_expert(lambda w: cls(*quantize(w), [1, w.shape[1]], w.dtype, dynamic), w)

    def _check(self) -> None:
        who, columns = type(self).__name__, self.shape[K]
        if not isinstance(self.dynamic_activation, bool):
            raise TypeError(f"{who}: dynamic_activation must be a bool, got {shown(self.dynamic_activation)}")
        if self.block_size[K] != columns:
            raise ValueError(f"{who}: block_size must be [1, K] = [1, {columns}], got {self.block_size}")

    def _quantized_input(self, stored: torch.dtype) -> torch.dtype | None:
        return stored if self.dynamic_activation is True else None

    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        return dict(zip(("qdata", "scale"), self._quantize(weight), strict=True))

    def overwrite(self, weight: Tensor) -> Tensor:
        """Become a plain weight [N, K], as copy_ has it; whether that is finite, which nobody waits for.

        A row with NaN or Inf becomes NaN, and one of numbers below 2⁻¹²⁰ loses some of their bits.
        """
        plain = (weight.t() if self.transposed else weight).to(self.device)
        values, scale = torch.ops.ao.quantize(plain, self.qdata.dtype)
        with counted_versions():
            self.qdata.copy_(values)
            self.scale.copy_(scale)
        return scale.isfinite().all()

    def _quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Values of qdata's dtype and scales of a weight [N, K]."""
        raise NotImplementedError
