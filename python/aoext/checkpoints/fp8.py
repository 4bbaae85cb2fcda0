"""Checkpoints whose config says "fp8" (DeepSeek, Qwen) or "mxfp8" (MiniMax): float8 with scales by blocks.

The scales multiply, although DeepSeek calls them weight_scale_inv. Without blocks, as vLLM's tools write
"fp8", there is one scale for each row or for the whole weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aoext.checkpoints.base import Reader, left_as_they_are, setting, take
from aoext.checkpoints.blocks import blocks_of, by_blocks, by_rows, powers_of_two, take_scale
from aoext.packing import FLOAT8_DTYPES
from aoext.tensors import QuantizedTensor

# Of which a layer has one.
_SCALES = ("weight_scale_inv", "weight_scale")

_MX_BLOCK = (1, 32)


class Fp8Reader(Reader):
    """weight float8 [N, K], weight_scale_inv [ceil(N/block_n), ceil(K/block_k)] of floats or exponents.

    Where the checkpoint's activation_scheme is "dynamic", activations are quantised in blocks [1, block_k],
    or by rows where the weight has no blocks, with scales that are powers of two where the weight's are.
    Scales of activations that were fixed beforehand are left aside, and the activations stay as they are.
    """

    names = ("weight", *_SCALES, "activation_scale", "input_scale")

    def __init__(self, settings: Mapping[str, Any]) -> None:
        who = settings["quant_method"]
        scheme = setting(who, settings, "activation_scheme", ("dynamic", "static"), "dynamic")
        self.dynamic = scheme == "dynamic"
        if not self.dynamic:
            self.notes = (left_as_they_are(8, "float"),)
        setting(who, settings, "fmt", ("e4m3", "e5m2", None))
        self.exponents = setting(who, settings, "scale_fmt", ("float", "ue8m0", None)) == "ue8m0"
        block = settings.get("weight_block_size") or (_MX_BLOCK if who == "mxfp8" else None)
        self.block_size = None if block is None else list(block)
        if self.block_size is not None and (
            len(self.block_size) != 2
            or not all(isinstance(size, int) and size > 0 for size in self.block_size)
        ):
            raise ValueError(f"{who}: weight_block_size must be two positive numbers, got {block!r}")

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        weight = take(layer, tensors, "weight", FLOAT8_DTYPES, (-1, -1))
        name = next((name for name in _SCALES if name in tensors), _SCALES[0])
        if self.block_size is None:
            return by_rows(layer, tensors, name, weight, dtype, self.dynamic)
        rows, columns = weight.shape
        scale = take_scale(layer, tensors, name, blocks_of(rows, columns, self.block_size))
        if self.exponents and scale.dtype is torch.float32:
            exponents = powers_of_two(scale)
            scale = scale if exponents is None else exponents
        return by_blocks(layer, weight, scale, self.block_size, dtype, self.dynamic)
