"""torchao's weights with a scale a block: MXTensor, NVFP4Tensor, and Float8Tensor by blocks or groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aoext.checkpoints.base import take
from aoext.checkpoints.blocks import blocks_of, by_blocks, table_of_16, take_scale
from aoext.checkpoints.settings import Settings
from aoext.formats.dtypes import EXPONENT_DTYPES
from aoext.formats.lookup_tables import E2M1
from aoext.tensors import QuantizedTensor
from aoext.tensors.fields import ceil_div

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)

# cuBLAS wants scales in tiles of so many rows and columns, in which rows that lie 32 apart are neighbours.
_TILE = (128, 4)
_NEIGHBOURS = 32


def in_rows(scale: Tensor, rows: int, columns: int) -> Tensor:
    """Scales in cuBLAS' tiles, of any shape, as [rows, columns]; what pads the last tiles goes."""
    down, across = ceil_div(rows, _TILE[0]), ceil_div(columns, _TILE[1])
    tiles = scale.reshape(down, across, _NEIGHBOURS, _TILE[0] // _NEIGHBOURS, _TILE[1])
    whole = tiles.permute(0, 3, 2, 1, 4).reshape(down * _TILE[0], across * _TILE[1])
    return whole[:rows, :columns].contiguous()


def _scale(
    layer: str,
    fields: Mapping[str, Tensor],
    attributes: Mapping[str, Any],
    shape: Sequence[int],
    dtypes: Sequence[torch.dtype],
) -> Tensor:
    if not attributes.get("is_swizzled_scales"):
        return take_scale(layer, fields, "scale", shape, dtypes)
    stored = fields.get("scale")
    padded = ceil_div(shape[0], _TILE[0]) * ceil_div(shape[1], _TILE[1]) * _TILE[0] * _TILE[1]
    if stored is not None and stored.numel() != padded:
        raise ValueError(f"{layer}: scale must have {padded} entries in tiles, got {list(stored.shape)}")
    # Bytes of what pads the tiles may be anything.
    rows = {} if stored is None else {"scale": in_rows(stored, shape[0], shape[1])}
    return take_scale(layer, rows, "scale", shape, dtypes)


def mx(
    layer: str, fields: Mapping[str, Tensor], attributes: Mapping[str, Any], dtype: torch.dtype
) -> QuantizedTensor:
    """MXTensor: float8 or e2m1 with an exponent for each block of a row.

    Activations of 8 bits are quantised so at every call; those of 4 bits stay as they are.
    """
    qdata = take(layer, fields, "qdata", (*_FLOAT8, torch.uint8), (-1, -1))
    block = Settings(layer, attributes).integer("block_size", 32)
    wide = 2 if qdata.dtype is torch.uint8 else 1
    shape = blocks_of(qdata.shape[0], wide * qdata.shape[1], (1, block))
    scale = _scale(layer, fields, attributes, shape, EXPONENT_DTYPES)
    if qdata.dtype is torch.uint8:
        return table_of_16(layer, qdata, E2M1, scale, block, dtype)
    return by_blocks(layer, qdata, scale, (1, block), dtype, attributes.get("act_quant_kwargs") is not None)


def nvfp4(
    layer: str, fields: Mapping[str, Tensor], attributes: Mapping[str, Any], dtype: torch.dtype
) -> QuantizedTensor:
    """NVFP4Tensor: e2m1 with a float8_e4m3fn for each 16 of a row, and one float32.

    Activations stay as they are.
    """
    pairs = take(layer, fields, "qdata", (torch.uint8,), (-1, -1))
    block = Settings(layer, attributes).integer("block_size", 16)
    shape = blocks_of(pairs.shape[0], 2 * pairs.shape[1], (1, block))
    scale = _scale(layer, fields, attributes, shape, (torch.float8_e4m3fn,))
    return table_of_16(layer, pairs, E2M1, scale, block, dtype, fields.get("per_tensor_scale"))


def float8(
    layer: str, fields: Mapping[str, Tensor], attributes: Mapping[str, Any], dtype: torch.dtype
) -> QuantizedTensor:
    """Float8Tensor whose block_size is neither a row nor the whole weight."""
    qdata = take(layer, fields, "qdata", _FLOAT8, (-1, -1))
    settings = Settings(layer, attributes)
    block_size = settings.sizes("block_size")
    if block_size is None:
        settings.refuse("block_size", "two positive integers")
    scale = take_scale(
        layer,
        fields,
        "scale",
        blocks_of(qdata.shape[0], qdata.shape[1], block_size),
        (torch.float32, torch.bfloat16),
    )
    return by_blocks(layer, qdata, scale, block_size, dtype, attributes.get("act_quant_kwargs") is not None)
