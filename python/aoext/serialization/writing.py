"""Writes one safetensors file (container.py)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from torch import Tensor

from aoext.formats.dtypes import dtype_name
from aoext.serialization.layout import (
    ALIGNMENT,
    CHECKSUMS_KEY,
    DTYPES_KEY,
    LENGTH_BYTES,
    METADATA,
    NAMES,
    memory_of,
)


def write(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors of storable dtypes; one at a time is copied to the CPU if it is not there."""
    # Large elements first, so that each tensor is aligned to its elements.
    order = sorted(tensors, key=lambda key: (-tensors[key].itemsize, key))
    checksums = dict.fromkeys(order, 0)
    # The header's length does not depend on the checksums, which are known when the tensors are written.
    file.write(_header(order, tensors, metadata, checksums))
    for key in order:
        tensor = tensors[key].detach().resolve_conj().resolve_neg().contiguous().cpu()
        data = memory_of(tensor)
        checksums[key] = zlib.crc32(data)
        file.write(data)
    file.seek(0)
    file.write(_header(order, tensors, metadata, checksums))


def _header(
    order: Iterable[str],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    checksums: Mapping[str, int],
) -> bytes:
    table: dict[str, Any] = {}
    tags: dict[str, Any] = {}
    end = 0
    for key in order:
        tensor = tensors[key]
        begin, end = end, end + tensor.numel() * tensor.itemsize
        name, shape = NAMES.get(tensor.dtype), list(tensor.shape)
        if name is None:
            tags[key] = {"dtype": dtype_name(tensor.dtype), "shape": shape}
            name, shape = "U8", [end - begin]
        table[key] = {"dtype": name, "shape": shape, "data_offsets": [begin, end]}
    own = {
        CHECKSUMS_KEY: json.dumps({key: f"{checksum:08x}" for key, checksum in checksums.items()}),
        DTYPES_KEY: json.dumps(tags),
    }
    text = json.dumps({METADATA: {**metadata, **own}, **table}).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
