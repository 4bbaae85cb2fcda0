"""A plain matrix into the memory of a quantised weight, by one operator where the device has a kernel.

`ao::_quantize_weight_` writes codes, scales and zero points as the weight's own `_quantized` makes them, bit
for bit, and leaves what else there is to know on the device: whoever asks for it waits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from aoext.formats.checks import is_dense, is_freed
from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.formats.table import TABLE_SIZE, Code
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.each_expert import expert_of, has_experts
from aoext.tensors.fields import K
from aoext.tensors.order import as_codes
from aoext.tensors.outer import counted_versions

# Whose scales stand beside the codes.
CODES = (Code.INT4, Code.INT8, Code.E4M3, Code.E5M2, Code.LUT4)

# What the operator tells is int32; this one of it is 1 for NaN or Inf, or for what scales may not hold.
REFUSED = 1


class Tolerance(NamedTuple):
    """How far a matrix may be from what a weight stands for, and the weight stays as it is."""

    rtol: float
    atol: float


def write(
    weight: QuantizedTensor, plain: Tensor, *, keep: Tolerance | None = None, check: bool = False
) -> list[Tensor] | None:
    """Have a weight become a matrix of its shape; what the operator tells, of each expert, or None.

    keep: where given, a weight that holds the matrix already stays as it is
    check: whether it does so too where REFUSED is told; otherwise blocks with NaN or Inf become NaN
    None where nothing has been written, because no kernel serves this weight, matrix or device.
    """
    if not is_served(weight) or type(plain) not in (Tensor, torch.nn.Parameter):
        return None
    if not is_dense(plain) or is_freed(plain) or not plain.is_floating_point():
        return None
    plain = plain.detach().to(weight.qdata.device)
    if has_experts(weight):
        with counted_versions():
            pairs = [(expert_of(weight, e), plain[e]) for e in range(len(plain))]
    else:
        pairs = [(weight, plain)]
    return [_write_matrix(own, matrix, keep, check) for own, matrix in pairs]


def is_refused(told: list[Tensor]) -> bool:
    """Whether NaN or Inf was met; the host waits."""
    return any(status[REFUSED] for status in torch.stack(told).tolist())


def broken(weight: QuantizedTensor, told: list[Tensor]) -> list[Tensor]:
    """Flags on the device that are set where what was written unchecked is not finite; nobody waits.

    What float16 cannot hold of finite matrices is seen in the weight itself.
    """
    fields = [field for field in (weight.scale, weight.zero_point) if field is not None]
    halves = [field for field in fields if field.dtype is torch.float16]
    return [status[REFUSED] for status in told] + [field.isfinite().all().logical_not() for field in halves]


def _write_matrix(weight: QuantizedTensor, plain: Tensor, keep: Tolerance | None, check: bool) -> Tensor:
    plain = as_codes(plain.t() if weight.transposed else plain, weight.k_order)
    plain = plain if plain.dtype in FLOAT_DTYPES else plain.float()
    plain = plain if plain.stride(-1) == 1 else plain.contiguous()
    status = torch.ops.ao._quantize_weight_(
        plain,
        weight.qdata,
        weight.scale,
        weight.code,
        weight.block_size,
        weight.zero_point,
        weight.table,
        weight.global_scale,
        -1,
        *((-1.0, 0.0) if keep is None else keep),
        check,
    )
    for _, field in weight.named_fields():
        if not field.is_inference():  # PyTorch counts no writes of operators that it does not know
            torch.autograd.graph.increment_version(field)
    return status


def is_served(weight: QuantizedTensor) -> bool:
    """Whether kernels know the weight's form, and it is all of a tensor that is there."""
    # Fields are asked, not the weight: its answers cost the host a call of Python each.
    if torch.compiler.is_compiling() or not _has_kernel(weight.qdata.device.type):
        return False
    if weight.code not in CODES or weight.trains or not weight.qdata.numel():
        return False
    if weight.code != Code.INT4 and weight.zero_point is not None:
        return False
    if weight.code == Code.LUT4:
        two_scales = weight.global_scale is not None
        if weight.table is None or len(weight.table) != TABLE_SIZE:
            return False
        if two_scales and weight.scale.dtype is not torch.float8_e4m3fn:
            return False
    if weight.code in (Code.INT4, Code.LUT4) and min(weight.block_size[K], weight.weight_shape[K]) % 2:
        return False
    return all(
        type(field) is Tensor and field.is_contiguous() and field.untyped_storage().nbytes() == field.nbytes
        for _, field in weight.named_fields()
    )


@lru_cache
def _has_kernel(device_type: str) -> bool:
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device_type)
    return key is not None and torch._C._dispatch_has_kernel_for_dispatch_key("ao::_quantize_weight_", key)
