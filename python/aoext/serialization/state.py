"""A model's tensors by name, and which of them can be saved or loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

from aoext.formats.checks import describe, is_dense
from aoext.tensors import QuantizedTensor


def check_module(who: str, model: object) -> None:
    """TypeError unless `model` is an nn.Module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{who}: model must be an nn.Module, got a {type(model).__name__}")


def state_of(who: str, model: nn.Module) -> dict[str, Tensor]:
    """A model's state by name, with the very objects that it holds, so that ties show.

    ValueError for what is no dense tensor, and for tensors of others' types (a DTensor, or one that another
    package has quantised): what they stand for is not in their memory.
    """
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if not is_dense(tensor) or nn.parameter.is_lazy(tensor):
            raise ValueError(f"{who}: {name} must be a dense tensor, got {describe(tensor)}")
        if not is_ours(tensor):
            raise ValueError(
                f"{who}: {name} must be a plain tensor or one that aoext has quantised, got a "
                f"{type(tensor).__module__}.{type(tensor).__name__}{_advice(tensor)}"
            )
    return state


def is_ours(tensor: Tensor) -> bool:
    """Whether this is a quantised weight of aoext's, or a tensor that is what its memory says."""
    if isinstance(tensor, QuantizedTensor):
        return True
    return any(_protocols(type(tensor)) == _protocols(plain) for plain in (Tensor, nn.Parameter))


def _protocols(tensor_type: type[Tensor]) -> list[object]:
    """The functions by which a tensor subclass may be something else than its memory says."""
    functions = (tensor_type.__torch_function__, tensor_type.__torch_dispatch__)
    return [getattr(function, "__func__", function) for function in functions]


def _advice(tensor: Tensor) -> str:
    if type(tensor).__name__ != "DTensor":
        return ""
    return ": save and load before sharding, or use torch.distributed.checkpoint"


class Buffer(NamedTuple):
    """A buffer and where it is registered."""

    name: str
    module: nn.Module
    leaf: str
    tensor: Tensor


def buffers_beside_the_state(model: nn.Module) -> Iterator[Buffer]:
    """The buffers that are not persistent, which a state dict leaves out."""
    for path, module in model.named_modules(remove_duplicate=False):
        for leaf in sorted(module._non_persistent_buffers_set):
            tensor = module._buffers.get(leaf)
            if tensor is not None:
                yield Buffer(f"{path}.{leaf}" if path else leaf, module, leaf, tensor)
