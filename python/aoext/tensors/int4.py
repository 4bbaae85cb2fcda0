"""Weights of 4 bits in groups along K, with a scale and a float zero point for each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from aoext import packing
from aoext.formats.checks import has_values, shown
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name, one_of
from aoext.formats.table import Code
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.computing import Direct, of_rows
from aoext.tensors.each_expert import by_expert
from aoext.tensors.fields import Axis, Field, K, check_block_size, fields_of
from aoext.tensors.order import K_ORDER, as_codes, check_order

if TYPE_CHECKING:
    from typing_extensions import Self


# To which activations can be quantised.
INPUT_DTYPES = (torch.int8, torch.float8_e4m3fn)


class Int4Tensor(QuantizedTensor):
    """A weight [N, K] as w = q·scale + zero_point, with the fields of torchao's Int4Tensor.

    qdata: int8 [N, K/2], two values q in −8..7 to a byte, the even k in the low nibble
    scale: [K/group_size, N], bfloat16, float16 or float32
    zero_point: like scale, a float that is added; zeros for symmetric weights
    block_size: [1, group_size]; group_size divides K
    shape: [N, K]
    act_pre_scale: None, or [K] in scale's dtype, which multiplies the activation; it is no part of
        what dequantize() gives
    k_order: None, or int64 [K], a permutation: column j of qdata belongs to column k_order[j] of the weight
        and of the activation, so that a group holds columns that lie apart (GPTQ's act-order)
    dtype: bfloat16, float16, float32 or float64, that of the activations: scale's if it is not given. Scales
        in float32 serve activations of any dtype, and keep theirs where the weight goes to another
    activation: None where activations meet the weight as they are; int8 or float8_e4m3fn where they are
        quantised to it row by row, so that numbers of 8 and 4 bits are multiplied

    TypeError for wrong types and dtypes, ValueError for shapes that do not fit each other.

    >>> weight = Int4Tensor.from_hp(torch.randn(64, 256), [1, 128])
    >>> torch.nn.functional.linear(torch.randn(3, 256), weight).shape
    torch.Size([3, 64])
    """

    codes = (Code.INT4,)
    fields: ClassVar[dict[str, Field]] = {
        **fields_of(*codes),
        "act_pre_scale": Field((Axis(K),), FLOAT_DTYPES, follows_dtype=True, optional=True),
        "k_order": K_ORDER,
    }
    encoding: ClassVar[dict[str, str]] = {
        "format": "int4",
        "packing": "two values per byte along K, even k in the low nibble",
        "sign": "two's complement, -8..7",
        "zero_point": "float, added: w = q * scale + zero_point",
    }

    attributes = ("block_size", "activation")

    act_pre_scale: Tensor | None
    zero_point: Tensor
    activation: torch.dtype | None

    def __new__(
        cls,
        qdata: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        block_size: Sequence[int],
        shape: Sequence[int],
        act_pre_scale: Tensor | None = None,
        *,
        k_order: Tensor | None = None,
        dtype: torch.dtype | None = None,
        activation: torch.dtype | None = None,
    ) -> Self:
        tensors = {
            "qdata": qdata,
            "scale": scale,
            "zero_point": zero_point,
            "act_pre_scale": act_pre_scale,
            "k_order": k_order,
        }
        if dtype is None:
            dtype = scale.dtype if isinstance(scale, Tensor) else torch.float32
        self = cls.from_fields(tensors, dtype, block_size=block_size, activation=activation)
        if not isinstance(shape, Sequence) or list(shape) != list(self.shape):
            raise ValueError(
                f"Int4Tensor: shape must be {list(self.shape)} for a qdata {list(qdata.shape)}, "
                f"got {shown(shape)}"
            )
        return self

    def _check(self) -> None:
        if self.activation not in (None, *INPUT_DTYPES):
            raise ValueError(
                f"Int4Tensor: activation must be None, {one_of(INPUT_DTYPES)}, got {shown(self.activation)}"
            )
        dtype = self.scale.dtype
        if dtype not in (self.dtype, torch.float32):
            raise TypeError(
                f"Int4Tensor: scale must have the tensor's dtype {dtype_name(self.dtype)} or float32, "
                f"got {dtype_name(dtype)}"
            )
        for name, tensor in self.named_fields():
            if self.fields[name].follows_dtype and tensor.dtype != dtype:
                raise TypeError(
                    f"Int4Tensor: {name} must have the dtype of scale, {dtype_name(dtype)}, "
                    f"got {dtype_name(tensor.dtype)}"
                )
        check_order("Int4Tensor", self.k_order)

    @classmethod
    def from_hp(
        cls,
        w: Tensor,
        block_size: Sequence[int],
        *,
        symmetric: bool = False,
        activation: torch.dtype | None = None,
    ) -> Self:
        """Quantise a weight [N, K] or [E, N, K] of bfloat16, float16 or float32 in blocks [1, group_size].

        symmetric: scale by the largest magnitude of a group alone, with zero points of 0.
        Formulas and errors are those of packing.int4_row_quantize_zp and int4_row_quantize.
        """
        check_block_size("Int4Tensor", block_size)

        def of_matrix(w: Tensor) -> Any:
            fields = {**dict.fromkeys(cls.fields), **_quantized_fields(w, block_size[K], symmetric)}
            return cls.from_fields(fields, w.dtype, block_size=block_size, activation=activation)

        return by_expert(of_matrix, w)

    def _quantized_input(self, stored: torch.dtype) -> torch.dtype | None:
        return self.activation

    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        weight = as_codes(weight, self.k_order)
        group_size, dtype, asymmetric = self.block_size[K], self.scale.dtype, self.zero_point.any()
        if has_values(asymmetric):
            return _quantized_fields(weight, group_size, not bool(asymmetric), dtype)
        one, other = (_quantized_fields(weight, group_size, symmetric, dtype) for symmetric in (False, True))
        return {name: torch.where(asymmetric, one[name], other[name]) for name in one}

    def _linear(
        self,
        input: Tensor,
        bias: Tensor | None,
        operators: Any = torch.ops.ao,
        offsets: Tensor | None = None,
    ) -> Tensor:
        if self.act_pre_scale is not None:
            input = (input * of_rows(self.act_pre_scale, input, offsets)).to(input.dtype)
        if operators is not Direct or self.activation is not None or offsets is not None:
            return QuantizedTensor._linear(self, input, bias, operators, offsets)
        # The contract's own operators, the same products: four arguments cost the host half of what ten do.
        input = as_codes(input, self.k_order)
        fields = self.qdata.contiguous(), self.scale.contiguous(), self.zero_point.contiguous()
        return Direct.int4(input, *fields) if bias is None else Direct.int4_bias(input, *fields, bias)

    def _linear_backward(self, grad: Tensor, offsets: Tensor | None = None) -> Tensor:
        input_grad = super()._linear_backward(grad, offsets)
        if self.act_pre_scale is None:
            return input_grad
        return (input_grad * of_rows(self.act_pre_scale, grad, offsets)).to(grad.dtype)


def _quantized_fields(
    w: Tensor, group_size: int, symmetric: bool, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """qdata, scale and zero_point of a plain weight [N, K]; `dtype` is that of scales, w's if not given."""
    if symmetric:
        q, scale = packing.int4_row_quantize(w, group_size, dtype=dtype)
        zero_point = torch.zeros_like(scale)
    else:
        q, scale, zero_point = packing.int4_row_quantize_zp(w, group_size, dtype=dtype)
    return {"qdata": packing.pack_int4(q), "scale": scale, "zero_point": zero_point}
