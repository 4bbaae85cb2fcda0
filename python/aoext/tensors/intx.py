"""Weights of 2, 3, 5, 6 and 7 bits in groups along K, with a scale and a float zero point for each group."""

from __future__ import annotations

from typing import ClassVar

from aoext.formats.table import FORMATS, Code
from aoext.tensors.groups import GroupsTensor


class IntxTensor(GroupsTensor):
    """A weight [N, K] as w = q·scale + zero_point with q in 0..2ᵇ − 1, of a class for each number of bits b.

    qdata: of 2 bits uint8 [N, K/4], four values to a byte, the lowest k in the lowest bits; of 3, 5, 6 and 7
        uint8 [N, K/32, 4·b], 32 values to a block of bytes, in planes: 16 bytes have bits 0..3 of values
        0..15 low and those of 16..31 high; 8 bytes the next two bits, of values 0..7 lowest; 4 bytes, bit by
        bit, the next one. 3 is 2 + 1, 5 is 4 + 1, 6 is 4 + 2 and 7 all three
    zero_point: like scale, a float that is added: the smallest weight of its group, or −2ᵇ⁻¹·scale of
        symmetric weights

    All else is as Int4Tensor has it.

    >>> weight = Int5Tensor.from_hp(torch.randn(64, 256), [1, 32])
    >>> torch.nn.functional.linear(torch.randn(3, 256), weight).shape
    torch.Size([3, 64])
    """

    encoding: ClassVar[dict[str, str]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "codes" not in cls.__dict__:
            return
        cls.__doc__ = IntxTensor.__doc__
        format = FORMATS[cls.codes[0]]
        planes = "four values per byte along K, lowest k in the lowest bits"
        if format.bytes > 1:
            planes = "32 values per block along K, in planes of 4, 2 and 1 bits"
        cls.encoding = {
            "format": format.name,
            "packing": planes,
            "sign": f"none, 0..{format.highest}",
            "zero_point": "float, added: w = q * scale + zero_point",
        }


class Int2Tensor(IntxTensor):
    codes = (Code.INT2,)


class Int3Tensor(IntxTensor):
    codes = (Code.INT3,)


class Int5Tensor(IntxTensor):
    codes = (Code.INT5,)


class Int6Tensor(IntxTensor):
    codes = (Code.INT6,)


class Int7Tensor(IntxTensor):
    codes = (Code.INT7,)


INTX_TYPES: dict[int, type[IntxTensor]] = {
    FORMATS[kind.codes[0]].bits: kind for kind in (Int2Tensor, Int3Tensor, Int5Tensor, Int6Tensor, Int7Tensor)
}
