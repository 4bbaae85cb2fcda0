"""torch's own quantised operators, as a user without aoext would call them.

PEERS lists them by device type and by subject. A peer takes the subject's own arguments: `pack` brings the
weight into the peer's layout once, `call` is what is timed. Whether it works here is found out by calling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aoext.formats.dtypes import dtype_name
from aoext.packing import unpack_int4
from aoext.reference import EIGHT_BIT, Problem, Tensors, quantized_max
from aoext.reference.values import inner_k_tiles

aten = torch.ops.aten


@dataclass(frozen=True)
class Peer:
    """One way to compute a subject with torch alone."""

    name: str
    pack: Callable[[Problem, Tensors], Tensors]
    call: Callable[[Problem, Tensors, Tensors], Tensor]  # (problem, inputs, packed)
    # What `call` leaves undone, for the check alone: (problem, inputs, packed, result of the call).
    complete: Callable[[Problem, Tensors, Tensors, Tensor], Any] = lambda p, x, w, result: result
    is_floor: bool = False  # whether it only moves the bytes, so that no operator is expected to be faster

    def with_bias_where_there_is_one(self) -> Peer:
        """The same for weights that end with a bias if the problem has one."""
        biased = self.with_bias()
        return Peer(
            self.name,
            lambda p, w: (biased if p.bias else self).pack(p, w),
            lambda p, x, w: (biased if p.bias else self).call(p, x, w),
        )

    def with_bias(self) -> Peer:
        """The same for weights that end with a bias."""
        return Peer(
            f"{self.name} + add",
            lambda p, w: (*self.pack(p, w[:-1]), w[-1]),
            lambda p, x, w: self.call(p, x, w[:-1]) + w[-1],
        )


def _pack_int4_cpu(p: Problem, w: Tensors) -> Tensors:
    packed, scale, zero_point = w
    # torch stores q + 8 in 0..15 and computes (stored − 8)·scale + zero, which is ours.
    stored = unpack_int4(packed).to(torch.int32).add_(8)
    scales_and_zeros = torch.stack((scale, zero_point), dim=-1).contiguous()
    return aten._convert_weight_to_int4pack_for_cpu(stored, 2), scales_and_zeros


def _int4_cpu(p: Problem, x: Tensors, w: Tensors) -> Tensor:
    return aten._weight_int4pack_mm_for_cpu(x[0], w[0], p.group_size, w[1])


def _pack_int4_cuda(p: Problem, w: Tensors) -> Tensors:
    packed, scale, zero_point = w
    # Again q + 8, but here the even k comes in the high nibble.
    stored = packed.view(torch.uint8) ^ 0x88
    swapped = (stored << 4) | (stored >> 4)
    scales_and_zeros = torch.stack((scale, zero_point), dim=-1).contiguous()
    return aten._convert_weight_to_int4pack(swapped, 8), scales_and_zeros


def _int4_cuda(p: Problem, x: Tensors, w: Tensors) -> Tensor:
    return aten._weight_int4pack_mm(x[0], w[0], p.group_size, w[1])


def _convert_cuda(p: Problem, x: Tensors, w: Tensors) -> Tensor:
    return aten._convert_weight_to_int4pack(w[0], inner_k_tiles(p.K))


_INT4_XPU_OPERATOR = "_weight_int4pack_mm_with_scales_and_zeros"


def _pack_int4_xpu(p: Problem, w: Tensors) -> Tensors:
    packed, scale, zero_point = w
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_INT4_XPU_OPERATOR}", "XPU"):
        raise NotImplementedError("this torch has no kernel of it for XPU")
    # q + 8 once more, eight to an int32 with the even k low, which is how ours lie. The operator computes
    # (stored − zero)·scale with integer zeros: 8 makes it q·scale, and the float zero points are added by
    # groups of the input.
    stored = (packed.view(torch.uint8) ^ 0x88).view(torch.int32)
    return stored, scale, torch.full_like(scale, 8, dtype=torch.int8), zero_point


def _int4_xpu(p: Problem, x: Tensors, w: Tensors) -> Tensor:
    stored, scale, eight, zero_point = w
    product = getattr(aten, _INT4_XPU_OPERATOR)(x[0], stored, p.group_size, scale, eight)
    return product.addmm_(x[0].view(p.M, -1, p.group_size).sum(-1), zero_point)


def _int8_weight_only(p: Problem, x: Tensors, w: Tensors) -> Tensor:
    product = aten._weight_int8pack_mm(x[0], w[0], w[1])
    return product + w[2] if p.bias else product


def _int_mm(p: Problem, x: Tensors, w: Tensors) -> Tensor:
    return torch._int_mm(x[0], w[0].t())


def _scaled(p: Problem, x: Tensors, w: Tensors, product: Tensor) -> Tensor:
    scaled = product * x[1] * w[1].t()
    return (scaled + w[2] if p.bias else scaled).to(p.dtype)


def _int_mm_scaled(p: Problem, x: Tensors, w: Tensors) -> Tensor:
    return _scaled(p, x, w, _int_mm(p, x, w))


def _scaled_mm(p: Problem, x: Tensors, w: Tensors) -> Tensor:
    bias = w[2] if p.bias else None
    return torch._scaled_mm(x[0], w[0].t(), scale_a=x[1], scale_b=w[1].t(), bias=bias, out_dtype=p.dtype)


def quantized_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What a user of torch alone writes for `quantize`, for rows without zeros, NaN or Inf."""
    limit = quantized_max(dtype)
    scale = x.float().abs().amax(1, keepdim=True) / torch.tensor(limit, dtype=torch.float32, device=x.device)
    q = (x.float() / scale).clamp_(-limit, limit)
    return (q.round_() if dtype is torch.int8 else q).to(dtype), scale


def _stored(p: Problem, w: Tensors) -> Tensors:
    return w


def _dynamic(name: str, product: Callable[[Problem, Tensors, Tensors], Tensor]) -> Peer:
    def call(p: Problem, x: Tensors, w: Tensors) -> Tensor:
        return product(p, quantized_rows(x[0], w[0].dtype), w)

    return Peer(f"eager quantisation, {name}", _stored, call)


def _copy(dtype: torch.dtype) -> Peer:
    """What reading and writing costs: the input of `quantize` to memory of its own size."""
    return Peer(
        "a copy",
        lambda p, w: (w[0], torch.empty_like(w[0])),
        lambda p, x, w: w[1].copy_(w[0]),
        complete=lambda p, x, w, copied: quantized_rows(copied, dtype),
        is_floor=True,
    )


_INT4_CPU = Peer("_weight_int4pack_mm_for_cpu", _pack_int4_cpu, _int4_cpu)
_INT4_CUDA = Peer("_weight_int4pack_mm", _pack_int4_cuda, _int4_cuda)
_INT4_XPU = Peer(f"{_INT4_XPU_OPERATOR} + zero points", _pack_int4_xpu, _int4_xpu)
_INT_MM_ALONE = Peer("_int_mm alone", _stored, _int_mm, complete=_scaled)
_INT8 = Peer(
    "_weight_int8pack_mm", lambda p, w: (w[0], w[1].flatten().to(p.dtype), *w[2:]), _int8_weight_only
)

_SCALED: dict[tuple[str, str], Peer] = {
    ("int8_mm", "int8"): Peer("_int_mm", _stored, _int_mm),
    **{
        (operator, format): peer
        for operator in ("scaled_mm", "scaled_mm_rowwise")
        for format, peer in {
            "int8": Peer("_int_mm and scales", _stored, _int_mm_scaled),
            "float8_e4m3fn": Peer("_scaled_mm", _stored, _scaled_mm),
            "float8_e5m2": Peer("_scaled_mm", _stored, _scaled_mm),
        }.items()
    },
    ("scaled_linear", "int8"): _dynamic("_int_mm and scales", _int_mm_scaled),
    ("scaled_linear", "float8_e4m3fn"): _dynamic("_scaled_mm", _scaled_mm),
    ("scaled_linear", "float8_e5m2"): _dynamic("_scaled_mm", _scaled_mm),
}


def _int4(peer: Peer) -> dict[tuple[str, str], Peer]:
    """What stands beside products by int4, of which one takes a bias or none."""
    return {
        ("bf16i4bf16_rowwise", "int4"): peer,
        ("bf16i4bf16_rowwise_bias", "int4"): peer.with_bias(),
        ("weight_only_linear", "int4"): peer.with_bias_where_there_is_one(),
    }


PEERS: dict[str, dict[tuple[str, str], Peer]] = {
    "cpu": {
        **_int4(_INT4_CPU),
        ("weight_only_linear", "int8"): _INT8,
        **_SCALED,
        **{(operator, "int8"): _INT_MM_ALONE for operator in ("scaled_mm", "scaled_mm_rowwise")},
        **{("quantize", dtype_name(dtype)): _copy(dtype) for dtype in EIGHT_BIT},
    },
    "cuda": {
        **_int4(_INT4_CUDA),
        ("convert_weight_to_int4pack", "int4"): Peer("_convert_weight_to_int4pack", _stored, _convert_cuda),
        ("weight_int4pack_mm", "int4"): Peer("_weight_int4pack_mm", _stored, _int4_cuda),
        **_SCALED,
    },
    "xpu": {
        **_int4(_INT4_XPU),
        ("weight_only_linear", "int8"): _INT8,
        **_SCALED,
    },
}
