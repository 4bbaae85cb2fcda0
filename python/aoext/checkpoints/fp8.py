"""Checkpoints whose config says "fp8" (DeepSeek, Qwen) or "mxfp8" (MiniMax): float8 with scales by blocks.

The scales multiply, although DeepSeek calls them weight_scale_inv. Without blocks, as vLLM's tools write
"fp8", there is one scale for each row or for the whole weight.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from aoext.checkpoints.base import Reader, left_as_they_are, take
from aoext.checkpoints.blocks import blocks_of, by_blocks, by_rows, powers_of_two, take_scale
from aoext.checkpoints.settings import Settings
from aoext.formats.dtypes import FLOAT8_DTYPES
from aoext.tensors import QuantizedTensor

# A layer has one of these.
_SCALES = ("weight_scale_inv", "weight_scale")

_MX_BLOCK = (1, 32)


class Fp8Reader(Reader):
    """weight float8 [N, K], weight_scale_inv [ceil(N/block_n), ceil(K/block_k)] of floats or exponents.

    Where the checkpoint's activation_scheme is "dynamic", activations are quantised in blocks [1, block_k],
    or by rows where the weight has no blocks, with scales that are powers of two where the weight's are.
    Scales of activations that were fixed beforehand are left aside, and the activations stay as they are.
    """

    names = ("weight", *_SCALES, "activation_scale", "input_scale")
    names_of_experts: Mapping[str, str] = {
        "": "weight",
        "_scale_inv": "weight_scale_inv",
        "_activation_scale": "activation_scale",
    }

    def __init__(self, settings: Settings) -> None:
        scheme = settings.choice("activation_scheme", ("dynamic", "static"), "dynamic")
        self.dynamic = scheme == "dynamic"
        if not self.dynamic:
            self.notes = (left_as_they_are(8, "float"),)
        settings.choice("fmt", ("e4m3", "e5m2", None))
        self.exponents = settings.choice("scale_fmt", ("float", "ue8m0", None)) == "ue8m0"
        self.block_size = settings.sizes("weight_block_size")
        if self.block_size is None and settings.who == "mxfp8":
            self.block_size = list(_MX_BLOCK)

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        weight = take(layer, tensors, "weight", FLOAT8_DTYPES, (-1, -1))
        name = next((name for name in _SCALES if name in tensors), _SCALES[0])
        rows, columns = weight.shape
        blocks = [rows, 1] if self.block_size is None else blocks_of(rows, columns, self.block_size)
        stored = list(tensors[name].shape) if name in tensors else blocks
        # Some that were brought from blocks to rows still say the blocks.
        if self.block_size is None or (stored != blocks and (len(stored) < 2 or stored == [rows, 1])):
            return by_rows(layer, tensors, name, weight, dtype, self.dynamic, self.model)
        scale = take_scale(layer, tensors, name, blocks)
        if self.exponents and scale.dtype is torch.float32:
            exponents = powers_of_two(scale)
            scale = scale if exponents is None else exponents
        return by_blocks(layer, weight, scale, self.block_size, dtype, self.dynamic)
