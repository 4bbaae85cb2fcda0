"""Checkpoints of other libraries, brought onto aoext's layouts without loss, and back where that is exact.

A checkpoint's config names its method; a Reader of that method makes the quantised weight of a layer from the
tensors that the file has of it, a Writer these tensors of the weight. Nothing here needs the libraries that
write such files, but that torchao's format is written by torchao.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aoext.checkpoints.base import Reader, Writer
from aoext.checkpoints.bitsandbytes import BitsandbytesReader
from aoext.checkpoints.compressed_tensors import CompressedTensorsReader, CompressedTensorsWriter
from aoext.checkpoints.gptq import AwqReader, GptqReader, GptqWriter
from aoext.checkpoints.hqq import HqqReader
from aoext.checkpoints.torchao import TorchaoReader, TorchaoWriter

READERS: dict[str, type[Reader]] = {
    "gptq": GptqReader,
    "awq": AwqReader,
    "compressed-tensors": CompressedTensorsReader,
    "bitsandbytes": BitsandbytesReader,
    "hqq": HqqReader,
    "torchao": TorchaoReader,
}

WRITERS: dict[str, type[Writer]] = {
    "gptq": GptqWriter,
    "torchao": TorchaoWriter,
    "compressed-tensors": CompressedTensorsWriter,
}


def reader_for(settings: Mapping[str, Any]) -> Reader:
    """The reader for a checkpoint with this quantization_config; ValueError where there is none."""
    method = settings.get("quant_method")
    if method not in READERS:
        raise ValueError(f"aoext: quant_method must be one of {', '.join(READERS)}, got {method!r}")
    return READERS[method](settings)
