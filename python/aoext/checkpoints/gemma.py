"""Checkpoints of Gemma's makers ("gemma"): integers of 2, 4 and 8 bits by rows, embeddings as well as layers.

Scales of activations were fixed while the model was trained: what goes into a layer and what comes out is
rounded to int8 by them. Those of keys and values are left aside.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from aoext.checkpoints.base import Reader, is_nonzero, left_as_they_are, take
from aoext.checkpoints.blocks import by_blocks
from aoext.checkpoints.expressions import Expression
from aoext.checkpoints.groups import of_pairs
from aoext.checkpoints.settings import Settings
from aoext.formats.checks import describe
from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.tensors import Int2Tensor, QuantizedTensor
from aoext.tensors.ranges import RANGES

_BITS = (2, 4, 8)
_ACTIVATIONS = ("input_activation_scale", "output_activation_scale")


class GemmaReader(Reader):
    """weight, or embedding_quantized of an embedding: int8 [N, K], or uint8 [N, K/2] or [N, K/4] of 4 or 2
    bits, the lowest k in the lowest bits; weight_scale or embedding_scale [N, 1], or [N, K/group_size].

    w = q·scale, with the codes u of 2 and 4 bits as q = u − 2 and q = u − 8.
    """

    names = ("weight", "weight_scale", "embedding_quantized", "embedding_scale", *_ACTIVATIONS)
    telling = _ACTIVATIONS
    left_aside = (r"\.[kv]_cache_scale$",)

    def __init__(self, settings: Settings) -> None:
        self._bits = settings.choice("num_bits", _BITS, 4)
        # By expressions that are searched in a layer's name, of which the first that is found counts.
        self._patterns = [
            (Expression("module_quant_configs", pattern), layers.choice("num_bits", _BITS, self._bits))
            for pattern, layers in settings.objects("module_quant_configs").items()
        ]

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        weight = self._values(layer, tensors, dtype)
        ranges = {
            name: _positive(layer, tensors[key], key)
            for name, key in zip(RANGES, _ACTIVATIONS, strict=True)
            if is_nonzero(tensors.get(key))
        }
        if not ranges:
            return weight
        if not all(name in weight.fields for name in ranges):
            self.notes = (left_as_they_are(8, "int"),)
            return weight
        return weight.remade({**dict(weight.named_fields()), **ranges})

    def _values(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        is_embedding = "embedding_quantized" in tensors
        name, scales = (
            ("embedding_quantized", "embedding_scale") if is_embedding else ("weight", "weight_scale")
        )
        codes = take(layer, tensors, name, (torch.int8, torch.uint8), (-1, -1))
        bits = 8 if codes.dtype is torch.int8 else self._bits_of(layer, codes.shape[1])
        rows, columns = codes.shape[0], codes.shape[1] * 8 // bits
        scale = take(layer, tensors, scales, FLOAT_DTYPES, (rows, -1)).float()
        if columns % scale.shape[1]:
            raise ValueError(f"{layer}: {scales} must divide a row of K = {columns}, got {describe(scale)}")
        group_size = columns // scale.shape[1]
        if bits == 8:
            return by_blocks(layer, codes, scale, [1, group_size], dtype)
        scale = scale.t().contiguous()
        if bits == 4:
            return of_pairs(layer, codes, scale, None, dtype)
        return Int2Tensor(
            codes.contiguous(), scale, -2 * scale, [1, group_size], (rows, columns), dtype=dtype
        )

    def _bits_of(self, layer: str, width: int) -> int:
        """2 or 4, of rows of so many bytes: as the model's layer has columns, else as the config says."""
        module = None if self.model is None else self.model.module(layer)
        plain = getattr(module, "weight", None)
        if isinstance(plain, Tensor) and plain.dim() == 2:
            bits = next((bits for bits in (2, 4) if plain.shape[1] * bits == 8 * width), 0)
            if not bits:
                raise ValueError(
                    f"{layer}: {width} bytes are no row of K = {plain.shape[1]} values of 2 or 4 bits"
                )
            return bits
        bits = next((bits for pattern, bits in self._patterns if pattern.search(layer)), self._bits)
        if bits == 8:
            raise ValueError(f"{layer}: the weight must be int8, as the config says 8 bits, got uint8")
        return bits


def _positive(layer: str, scale: Tensor, name: str) -> Tensor:
    """float32 [1]."""
    scale = take(layer, {name: scale.reshape(-1)}, name, FLOAT_DTYPES, (1,)).float()
    if not bool(scale > 0):
        raise ValueError(f"{layer}: {name} must be positive, or 0 for none, got {float(scale)}")
    return scale
