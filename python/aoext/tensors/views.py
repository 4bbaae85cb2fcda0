"""Views and parts of quantised weights: field by field, as the tables of fields say.

A view's fields are views of its parent's fields: writing into one (copy_) changes the other. What is put
together of parts (cat, pad) stands alone.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from aoext.formats.checks import has_values
from aoext.tensors.base import QuantizedTensor, implements
from aoext.tensors.fields import BLOCK, DIM_NAMES, Axis, E, K, N, ceil_div
from aoext.tensors.nested import joinable
from aoext.tensors.outer import counted_versions

aten = torch.ops.aten


def seen_as(weight: QuantizedTensor, transposed: bool) -> QuantizedTensor:
    """A weight [..., N, K] as it is, or its view [..., K, N], which is a tensor of its own to autograd."""
    return weight.remade(dict(weight.named_fields()), transposed=True) if transposed else weight


@implements(aten.detach.default)
def _detach(self: QuantizedTensor) -> QuantizedTensor:
    return self.mapped(Tensor.detach)


@implements(aten.alias.default)
def _alias(self: QuantizedTensor) -> QuantizedTensor:
    return self.mapped(aten.alias.default)


@implements(aten.t.default)
def _t(self: QuantizedTensor) -> QuantizedTensor:
    if self.dim() > 2:
        raise RuntimeError(f"{type(self).__name__}: t() is for matrices, got {list(self.shape)}")
    return _transposed(self)


def _transposed(self: QuantizedTensor) -> QuantizedTensor:
    return self.mapped(aten.alias.default, transposed=not self.transposed)


@implements(aten.transpose.int)
def _transpose(self: QuantizedTensor, dim0: int, dim1: int) -> QuantizedTensor:
    first, second = weight_dim(self, dim0), weight_dim(self, dim1)
    if first == second:
        return _alias(self)
    if E in (first, second):
        raise NotImplementedError(
            f"{type(self).__name__}: aten.transpose.int is not implemented for the dimension of experts; "
            "dequantize() gives a plain tensor"
        )
    return _transposed(self)


@implements(aten.permute.default)  # what weight.T calls
def _permute(self: QuantizedTensor, dims: list[int]) -> QuantizedTensor:
    if sorted(weight_dim(self, dim) for dim in dims) != list(range(-self.dim(), 0)):
        raise RuntimeError(f"{type(self).__name__}: permute needs each dimension once, got {dims}")
    order = [dim % self.dim() for dim in dims]
    if self.dim() > 2 and order[0] != 0:
        raise NotImplementedError(
            f"{type(self).__name__}: aten.permute.default is not implemented for the dimension of experts; "
            "dequantize() gives a plain tensor"
        )
    return _transpose(self, order[-1], self.dim() - 1)


@implements(aten.view.default)
def view(self: QuantizedTensor, size: list[int]) -> QuantizedTensor:
    same = len(size) == self.dim() and size.count(-1) < 2
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

    Both must fall between entries of every field, or at the weight's end, and neither K nor the number of
    experts may become 0, else ValueError. Where one block spans the rows, as with row scales, the scales stay
    whole, and so does a block_size that may be partial; others follow the slice. A part of nested scales that
    has no whole blocks of them is a copy with scales of float32.
    """
    who = type(self).__name__
    if step != 1:
        raise NotImplementedError(f"{who}: aten.slice.Tensor is not implemented for a step, {step}")
    dim = weight_dim(self, dim)
    length, spanned = self.weight_shape[dim], is_spanned(self, dim)
    start, end, _ = slice(start, end).indices(length)
    end = max(start, end)
    whole = self
    self = self._divisible(dim, start, end)
    following = _following(self, dim, spanned)
    boundary = _boundary(following)
    if dim != N and start == end:
        raise ValueError(
            f"{who}: a slice along {DIM_NAMES[dim]} must have elements, got {start}:{end} of {length}"
        )
    if any(at % boundary and at != length for at in (start, end)):
        raise ValueError(
            f"{who}: a slice along {DIM_NAMES[dim]} must begin and end on group boundaries, here "
            f"multiples of {boundary}, got {start}:{end} of {length}"
        )
    tensors = dict(self.named_fields())
    for name, (position, elements) in following.items():
        first = ceil_div(start, elements)
        count = ceil_div(end, elements) - first
        with counted_versions():
            tensors[name] = tensors[name].narrow(position, first, count)
    part = _with_length(self, tensors, dim, end - start, spanned)
    return part if self is whole else _copied(part)


# Parts that are copies; who writes into one means the weight that it is a part of.
_COPIES = WeakIdKeyDictionary()


def _copied(self: QuantizedTensor) -> QuantizedTensor:
    part = self.mapped(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))
    _COPIES[part] = True
    return part


def refuse_write_into_copy(self: QuantizedTensor) -> None:
    """NotImplementedError for a part of a weight that is none of its views."""
    if self in _COPIES:
        raise NotImplementedError(
            f"{type(self).__name__}: this part of a weight is a copy, since it cuts a block of nested "
            "scales, and cannot be written into; clone() it, or cut the weight between blocks"
        )


def is_spanned(self: QuantizedTensor, dim: int) -> bool:
    """Whether one block is all of the weight along `dim`."""
    return dim == K and self.block_size[K] >= self.weight_shape[K]


def _following(self: QuantizedTensor, dim: int, spanned: bool) -> dict[str, tuple[int, int]]:
    """Which dimension of a field follows the weight's, and how many elements of it an entry serves.

    Fields of blocks that are `spanned` stay whole.
    """
    for name, _ in self.named_fields():
        field = self.fields[name]
        if field.whole and any(axis.dim == dim for axis in field.axes):
            raise NotImplementedError(
                f"{type(self).__name__}: no parts along {DIM_NAMES[dim]} of a weight with {name}; "
                "dequantize() gives a plain tensor"
            )
    following = {}
    for name, _ in self.named_fields():
        at = self.fields[name].position(dim)
        axis = Axis(E) if at is None or dim == E else self.fields[name].axes[at]
        if at is not None and not (spanned and axis.step == BLOCK):
            following[name] = at, axis.elements(self.weight_shape, self.block_size)
    return following


def _boundary(following: dict[str, tuple[int, int]]) -> int:
    """Elements of the weight that no field can divide."""
    return math.lcm(*(elements for _, elements in following.values()))


def _with_length(
    self: QuantizedTensor, tensors: dict[str, Tensor], dim: int, length: int, spanned: bool
) -> QuantizedTensor:
    """A weight of these fields that is `length` along `dim`, as a block is where it is `spanned`."""
    shape, block_size = self.weight_shape, list(self.block_size)
    shape[dim] = length
    if spanned and not self.any_blocks:
        block_size[K] = length
    return self.remade(tensors, shape=shape, block_size=block_size)


@implements(aten.split.Tensor)  # what chunk calls too
def _split(self: QuantizedTensor, split_size: int, dim: int = 0) -> list[QuantizedTensor]:
    """Slices of `split_size` along `dim`, the last one with what is left, on the boundaries of `_slice`."""
    length = self.weight_shape[weight_dim(self, dim)]
    if split_size < 0 or (split_size == 0 and length > 0):
        raise RuntimeError(f"{type(self).__name__}: split_size must be positive, got {split_size}")
    whole, rest = divmod(length, max(split_size, 1))
    sizes = [split_size] * whole + [rest] * (rest > 0 or length == 0)
    return _split_with_sizes(self, sizes, dim)


@implements(aten.split_with_sizes.default)
def _split_with_sizes(self: QuantizedTensor, split_sizes: list[int], dim: int = 0) -> list[QuantizedTensor]:
    """Slices of these sizes along `dim`, on the boundaries of `_slice`."""
    length = self.weight_shape[weight_dim(self, dim)]
    if min(split_sizes, default=0) < 0 or sum(split_sizes) != length:
        raise RuntimeError(
            f"{type(self).__name__}: split_sizes must add up to {length}, the size of dimension {dim}, "
            f"got {list(split_sizes)}"
        )
    ends = list(itertools.accumulate(split_sizes))
    divisible = self._divisible(weight_dim(self, dim), *ends)
    parts = [_slice(divisible, dim, end - size, end) for size, end in zip(split_sizes, ends, strict=True)]
    return parts if divisible is self else list(map(_copied, parts))


@implements(aten.cat.default)
def concatenated(tensors: list[Tensor], dim: int = 0) -> QuantizedTensor:
    """Weights of one form behind each other along `dim`: the inverse of split.

    Fields that do not follow `dim`, such as the scales of whole rows along K, must be equal, else ValueError.
    """
    weights = [tensor for tensor in tensors if isinstance(tensor, QuantizedTensor)]
    along = weight_dim(weights[0], dim)
    weights = joinable(weights, along)
    first = weights[0]
    who = type(first).__name__
    whole_rows = along == K and first.blocks_are_rows

    def form(weight: QuantizedTensor) -> tuple[Any, ...]:
        attributes = {**weight.named_attributes(), "block_size": None if whole_rows else weight.block_size}
        names = [name for name, _ in weight.named_fields()]
        kept = [size for at, size in enumerate(weight.weight_shape, -weight.dim()) if at != along]
        return (type(weight), weight.transposed, kept, attributes, names, weight.dtype, weight.qdata.dtype)

    if len(weights) < len(tensors) or any(form(weight) != form(first) for weight in weights):
        got = ", ".join(str(t) if isinstance(t, QuantizedTensor) else type(t).__name__ for t in tensors)
        raise ValueError(
            f"{who}: cat needs weights that differ in the size of dimension {dim} alone, got {got}"
        )
    following = _following(first, along, whole_rows)
    boundary = _boundary(following)
    if any(weight.weight_shape[along] % boundary for weight in weights[:-1]):
        raise ValueError(
            f"{who}: cat along {DIM_NAMES[along]} needs weights of whole blocks but for the last, here "
            f"multiples of {boundary}, got {[weight.weight_shape[along] for weight in weights]}"
        )
    fields = {}
    for name, _ in first.named_fields():
        parts: list[Tensor] = [getattr(weight, name) for weight in weights]
        if name in following:
            fields[name] = torch.cat(parts, following[name][0])
        else:
            fields[name] = _common(f"{who}: cat along {DIM_NAMES[along]} needs the same {name}", parts)
    length = sum(weight.weight_shape[along] for weight in weights)
    return _with_length(first, fields, along, length, whole_rows)


def _common(needs: str, parts: list[Tensor]) -> Tensor:
    """The field that all weights have; a program that is traced asks when it runs."""
    first, *others = parts
    for other in others:
        if not has_values(other):
            torch._assert_async((other == first).all(), f"{needs} in all weights")
        elif not torch.equal(other, first):
            raise ValueError(f"{needs} in all weights")
    return first.clone()


@implements(aten.constant_pad_nd.default)  # what DTensor calls where ranks get unlike numbers of rows
def _constant_pad_nd(self: QuantizedTensor, pad: list[int], value: float = 0) -> QuantizedTensor:
    """Zeros behind the weight, on the boundaries of `_slice`: pad is [0, n], [0, n, 0, m] and so on."""
    who, ends = type(self).__name__, list(pad[1::2])
    if value != 0 or any(pad[::2]) or min(ends, default=0) < 0:
        raise NotImplementedError(
            f"{who}: pad is implemented for zeros at the end alone, got {list(pad)} of {value}"
        )
    for dim, count in zip((-1, -2, -3)[: self.dim()], ends, strict=False):
        along = weight_dim(self, dim)
        self = _padded(self._divisible(along, -1) if count else self, along, count)
    return self


def _padded(self: QuantizedTensor, dim: int, count: int) -> QuantizedTensor:
    spanned = dim == K and self.blocks_are_rows  # else zeros get groups of their own, without the zero point
    following = _following(self, dim, spanned)
    boundary, length = _boundary(following), self.weight_shape[dim]
    along = f"{type(self).__name__}: pad along {DIM_NAMES[dim]}"
    if count % boundary and not self.any_blocks:
        raise ValueError(f"{along} must be a multiple of {boundary}, got {count}")
    if count and length % boundary:
        raise ValueError(f"{along} must be behind whole blocks of {boundary}, got {count} behind {length}")

    def padded(name: str, tensor: Tensor) -> Tensor:
        if name not in following:
            return tensor.clone()
        position, elements = following[name]
        size = list(tensor.shape)
        size[position] = ceil_div(count, elements)
        return torch.cat([tensor, tensor.new_zeros(size)], position)

    tensors = {name: padded(name, tensor) for name, tensor in self.named_fields()}
    return _with_length(self, tensors, dim, self.weight_shape[dim] + count, spanned)


def weight_dim(self: QuantizedTensor, dim: int) -> int:
    """The dimension, E, N or K, of the weight that dimension `dim` of this view of it is."""
    dims = self.dim()
    if not -dims <= dim < dims:
        raise IndexError(f"{type(self).__name__}: dimension must be in [{-dims}, {dims - 1}], got {dim}")
    dim = dim % dims - dims
    return N + K - dim if self.transposed and dim != E else dim
