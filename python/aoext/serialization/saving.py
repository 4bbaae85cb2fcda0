"""save_model."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aoext.formats.checks import is_memory_gone
from aoext.formats.dtypes import dtype_name
from aoext.serialization.checkpoint import Shard, bytes_of, write_shards
from aoext.serialization.contents import (
    FORMAT_VERSION,
    NOT_PERSISTENT_KEY,
    TIED_KEY,
    VERSION_KEY,
    WEIGHTS_KEY,
    describe_weight,
    stored_tensors,
)
from aoext.serialization.layout import METADATA, is_storable
from aoext.serialization.state import buffers_beside_the_state, check_module, is_ours, state_of
from aoext.tensors import QuantizedTensor

# Buffers that are not persistent are saved up to this size, for models on the meta device, which could not
# make them: frequencies of rotary embeddings are, masks and caches are not.
LARGEST_BUFFER_BYTES = 1 << 16


@torch.no_grad()
def save_model(
    model: nn.Module, path: str | os.PathLike[str], *, max_shard_size: int | str | None = None
) -> None:
    """Write a model's state (parameters and persistent buffers, quantised or not) to `path`.

    max_shard_size: bytes, or a text such as "5GB". A model with more than that is written into several
        files of this size beside `path`, no larger unless a single weight is, and an index
        `<path>.index.json`; load_model takes `path` in either case.

    What is there appears whole or not at all, and replaces what was saved there before. A file has the mode
    of the one that it replaces or that of the umask; a symbolic link leads to the file that is written.
    Buffers that are not persistent are written too where they are small, for models on the meta device.

    ValueError for a state that has no place in it: what is no dense tensor, is another package's or
    PyTorch's own tensor subclass (a DTensor), has no data (meta, freed storage), a dtype without plain
    values (quint8, uint4); and for a `path` that is there and no regular file.
    """
    check_module("save_model", model)
    limit = None if max_shard_size is None else bytes_of(max_shard_size)
    plan = _Plan(limit)
    for name, tensor in state_of("save_model", model).items():
        if tensor.is_meta:
            raise ValueError(f"save_model: {name} is on the meta device and has no data")
        plan.add(name, tensor)
    for buffer in buffers_beside_the_state(model):
        if _is_worth_keeping(buffer.tensor):
            plan.add(buffer.name, buffer.tensor, persistent=False)
    write_shards(Path(path), [part.shard() for part in plan.parts])


def _is_worth_keeping(tensor: Tensor) -> bool:
    dense = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta
    return (
        dense
        and is_ours(tensor)
        and is_storable(tensor.dtype)
        and not is_memory_gone(tensor)
        and tensor.nbytes <= LARGEST_BUFFER_BYTES
    )


@dataclass
class _Part:
    """What goes into one file."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    not_persistent: dict[str, bool] = field(default_factory=dict)
    size: int = 0

    def shard(self) -> Shard:
        """Its tensors with the metadata of a file."""
        tables = {
            WEIGHTS_KEY: self.weights,
            TIED_KEY: self.tied,
            NOT_PERSISTENT_KEY: self.not_persistent,
        }
        metadata = {key: json.dumps(table) for key, table in tables.items()}
        return Shard(self.tensors, {VERSION_KEY: FORMAT_VERSION, "format": "pt", **metadata})


class _Plan:
    """Distributes tensors over parts of at most `limit` bytes, a weight's fields and ties in one part."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.parts = [_Part()]
        self._homes: dict[int, tuple[str, _Part]] = {}
        self._keys: set[str] = {METADATA}

    def add(self, name: str, tensor: Tensor, persistent: bool = True) -> None:
        """Plan a tensor of the model, or its tie to one that has been added."""
        if id(tensor) in self._homes:
            first, part = self._homes[id(tensor)]
            part.tied[name] = first
        else:
            part = self._store(name, tensor)
            self._homes[id(tensor)] = name, part
        if not persistent:
            part.not_persistent[name] = True

    def _store(self, name: str, tensor: Tensor) -> _Part:
        tensors = stored_tensors(name, tensor)
        for key, stored in tensors.items():
            if key in self._keys:
                raise ValueError(f"save_model: {name} would be stored as {key}, a name that is taken")
            _check_data(key, stored)
        self._keys.update(tensors)
        size = sum(stored.nbytes for stored in tensors.values())
        part = self.parts[-1]
        if self.limit is not None and part.tensors and part.size + size > self.limit:
            part = _Part()
            self.parts.append(part)
        part.tensors.update(tensors)
        part.size += size
        if isinstance(tensor, QuantizedTensor):
            part.weights[name] = describe_weight(tensor)
        return part


def _check_data(key: str, tensor: Tensor) -> None:
    if not is_storable(tensor.dtype):
        raise ValueError(f"save_model: {key} has the dtype {dtype_name(tensor.dtype)}, which no file holds")
    if is_memory_gone(tensor):
        raise ValueError(f"save_model: {key} has no data: its storage was freed")
