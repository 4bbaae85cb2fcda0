"""Weights of integers in groups along K, of the codes that checkpoints have of them, and back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from aoext.checkpoints.base import refuse_what_is_aoexts_own
from aoext.checkpoints.codes import codes_in_whole_words, packed
from aoext.formats.checks import has_values
from aoext.formats.table import FORMATS, Code, Format
from aoext.packing.groups import middle, pack, symmetric_zero_point, unpack
from aoext.packing.layouts import SIGN_BITS, float64
from aoext.packing.scales import held
from aoext.tensors import GROUPS_TYPES, Int8Tensor, QuantizedTensor
from aoext.tensors.groups import GroupsTensor


def of_codes(
    layer: str,
    codes: Tensor,
    bits: int,
    scale: Tensor,
    zero: Tensor | None,
    dtype: torch.dtype,
    k_order: Tensor | None = None,
    activation: torch.dtype | None = None,
) -> GroupsTensor:
    """w = (u - zero)·scale for codes u of 2 to 7 bits without a sign.

    It becomes q·scale + zero_point with both in float32. That is exact for integer zeros and scales of 16
    bits, and rounds once for others. Without zeros scales keep the weight's dtype where they have it.
    codes: uint8 [N, K]; scale: float [K/group_size, N]; zero: of that shape, or None for the middle code
    """
    format = _format(bits)
    if codes.shape[1] % format.values:
        must = "even" if format.values == 2 else f"a multiple of {format.values}"
        raise ValueError(
            f"{layer}: K must be {must} for weights of {bits} bits to run on aoext, got {codes.shape[1]}"
        )
    q = (codes + format.lowest).view(torch.int8) if format.lowest else codes.view(torch.int8)
    return _made(layer, pack(layer, q.contiguous(), format), bits, scale, zero, dtype, k_order, activation)


def of_pairs(
    layer: str,
    pairs: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    dtype: torch.dtype,
    k_order: Tensor | None = None,
    activation: torch.dtype | None = None,
) -> GroupsTensor:
    """As of_codes, of 4 bits that lie in bytes: uint8 [N, K/2], the even k low."""
    qdata = (pairs ^ SIGN_BITS).view(torch.int8).contiguous()
    return _made(layer, qdata, 4, scale, zero, dtype, k_order, activation)


def _made(
    layer: str,
    qdata: Tensor,
    bits: int,
    scale: Tensor,
    zero: Tensor | None,
    dtype: torch.dtype,
    k_order: Tensor | None,
    activation: torch.dtype | None,
) -> GroupsTensor:
    format = _format(bits)
    if zero is not None or scale.dtype is not dtype or not _is_finite(symmetric_zero_point(scale, format)):
        scale = scale.float()
    if zero is None:
        zero_point = symmetric_zero_point(scale, format)
    elif zero.is_floating_point():  # on the CPU, for not every device has float64
        zero_point = (-(float64(zero) + format.lowest) * float64(scale)).float().to(scale.device)
    else:
        zero_point = -(zero.to(torch.int16) + format.lowest) * scale
    fields = {
        "qdata": qdata,
        "scale": scale.contiguous(),
        "zero_point": zero_point.contiguous(),
        "act_pre_scale": None,
        "k_order": None if k_order is None else k_order.to(qdata.device),
    }
    group_size = format.columns(qdata.shape) // scale.shape[0]
    try:
        return GROUPS_TYPES[bits].from_fields(
            fields, dtype, block_size=[1, group_size], activation=activation
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{layer}: {error}") from error


def _is_finite(tensor: Tensor) -> bool:
    return not has_values(tensor) or bool(tensor.isfinite().all())


def _format(bits: int) -> Format:
    return FORMATS[GROUPS_TYPES[bits].codes[0]]


class Integers(NamedTuple):
    """A weight as w = (u - zero)·scale, its columns in the weight's order."""

    bits: int
    codes: Tensor  # uint8 [N, K]: u in 0..2ᵇ − 1
    scale: Tensor  # [K/group_size, N]
    zero: Tensor  # uint8 [K/group_size, N], in the range of codes
    group: Tensor  # int64 [K]: the group of each column
    ordered: bool  # whether the groups' columns lie apart

    @property
    def symmetric(self) -> bool:
        return bool((self.zero == 1 << (self.bits - 1)).all())

    def words(self, layer: str) -> Tensor:
        """The codes, packed along K; ValueError, which names the layer, unless they fill words."""
        columns = self.codes.shape[1]
        if columns % (whole := codes_in_whole_words(self.bits)):
            raise ValueError(f"{layer}: K must be a multiple of {whole}, got {columns}")
        return packed(self.codes, self.bits)


def integers(layer: str, weight: QuantizedTensor) -> Integers:
    """The weight with integer zeros; ValueError, which names the layer, where it has none."""
    if not isinstance(weight, GroupsTensor):
        raise ValueError(f"{layer}: a weight of integers is needed, got {type(weight).__name__}")
    refuse_what_is_aoexts_own(layer, weight)
    format, columns = FORMATS[Code(weight.code)], weight.shape[1]
    bits, lowest, highest = format.bits, format.lowest, format.highest
    scale, zero_point = float64(weight.scale), float64(weight.zero_point)
    nothing = (scale == 0) & (zero_point == 0)  # any zero would do
    zero = torch.where(nothing, middle(format), (-zero_point / scale).round())
    if not bool((-zero * scale == zero_point).all()):
        raise ValueError(
            f"{layer}: its zero points are no multiples of its scales, and the format has integers for them; "
            "symmetric weights have none"
        )
    if bool(((zero < lowest) | (zero > highest)).any()):
        raise ValueError(
            f"{layer}: its zeros must be in 0..{highest - lowest}, got "
            f"{int(zero.min()) - lowest}..{int(zero.max()) - lowest}"
        )
    codes = (unpack(layer, weight.qdata, format) - lowest).view(torch.uint8)
    group = torch.arange(columns, device=codes.device) // weight.block_size[1]
    if weight.k_order is not None:
        back = weight.k_order.argsort()
        codes, group = codes[:, back], group[back]
    zeros = (zero - lowest).to(torch.uint8).to(codes.device)
    return Integers(bits, codes, weight.scale, zeros, group, weight.k_order is not None)


def has_zero_points(weight: Tensor) -> bool:
    """Whether a weight of integers in groups is not symmetric."""
    if not isinstance(weight, GroupsTensor):
        return False
    symmetric = symmetric_zero_point(weight.scale, FORMATS[Code(weight.code)])
    return bool((weight.zero_point != symmetric).any())


def with_scales_in(dtype: torch.dtype, weight: QuantizedTensor, plain: Tensor) -> QuantizedTensor:
    """A weight whose scales are exact in `dtype`: those of `weight`, rounded, with codes that fit them.

    plain: what `weight` was quantised of, [N, K]. int8 by row and integers in groups without zero points
        alone; others, and what is beyond the dtype, stay as they are.
    """
    if not isinstance(weight, (GroupsTensor, Int8Tensor)) or has_zero_points(weight):
        return weight
    sizes = held(weight.scale.abs().float(), dtype).to(dtype).float()
    if not bool(sizes.isfinite().all()) or torch.equal(sizes, weight.scale.abs().float()):
        return weight
    scale = sizes.copysign(weight.scale.float())
    parts: dict[str, Tensor | None] = dict.fromkeys(weight.fields)
    if isinstance(weight, GroupsTensor):
        format = FORMATS[Code(weight.code)]
        half, groups = 1 << (format.bits - 1), plain.float().unflatten(1, (scale.shape[0], -1))
        codes = (groups / scale.t().unsqueeze(-1)).round_().clamp_(-half, half - 1).add_(middle(format))
        parts["qdata"] = pack("convert", codes.flatten(1).to(torch.int8), format)
        parts["zero_point"] = symmetric_zero_point(scale, format)
    else:
        parts["qdata"] = (plain.float() / scale).round_().clamp_(-127, 127).to(torch.int8)
    return type(weight).from_fields({**parts, "scale": scale}, weight.dtype, **weight.named_attributes())
