"""Checkpoints of bitsandbytes' LLM.int8(): w = q·SCB/127, by rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aoext.checkpoints.base import Reader, take
from aoext.tensors import Int8Tensor, QuantizedTensor


class BitsandbytesReader(Reader):
    """weight int8 [N, K] and SCB float32 [N]. Outliers of the activation are not set apart."""

    names = ("weight_format", "weight", "SCB")

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if settings.get("load_in_4bit") or settings.get("_load_in_4bit"):
            raise ValueError("bitsandbytes: weights of 4 bits (nf4, fp4) do not run on aoext yet")

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        q = take(layer, tensors, "weight", (torch.int8,), (-1, -1))
        rows, columns = q.shape
        largest = take(layer, tensors, "SCB", (torch.float32,), (rows,))
        return Int8Tensor(q, (largest / 127).unsqueeze(1), [1, columns], dtype)
