"""Weights in the blocks of GGUF files, byte for byte as they lie there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from aoext.formats.checks import shown
from aoext.formats.dtypes import one_of
from aoext.formats.table import FORMATS, Code
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.fields import Field, check_block_size, fields_of
from aoext.tensors.order import K_ORDER, check_order

if TYPE_CHECKING:
    from typing_extensions import Self

# To which activations can be quantised.
INPUT_DTYPES = (torch.int8, torch.float8_e4m3fn)


class GGUFTensor(QuantizedTensor):
    """A weight [N, K] in GGUF's blocks, which hold their scales; of a class for each of GGUF's types.

    qdata: uint8 [N, K/values, bytes], or [E, N, K/values, bytes] of experts: rows of the file, block by block
    scale: float32 [1], or [E, 1]: what multiplies all of the weight; 1 if it is not given
    dtype: bfloat16, float16, float32 or float64, that of the activations
    activation: None where activations meet the weight as they are; int8 or float8_e4m3fn where they are
        quantised to it, in blocks [1, block_k] of `input_block`, or rows where that is None
    k_order: None, or int64 [K], a permutation: column j of qdata belongs to column k_order[j] of the weight
        and of the activation

    TypeError for wrong types and dtypes, ValueError for shapes that do not fit each other.

    >>> weight = Q4_KTensor(torch.zeros(64, 1, 144, dtype=torch.uint8), torch.float32)
    >>> torch.nn.functional.linear(torch.randn(3, 256), weight).shape
    torch.Size([3, 64])
    """

    attributes = ("block_size", "activation", "input_block")
    fields: ClassVar[dict[str, Field]]
    encoding: ClassVar[dict[str, str]]

    activation: torch.dtype | None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.fields = {**fields_of(*cls.codes), "k_order": K_ORDER}
        cls.encoding = {"format": f"{FORMATS[cls.codes[0]].name} blocks of GGUF"}

    def __new__(
        cls,
        qdata: Tensor,
        dtype: torch.dtype,
        scale: Tensor | None = None,
        *,
        activation: torch.dtype | None = None,
        input_block: Sequence[int] | None = None,
        k_order: Tensor | None = None,
    ) -> Self:
        if scale is None:
            experts = qdata.shape[:-3] if isinstance(qdata, Tensor) else ()
            scale = torch.ones(*experts, 1, dtype=torch.float32, device=getattr(qdata, "device", None))
        tensors = {"qdata": qdata, "scale": scale, "k_order": k_order}
        block_size = [1, FORMATS[cls.codes[0]].group]
        return cls.from_fields(
            tensors, dtype, block_size=block_size, activation=activation, input_block=input_block
        )

    def _check(self) -> None:
        who = type(self).__name__
        if self.block_size != [1, FORMATS[self.codes[0]].group]:
            raise ValueError(f"{who}: block_size must be that of its blocks, got {self.block_size}")
        if self.activation not in (None, *INPUT_DTYPES):
            raise ValueError(
                f"{who}: activation must be None, {one_of(INPUT_DTYPES)}, got {shown(self.activation)}"
            )
        if self.input_block is not None:
            check_block_size(who, self.input_block, argument="input_block")
            self.input_block = list(self.input_block)
        check_order(who, self.k_order)

    def _quantized_input(self, stored: torch.dtype) -> torch.dtype | None:
        return self.activation


def _of(code: Code) -> type[GGUFTensor]:
    name = f"{code.name}Tensor"
    made = type(
        name, (GGUFTensor,), {"codes": (code,), "__doc__": GGUFTensor.__doc__, "__module__": __name__}
    )
    globals()[name] = made  # where pickles look
    return made


# By the names that GGUF has for them.
GGUF_TYPES: dict[str, type[GGUFTensor]] = {
    code.name: _of(code) for code, format in FORMATS.items() if format.scales == "inside"
}
