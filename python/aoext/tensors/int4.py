"""Weights of 4 bits in groups along K, with a scale and a float zero point for each group."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from aoext.formats.table import Code
from aoext.tensors.computing import Direct
from aoext.tensors.groups import GroupsTensor, prescaled
from aoext.tensors.order import as_codes
from aoext.tensors.ranges import has_ranges


class Int4Tensor(GroupsTensor):
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
    input_scale, output_scale: None, or float32 [1]: the activation, and the product, are rounded to the
        integers −128..127 times it (static ranges); not beside an activation

    TypeError for wrong types and dtypes, ValueError for shapes that do not fit each other.

    >>> weight = Int4Tensor.from_hp(torch.randn(64, 256), [1, 128])
    >>> torch.nn.functional.linear(torch.randn(3, 256), weight).shape
    torch.Size([3, 64])
    """

    codes = (Code.INT4,)
    encoding: ClassVar[dict[str, str]] = {
        "format": "int4",
        "packing": "two values per byte along K, even k in the low nibble",
        "sign": "two's complement, -8..7",
        "zero_point": "float, added: w = q * scale + zero_point",
    }

    def _linear(
        self,
        input: Tensor,
        bias: Tensor | None,
        operators: Any = torch.ops.ao,
        offsets: Tensor | None = None,
    ) -> Tensor:
        if operators is not Direct or self.activation is not None or offsets is not None or has_ranges(self):
            return GroupsTensor._linear(self, input, bias, operators, offsets)
        # The contract's own operators, the same products: four arguments cost the host half of what ten do.
        input = as_codes(prescaled(self, input), self.k_order)
        fields = self.qdata.contiguous(), self.scale.contiguous(), self.zero_point.contiguous()
        return Direct.int4(input, *fields) if bias is None else Direct.int4_bias(input, *fields, bias)
