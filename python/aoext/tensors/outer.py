"""The outer tensor of a quantised weight: shape, dtype and device, and no memory of its own.

PyTorch asks a tensor's Python class only while the tensor is of that class. `plain.data = weight` makes a
plain tensor of the outer one, whose memory kernels would read at address 0. So it carries one more dispatch
key, which no other tensor has and every operator refuses; of a weight itself PyTorch asks the class first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

T = TypeVar("T", bound=Tensor)

_KEY = "CustomRNGKeyId"  # below Python's key and above those of the devices; PyTorch gives it to no tensor
_keys = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(_KEY))


def make_outer(
    tensor_type: type[T],
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> T:
    """A tensor of a subclass of Tensor that requires no gradient and has no memory."""
    outer = torch.Tensor._make_wrapper_subclass(
        tensor_type,
        shape,
        strides=strides,
        dtype=dtype,
        device=device,
        requires_grad=False,
        _extra_dispatch_keys=_keys,
    )
    torch._C._set_throw_on_mutable_data_ptr(outer)
    return outer


def _refuse(operator: Any, *_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(
        f"{operator} of a plain tensor whose data is a quantised weight (plain.data = weight), and which has "
        "no memory: give the layer the weight itself, layer.weight = torch.nn.Parameter(weight)"
    )


def _refusing(operator: Any) -> Any:
    return lambda *args, **kwargs: _refuse(operator)


# The kernels live as long as these objects.
_libraries = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
_libraries[0].fallback(_refuse, _KEY)
# PyTorch has a kernel for every key that reads memory.
_libraries[1].impl("copy_", _refusing(torch.ops.aten.copy_.default), _KEY)
# With it PyTorch tells that a view of a weight is one (return_and_correct_aliasing).
_libraries[1].impl("set_.source_Storage_storage_offset", torch.library.fallthrough_kernel, _KEY)


class QuantizedTensorType(torch._C._TensorMeta):
    """Lets type(parameter)(tensor, requires_grad=...) give a parameter again, as accelerate wants it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.keys() == {"requires_grad"} and len(args) == 1:
            (weight,) = args
            if type(weight) is not self:
                raise TypeError(
                    f"{self.__name__}: a parameter can be made of a {self.__name__} alone, "
                    f"got {type(weight).__name__}"
                )
            return torch.nn.Parameter(weight, requires_grad=False)
        return super().__call__(*args, **kwargs)


def counted_versions() -> AbstractContextManager[Any]:
    """Views of fields share their version counters here, and writes into fields move them.

    Below __torch_dispatch__ PyTorch counts nothing: the outer tensor has been counted. But what is saved for
    a backward pass are fields, and their counters tell autograd that they have been overwritten.
    """
    return torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False)


def is_copy(result: object, cls: type) -> bool:
    """Whether an operation on a weight of this class has given a tensor, or several, of another: no view."""
    first = result[0] if isinstance(result, (list, tuple)) and result else result
    return isinstance(first, Tensor) and type(first) is not cls


def mode_of_views(source: object) -> AbstractContextManager[Any]:
    """Leaves inference mode for operations on a normal tensor, whose views are normal as well."""
    inside = torch.is_inference_mode_enabled()
    if (
        inside
        and isinstance(source, Tensor)
        and isinstance(type(source), QuantizedTensorType)
        and not source.is_inference()
    ):
        return torch.inference_mode(False)
    return nullcontext()
