"""What a tensor is that a caller has given, in words of an error message, and whether it has numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from aoext.formats.dtypes import dtype_name, one_of


def describe(value: object) -> str:
    """What came, for an error message: `int8 [4, 7]`, or the type of what has no shape."""
    if not isinstance(value, Tensor) or is_lazy(value):
        return f"a {type(value).__name__}"
    if value.is_nested:
        return f"a nested {dtype_name(value.dtype)} tensor"
    kind = "" if value.layout is torch.strided else f"{str(value.layout).removeprefix('torch.')} "
    return f"{kind}{dtype_name(value.dtype)} {list(value.shape)}"


def shown(value: object) -> str:
    """What came, for an error message about what need be no tensor."""
    return describe(value) if isinstance(value, Tensor) else repr(value)


def is_dense(value: object) -> bool:
    """Whether this is a tensor with strides: not sparse, not nested."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested


def is_freed(tensor: Tensor) -> bool:
    """Whether the memory of a dense tensor, or a part of it, is gone, as FSDP frees it between uses.

    PyTorch's own functions would read it all the same. Tensors without memory of their own, as tracing and
    transforms have them, are never freed.
    """
    own = type(tensor) in (Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling()
    return own and not torch._C._functorch.is_functorch_wrapped_tensor(tensor) and is_memory_gone(tensor)


def is_memory_gone(tensor: Tensor) -> bool:
    """The same for a tensor that is known to have memory of its own."""
    if not tensor.numel():
        return False
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.untyped_storage().nbytes() < (tensor.storage_offset() + last + 1) * tensor.itemsize


def has_values(tensor: Tensor) -> bool:
    """Whether a dense tensor has numbers to look at: not on the meta device, in FakeTensorMode, or traced."""
    if tensor.is_meta or torch.compiler.is_compiling():
        return False
    from torch._subclasses.fake_tensor import is_fake  # an internal, which importing aoext shall not need

    return not is_fake(tensor)


def check_matrix(
    who: str, argument: str, value: Tensor, dtypes: Sequence[torch.dtype], shape: str = "[N, K]"
) -> None:
    """Raise unless `value` is a dense matrix of one of `dtypes`; `shape` names its sizes."""
    check_dense(who, argument, value, dtypes, shape, 2)


def check_dense(
    who: str, argument: str, value: Tensor, dtypes: Sequence[torch.dtype], shape: str, dims: int
) -> None:
    """Raise unless `value` is a dense tensor of so many dimensions and one of `dtypes`, with its memory."""
    message = f"{who}: {argument} must be {one_of(dtypes)} {shape}, got {describe(value)}"
    if not is_dense(value) or value.dtype not in dtypes:
        raise TypeError(message)
    if value.dim() != dims:
        raise ValueError(message)
    if is_freed(value):
        raise ValueError(f"{who}: {argument} must have memory, got {describe(value)} with freed storage")
