"""Views and copies of quantised weights: field by field, as the tables of fields say.

A view's fields are views of its parent's fields: writing into one (copy_) changes the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aoext.packing import FLOAT_DTYPES, dtype_name, one_of
from aoext.tensors.base import QuantizedTensor, implements
from aoext.tensors.fields import BLOCK, DIM_NAMES, K

aten = torch.ops.aten


@implements(aten.detach.default)
def _detach(self: QuantizedTensor) -> QuantizedTensor:
    return self.mapped(Tensor.detach)


@implements(aten.alias.default)
def _alias(self: QuantizedTensor) -> QuantizedTensor:
    return self.mapped(aten.alias.default)


@implements(aten.t.default)
def _t(self: QuantizedTensor) -> QuantizedTensor:
    return self.mapped(aten.alias.default, transposed=not self.transposed)


@implements(aten.transpose.int)
def _transpose(self: QuantizedTensor, dim0: int, dim1: int) -> QuantizedTensor:
    return _alias(self) if _weight_dim(self, dim0) == _weight_dim(self, dim1) else _t(self)


@implements(aten.permute.default)  # what weight.T calls
def _permute(self: QuantizedTensor, dims: list[int]) -> QuantizedTensor:
    if sorted(_weight_dim(self, dim) for dim in dims) != [0, 1]:
        raise RuntimeError(f"{type(self).__name__}: permute needs both dimensions, got {dims}")
    return _transpose(self, 0, dims[0])


@implements(aten.view.default)
def _view(self: QuantizedTensor, size: list[int]) -> QuantizedTensor:
    same = len(size) == 2 and size.count(-1) < 2
    if not same or any(given not in (-1, own) for given, own in zip(size, self.shape, strict=True)):
        raise NotImplementedError(
            f"{type(self).__name__}: aten.view.default is not implemented for another shape, {list(size)}; "
            "dequantize() gives a plain tensor"
        )
    return _alias(self)


@implements(aten.slice.Tensor)
def _slice(
    self: QuantizedTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> QuantizedTensor:
    """Elements start:end along `dim`.

    Both ends must fall between entries of every field, else ValueError. Where one block spans the
    rows, as with row scales, the scales stay whole and block_size follows the slice.
    """
    who = type(self).__name__
    if step != 1:
        raise NotImplementedError(f"{who}: aten.slice.Tensor is not implemented for a step, {step}")
    dim = _weight_dim(self, dim)
    shape, block_size = self.weight_shape, list(self.block_size)
    start, end, _ = slice(start, end).indices(shape[dim])
    end = max(start, end)
    spanned = dim == K and block_size[K] == shape[K]
    following = _following(self, dim, spanned)
    boundary = math.lcm(*(elements for _, elements in following.values()))
    if start % boundary or end % boundary or (spanned and start == end):
        raise ValueError(
            f"{who}: a slice along {DIM_NAMES[dim]} must begin and end on group boundaries, here "
            f"multiples of {boundary}, got {start}:{end} of {shape[dim]}"
        )
    tensors = dict(self.named_fields())
    for name, (position, elements) in following.items():
        first, count = start // elements, (end - start) // elements
        tensors[name] = tensors[name].narrow(position, first, count)
    shape[dim] = end - start
    if spanned:
        block_size[K] = end - start
    return self.remade(tensors, shape=shape, block_size=block_size)


def _following(self: QuantizedTensor, dim: int, spanned: bool) -> dict[str, tuple[int, int]]:
    """Which dimension of a field follows the weight's, and how many elements of it an entry serves.

    `spanned`: one block is all of the weight along it, whose fields stay whole.
    """
    return {
        name: (position, axis.elements(self.block_size))
        for name, _ in self.named_fields()
        for position, axis in enumerate(self.fields[name].axes)
        if axis.dim == dim and not (spanned and axis.step == BLOCK)
    }


@implements(aten.split.Tensor)  # what chunk calls too
def _split(self: QuantizedTensor, split_size: int, dim: int = 0) -> list[QuantizedTensor]:
    """Slices of `split_size` along `dim`, the last one with what is left, on the boundaries of `_slice`."""
    length = self.weight_shape[_weight_dim(self, dim)]
    if split_size < 0 or (split_size == 0 and length > 0):
        raise RuntimeError(f"{type(self).__name__}: split_size must be positive, got {split_size}")
    whole, rest = divmod(length, max(split_size, 1))
    sizes = [split_size] * whole + [rest] * (rest > 0 or length == 0)
    return _split_with_sizes(self, sizes, dim)


@implements(aten.split_with_sizes.default)
def _split_with_sizes(self: QuantizedTensor, split_sizes: list[int], dim: int = 0) -> list[QuantizedTensor]:
    """Slices of these sizes along `dim`, on the boundaries of `_slice`."""
    length = self.weight_shape[_weight_dim(self, dim)]
    if min(split_sizes, default=0) < 0 or sum(split_sizes) != length:
        raise RuntimeError(
            f"{type(self).__name__}: split_sizes must add up to {length}, the size of dimension {dim}, "
            f"got {list(split_sizes)}"
        )
    ends = list(itertools.accumulate(split_sizes))
    return [_slice(self, dim, end - size, end) for size, end in zip(split_sizes, ends, strict=True)]


@implements(aten.cat.default)
def concatenated(tensors: list[Tensor], dim: int = 0) -> QuantizedTensor:
    """Weights of one form behind each other along `dim`: the inverse of split.

    Fields that do not follow `dim`, such as the scales of whole rows along K, must be equal, else ValueError.
    """
    weights = [tensor for tensor in tensors if isinstance(tensor, QuantizedTensor)]
    first = weights[0]
    who, along = type(first).__name__, _weight_dim(first, dim)
    whole_rows = along == K and first.blocks_are_rows

    def form(weight: QuantizedTensor) -> tuple[Any, ...]:
        attributes = {**weight.named_attributes(), "block_size": None if whole_rows else weight.block_size}
        names = [name for name, _ in weight.named_fields()]
        kept = weight.weight_shape[1 - along]
        return (type(weight), weight.transposed, kept, attributes, names, weight.dtype, weight.qdata.dtype)

    if len(weights) < len(tensors) or any(form(weight) != form(first) for weight in weights):
        got = ", ".join(str(t) if isinstance(t, QuantizedTensor) else type(t).__name__ for t in tensors)
        raise ValueError(
            f"{who}: cat needs weights that differ in the size of dimension {dim} alone, got {got}"
        )
    following = _following(first, along, whole_rows)
    fields = {}
    for name, _ in first.named_fields():
        parts: list[Tensor] = [getattr(weight, name) for weight in weights]
        if name in following:
            fields[name] = torch.cat(parts, following[name][0])
        elif all(torch.equal(part, parts[0]) for part in parts[1:]):
            fields[name] = parts[0].clone()
        else:
            raise ValueError(f"{who}: cat along {DIM_NAMES[along]} needs the same {name} in all weights")
    shape, block_size = first.weight_shape, list(first.block_size)
    shape[along] = sum(weight.weight_shape[along] for weight in weights)
    if whole_rows:
        block_size[K] = shape[K]
    return first.remade(fields, shape=shape, block_size=block_size)


def _weight_dim(self: QuantizedTensor, dim: int) -> int:
    """The dimension of the weight [N, K] that dimension `dim` of this view of it is."""
    if not -2 <= dim < 2:
        raise IndexError(f"{type(self).__name__}: dimension must be in [-2, 1], got {dim}")
    return (dim % 2) ^ self.transposed


@implements(aten.clone.default)
def _clone(self: QuantizedTensor, *, memory_format: torch.memory_format | None = None) -> QuantizedTensor:
    """A copy whose fields are contiguous, whatever the format."""
    return self.mapped(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))


@implements(aten._to_copy.default)
def _to_copy(
    self: QuantizedTensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    non_blocking: bool = False,
    **formats: Any,  # layout, pin_memory and memory_format: the fields keep theirs
) -> QuantizedTensor:
    def copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to(device=device, dtype=dtype, non_blocking=non_blocking, copy=True)

    return _converted(self, dtype, copy)


@implements(aten.empty_like.default)  # what Module.to_empty calls
def _empty_like(
    self: QuantizedTensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **formats: Any,
) -> QuantizedTensor:
    """A weight of the same form whose fields hold whatever was in their memory."""

    def empty(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.empty_like(tensor, dtype=dtype, device=device, memory_format=torch.contiguous_format)

    return _converted(self, dtype, empty)


def _converted(
    self: QuantizedTensor, dtype: torch.dtype | None, convert: Callable[[Tensor, torch.dtype], Tensor]
) -> QuantizedTensor:
    """This weight in another dtype, of fields that are converted to the dtype that each then has."""
    dtype = self.dtype if dtype is None else dtype
    if dtype not in FLOAT_DTYPES:
        raise TypeError(
            f"{type(self).__name__}: dtype must be {one_of(FLOAT_DTYPES)}, got {dtype_name(dtype)}"
        )
    tensors = {
        name: convert(tensor, dtype if self.fields[name].follows_dtype else tensor.dtype)
        for name, tensor in self.named_fields()
    }
    return self.remade(tensors, dtype=dtype)


@implements(aten.is_pinned.default)
def _is_pinned(self: QuantizedTensor, device: torch.device | None = None) -> bool:
    return all(aten.is_pinned.default(tensor, device) for _, tensor in self.named_fields())


@implements(aten._pin_memory.default)
def _pin_memory(self: QuantizedTensor, device: torch.device | None = None) -> QuantizedTensor:
    return self.mapped(lambda tensor: aten._pin_memory.default(tensor, device))


@implements(Tensor.share_memory_)
def _share_memory_(self: QuantizedTensor) -> QuantizedTensor:
    for _, tensor in self.named_fields():
        tensor.share_memory_()
    return self


# PyTorch would reach for the memory of the outer tensor, which has none.
@implements(Tensor.apply_, Tensor.map_, Tensor.map2_)
def _element_by_element(self: Tensor, *_: Any) -> Tensor:
    raise NotImplementedError("apply_, map_ and map2_ are not implemented for quantised weights")


@implements(aten.copy_.default)
def _copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy all fields, converting scales to this tensor's dtype."""
    if not isinstance(self, QuantizedTensor) or type(self) is not type(src):
        raise NotImplementedError(
            f"aten.copy_.default from {type(src).__name__} into {type(self).__name__} is not "
            "implemented: quantise or dequantize() first, or load with "
            "load_state_dict(..., assign=True)"
        )
    ours, theirs = dict(self.named_fields()), dict(src.named_fields())
    _check_alike(self, src)
    _check_shared_scales(self, ours, theirs)
    for name, tensor in ours.items():
        tensor.copy_(theirs[name], non_blocking)
    return self


def _check_alike(self: QuantizedTensor, src: QuantizedTensor) -> None:
    def form(tensor: QuantizedTensor) -> tuple[Any, ...]:
        names = [name for name, _ in tensor.named_fields()]
        return (tensor.shape, tensor.transposed, tensor.block_size, tensor.qdata.dtype, names)

    if form(self) != form(src):
        raise ValueError(
            f"{type(self).__name__}: copy_ needs a source with the same shape, block_size, fields "
            f"and stored dtype as {self}, got {src}"
        )


def _check_shared_scales(self: QuantizedTensor, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """A slice along K with scales of whole rows shares them with the rest of the rows."""
    spanned = self.block_size[K] == self.weight_shape[K]
    if not spanned or self.qdata.stride(0) <= self.qdata.shape[1]:
        return
    for name, tensor in ours.items():
        if self.fields[name].per_block and not torch.equal(tensor, theirs[name].to(tensor)):
            raise ValueError(
                f"{type(self).__name__}: copy_ into a slice along K cannot change its {name}, "
                "which serves whole rows; the source's must be equal"
            )
