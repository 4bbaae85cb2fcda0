"""Weights of 2 bits in groups along K, with a scale and a float zero point for each group."""

from __future__ import annotations

from typing import ClassVar

from aoext.formats.table import Code
from aoext.tensors.groups import GroupsTensor


class Int2Tensor(GroupsTensor):
    """A weight [N, K] as w = q·scale + zero_point with q in 0..3.

    qdata: uint8 [N, K/4], four values to a byte, the lowest k in the lowest bits
    zero_point: like scale, a float that is added: the smallest weight of its group, or −2·scale of symmetric
        weights

    All else is as Int4Tensor has it.

    >>> weight = Int2Tensor.from_hp(torch.randn(64, 256), [1, 32])
    >>> torch.nn.functional.linear(torch.randn(3, 256), weight).shape
    torch.Size([3, 64])
    """

    codes = (Code.INT2,)
    encoding: ClassVar[dict[str, str]] = {
        "format": "int2",
        "packing": "four values per byte along K, lowest k in the lowest bits",
        "sign": "none, 0..3",
        "zero_point": "float, added: w = q * scale + zero_point",
    }
