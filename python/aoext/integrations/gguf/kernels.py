"""transformers' packed GGUF weights on aoext's kernels. Imported with transformers' module of GGUF kernels.

`from_pretrained(..., gguf_file=...)` keeps weights in blocks where a kernel can read them, asks a module of
four functions for that, this one, and otherwise dequantises the whole model. Theirs takes 8 rows at most,
and no CPU's tensors; these take any number of rows, on every device but Apple's, which keeps its own.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.gguf import kernels as transformers_kernels
from transformers.integrations.gguf.dequant import GGML_NAME
from transformers.integrations.gguf.dequant import dequantize as dequantize_by_torch

from aoext.formats.table import FORMATS, Code
from aoext.tensors import GGUF_TYPES

ao = torch.ops.ao

# Formats by GGML's numbers of its types.
_FORMATS = {
    number: FORMATS[Code(GGUF_TYPES[name].codes[0])]
    for number, name in GGML_NAME.items()
    if name in GGUF_TYPES
}
GEMV_TYPES = frozenset(_FORMATS)
_CODES = {number: int(format.code) for number, format in _FORMATS.items()}

# By devices: a GPU would be asked for one at each product.
_ones: dict[torch.device, Tensor] = {}


def mul_mat_vec(weight: Tensor, x: Tensor, ggml_type: int, n: int) -> Tensor:
    """x [M, K] times the rows of `weight`, uint8 [N, bytes of a row]: [M, N] in x's dtype."""
    return ao.weight_only_linear(x, _blocks(weight, ggml_type), _scale(weight), _CODES[ggml_type])


def mul_mat_id(blocks: Tensor, x: Tensor, ids: Tensor, ggml_type: int, n: int) -> Tensor:
    """x [T, K] times the weights of the experts `ids` [T, k], of uint8 [E, N, bytes of a row]: [T, k, N]."""
    k = ids.shape[1]
    order, place, offsets = ao.sort_by_expert(ids, blocks.shape[0])
    rows = times_experts(x.index_select(0, order // k), blocks, offsets, ggml_type)
    return rows.index_select(0, place).unflatten(0, (-1, k))


def times_experts(rows: Tensor, blocks: Tensor, offsets: Tensor, ggml_type: int) -> Tensor:
    """Rows [T, K], sorted by expert, times the weights uint8 [E, N, bytes of a row] of their experts."""
    scale = _scale(blocks).expand(blocks.shape[0], 1).contiguous()
    return ao.weight_only_linear(rows, _blocks(blocks, ggml_type), scale, _CODES[ggml_type], offsets=offsets)


def dequantize(weight: Tensor, ggml_type: int, rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    """The numbers [rows, cols] of uint8 [rows, bytes of a row]."""
    if ggml_type not in _FORMATS:
        return dequantize_by_torch(weight, ggml_type, dtype).reshape(rows, cols)
    return ao.dequantize(_blocks(weight, ggml_type), _scale(weight), _CODES[ggml_type], dtype=dtype)


def get_rows(weight: Tensor, indices: Tensor, ggml_type: int, cols: int, dtype: torch.dtype) -> Tensor:
    """The numbers of the rows at `indices` [T]."""
    return dequantize(weight.index_select(0, indices), ggml_type, indices.shape[0], cols, dtype)


def _blocks(weight: Tensor, ggml_type: int) -> Tensor:
    """Rows of bytes block by block."""
    return weight.unflatten(-1, (-1, _FORMATS[ggml_type].bytes))


def _scale(weight: Tensor) -> Tensor:
    """What multiplies all of a weight: nothing."""
    device = weight.device
    if torch.compiler.is_compiling():
        return torch.ones(1, dtype=torch.float32, device=device)
    if device not in _ones:
        with torch.inference_mode(False):
            _ones[device] = torch.ones(1, dtype=torch.float32, device=device)
    return _ones[device]


def _can_read(tensor: Tensor) -> bool:
    return tensor.device.type != "meta"


def _install() -> None:
    theirs: Any = transformers_kernels
    theirs._gguf_kernel = theirs.GgufKernel(sys.modules[__name__])
    theirs.kernel_can_read = _can_read
    theirs.MAX_GEMV_ROWS = sys.maxsize


if not torch.backends.mps.is_available():
    _install()
