"""Reads aoext's own checkpoints as those of other libraries are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aoext import serialization
from aoext.checkpoints.base import Reader
from aoext.serialization.container import Source, table_of
from aoext.tensors import QuantizedTensor


class OwnReader(Reader):
    """The fields of each weight, as the files' metadata describes them."""

    names = tuple(
        sorted({f"weight.{name}" for kind in serialization.TENSOR_TYPES.values() for name in kind.fields})
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.described: dict[str, Any] = {}

    def read_metadata(self, metadata: Mapping[str, str]) -> None:
        source = Source("convert", Path("a file's metadata"))
        self.described.update(table_of(metadata, serialization.WEIGHTS_KEY, source))

    def layers(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Layers; parameters that are not called `weight`, those of experts, by their own names."""
        found = super().layers(names)
        for name, description in self.described.items():
            if not name.endswith(".weight"):
                found[name] = {field: f"{name}.{field}" for field in description["fields"]}
        return found

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        name = layer if layer in self.described else f"{layer}.weight"
        stored = {f"{layer}.{part}": tensor for part, tensor in tensors.items()}
        return serialization.assembled(name, self.described.get(name), stored)
