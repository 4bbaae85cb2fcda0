"""The memory of quantised weights, which is that of their fields: pinned, shared, and out of reach of others.

The outer tensor has no memory. What would read it from outside of PyTorch is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from aoext.tensors.base import QuantizedTensor, implements

aten = torch.ops.aten


@implements(aten.is_pinned.default)
def _is_pinned(self: QuantizedTensor, device: torch.device | None = None) -> bool:
    return all(aten.is_pinned.default(tensor, device) for _, tensor in self.named_fields())


@implements(aten._pin_memory.default)
def _pin_memory(self: QuantizedTensor, device: torch.device | None = None) -> QuantizedTensor:
    return self.mapped(lambda tensor: aten._pin_memory.default(tensor, device))


@implements(Tensor.is_shared)
def _is_shared(self: QuantizedTensor) -> bool:
    return all(tensor.is_shared() for _, tensor in self.named_fields())


@implements(Tensor.share_memory_)
def _share_memory_(self: QuantizedTensor) -> QuantizedTensor:
    for _, tensor in self.named_fields():
        tensor.share_memory_()
    return self


@implements(Tensor.data_ptr)
def _data_ptr(self: QuantizedTensor) -> int:
    """The address of qdata: other libraries tell by it which weights are one."""
    return self.qdata.data_ptr()


@implements(aten.view.dtype)
def _view_dtype(self: QuantizedTensor, dtype: torch.dtype) -> NoReturn:
    raise NotImplementedError(
        f"{type(self).__name__}: aten.view.dtype is not implemented; dequantize() gives a plain tensor. "
        "Where accelerate offloads weights to the disk: accelerate.cpu_offload(model, ..., "
        "state_dict=torch.load(path, mmap=True)) reads them from a file of torch.save"
    )


@implements(Tensor.storage)
def _storage(self: QuantizedTensor) -> NoReturn:
    # safetensors takes NotImplementedError for a tensor without memory, and then reads from its data_ptr().
    raise RuntimeError(
        f"{type(self).__name__} has no storage, for its memory is that of its fields. aoext.save_model saves "
        "a model with such weights as safetensors, and aoext.flatten_state_dict gives their fields; "
        "accelerate's save_state and save_model take safe_serialization=False"
    )


def _making_plain(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A method that makes a tensor of given values or sizes, in this one's dtype and on its device."""

    def make(self: QuantizedTensor, *args: Any, **kwargs: Any) -> Tensor:
        return method(torch.empty(0, dtype=self.dtype, device=self.device), *args, **kwargs)

    return make


for _method in (Tensor.new, Tensor.new_tensor):  # which know no tensor with the key of outer.py
    implements(_method)(_making_plain(_method))


def _refuse(name: str, error: type[Exception] = NotImplementedError) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise error(
            f"{name} of a quantised weight is not implemented, for its memory is that of its fields; "
            "dequantize() gives a plain tensor"
        )

    return refuse


for _name in ("apply_", "map_", "map2_", "numpy", "tolist", "__array__", "__dlpack__"):
    implements(getattr(Tensor, _name))(_refuse(_name))
_cuda_array = vars(Tensor)["__cuda_array_interface__"]
# AttributeError is how a tensor without it says so.
implements(_cuda_array.__get__)(_refuse("__cuda_array_interface__", AttributeError))
