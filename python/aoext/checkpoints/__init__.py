"""Checkpoints of other libraries, brought onto aoext's layouts without loss, and back where that is exact.

A checkpoint's config names its method; a Reader of that method makes the quantised weight of a layer from the
tensors that the file has of it, a Writer these tensors of the weight. Nothing here needs the libraries that
write such files, but that torchao's format is written by torchao.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from aoext.checkpoints.auto_round import auto_round_reader
from aoext.checkpoints.base import Model, Reader, Writer
from aoext.checkpoints.bitsandbytes import BitsandbytesReader, BitsandbytesWriter
from aoext.checkpoints.checks import check_files
from aoext.checkpoints.compressed_tensors import CompressedTensorsReader
from aoext.checkpoints.compressed_tensors_writer import CompressedTensorsWriter
from aoext.checkpoints.fp8 import Fp8Reader
from aoext.checkpoints.gemma import GemmaReader
from aoext.checkpoints.gptq import AwqReader, GptqReader, GptqWriter
from aoext.checkpoints.hqq import HqqReader
from aoext.checkpoints.modelopt import ModelOptReader
from aoext.checkpoints.mxfp4 import Mxfp4Reader
from aoext.checkpoints.settings import Settings, named
from aoext.checkpoints.torchao import TorchaoReader, TorchaoWriter

__all__ = ["READERS", "WRITERS", "Model", "check_files", "reader_for", "settings_in", "without_settings"]

READERS: dict[str, Callable[[Settings], Reader]] = {
    "gptq": GptqReader,
    "awq": AwqReader,
    "auto-round": auto_round_reader,
    "intel/auto-round": auto_round_reader,
    "compressed-tensors": CompressedTensorsReader,
    "sparseml": CompressedTensorsReader,  # as its first releases called it
    "bitsandbytes": BitsandbytesReader,
    "hqq": HqqReader,
    "torchao": TorchaoReader,
    "fp8": Fp8Reader,
    "mxfp8": Fp8Reader,
    "modelopt": ModelOptReader,
    "mxfp4": Mxfp4Reader,
    "gemma": GemmaReader,
}

WRITERS: dict[str, type[Writer]] = {
    "gptq": GptqWriter,
    "torchao": TorchaoWriter,
    "compressed-tensors": CompressedTensorsWriter,
    "bitsandbytes": BitsandbytesWriter,
}


def settings_in(config: object) -> Mapping[str, Any] | None:
    """What a config.json says of how a checkpoint is quantised; None where it says nothing of it.

    ValueError for what is no JSON object.
    """
    said = Settings("config.json", config)
    places = [said.object("quantization_config"), said.object("text_config").object("quantization_config")]
    nested = said.object("compression_config")  # of compressed-tensors' first releases
    if nested:
        places.append(Settings(nested.who, {"quant_method": "compressed-tensors", **nested.values}))
    return next((place.values for place in places if place), None)


def without_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json without what `settings_in` finds in it."""
    said = ("quantization_config", "compression_config")
    kept = {key: value for key, value in config.items() if key not in said}
    if isinstance(text := kept.get("text_config"), Mapping):
        kept["text_config"] = {key: value for key, value in text.items() if key not in said}
    return kept


def reader_for(settings: Mapping[str, Any]) -> Reader:
    """The reader for a checkpoint with this quantization_config; ValueError where there is none."""
    method = Settings("quantization_config", settings).any("quant_method")
    if not isinstance(method, str) or method not in READERS:
        raise ValueError(
            f"aoext: quant_method must be one of {', '.join(READERS)}, got {reprlib.repr(method)}"
        )
    with named(str(method)):
        return READERS[method](Settings(str.__str__(method), settings))
