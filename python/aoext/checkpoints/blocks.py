"""Weights of 8 bits and of tables of 16 values, with a scale for each row or block, as checkpoints have them.

Scales keep the dtype that they have in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from aoext.checkpoints.base import Model, take
from aoext.checkpoints.settings import Settings
from aoext.formats.checks import describe, has_values
from aoext.formats.dtypes import EXPONENT_DTYPES, FLOAT_DTYPES, one_of
from aoext.formats.table import TABLE_SIZE
from aoext.packing.blockwise import in_tiles
from aoext.tensors import BlockwiseTensor, Float8Tensor, Int8Tensor, Lut4Tensor, QuantizedTensor
from aoext.tensors.fields import ceil_div

# What a checkpoint may have scales of rows and blocks in.
SCALES = (*FLOAT_DTYPES, *EXPONENT_DTYPES)

# The exponent that stands for NaN.
_NAN = 255


def take_scale(
    layer: str,
    tensors: Mapping[str, Tensor],
    name: str,
    shape: Sequence[int],
    dtypes: Sequence[torch.dtype] = SCALES,
) -> Tensor:
    """The scales of this name, as `take` takes them; exponents in uint8 must be finite as well."""
    scale = take(layer, tensors, name, dtypes, shape)
    if scale.dtype is torch.uint8 and has_values(scale) and bool((scale == _NAN).any()):
        raise ValueError(f"{layer}: {name} must be finite, got the exponent {_NAN}, which is NaN")
    return scale


def by_rows(
    layer: str,
    tensors: Mapping[str, Tensor],
    name: str,
    qdata: Tensor,
    dtype: torch.dtype,
    dynamic: bool,
    model: Model | None = None,
) -> QuantizedTensor:
    """w = qdata·scale with a scale for each row, [N] or [N, 1], for each part of a fused weight, or one.

    dynamic: whether activations are quantised at every call, row by row
    """
    rows, columns = qdata.shape
    scale = tensors.get(name)
    if scale is None:
        raise ValueError(f"{layer}: the checkpoint lacks {layer}.{name}")
    parts = _parts(layer, scale.numel(), rows, model)
    if (scale.numel() not in (1, rows) and parts is None) or not scale.is_floating_point():
        raise ValueError(f"{layer}: {name} must be a float [{rows}, 1] or [1], got {describe(scale)}")
    flat = take(layer, {name: scale.reshape(-1, 1)}, name, FLOAT_DTYPES, (scale.numel(), 1)).float()
    if parts is not None:
        flat = torch.cat([one.expand(count, 1) for one, count in zip(flat.split(1), parts, strict=True)])
    kind = Int8Tensor if qdata.dtype is torch.int8 else Float8Tensor
    return kind(qdata, flat.expand(rows, 1).contiguous(), [1, columns], dtype, dynamic)


def _parts(layer: str, scales: int, rows: int, model: Model | None) -> list[int] | None:
    """The rows of each part of a weight that was made of as many as there are scales; None for other weights.

    Gate and up, or keys and values, are as large as each other. How many rows are queries, the model says.
    """
    name = layer.rpartition(".")[2]
    if scales == 2 and rows % 2 == 0 and ("gate_up" in name or name.startswith("kv")):
        return [rows // 2, rows // 2]
    if scales != 3 or rows == 3 or "qkv" not in name:
        return None
    said = Settings("config.json", {} if model is None else model.config)
    heads = said.integer("num_attention_heads", 1)
    size = said.integer("head_dim", said.integer("hidden_size", 1) // heads)
    queries, keys = heads * size, said.integer("num_key_value_heads", heads) * size
    if queries + 2 * keys != rows:
        raise ValueError(
            f"{layer}: it has a scale for each of queries, keys and values, and the model's config does not "
            f"say how many of its {rows} rows are which"
        )
    return [queries, keys, keys]


def by_blocks(
    layer: str,
    qdata: Tensor,
    scale: Tensor,
    block_size: Sequence[int],
    dtype: torch.dtype,
    dynamic: bool = False,
    zero_point: Tensor | None = None,
    k_order: Tensor | None = None,
) -> QuantizedTensor:
    """w = (qdata − zero_point)·scale with a scale and a zero for each block [block_n, block_k].

    dynamic: whether activations are quantised at every call, in blocks of block_k along K
    zero_point: integers of the shape of scale, in −128..127, for a qdata of int8
    k_order: which column of the weight each of qdata is
    """
    columns = qdata.shape[1]
    if zero_point is not None:
        qdata, zero_point = _toward_zero(qdata, zero_point, block_size)
    rows = block_size[0] == 1 and block_size[1] >= columns and scale.dtype in FLOAT_DTYPES
    if rows and zero_point is None and k_order is None:
        return by_rows(layer, {"scale": scale}, "scale", qdata, dtype, dynamic)
    try:
        return BlockwiseTensor(
            qdata.contiguous(),
            scale.contiguous(),
            list(block_size),
            dtype,
            [1, block_size[1]] if dynamic else None,
            zero_point=zero_point,
            k_order=None if k_order is None else k_order.to(qdata.device),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{layer}: {error}") from error


def _toward_zero(
    qdata: Tensor, zero_point: Tensor, block_size: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """Codes and zeros of the same differences, the zeros as near to 0 as the codes' range in int8 allows.

    None where all are 0: then a product needs no correction.
    """
    if not has_values(qdata) or not has_values(zero_point):
        return qdata, zero_point.to(torch.int8)
    zero = zero_point.to(torch.int16)
    lowest = in_tiles(qdata, block_size, 127).amin((1, 3)).to(torch.int16)
    highest = in_tiles(qdata, block_size, -128).amax((1, 3)).to(torch.int16)
    shift = torch.minimum(torch.maximum(zero, highest - 127), lowest + 128)
    left = (zero - shift).to(torch.int8)
    moved = in_tiles(qdata.to(torch.int16), block_size) - shift[:, None, :, None]
    rows, columns = qdata.shape
    codes = moved.flatten(2).flatten(0, 1)[:rows, :columns].to(torch.int8)
    return codes, left if bool(left.any()) else None


def blocks_of(rows: int, columns: int, block_size: Sequence[int]) -> list[int]:
    """The shape of the scales of a weight [N, K]; the last blocks may be partial."""
    return [ceil_div(rows, block_size[0]), ceil_div(columns, block_size[1])]


def table_of_16(
    layer: str,
    pairs: Tensor,
    table: Sequence[float] | Tensor,
    scale: Tensor,
    group_size: int,
    dtype: torch.dtype,
    global_scale: Tensor | None = None,
) -> Lut4Tensor:
    """w = table[code]·scale·global_scale, with a scale for each group along K.

    pairs: uint8 [N, K/2], the even k low; global_scale: one number
    """
    values = torch.as_tensor(table, dtype=torch.float32, device=pairs.device)
    whole = None if global_scale is None else global_scale.float().reshape(1)
    try:
        return Lut4Tensor(
            pairs.contiguous(), values, scale.contiguous(), [1, group_size], dtype, global_scale=whole
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{layer}: {error}") from error


def looks_up(weight: QuantizedTensor, table: Sequence[float]) -> bool:
    """Whether a weight's codes are indices into these 16 values."""
    if not isinstance(weight, Lut4Tensor):
        return False
    return torch.equal(
        weight.table[:TABLE_SIZE].cpu(), torch.tensor(table, dtype=torch.float32, device="cpu")
    )


def take_whole_scale(layer: str, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """The one scale of this name that multiplies, or divides, all of a weight: float32 [1]."""
    scale = tensors.get(name)
    if scale is None:
        raise ValueError(f"{layer}: the checkpoint lacks {layer}.{name}")
    if scale.numel() != 1 or scale.dtype not in FLOAT_DTYPES:
        raise ValueError(
            f"{layer}: {name} must be one number of {one_of(FLOAT_DTYPES)}, got {describe(scale)}"
        )
    return take(layer, {name: scale.reshape(1)}, name, FLOAT_DTYPES, (1,)).float()


def powers_of_two(scale: Tensor) -> Tensor | None:
    """float32 scales as float8_e8m0fnu, if all of them are what that holds."""
    if not has_values(scale):
        return scale.to(torch.float8_e8m0fnu)
    exponents = scale.float().to(torch.float8_e8m0fnu)
    return exponents if torch.equal(exponents.float(), scale.float()) else None
