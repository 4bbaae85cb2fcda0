"""Weights of 4 bits that look a table of 16 values up, with a scale for each block [block_n, block_k]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from aoext.formats.checks import check_dense
from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.formats.lookup_tables import LUT4_FORMATS
from aoext.formats.table import Code
from aoext.packing.blockwise import Scaling, lut4_quantize
from aoext.tensors.blockwise import BlockScaledTensor
from aoext.tensors.each_expert import by_expert, has_experts
from aoext.tensors.fields import Field, check_block_size, fields_of

if TYPE_CHECKING:
    from typing_extensions import Self


class Lut4Tensor(BlockScaledTensor):
    """A weight [N, K] as w = table[qdata]·scale·global_scale: mxfp4, nvfp4, NF4, fp4 of bitsandbytes, IQ4_NL.

    Elsewhere these are called MXTensor, NVFP4Tensor and NF4Tensor.

    qdata: uint8 [N, K/2], two indices into the table to a byte, the even k in the low nibble
    table: float32 [16]
    scale: [⌈N/block_n⌉, ⌈K/block_k⌉], float32, bfloat16, float16, float8_e4m3fn, or exponents in uint8, where
        u is 2^(u − 127) and 255 is NaN; float8_e8m0fnu becomes these
    block_size: [block_n, block_k]; the last blocks may be partial
    dtype: bfloat16, float16, float32 or float64, that of the activations, which meet the weight as they are
    global_scale: None, or float32 [1], which multiplies all of the weight; of experts [E, 1], or one for all

    TypeError for wrong types and dtypes, ValueError for shapes that do not fit each other.

    >>> weight = Lut4Tensor.from_hp(torch.randn(64, 256), "nvfp4")
    >>> torch.nn.functional.linear(torch.randn(3, 256), weight).shape
    torch.Size([3, 64])
    """

    codes = (Code.LUT4,)
    fields: ClassVar[dict[str, Field]] = fields_of(*codes)
    encoding: ClassVar[dict[str, str]] = {
        "format": "4 bits that look a table of 16 values up",
        "packing": "two codes per byte along K, even k in the low nibble",
        "zero_point": "none: w = table[code] * scale * global_scale",
        "exponents": "scales u of uint8 are 2 ** (u - 127)",
    }

    table: Tensor

    def __new__(
        cls,
        qdata: Tensor,
        table: Tensor,
        scale: Tensor,
        block_size: Sequence[int],
        dtype: torch.dtype,
        global_scale: Tensor | None = None,
    ) -> Self:
        tensors = {"qdata": qdata, "table": table, "scale": scale, "global_scale": global_scale}
        return cls.from_fields(tensors, dtype, block_size=block_size)

    @classmethod
    def from_fields(cls, tensors: Mapping[str, Tensor | None], dtype: torch.dtype, **attributes: Any) -> Self:
        whole, qdata = tensors.get("global_scale"), tensors["qdata"]
        if has_experts(qdata) and isinstance(whole, Tensor) and whole.shape == (1,):
            tensors = {**tensors, "global_scale": whole.repeat(len(cast(Tensor, qdata)), 1)}
        return super().from_fields(tensors, dtype, **attributes)

    @classmethod
    def from_hp(
        cls,
        w: Tensor,
        format: str = "nf4",
        *,
        block_size: Sequence[int] | None = None,
        scaling: Scaling = "rceil",
        two_scales: bool | None = None,
    ) -> Self:
        """Quantise a weight [N, K] or [E, N, K] as packing.blockwise.lut4_quantize does.

        format: "mxfp4", "nvfp4", "nf4", or "fp4", which is bitsandbytes' own and not e2m1
        block_size, two_scales: the format's if they are not given; two_scales is for nvfp4 alone
        scaling: of mxfp4's exponents, "rceil" or "floor"
        """
        who = cls.__name__
        if format not in LUT4_FORMATS:
            raise ValueError(f"{who}: format must be one of {', '.join(LUT4_FORMATS)}, got {format!r}")
        check_dense(who, "w", w, FLOAT_DTYPES, "[N, K] with K even", 3 if has_experts(w) else 2)
        known = LUT4_FORMATS[format]
        block_size = [1, known.block_k] if block_size is None else block_size
        check_block_size(who, block_size, any_blocks=True)
        table = torch.tensor(known.table, dtype=torch.float32, device=w.device)
        two_scales = known.two_scales if two_scales is None else two_scales
        if two_scales and not known.two_scales:
            raise ValueError(f"{who}: two_scales are nvfp4's, not {format}'s")

        def of_matrix(w: Tensor) -> Any:
            qdata, scale, global_scale = lut4_quantize(
                w, table, block_size, scale_dtype=known.scale, scaling=scaling, two_scales=two_scales
            )
            return cls(qdata, table, scale, block_size, w.dtype, global_scale)

        return by_expert(of_matrix, w)

    @property
    def _has_two_scales(self) -> bool:
        return self.global_scale is not None and self.scale.dtype is torch.float8_e4m3fn

    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        """The fields of a weight in this one's scheme; exponents are rounded up."""
        if self.global_scale is not None and not self._has_two_scales:
            weight = weight.float() / self.global_scale
        qdata, scale, global_scale = lut4_quantize(
            weight,
            self.table,
            self.block_size,
            scale_dtype=self.scale.dtype,
            two_scales=self._has_two_scales,
        )
        fields = {"qdata": qdata, "scale": scale}
        return fields if global_scale is None else {**fields, "global_scale": global_scale}
