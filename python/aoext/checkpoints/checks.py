"""What a reader cannot serve of a checkpoint, before anything of it is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from aoext import serialization
from aoext.checkpoints.base import Model, Reader
from aoext.checkpoints.experts import Experts, check_numbers, distinct, read_experts
from aoext.checkpoints.settings import named
from aoext.models.layers import as_rows
from aoext.tensors import QuantizedTensor


def check_files(
    reader: Reader,
    files: Iterable[str | os.PathLike[str]],
    dtype: torch.dtype,
    model: Model | None = None,
) -> dict[str, Experts]:
    """ValueError, which names every layer of a checkpoint that the reader cannot serve, and why.

    It reads of the files what dtypes and shapes the tensors have, and the few that the reader calls telling.
    model: that the weights are for, where it is known; their shapes must be its own. The reader keeps it.
    Returned are the weights of experts that layers make together, by their names in the model.
    """
    reader.model = model
    tensors: dict[str, Tensor] = {}
    for file in files:
        forms = serialization.forms_in(file)
        telling = [key for key in forms if key.rpartition(".")[2] in reader.telling]
        tensors.update(forms)
        tensors.update(serialization.tensors_in(file, telling))
    experts, without_place = ({}, {}) if model is None else model.experts(reader.layers(tensors))
    refused = refusals(reader, tensors, dtype, experts)
    refused += [f"{layer}: {reason}" for layer, reason in without_place.items()]
    if refused:
        raise ValueError(
            f"{len(refused)} layers of the checkpoint cannot run on aoext, so nothing of it is loaded:\n"
            + "\n".join(refused)
        )
    return experts


def refusals(
    reader: Reader,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    experts: Mapping[str, Experts] = MappingProxyType({}),
) -> list[str]:
    """Why a checkpoint with these tensors cannot be served: a sentence for each layer that cannot.

    tensors: on the meta device, but for those that reader.telling names
    experts: the weights that layers make together, for each of which there is one sentence
    """
    refused: list[str] = []
    layers = reader.layers(tensors)
    for name, form in tensors.items():  # of 8 bits, with nothing beside it
        if name.endswith(".weight") and form.itemsize == 1:
            layers.setdefault(name.removesuffix(".weight"), {"weight": name})

    def of_layer(layer: str) -> dict[str, Tensor]:
        return {leaf: tensors[name] for leaf, name in layers[layer].items()}

    together = {layer for made in experts.values() for layer in made.layers}
    for layer in layers:
        try:
            if layer not in together:
                _check_shape(reader, layer, reader.weight(layer, of_layer(layer), dtype))
        except ValueError as error:
            refused.append(str(error))
    for name, made in experts.items():
        try:
            with named(name):
                check_numbers(made)
            read_experts(reader, name, distinct(made, of_layer), of_layer, dtype)
        except ValueError as error:
            refused.append(str(error))
    return refused


def _check_shape(reader: Reader, layer: str, weight: QuantizedTensor) -> None:
    module = None if reader.model is None else reader.model.module(layer)
    plain = getattr(module, "weight", None)
    if module is None or not isinstance(plain, Tensor) or plain.dim() != 2:
        return
    wanted = list(as_rows(module, plain).shape)
    if wanted != list(weight.shape):
        raise ValueError(
            f"{layer}: the checkpoint has a weight {list(weight.shape)}, and the model one {wanted}"
        )
