"""Functions of PyTorch that read a quantised weight as the plain one that it stands for.

What they give is plain and stands alone: w[0] is a copy of a row, and nothing written into it reaches w.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from aoext.formats.checks import has_values
from aoext.tensors.base import QuantizedTensor, implements
from aoext.tensors.copies import keep_values, refuse_gradient, wants_gradient
from aoext.tensors.each_expert import by_expert, has_experts

aten = torch.ops.aten

COMPARISONS = "eq ne lt le gt ge equal allclose isclose"
QUESTIONS = "isfinite isinf isnan isneginf isposinf any all nonzero count_nonzero"
REDUCTIONS = """
    sum mean prod norm linalg_vector_norm amax amin aminmax max min argmax argmin std std_mean var var_mean
    median logsumexp cumsum histc sort topk kthvalue nansum trace dist _cdist_forward mse_loss
"""
ELEMENTWISE = """
    abs neg sign sgn square sqrt rsqrt reciprocal pow exp log log2 clamp clamp_min clamp_max round floor ceil
    add sub rsub mul div remainder fmod where maximum minimum lerp addcmul addcdiv logaddexp
    sigmoid tanh relu silu gelu softplus _softmax _log_softmax
"""
PARTS = """
    select unsqueeze squeeze expand unbind index index_select index_copy gather take diagonal diag tril triu
    repeat flip roll masked_select masked_fill
"""
PRODUCTS = "bmm baddbmm dot vdot linalg_qr _linalg_svd linalg_inv_ex"
# Those that write into a plain tensor and read the weight.
INTO_PLAIN = "add_ sub_ mul_ div_"

# Functions that are made of others in ways that want a plain tensor.
_WHOLE = (torch.einsum, torch.tensordot, torch.kron, torch.outer)


def _plain(value: Any) -> Any:
    """A structure of arguments, of which each quantised weight is dequantised."""
    return tree_map_only(QuantizedTensor, lambda weight: weight.dequantize(), value)


def _dequantizing(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*_plain(args), **_plain(kwargs))

    return call


def _into_plain(function: Any) -> Callable[..., Any]:
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, QuantizedTensor):
            raise NotImplementedError(
                f"{type(self).__name__}: {function} is not implemented; dequantize() gives a plain tensor"
            )
        return function(self, *_plain(args), **_plain(kwargs))

    return call


def _overloads(names: str) -> list[Any]:
    packets = [getattr(aten, name) for name in names.split()]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads()]


for _functions in (COMPARISONS, QUESTIONS, REDUCTIONS, ELEMENTWISE, PARTS, PRODUCTS):
    for _overload in _overloads(_functions):
        if not _overload._schema.is_mutable and _overload not in QuantizedTensor.operations:
            implements(_overload)(_dequantizing(_overload))
for _overload in _overloads(INTO_PLAIN):
    implements(_overload)(_into_plain(_overload))
for _function in _WHOLE:
    implements(_function)(_dequantizing(_function))


def _sum(weight: QuantizedTensor, other: Tensor, factor: float) -> QuantizedTensor:
    """weight + factor · other for a matrix of its shape: summed in float32, in the weight's scheme again.

    For zeros, such as steps of optimizers for what does not train, the weight keeps its bits.
    """
    if has_values(other) and not other.any():
        return cast(QuantizedTensor, weight.clone())
    if has_experts(weight):
        return by_expert(lambda own, plain: _sum(own, plain, factor), weight, other)
    total = (
        cast(QuantizedTensor, weight.to(torch.float32)).dequantize().add(_plain(other).float(), alpha=factor)
    )
    return weight.requantized(total)


def _implement_sum(sign: int, *functions: Callable[..., Tensor]) -> None:
    """A sum with a plain matrix is quantised again. Caught above what other functions are made of."""

    def summing(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(self: Any, other: Any, **options: Any) -> Tensor:
            swapped = sign > 0 and not options and isinstance(other, QuantizedTensor)
            weight, matrix = (other, self) if swapped else (self, other)
            fits = isinstance(weight, QuantizedTensor) and _is_matrix_for(weight, matrix)
            if fits and options.keys() <= {"alpha"} and not wants_gradient(matrix):
                return _sum(weight, matrix, sign * options.get("alpha", 1))
            return function(self, other, **options)

        return call

    for function in functions:
        implements(function)(summing(function))


def _implement_sum_in_place(sign: int, overload: Any) -> None:
    into_plain = QuantizedTensor.operations[overload]

    @implements(overload)
    def into(self: Any, other: Any, *, alpha: float = 1) -> Tensor:
        if not isinstance(self, QuantizedTensor):
            return into_plain(self, other, alpha=alpha)
        if not isinstance(other, Tensor) or other.shape != self.shape:
            raise NotImplementedError(
                f"{type(self).__name__}: {overload} is not implemented but for a matrix {list(self.shape)}, "
                f"got {list(other.shape) if isinstance(other, Tensor) else other!r}; "
                "dequantize() gives a plain tensor"
            )
        refuse_gradient(self, overload, other)
        return self.copy_(_sum(self, other, sign * alpha))


def _is_matrix_for(weight: QuantizedTensor, other: Any) -> bool:
    plain = isinstance(other, Tensor) and not isinstance(other, QuantizedTensor)
    return plain and other.shape == weight.shape and other.is_floating_point()


@implements(aten.lerp_.Scalar, aten.lerp_.Tensor)
def _lerp_(self: Tensor, end: Tensor, weight: Any) -> Tensor:
    """What averages of a model call, for frozen weights too; it must give the weight that is there."""
    overload = aten.lerp_.Tensor if isinstance(weight, Tensor) else aten.lerp_.Scalar
    if not isinstance(self, QuantizedTensor):
        return overload(self, *_plain((end, weight)))
    for value in (end, weight):
        refuse_gradient(self, overload, value)
    return keep_values(self, overload(*_plain((self, end, weight))))


@implements(*_overloads("_foreach_lerp_"))
def _foreach_lerp_(self: Sequence[Tensor], tensors1: Sequence[Tensor], weight: Any) -> None:
    factors = weight if isinstance(weight, (list, tuple)) else [weight] * len(self)
    for own, end, factor in zip(self, tensors1, factors, strict=True):
        own.lerp_(end, factor)


_implement_sum(1, torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
_implement_sum(-1, torch.sub, torch.subtract, Tensor.sub, Tensor.subtract, Tensor.__sub__)
_implement_sum_in_place(1, aten.add_.Tensor)
_implement_sum_in_place(-1, aten.sub_.Tensor)


@implements(Tensor.__setitem__)
def _setitem(self: Tensor, index: Any, value: Any) -> None:
    """weight[a:b] = other: written through a slice; other indices give copies, so nothing is written."""
    indices = index if isinstance(index, tuple) else (index,)
    views = all(isinstance(i, slice) or i is Ellipsis for i in indices)
    if isinstance(self, QuantizedTensor) and not views:
        raise NotImplementedError(
            f"{type(self).__name__}: an assignment is implemented for slices alone, got the index {index!r}"
        )
    Tensor.__setitem__(self, index, value)


@implements(torch.norm_except_dim, torch._weight_norm)
def _no_weight_norm(*_: Any, **__: Any) -> NoReturn:
    # Not NotImplementedError, which torch.nn.utils.parametrize takes for having no inverse.
    raise TypeError(
        "weight_norm needs a plain weight, of which it trains direction and magnitude, got a quantised one; "
        "fold it into the weight with torch.nn.utils.parametrize.remove_parametrizations, then quantise"
    )


@implements(Tensor.nbytes.__get__)  # type: ignore[attr-defined]
def _nbytes(self: QuantizedTensor) -> int:
    return self.stored_bytes


@implements(Tensor.element_size)
def _element_size(self: QuantizedTensor) -> float:
    """Stored bytes for each element, so that numel() * element_size() is what the weight takes."""
    return self.stored_bytes / max(1, self.numel())
