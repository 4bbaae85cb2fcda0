"""Weights of 8 bits with a scale for each block [block_n, block_k]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from aoext.blocks import Scaling, blockwise_quantize
from aoext.packing import BLOCK_SCALE_DTYPES, FLOAT8_DTYPES
from aoext.tensors.base import QuantizedTensor, gathered
from aoext.tensors.fields import BLOCK, Axis, Field, K, N, check_block_size

if TYPE_CHECKING:
    from typing_extensions import Self

# The scales of a weight with one for each block.
BLOCK_SCALE = Field((Axis(N, BLOCK), Axis(K, BLOCK)), BLOCK_SCALE_DTYPES)


class BlockScaledTensor(QuantizedTensor):
    """A weight with a scale for each block [block_n, block_k], of which the last ones may be partial.

    Scales of float8_e8m0fnu are kept as the exponents in uint8 that they are: so much of PyTorch and of what
    reads its files knows no such dtype.
    """

    any_blocks = True

    scale: Tensor

    @classmethod
    def from_fields(cls, tensors: Mapping[str, Tensor | None], dtype: torch.dtype, **attributes: Any) -> Self:
        scale = tensors["scale"]
        if isinstance(scale, Tensor) and scale.dtype is torch.float8_e8m0fnu:
            tensors = {**tensors, "scale": scale.view(torch.uint8)}
        return super().from_fields(tensors, dtype, **attributes)

    def _of_rows(self, indices: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """qdata, scale and block_size of the rows at `indices`."""
        block_n, block_k = self.block_size
        return gathered(self.qdata, indices), gathered(self.scale, indices // block_n), [1, block_k]


class BlockwiseTensor(BlockScaledTensor):
    """A weight [N, K] as w = qdata·scale: DeepSeek's float8 blocks, mxfp8, int8 in groups (GPTQ, Q8_0).

    Elsewhere these are called Float8BlockTensor, Float8Tensor with PerBlock, and MXTensor.

    qdata: int8, float8_e4m3fn or float8_e5m2 [N, K]
    scale: [⌈N/block_n⌉, ⌈K/block_k⌉], float32, bfloat16, float16, float8_e4m3fn, or exponents in uint8, where
        u is 2^(u − 127) and 255 is NaN; float8_e8m0fnu becomes these
    block_size: [block_n, block_k]; the last blocks may be partial
    dtype: bfloat16, float16, float32 or float64, that of the activations
    input_block: None where activations meet the weight as they are; [1, block_k] where they are quantised to
        qdata's dtype in blocks of so many, so that 8-bit numbers are multiplied; with scales that are
        exponents theirs are powers of two as well

    TypeError for wrong types and dtypes, ValueError for shapes that do not fit each other.

    >>> weight = BlockwiseTensor.from_hp(torch.randn(256, 300), [128, 128])
    >>> torch.nn.functional.linear(torch.randn(3, 300), weight).shape
    torch.Size([3, 256])
    """

    fields: ClassVar[dict[str, Field]] = {
        "qdata": Field((Axis(N), Axis(K)), (torch.int8, *FLOAT8_DTYPES)),
        "scale": BLOCK_SCALE,
    }
    attributes = ("block_size", "input_block")
    encoding: ClassVar[dict[str, str]] = {
        "format": "8 bits, of qdata's dtype",
        "zero_point": "none: w = q * scale",
        "exponents": "scales u of uint8 are 2 ** (u - 127)",
    }

    input_block: list[int] | None

    def __new__(
        cls,
        qdata: Tensor,
        scale: Tensor,
        block_size: Sequence[int],
        dtype: torch.dtype,
        input_block: Sequence[int] | None = None,
    ) -> Self:
        return cls.from_fields(
            {"qdata": qdata, "scale": scale}, dtype, block_size=block_size, input_block=input_block
        )

    def _check(self) -> None:
        if self.input_block is not None:
            check_block_size(type(self).__name__, self.input_block, argument="input_block")
            self.input_block = list(self.input_block)

    @classmethod
    def from_hp(
        cls,
        w: Tensor,
        block_size: Sequence[int] = (128, 128),
        dtype: torch.dtype = torch.float8_e4m3fn,
        *,
        scale_dtype: torch.dtype = torch.float32,
        scaling: Scaling = "rceil",
        input_block: Sequence[int] | None = None,
    ) -> Self:
        """Quantise a weight [N, K] as blocks.blockwise_quantize does.

        As it is left, it gives DeepSeek's float8; mxfp8 is [1, 32] with a scale_dtype of float8_e8m0fnu.
        """
        check_block_size(cls.__name__, block_size, any_blocks=True)
        qdata, scale = blockwise_quantize(w, block_size, dtype, scale_dtype=scale_dtype, scaling=scaling)
        return cls(qdata, scale, block_size, w.dtype, input_block)

    @property
    def quantizes_input_to(self) -> torch.dtype | None:
        return None if self.input_block is None else self.qdata.dtype

    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        """The fields of a weight in this one's scheme; exponents are rounded up."""
        dtype, scale_dtype = self.qdata.dtype, self.scale.dtype
        qdata, scale = blockwise_quantize(weight, self.block_size, dtype, scale_dtype=scale_dtype)
        return {"qdata": qdata, "scale": scale}

    def _dequantize(self) -> Tensor:
        qdata, scale = self.qdata.contiguous(), self.scale.contiguous()
        return torch.ops.ao.dequantize_blockwise(qdata, scale, self.block_size, dtype=self.operator_dtype)

    def _rows(self, indices: Tensor) -> Tensor:
        qdata, scale, block_size = self._of_rows(indices)
        return torch.ops.ao.dequantize_blockwise(qdata, scale, block_size, dtype=self.operator_dtype)

    def _linear(self, input: Tensor, bias: Tensor | None) -> Tensor:
        qdata, scale, block_size = self.qdata.contiguous(), self.scale.contiguous(), self.block_size
        if self.input_block is not None:
            return torch.ops.ao.scaled_linear_blockwise(
                input, qdata, scale, self.input_block, block_size, bias
            )
        if qdata.dtype is torch.int8:
            return torch.ops.ao.bf16i8bf16_blockwise(input, qdata, scale, block_size, bias)
        return torch.ops.ao.bf16f8bf16_blockwise(input, qdata, scale, block_size, bias)
