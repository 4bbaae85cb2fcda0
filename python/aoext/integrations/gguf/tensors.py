"""A model's tensors as a GGUF file has them: what loading.py reads, the other way round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gguf
from torch import Tensor, nn

from aoext.checkpoints import gguf_quantize
from aoext.integrations.gguf.names import Places
from aoext.models.experts import are_interleaved
from aoext.models.layers import as_rows, quantizable
from aoext.tensors import GGUF_TYPES, GGUFTensor, QuantizedTensor

# The format of a tensor, by the file's name of it and whether it is a weight that can have blocks.
Kinds = Callable[[str, bool], str]


def add_tensors(writer: Any, model: Any, places: Places, kinds: Kinds) -> dict[str, str]:
    """Give a writer of `gguf` the parameters of a model; their formats by the file's names.

    A weight that has no whole number of blocks in a row gets another format that it has. Weights that are in
    GGUF's blocks stay as they are.
    """
    formats: dict[str, str] = {}
    for owner, name, parameter in _distinct(model):
        leaf = name.rpartition(".")[2]
        keys = places.names(name)
        if not keys:
            raise ValueError(f"GGUF has no name for {name}")
        kind = None
        if isinstance(parameter, GGUFTensor) and _is_bare(parameter):
            kind = next(kind for kind, made in GGUF_TYPES.items() if type(parameter) is made)
            rows = parameter.qdata.flatten(-2)
        else:
            plain = parameter.dequantize() if isinstance(parameter, QuantizedTensor) else parameter.detach()
            rows = plain if leaf.endswith("bias") else as_rows(owner, plain)
            rows = rows.squeeze(1) if isinstance(owner, nn.Conv1d) and rows.dim() == 3 else rows
        for key, part in zip(keys, _split(rows, len(keys), owner, leaf), strict=True):
            place = places.of(key)
            part = part if kind else part.float()
            for change in reversed(place.changes if place else ()):
                part = change.written(part)
            formats[key] = kind or kinds(key, leaf in quantizable(owner))
            if kind:
                raw, raw_type = part.contiguous().numpy(), gguf.GGMLQuantizationType[kind]
            else:
                formats[key] = gguf_quantize.fitting(formats[key], part.shape[-1])
                raw, raw_type = gguf_quantize.quantized(part.contiguous(), formats[key])
            writer.add_tensor(key, raw, raw_dtype=raw_type)
    return formats


def _is_bare(weight: GGUFTensor) -> bool:
    """Whether blocks are all there is of a weight."""
    return weight.k_order is None and bool((weight.scale == 1).all())


def _distinct(model: Any) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """What of the state is not another name of what came before, with the module that has it."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield model.get_submodule(name.rpartition(".")[0]), name, tensor


def _split(rows: Tensor, count: int, owner: nn.Module, leaf: str) -> list[Tensor]:
    """The parts whose rows lie behind each other, or take turns."""
    if count == 1:
        return [rows]
    at = rows.dim() - (1 if leaf.endswith("bias") else 2)
    if not are_interleaved(owner):
        return list(rows.chunk(count, at))
    return list(rows.unflatten(at, (-1, count)).unbind(at + 1))
