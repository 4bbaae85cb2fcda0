"""Checkpoints whose config says "mxfp4": gpt-oss, whose experts are e2m1 with an exponent for 32 values."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from aoext.checkpoints.base import Reader, take
from aoext.checkpoints.blocks import table_of_16, take_scale
from aoext.checkpoints.settings import Settings
from aoext.formats.lookup_tables import E2M1
from aoext.tensors import QuantizedTensor

_GROUP = 32


class Mxfp4Reader(Reader):
    """blocks uint8 [N, K/32, 16], two codes to a byte, the even k low; scales uint8 [N, K/32].

    All experts lie in one tensor: gate_up_proj_blocks [E, N, K/32, 16].
    """

    names = ("blocks", "scales")
    names_of_experts: Mapping[str, str] = {"_blocks": "blocks", "_scales": "scales"}

    def __init__(self, settings: Settings) -> None:
        pass

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        blocks = take(layer, tensors, "blocks", (torch.uint8,), (-1, -1, _GROUP // 2))
        scale = take_scale(layer, tensors, "scales", blocks.shape[:2], (torch.uint8,))
        return table_of_16(layer, blocks.flatten(1), E2M1, scale, _GROUP, dtype)
