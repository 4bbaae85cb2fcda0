"""Weights of 8 bits with a scale for each block [block_n, block_k]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from aoext.formats.dtypes import FLOAT_DTYPES, one_of
from aoext.formats.table import Code
from aoext.packing.blockwise import Scaling, blockwise_quantize, blockwise_quantize_zp
from aoext.tensors import zero_points
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.each_expert import by_expert
from aoext.tensors.fields import Field, N, check_block_size, fields_of
from aoext.tensors.order import K_ORDER, as_codes, check_order

if TYPE_CHECKING:
    from typing_extensions import Self


class BlockScaledTensor(QuantizedTensor):
    """A weight with a scale for each block [block_n, block_k], of which the last ones may be partial.

    Scales of float8_e8m0fnu are kept as the exponents in uint8 that they are: so much of PyTorch and of what
    reads its files knows no such dtype.
    """

    any_blocks = True

    @classmethod
    def from_fields(cls, tensors: Mapping[str, Tensor | None], dtype: torch.dtype, **attributes: Any) -> Self:
        scale = tensors["scale"]
        if isinstance(scale, Tensor) and scale.dtype is torch.float8_e8m0fnu:
            tensors = {**tensors, "scale": scale.view(torch.uint8)}
        return super().from_fields(tensors, dtype, **attributes)


class BlockwiseTensor(BlockScaledTensor):
    """A weight [N, K] as w = (qdata − zero_point)·scale: DeepSeek's float8 blocks, mxfp8, int8 in groups.

    Elsewhere these are called Float8BlockTensor, Float8Tensor with PerBlock, and MXTensor; GPTQ's 8 bits and
    Q8_0 are int8 in groups.

    qdata: int8, float8_e4m3fn or float8_e5m2 [N, K]
    scale: [⌈N/block_n⌉, ⌈K/block_k⌉], float32, bfloat16, float16, float8_e4m3fn, or exponents in uint8, where
        u is 2^(u − 127) and 255 is NaN; float8_e8m0fnu becomes these
    block_size: [block_n, block_k]; the last blocks may be partial
    dtype: bfloat16, float16, float32 or float64, that of the activations
    input_block: None where activations meet the weight as they are; [1, block_k] where they are quantised to
        qdata's dtype in blocks of so many, so that 8-bit numbers are multiplied; with scales that are
        exponents theirs are powers of two as well
    zero_point: None, or int8 of scale's shape, for qdata of int8 and scales that are floats of 16 or 32 bits
    k_order: None, or int64 [K], a permutation: column j of qdata belongs to column k_order[j] of the weight
        and of the activation, so that a block holds columns that lie apart (GPTQ's act-order); not with an
        input_block

    TypeError for wrong types and dtypes, ValueError for shapes that do not fit each other.

    >>> weight = BlockwiseTensor.from_hp(torch.randn(256, 300), [128, 128])
    >>> torch.nn.functional.linear(torch.randn(3, 300), weight).shape
    torch.Size([3, 256])
    """

    codes = (Code.INT8, Code.E4M3, Code.E5M2)
    fields: ClassVar[dict[str, Field]] = {**fields_of(*codes), "k_order": K_ORDER}
    attributes = ("block_size", "input_block")

    def __new__(
        cls,
        qdata: Tensor,
        scale: Tensor,
        block_size: Sequence[int],
        dtype: torch.dtype,
        input_block: Sequence[int] | None = None,
        *,
        zero_point: Tensor | None = None,
        k_order: Tensor | None = None,
    ) -> Self:
        tensors = {"qdata": qdata, "scale": scale, "zero_point": zero_point, "k_order": k_order}
        return cls.from_fields(tensors, dtype, block_size=block_size, input_block=input_block)

    def _check(self) -> None:
        who = type(self).__name__
        check_order(who, self.k_order)
        if self.zero_point is not None and (
            self.qdata.dtype is not torch.int8 or self.scale.dtype not in FLOAT_DTYPES
        ):
            raise TypeError(
                f"{who}: zero_point needs a qdata of int8 and a scale of {one_of(FLOAT_DTYPES)}, "
                f"got {self.qdata.dtype} and {self.scale.dtype}"
            )
        if self.input_block is None:
            return
        check_block_size(who, self.input_block, argument="input_block")
        self.input_block = list(self.input_block)
        if self.k_order is not None:
            raise ValueError(f"{who}: input_block is for columns in the activation's order, got k_order")

    @property
    def encoding(self) -> dict[str, str]:  # type: ignore[override]
        """What the stored bits mean, in words that a file keeps and its reader checks."""
        subtracted = self.zero_point is not None
        return {
            "format": "8 bits, of qdata's dtype",
            "zero_point": (
                "integer, subtracted: w = (q - zero_point) * scale" if subtracted else "none: w = q * scale"
            ),
            "exponents": "scales u of uint8 are 2 ** (u - 127)",
        }

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
        symmetric: bool = True,
    ) -> Self:
        """Quantise a weight [N, K] or [E, N, K] as packing.blockwise.blockwise_quantize does, or _zp.

        As it is left, it gives DeepSeek's float8; mxfp8 is [1, 32] with a scale_dtype of float8_e8m0fnu.
        symmetric: without zero points, which are for a dtype of int8
        """
        check_block_size(cls.__name__, block_size, any_blocks=True)
        if not symmetric and dtype is not torch.int8:
            raise ValueError(f"{cls.__name__}: dtype must be torch.int8 for zero points, got {dtype}")

        def of_matrix(w: Tensor) -> Any:
            if symmetric:
                fields = blockwise_quantize(w, block_size, dtype, scale_dtype=scale_dtype, scaling=scaling)
                return cls(*fields, block_size, w.dtype, input_block)
            qdata, scale, zero_point = blockwise_quantize_zp(w, block_size, scale_dtype=scale_dtype)
            return cls(qdata, scale, block_size, w.dtype, input_block, zero_point=zero_point)

        return by_expert(of_matrix, w)

    def _quantized_input(self, stored: torch.dtype) -> torch.dtype | None:
        return None if self.input_block is None else stored

    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        """The fields of a weight in this one's scheme; exponents are rounded up."""
        weight, dtype = as_codes(weight, self.k_order), self.scale.dtype
        if self.zero_point is None:
            qdata, scale = blockwise_quantize(weight, self.block_size, self.qdata.dtype, scale_dtype=dtype)
            return {"qdata": qdata, "scale": scale}
        qdata, scale, zero_point = blockwise_quantize_zp(weight, self.block_size, scale_dtype=dtype)
        return {"qdata": qdata, "scale": scale, "zero_point": zero_point}

    def _linear(
        self,
        input: Tensor,
        bias: Tensor | None,
        operators: Any = torch.ops.ao,
        offsets: Tensor | None = None,
    ) -> Tensor:
        if self.input_block is None or self.zero_point is None:
            return QuantizedTensor._linear(self, input, bias, operators, offsets)
        return _times_weight_quantized(self, self.input_block, self.zero_point, input, bias, offsets)


# A function, which torch.compile traces: a method of a tensor it would take for an operation.


def _times_weight_quantized(
    weight: BlockwiseTensor,
    input_block: list[int],
    zero_point: Tensor,
    input: Tensor,
    bias: Tensor | None,
    offsets: Tensor | None,
) -> Tensor:
    """The product of an activation that is quantised with a weight that has zero points."""
    qdata, scale, block_size = weight.qdata.contiguous(), weight.scale.contiguous(), weight.block_size
    # In float32 throughout: where a row of the activation has a mean, both terms are far above their
    # difference. Gradients pass its rounding unchanged.
    x = input.float()
    rounded = x + (zero_points.rounded(x.detach(), input_block) - x).detach()
    beside = zero_points.product(rounded, scale, zero_point, block_size, weight.weight_shape[N], offsets)
    product = torch.ops.ao.scaled_linear(
        x, qdata, scale, weight.code, bias, input_block, block_size, None, offsets
    )
    return (product - beside).to(input.dtype)
