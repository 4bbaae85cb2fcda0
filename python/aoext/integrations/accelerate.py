"""accelerate: quantised weights offloaded to disk, and files of aoext in load_checkpoint_and_dispatch.

accelerate keeps what it offloads as one plain tensor a file. A quantised weight goes into a file of its
fields instead, and is put together again when a hook asks for it. Imported once accelerate is.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from accelerate.utils import modeling, offload
from torch import Tensor, nn

from aoext import serialization
from aoext.models.layers import give_classes
from aoext.tensors import QuantizedTensor

# Where an index of offloaded weights has the file of a quantised one.
_QUANTISED = "aoext"


def offload_quantized(
    weight: QuantizedTensor, name: str, folder: str | None, index: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Write a quantised weight into a folder, and enter it in an index of accelerate's."""
    if folder is None:
        raise ValueError(f"{name} is to be offloaded to disk: name an offload_folder for it")
    file = Path(folder).resolve() / f"{name}.safetensors"
    serialization.write_file(file, *serialization.flattened({name: weight}))
    if index is not None:
        info = index.setdefault(name, {})  # which the index may have under the name of a tied weight too
        info.clear()
        info[_QUANTISED] = str(file)
    return index


def offloaded(model: nn.Module, name: str) -> Tensor:
    """A parameter or buffer that a hook of accelerate's brings; ValueError where none does."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        hook: Any = getattr(model.get_submodule(path), "_hf_hook", None)
        key = name.removeprefix(f"{path}.") if path else name
        for each in getattr(hook, "hooks", (hook,)):  # of a SequentialHook
            with contextlib.suppress(KeyError):
                return cast(Tensor, (getattr(each, "weights_map", None) or {})[key])
    raise ValueError(f"{name} is on the meta device and has no values")


def _offloading(offload_weight: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(offload_weight)
    def offloaded(weight: Tensor, weight_name: str, offload_folder: Any, index: Any = None) -> Any:
        if isinstance(weight, QuantizedTensor):
            return offload_quantized(weight, weight_name, offload_folder, index)
        return offload_weight(weight, weight_name, offload_folder, index)

    return offloaded


def _weights_of(file: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint's file, with the quantised weights that they are fields of.

    A weight is there where its qdata is: fields that lie in other files of its folder are read from these.
    """
    described = serialization.descriptions_in(file)
    places = None
    for name, description in described.items():
        stored = {
            key: tensors.pop(key)
            for key in [f"{name}.{field}" for field in description["fields"]]
            if key in tensors
        }
        if f"{name}.qdata" not in stored:
            continue
        for key in (f"{name}.{field}" for field in description["fields"]):
            if key not in stored:
                places = places or serialization.files_in("aoext", file.parent)
                read = serialization.tensor_in(file.parent / places[key], key)
                stored[key] = read.to(stored[f"{name}.qdata"].device)
        tensors[name] = serialization.assembled(name, description, stored)
    return tensors


def _loading(load_state_dict: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load_state_dict)
    def loaded(checkpoint_file: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = load_state_dict(checkpoint_file, *args, **kwargs)
        path = Path(checkpoint_file)
        return _weights_of(path, tensors) if path.suffix == ".safetensors" else tensors

    return loaded


def _with_classes(load_checkpoint_in_model: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load_checkpoint_in_model)
    def loaded(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = load_checkpoint_in_model(model, *args, **kwargs)
        give_classes(model)
        return result

    return loaded


def _reading(load_offloaded_weight: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load_offloaded_weight)
    def read(weight_file: Any, weight_info: dict[str, Any]) -> Tensor:
        if _QUANTISED not in weight_info:
            return load_offloaded_weight(weight_file, weight_info)
        file = Path(weight_info[_QUANTISED])
        stored = {part: serialization.tensor_in(file, part) for part in serialization.names_in(file)}
        ((name, description),) = serialization.descriptions_in(file).items()
        return serialization.assembled(name, description, stored)

    return read


def _replace(function: Any, replacement: Any) -> None:
    """Put a function in another's place wherever accelerate has it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").partition(".")[0] == "accelerate":
            for name, value in list(vars(module).items()):
                if value is function:
                    setattr(module, name, replacement)


def _install() -> None:
    for function, change in (
        (offload.offload_weight, _offloading),
        (offload.load_offloaded_weight, _reading),
        (modeling.load_state_dict, _loading),
        (modeling.load_checkpoint_in_model, _with_classes),
    ):
        _replace(function, change(function))


_install()
