"""weight.view(-1), which PyTorch makes to broadcast many tensors at once and takes apart again.

DistributedDataParallel does so with all parameters and buffers of a model, frozen ones too: it flattens each,
puts them behind each other, broadcasts the result, cuts it and copies the parts back. fully_shard keeps such
a view beside a weight.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from aoext.tensors.base import QuantizedTensor, implements
from aoext.tensors.views import view

aten = torch.ops.aten
c10d = torch.ops.c10d

# Bytes from one field in a broadcast to the next: any dtype can be viewed there, and fast kernels read there.
ALIGNMENT = 16


class Flat(torch.Tensor):
    """Tensors behind each other, at least one a quantised weight. It can do what a broadcast needs."""

    parts: list[Tensor]  # quantised weights, and plain tensors with one dimension
    packed: Tensor | None  # all bytes of the parts, where these are views of them

    @staticmethod
    def __new__(cls, parts: Sequence[Tensor], packed: Tensor | None = None) -> Flat:
        size = sum(part.numel() for part in parts)
        self = torch.Tensor._make_wrapper_subclass(cls, (size,), dtype=parts[0].dtype, device=parts[0].device)
        self.parts, self.packed = list(parts), packed
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        parts = [f"{part!r}.view(-1)" for part in self.parts]
        return parts[0] if len(parts) == 1 else f"cat([{', '.join(parts)}])"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        operation = _OPERATIONS.get(func)
        if operation is None:
            raise _not_implemented(f"{func}")
        return operation(*args, **(kwargs or {}))


def _not_implemented(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"{what} is not implemented for view(-1) of a quantised weight; dequantize() gives a plain tensor. "
        "FullyShardedDataParallel, which flattens parameters, takes quantised ones among its ignored_states; "
        "fully_shard shards them"
    )


@implements(aten.view.default)
def _view_of_weight(self: QuantizedTensor, size: list[int]) -> Tensor:
    return Flat([self]) if list(size) in ([-1], [self.numel()]) else view(self, size)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Flat:
    parts = [part for tensor in tensors for part in (tensor.parts if isinstance(tensor, Flat) else [tensor])]
    if any(part.dtype is not parts[0].dtype for part in parts):
        raise _not_implemented("cat with tensors of another dtype")
    packed, parts = _packed(parts)
    return Flat(parts, packed)


def _slice(
    self: Flat, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """The parts between start and end, or the plain tensor that is one."""
    start, end, _ = slice(start, end).indices(self.numel())
    ends = list(itertools.accumulate(part.numel() for part in self.parts))
    bounds = zip([0, *ends], ends, self.parts, strict=False)
    parts = [part for first, last, part in bounds if start <= first and last <= end]
    if step != 1 or sum(part.numel() for part in parts) != end - start or not parts:
        raise _not_implemented("a slice that cuts weights")
    if len(parts) == 1 and not isinstance(parts[0], QuantizedTensor):
        return aten.alias.default(parts[0])
    return Flat(parts)


def _view(self: Flat, size: list[int]) -> Tensor:
    if list(size) in ([-1], [self.numel()]):
        return _detach(self)
    if len(self.parts) > 1:
        raise _not_implemented("view of more than one weight")
    return self.parts[0].view(size)


def _broadcast_(tensors: Sequence[Flat], *options: Any) -> tuple[Any, Any]:
    (flat,) = tensors
    if flat.packed is not None:
        _, work = c10d.broadcast_.default([flat.packed], *options)
    elif len(flat.parts) == 1:
        flat.parts = [flat.parts[0].contiguous()]
        _, work = c10d.broadcast_.default(flat.parts, *options)
    else:
        raise _not_implemented("broadcast of some of many weights")
    return tensors, work


def _detach(self: Flat) -> Flat:
    return Flat(self.parts, self.packed)


def _packed(parts: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The bytes of all parts behind each other, and parts of the same values that are views of them."""
    tensors = [tensor for part in parts for tensor in _plain(part)]
    chunks = [tensor.contiguous().view(torch.uint8).flatten() for tensor in tensors]
    chunks = [torch.nn.functional.pad(chunk, (0, -len(chunk) % ALIGNMENT)) for chunk in chunks]
    packed = torch.cat(chunks)
    places = packed.split([len(chunk) for chunk in chunks])
    views = (
        place[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for place, tensor in zip(places, tensors, strict=True)
    )
    return packed, [
        part.mapped(lambda _: next(views)) if isinstance(part, QuantizedTensor) else next(views)
        for part in parts
    ]


def _plain(part: Tensor) -> Iterator[Tensor]:
    if isinstance(part, QuantizedTensor):
        yield from (tensor for _, tensor in part.named_fields())
    else:
        yield part


_OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.detach.default: _detach,
    aten.cat.default: _cat,
    aten.slice.Tensor: _slice,
    aten.view.default: _view,
    c10d.broadcast_.default: _broadcast_,
}
