"""torchao's integers of 2 to 8 bits, each in a byte of its own: IntxUnpackedToInt8Tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aoext.checkpoints.base import take
from aoext.checkpoints.blocks import by_blocks
from aoext.checkpoints.groups import of_codes
from aoext.checkpoints.settings import Settings
from aoext.formats.checks import has_values
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name
from aoext.tensors import GROUPS_TYPES, QuantizedTensor

_BITS = {f"int{bits}": bits for bits in (*sorted(GROUPS_TYPES), 8)}


def unpacked_to_int8(
    layer: str, fields: Mapping[str, Tensor], attributes: Mapping[str, Any], dtype: torch.dtype
) -> QuantizedTensor:
    """w = (qdata - zero_point)·scale with a scale for each group along K, or for each row."""
    if attributes.get("activation_quantization") is not None:
        raise ValueError(f"{layer}: activations quantised with zero points do not run on aoext")
    target = attributes.get("target_dtype")
    if isinstance(target, torch.dtype):
        target = dtype_name(target)
    elif isinstance(target, Mapping):
        target = target.get("_data")
    settings = Settings(layer, {**attributes, "target_dtype": target})
    bits = _BITS[settings.choice("target_dtype", tuple(_BITS))]
    qdata = take(layer, fields, "qdata", (torch.int8,), (-1, -1))
    rows, columns = qdata.shape
    block = settings.sizes("block_size")
    if block is None or block[0] != 1 or columns % block[1]:
        settings.refuse("block_size", f"[1, g] with a g that divides K = {columns}")
    shape = rows, columns // block[1]
    scale = take(layer, fields, "scale", FLOAT_DTYPES, shape)
    if bits == 8:
        zero = take(layer, fields, "zero_point", (torch.int8,), shape)
        return by_blocks(layer, qdata, scale, block, dtype, zero_point=zero)
    zero = take(layer, fields, "zero_point", (torch.int8, *FLOAT_DTYPES), shape)
    half = 1 << (bits - 1)
    if has_values(qdata) and bool(((qdata < -half) | (qdata >= half)).any()):
        raise ValueError(f"{layer}: qdata must lie in {-half}..{half - 1}")
    zero = zero + half if zero.is_floating_point() else zero.to(torch.int16) + half
    return of_codes(layer, (qdata + half).view(torch.uint8), bits, scale.t(), zero.t(), dtype)
