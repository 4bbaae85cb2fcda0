"""Averages of quantised weights with themselves, which are those weights.

Callbacks that keep an average of a model (AveragedModel of torch.optim.swa_utils with any of its formulas,
moving averages by lerp) walk over all of its parameters, frozen ones too, as LBFGS does with its steps. Of
equal weights the average is known without arithmetic, and exact; of others there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aoext.tensors.base import QuantizedTensor, implements
from aoext.tensors.copies import copy_

aten = torch.ops.aten

# How far the factors of an average may be from adding up to 1.
TOLERANCE = 1e-5


class Multiple(torch.Tensor):
    """factor · weight, on the way to an average. It can be added to others, multiplied and divided."""

    weight: QuantizedTensor
    factor: float

    @staticmethod
    def __new__(cls, weight: QuantizedTensor, factor: float) -> Multiple:
        self = torch.Tensor._make_wrapper_subclass(
            cls, weight.shape, strides=weight.stride(), dtype=weight.dtype, device=weight.device
        )
        self.weight, self.factor = weight, factor
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.factor} * {self.weight!r}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        operation = _OF_MULTIPLES.get(func)
        if operation is None:
            raise NotImplementedError(f"{func} is not implemented for a multiple of a quantised weight")
        return operation(*args, **(kwargs or {}))


def _terms(name: str, first: Any, second: Any) -> tuple[QuantizedTensor, float, float]:
    """The weight of which both are multiples, and their factors."""
    terms = [Multiple(term, 1) if isinstance(term, QuantizedTensor) else term for term in (first, second)]
    for term in terms:
        if not isinstance(term, Multiple):
            raise NotImplementedError(
                f"{name} of a quantised weight and a {type(term).__name__} is not implemented; "
                "dequantize() gives a plain tensor"
            )
    _check_equal(name, terms[0].weight, terms[1].weight)
    return terms[0].weight, terms[0].factor, terms[1].factor


def _check_equal(name: str, first: Tensor, second: Tensor) -> None:
    if not isinstance(first, QuantizedTensor) or not isinstance(second, QuantizedTensor):
        raise NotImplementedError(
            f"{name} is not implemented for {type(first).__name__} and {type(second).__name__}; "
            "dequantize() gives a plain tensor"
        )
    ours, theirs = first.__tensor_flatten__(), second.__tensor_flatten__()
    if (
        type(first) is not type(second)
        or first.shape != second.shape
        or ours != theirs  # names of fields, attributes and dtypes
        or not all(_same_bits(getattr(first, field), getattr(second, field)) for field in ours[0])
    ):
        raise ValueError(
            f"{type(first).__name__}: {name} is defined for equal weights alone, as frozen ones are in an "
            f"average of a model: got {first} and {second}, which differ; dequantize() gives plain tensors"
        )


def _same_bits(first: Tensor, second: Tensor) -> bool:
    if first is second:
        return True
    bits = (tensor.contiguous().view(torch.uint8) for tensor in (first, second.to(first.device)))
    return first.dtype is second.dtype and torch.equal(*bits)


@implements(aten.add.Tensor)
def _add(first: Any, second: Any, *, alpha: float = 1) -> Multiple:
    weight, a, b = _terms("aten.add.Tensor", first, second)
    return Multiple(weight, a + alpha * b)


@implements(aten.sub.Tensor)
def _sub(first: Any, second: Any, *, alpha: float = 1) -> Multiple:
    weight, a, b = _terms("aten.sub.Tensor", first, second)
    return Multiple(weight, a - alpha * b)


@implements(aten.mul.Tensor)
def _mul(first: Any, second: Any) -> Multiple:
    if not isinstance(first, (QuantizedTensor, Multiple)):
        first, second = second, first
    weight, factor, _ = _terms("aten.mul.Tensor", first, first)
    return Multiple(weight, factor * _number("aten.mul.Tensor", second))


@implements(aten.div.Tensor)
def _div(first: Any, second: Any) -> Multiple:
    weight, factor, _ = _terms("aten.div.Tensor", first, first)
    return Multiple(weight, factor / _number("aten.div.Tensor", second))


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and (type(value) is not Tensor or value.numel() != 1):
        raise NotImplementedError(
            f"{name} of a quantised weight is implemented for numbers alone; "
            "dequantize() gives a plain tensor"
        )
    return float(value)


@implements(aten.lerp.Scalar, aten.lerp.Tensor)
def _lerp(self: Tensor, end: Tensor, weight: Any) -> Tensor:
    _check_equal("aten.lerp", self, end)
    return self.clone()


@implements(aten.lerp_.Scalar, aten.lerp_.Tensor)
def _lerp_(self: Tensor, end: Tensor, weight: Any) -> Tensor:
    _check_equal("aten.lerp_", self, end)
    return self


@implements(aten._foreach_lerp_.Scalar)
def _foreach_lerp_(self: Sequence[Tensor], tensors1: Sequence[Tensor], weight: Any) -> None:
    plain = []
    for pair in zip(self, tensors1, strict=True):
        if any(isinstance(tensor, QuantizedTensor) for tensor in pair):
            _check_equal("aten._foreach_lerp_.Scalar", *pair)
        else:
            plain.append(pair)
    if plain:
        torch._foreach_lerp_([own for own, _ in plain], [other for _, other in plain], weight)


@implements(aten._foreach_copy_.default)
def _foreach_copy_(self: Sequence[Tensor], src: Sequence[Tensor], non_blocking: bool = False) -> None:
    for own, other in zip(self, src, strict=True):
        own.copy_(other, non_blocking)


@implements(aten.copy_.default)
def _copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    if isinstance(src, Multiple):
        _check_average("aten.copy_.default", src.factor)
        src = src.weight
    return copy_(self, src, non_blocking)


@implements(aten.add_.Tensor)
def _add_(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    if type(other) is Tensor and isinstance(self, QuantizedTensor):
        if other.count_nonzero():
            raise NotImplementedError(
                f"{type(self).__name__}: aten.add_.Tensor is implemented for zeros alone, for quantised "
                "weights do not train: give optimizers the parameters that require gradients"
            )
        return self
    _, a, b = _terms("aten.add_.Tensor", self, other)
    _check_average("aten.add_.Tensor", a + alpha * b)
    return self


@implements(aten.sub_.Tensor)
def _sub_(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    return _add_(self, other, alpha=-alpha)


def _check_average(name: str, factor: float) -> None:
    if abs(factor - 1) > TOLERANCE:
        raise ValueError(
            f"{name}: factors of a quantised weight must add up to 1, as those of an average do, got {factor}"
        )


_OF_MULTIPLES: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.mul.Tensor: _mul,
    aten.div.Tensor: _div,
    aten.detach.default: lambda multiple: Multiple(multiple.weight, multiple.factor),
}
