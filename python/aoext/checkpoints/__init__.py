"""Checkpoints of other libraries, brought onto aoext's layouts without loss, and back where that is exact.

A checkpoint's config names its method; a Reader of that method makes the quantised weight of a layer from the
tensors that the file has of it, a Writer these tensors of the weight. Nothing here needs the libraries that
write such files, but that torchao's format is written by torchao.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from aoext import serialization
from aoext.checkpoints.base import Reader, Writer
from aoext.checkpoints.bitsandbytes import BitsandbytesReader, BitsandbytesWriter
from aoext.checkpoints.compressed_tensors import CompressedTensorsReader
from aoext.checkpoints.compressed_tensors_writer import CompressedTensorsWriter
from aoext.checkpoints.fp8 import Fp8Reader
from aoext.checkpoints.gptq import AwqReader, GptqReader, GptqWriter
from aoext.checkpoints.hqq import HqqReader
from aoext.checkpoints.modelopt import ModelOptReader
from aoext.checkpoints.torchao import TorchaoReader, TorchaoWriter

READERS: dict[str, type[Reader]] = {
    "gptq": GptqReader,
    "awq": AwqReader,
    "compressed-tensors": CompressedTensorsReader,
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


def reader_for(settings: Mapping[str, Any]) -> Reader:
    """The reader for a checkpoint with this quantization_config; ValueError where there is none."""
    method = settings.get("quant_method")
    if method not in READERS:
        raise ValueError(f"aoext: quant_method must be one of {', '.join(READERS)}, got {method!r}")
    return READERS[method](settings)


# What models that have an expert's weights as a layer call it.
_EXPERT = re.compile(r"(^|\.)experts\.\d+\.")


def check_files(
    reader: Reader,
    files: Iterable[str | os.PathLike[str]],
    dtype: torch.dtype,
    is_layer: Callable[[str], bool],
) -> None:
    """ValueError, which names every layer of a checkpoint that the reader cannot serve, and why.

    It reads of the files what dtypes and shapes the tensors have, and the few that the reader calls telling.
    is_layer: whether the model has a layer of this name; it is asked of experts, which models may have in 3-D
        parameters while the checkpoint has them one by one
    """
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        forms = serialization.forms_in(file)
        telling = [key for key in forms if key.rpartition(".")[2] in reader.telling]
        tensors.update(forms)
        tensors.update(serialization.tensors_in(file, telling))
    refused = reader.refusals(tensors, dtype)
    refused += [
        f"{layer}: the model has its experts in 3-D parameters, which do not run quantised on aoext yet"
        for layer in reader.layers(tensors)
        if _EXPERT.search(layer) and not is_layer(layer)
    ]
    if refused:
        raise ValueError(
            f"{len(refused)} layers of the checkpoint cannot run on aoext, so nothing of it is loaded:\n"
            + "\n".join(refused)
        )
