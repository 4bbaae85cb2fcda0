"""Checkpoints of other libraries, brought onto aoext's layouts without loss, and back where that is exact.

A checkpoint's config names its method; a Reader of that method makes the quantised weight of a layer from the
tensors that the file has of it, a Writer these tensors of the weight. Nothing here needs the libraries that
write such files, but that torchao's format is written by torchao.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from aoext import serialization
from aoext.checkpoints.auto_round import auto_round_reader
from aoext.checkpoints.base import Model, Reader, Writer
from aoext.checkpoints.bitsandbytes import BitsandbytesReader, BitsandbytesWriter
from aoext.checkpoints.compressed_tensors import CompressedTensorsReader
from aoext.checkpoints.compressed_tensors_writer import CompressedTensorsWriter
from aoext.checkpoints.fp8 import Fp8Reader
from aoext.checkpoints.gptq import AwqReader, GptqReader, GptqWriter
from aoext.checkpoints.hqq import HqqReader
from aoext.checkpoints.modelopt import ModelOptReader
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


# What models that have an expert's weights as a layer call it.
_EXPERT = re.compile(r"(^|\.)experts\.\d+\.")


def check_files(
    reader: Reader,
    files: Iterable[str | os.PathLike[str]],
    dtype: torch.dtype,
    model: Model | None = None,
) -> None:
    """ValueError, which names every layer of a checkpoint that the reader cannot serve, and why.

    It reads of the files what dtypes and shapes the tensors have, and the few that the reader calls telling.
    model: that the weights are for, where it is known; their shapes must be its own. Experts are asked for in
        it, which models may have in 3-D parameters while the checkpoint has them one by one. The reader
        keeps it.
    """
    reader.model = model
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        forms = serialization.forms_in(file)
        telling = [key for key in forms if key.rpartition(".")[2] in reader.telling]
        tensors.update(forms)
        tensors.update(serialization.tensors_in(file, telling))
    refused = reader.refusals(tensors, dtype)
    refused += [
        f"{layer}: the model has its experts in 3-D parameters, which do not run quantised on aoext yet"
        for layer in (() if model is None else reader.layers(tensors))
        if model is not None and _EXPERT.search(layer) and model.module(layer) is None
    ]
    if refused:
        raise ValueError(
            f"{len(refused)} layers of the checkpoint cannot run on aoext, so nothing of it is loaded:\n"
            + "\n".join(refused)
        )
