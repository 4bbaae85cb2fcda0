"""Whether a product in training goes by the plain weight, which is made for it and gone afterwards."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from aoext.formats.table import FORMATS, Code

# Rows from which on a CPU multiplies faster by a plain weight, made for one product.
_MANY_ROWS = 512


def prefers_plain_weight(input: Tensor, code: int) -> bool:
    """Whether a product in training goes by the plain weight, of which there is one at a time.

    PyTorch's own product is faster there where it has instructions for the dtype, and float32 is so far from
    memory's rate that only unpacking costs more.
    """
    if type(input) is not Tensor or input.device.type != "cpu":
        return False
    if input.numel() < _MANY_ROWS * input.shape[-1]:
        return False
    if input.dtype is torch.bfloat16:
        return _multiplies_bfloat16()
    return input.dtype is torch.float32 and FORMATS[Code(code)].is_packed


@functools.cache
def _multiplies_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
