"""Quantised models in safetensors files.

A quantised weight `layer.weight` is stored as one tensor for each of its fields, as in
`layer.weight.qdata` and `layer.weight.scale`, and everything else under its own name. The file's
metadata has

    aoext_format_version   "1"
    aoext_weights          JSON: for each quantised weight its type, dtype, shape, group size and
                           further attributes, and what its bits mean (packing, sign, zero point)
    aoext_tied             JSON: names that share the tensor of another name

so that a reader that knows nothing of aoext can make sense of the numbers.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from aoext._optional import import_safetensors
from aoext.integrations import adopt
from aoext.layers import set_weight, why_never_quantized
from aoext.packing import FLOAT_DTYPES, describe, dtype_name
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor, QuantizedTensor
from aoext.tensors.fields import K

FORMAT_VERSION = "1"
VERSION_KEY, WEIGHTS_KEY, TIED_KEY = "aoext_format_version", "aoext_weights", "aoext_tied"

TENSOR_TYPES: dict[str, type[QuantizedTensor]] = {
    tensor_type.__name__: tensor_type for tensor_type in (Int4Tensor, Int8Tensor, Float8Tensor)
}
DTYPES = {dtype_name(dtype): dtype for dtype in FLOAT_DTYPES}

Choice = TypeVar("Choice")


@torch.no_grad()
def save_model(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model's state (parameters and persistent buffers, quantised or not) to `path`.

    The file appears whole or not at all. ValueError for a state that has no place in it: what is no
    dense tensor, has no data (meta), or is a transposed quantised weight. ImportError without
    safetensors.
    """
    _check_module("save_model", model)
    save_file = import_safetensors().torch.save_file
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    weights: dict[str, dict[str, Any]] = {}
    tied: dict[str, str] = {}
    names: dict[int, str] = {}
    for name, tensor in _state("save_model", model).items():
        if tensor.is_meta:
            raise ValueError(f"save_model: {name} is on the meta device and has no data")
        if id(tensor) in names:
            tied[name] = names[id(tensor)]
            continue
        names[id(tensor)] = name
        if not isinstance(tensor, QuantizedTensor):
            tensors[name] = tensor
            continue
        if tensor.transposed:
            raise ValueError(f"save_model: {name} is a transposed view; save the weight itself")
        weights[name] = _description(tensor)
        tensors.update({f"{name}.{field}": value for field, value in tensor.named_fields()})

    metadata = {
        VERSION_KEY: FORMAT_VERSION,
        WEIGHTS_KEY: json.dumps(weights),
        TIED_KEY: json.dumps(tied),
    }
    # Beside its target, so that the rename stays within one file system.
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        save_file(_apart(tensors), unfinished, metadata)
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@torch.no_grad()
def load_model(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load what save_model wrote into a model of the same architecture, quantised or not.

    Weights that are quantised in the file replace those of the model's nn.Linear and nn.Embedding
    layers. All else is copied into the model's tensors. Tensors stay on the model's devices; those
    on the meta device arrive on the CPU. Buffers that a state dict leaves out stay as they are.

    Everything is checked before the model changes: ValueError, which names the tensor, for a file
    that is truncated, of an unknown format, or that does not fit the model by names, shapes, dtypes
    or ties. ImportError without safetensors.
    """
    _check_module("load_model", model)
    slots = _match(model, _read(Path(path)))
    placed: _Placed = {}
    while slots:  # no reference to a replaced tensor stays, so that it is freed at once
        slots.pop().fill(placed)
    adopt(model)


def flattened(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A state with the fields of its quantised weights, and the metadata that describes them.

    A weight that has been seen under another name is left out.
    """
    tensors: dict[str, Tensor] = {}
    weights: dict[str, dict[str, Any]] = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        if not isinstance(tensor, QuantizedTensor):
            tensors[name] = tensor
        elif tensor.qdata.data_ptr() not in seen:
            seen.add(tensor.qdata.data_ptr())
            weights[name] = _description(tensor)
            tensors.update({f"{name}.{field}": value for field, value in tensor.named_fields()})
    return tensors, {VERSION_KEY: FORMAT_VERSION, WEIGHTS_KEY: json.dumps(weights), TIED_KEY: "{}"}


def metadata_of(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a safetensors file."""
    with import_safetensors().safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def names_in(path: str | os.PathLike[str]) -> list[str]:
    """The names of the tensors in a safetensors file."""
    with import_safetensors().safe_open(path, framework="pt") as file:
        return list(file.keys())


def dtypes_in(path: str | os.PathLike[str]) -> dict[str, str]:
    """safetensors' names for the dtypes of the tensors in a file."""
    with import_safetensors().safe_open(path, framework="pt") as file:
        return {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118


def descriptions_in(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says of its quantised weights, by their names."""
    metadata = metadata_of(path)
    return _json_object(metadata, WEIGHTS_KEY, Path(path)) if WEIGHTS_KEY in metadata else {}


def assembled(name: str, description: Any, stored: dict[str, Tensor]) -> QuantizedTensor:
    return _assemble(name, description, stored)


def _check_module(who: str, model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{who}: model must be an nn.Module, got a {type(model).__name__}")


def _state(who: str, model: nn.Module) -> dict[str, Tensor]:
    """A model's state by name, with the very objects that it holds, so that ties show."""
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        dense = isinstance(tensor, Tensor) and tensor.layout is torch.strided
        if not dense or tensor.is_nested or nn.parameter.is_lazy(tensor):
            raise ValueError(f"{who}: {name} must be a dense tensor, got {describe(tensor)}")
    return state


def _description(weight: QuantizedTensor) -> dict[str, Any]:
    """What a file says of a quantised weight; all of it in JSON's types."""
    return {
        "type": type(weight).__name__,
        "dtype": dtype_name(weight.dtype),
        "shape": list(weight.shape),
        "group_size": weight.block_size[K],
        "fields": [name for name, _ in weight.named_fields()],
        **weight.named_attributes(),
        **weight.encoding,
    }


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors that share no memory, as safetensors wants them."""
    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        if tensor.untyped_storage().data_ptr() in storages:
            tensor = tensor.clone()
        storages.add(tensor.untyped_storage().data_ptr())
        apart[name] = tensor
    return apart


def _read(path: Path) -> dict[str, Tensor]:
    """What a file holds by the names of a model's state; names that are tied have the same object.

    The tensors lie in the mapped file and are read when they are used.
    """
    safetensors = import_safetensors()
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # The file's handle has keys(), but is no mapping.
            stored = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(f"load_model: {path} is no whole safetensors file: {error}") from error
    if metadata.get(VERSION_KEY) != FORMAT_VERSION:
        raise ValueError(
            f"load_model: {path}: {VERSION_KEY} must be {FORMAT_VERSION!r}, as save_model of this "
            f"version writes it, got {metadata.get(VERSION_KEY)!r}"
        )
    weights, tied = (_json_object(metadata, key, path) for key in (WEIGHTS_KEY, TIED_KEY))
    tensors = {name: _assemble(name, weights[name], stored) for name in weights} | stored
    for alias, name in tied.items():
        if alias in tensors or not isinstance(name, str) or name not in tensors:
            raise ValueError(f"load_model: {path}: {alias} cannot be tied to {name!r}")
        tensors[alias] = tensors[name]
    return tensors


def _json_object(metadata: Mapping[str, str], key: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(metadata.get(key, ""))
    except json.JSONDecodeError as error:
        raise ValueError(f"load_model: {path}: {key} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"load_model: {path}: {key} must be a JSON object, got {value!r}")
    return value


def _assemble(name: str, description: Any, stored: dict[str, Tensor]) -> QuantizedTensor:
    """Make a quantised weight of its description and its fields, which leave `stored`."""
    who = f"load_model: {name}"
    if not isinstance(description, dict):
        raise ValueError(f"{who}: its description must be a JSON object, got {description!r}")
    tensor_type = _choose(who, description, "type", TENSOR_TYPES)
    dtype = _choose(who, description, "dtype", DTYPES)
    fields = description.get("fields")
    if not isinstance(fields, list) or not all(field in tensor_type.fields for field in fields):
        raise ValueError(f"{who}: fields must be of {list(tensor_type.fields)}, got {fields!r}")
    for field in fields:
        if f"{name}.{field}" not in stored:
            raise ValueError(f"{who}: the file lacks {name}.{field}")

    tensors: dict[str, Tensor | None] = dict.fromkeys(tensor_type.fields)
    tensors.update({field: stored.pop(f"{name}.{field}") for field in fields})
    attributes = {key: description.get(key) for key in tensor_type.attributes}
    try:
        weight = tensor_type.from_fields(tensors, dtype, **attributes)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{who}: {error}") from error
    for key, expected in _description(weight).items():
        if description.get(key) != expected:
            raise ValueError(f"{who}: {key} must be {expected!r}, got {description.get(key)!r}")
    return weight


def _choose(who: str, description: Mapping[str, Any], key: str, choices: Mapping[str, Choice]) -> Choice:
    value = description.get(key)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{who}: {key} must be one of {', '.join(choices)}, got {value!r}")
    return choices[value]


# New tensors of the model, by the file's tensor and the device, so that ties stay ties.
_Placed = dict[tuple[int, torch.device], Tensor]


@dataclass
class _Slot:
    """A place in a model, and the tensor of a file that goes there."""

    module: nn.Module
    leaf: str
    stored: Tensor

    def fill(self, placed: _Placed) -> None:
        current: Tensor = getattr(self.module, self.leaf)
        quantized = isinstance(self.stored, QuantizedTensor)
        if not quantized and not current.is_meta:
            current.copy_(self.stored)
            return
        key = (id(self.stored), torch.device("cpu") if current.is_meta else current.device)
        if key not in placed:
            placed[key] = self.stored.to(key[1], copy=True)  # out of the mapped file
            if self.leaf in self.module._parameters:
                requires_grad = current.requires_grad and not quantized
                placed[key] = nn.Parameter(placed[key], requires_grad=requires_grad)
        if quantized:
            set_weight(self.module, cast(nn.Parameter, placed[key]))
        else:
            setattr(self.module, self.leaf, placed[key])


def _match(model: nn.Module, tensors: dict[str, Tensor]) -> list[_Slot]:
    """Where every tensor goes; ValueError unless all of them fit and none is left over."""
    state = _state("load_model", model)
    for names, problem in (
        (state.keys() - tensors.keys(), "the file lacks"),
        (tensors.keys() - state.keys(), "the model has no"),
    ):
        if names:
            raise ValueError(f"load_model: {problem} {', '.join(sorted(names))}")
    holders: dict[int, str] = {}
    for name, current in state.items():
        holder = holders.setdefault(id(current), name)
        if tensors[holder] is not tensors[name]:
            raise ValueError(
                f"load_model: {name} and {holder} share a tensor in the model, but not in the file"
            )
    modules = dict(model.named_modules(remove_duplicate=False))
    return [_slot(modules, name, state[name], tensors[name]) for name in state]


def _slot(modules: Mapping[str, nn.Module], name: str, current: Tensor, stored: Tensor) -> _Slot:
    """The place of the tensor `current` of that name, if `stored` can go there."""
    path, _, leaf = name.rpartition(".")
    module = modules.get(path)
    if module is None or getattr(module, leaf, None) is not current:
        raise ValueError(f"load_model: {name} is no parameter or buffer of the model by that name")
    if current.shape != stored.shape or current.dtype != stored.dtype:
        raise ValueError(f"load_model: {name} must be {describe(current)}, got {describe(stored)}")
    if isinstance(current, QuantizedTensor) and not isinstance(stored, QuantizedTensor):
        raise ValueError(f"load_model: {name} is quantised in the model, but not in the file")
    if isinstance(stored, QuantizedTensor):
        reason = why_never_quantized(module) if leaf == "weight" else "only weights can be quantised"
        if reason is not None:
            raise ValueError(f"load_model: {name} is quantised in the file, but {reason}")
    return _Slot(module, leaf, stored)
