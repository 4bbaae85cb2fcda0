"""How a safetensors file is laid out: names of dtypes, keys of aoext's in its metadata, bytes of a tensor."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from aoext.formats.dtypes import dtype_name

CHECKSUMS_KEY, DTYPES_KEY = "aoext_crc32", "aoext_dtypes"

METADATA = "__metadata__"
LENGTH_BYTES = 8
LONGEST_HEADER = 100_000_000  # safetensors' own limit
ALIGNMENT = 8

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

# Dtypes without a name there, which are stored as bytes with a tag.
TAGGED = {dtype_name(d): d for d in (torch.complex128, torch.complex32, torch.float4_e2m1fn_x2)}


def is_storable(dtype: torch.dtype) -> bool:
    """Whether tensors of this dtype have a place in a file."""
    return dtype in NAMES or dtype in TAGGED.values()


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, to be used while the tensor lives."""
    if not tensor.numel():
        return memoryview(b"")
    array = (ctypes.c_ubyte * (tensor.numel() * tensor.itemsize)).from_address(tensor.data_ptr())
    return memoryview(array).cast("B")
