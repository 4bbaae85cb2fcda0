"""Products of activations with quantised weights: F.linear, mm, matmul and addmm.

They are caught above autograd, whose formulas would read the weight; the operators of `ao` bring
formulas of their own. The aten overloads answer for calls that come without autograd.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from aoext.formats.checks import describe
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name
from aoext.operators.experts import bias_of_rows
from aoext.operators.gradients import may_skip_autograd
from aoext.tensors.base import QuantizedTensor, implements
from aoext.tensors.computing import Direct
from aoext.tensors.each_expert import has_experts

aten, ao = torch.ops.aten, torch.ops.ao

# Devices with autocast: torch.compile of older releases cannot trace the question. Others are asked.
_WITH_AUTOCAST = frozenset(
    device for device in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(device)
)


@implements(torch.nn.functional.linear, aten.linear.default)
def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    transposed: bool = False,
    offsets: Tensor | None = None,
) -> Tensor:
    """F.linear with a quantised weight, or with a view [K, N] of one where that is `transposed`.

    offsets: beside weights of experts, where the rows of each end
    Calls that want nothing but the product take the short way.
    """
    if (
        not torch.compiler.is_compiling()
        and isinstance(weight, QuantizedTensor)
        and type(input) is Tensor
        and input.dtype is weight.activation_dtype
        and weight.transposed is transposed
        and not torch._C._is_any_autocast_enabled()
        and may_skip_autograd(input, bias, weight.trains)
    ):
        with torch._C._AutoDispatchBelowAutograd():
            return weight._linear(input, bias, Direct, offsets)
    return multiply("linear", input, weight, bias, transposed=transposed, offsets=offsets)


@implements(torch.mm, Tensor.mm, aten.mm.default)
def _mm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None, **options: Any) -> Tensor:
    _refuse("mm", options)
    _check_matrix("mm", input)
    if isinstance(input, QuantizedTensor):
        _check_matrix("mm", mat2, "second")
        return _written("mm", _times("mm", input, mat2), out)
    return _written("mm", multiply("mm", input, mat2, None, transposed=True), out)


@implements(torch.mv, Tensor.mv, aten.mv.default)
def _mv(input: QuantizedTensor, vec: Tensor, **options: Any) -> Tensor:
    _refuse("mv", options)
    if vec.dim() != 1:
        raise RuntimeError(f"mv: the second factor must be [K], got {list(vec.shape)}")
    return _times("mv", input, vec)


@implements(torch.matmul, Tensor.matmul, Tensor.__matmul__, aten.matmul.default)
def _matmul(input: Tensor, other: Tensor, **options: Any) -> Tensor:
    _refuse("matmul", options)
    if has_experts(input) or has_experts(other):
        return batches("matmul", input, other)
    if isinstance(input, QuantizedTensor):
        return _times("matmul", input, other)
    return multiply("matmul", input, other, None, transposed=True)


@implements(torch.addmm, Tensor.addmm, aten.addmm.default)
def _addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    **options: Any,
) -> Tensor:
    factors = {} if beta == alpha == 1 else {"beta": beta, "alpha": alpha}
    _refuse("addmm", {**options, **factors})
    _check_matrix("addmm", mat1)
    if out_dtype is not None:
        mat1, mat2 = mat1.to(out_dtype), mat2.to(out_dtype)
    if isinstance(mat1, QuantizedTensor):
        return _written("addmm", _mm(mat1, mat2) + input, out)
    if input.dim() == 1:
        return _written("addmm", multiply("addmm", mat1, mat2, input, transposed=True), out)
    return _written("addmm", multiply("addmm", mat1, mat2, None, transposed=True) + input, out)


@implements(Tensor.addmm_)
def _addmm_(self: Tensor, mat1: Tensor, mat2: Tensor, **factors: Any) -> Tensor:
    return _addmm(self, mat1, mat2, out=self, **factors)


def _written(name: str, result: Tensor, out: Tensor | None) -> Tensor:
    """The result, or `out`, which gets it."""
    if out is None:
        return result
    if isinstance(out, QuantizedTensor) or out.shape != result.shape:
        raise RuntimeError(f"{name}: out must be a plain tensor {list(result.shape)}, got {describe(out)}")
    return out.copy_(result)


def _refuse(name: str, options: dict[str, Any]) -> None:
    if options:
        raise NotImplementedError(f"{name} with a quantised weight takes no {' and no '.join(options)}")


def _check_matrix(name: str, factor: Tensor, which: str = "first") -> None:
    if factor.dim() != 2:
        sizes = "[M, K]" if which == "first" else "[K, M]"
        raise RuntimeError(f"{name}: the {which} factor must be {sizes}, got {list(factor.shape)}")


def _times(name: str, weight: QuantizedTensor, other: Tensor) -> Tensor:
    """weight @ other, which is [K] or [..., K, M]: F.linear with all that is transposed."""
    if isinstance(other, QuantizedTensor):
        return multiply(name, weight.dequantize(), other, None, transposed=True)
    if other.dim() == 1:
        return multiply(name, other, weight, None, transposed=False)
    return multiply(name, other.mT, weight, None, transposed=False).mT


def batches(name: str, input: Tensor, other: Tensor) -> Tensor:
    """Products of matrices, one a weight of experts; what has no batch of its own meets each of them."""
    weight = other if isinstance(other, QuantizedTensor) else input
    matrices = input if weight is other else other
    if not isinstance(weight, QuantizedTensor) or isinstance(matrices, QuantizedTensor):
        raise _only_one(name, input, other)
    if not has_experts(weight):
        if weight is other:
            return multiply(name, input, other, None, transposed=True)
        return _times(name, weight, other)
    is_vector = matrices.dim() == 1
    if is_vector:
        matrices = matrices.unsqueeze(0 if weight is other else 1)
    if matrices.dim() == 2:
        matrices = matrices.expand(len(weight), -1, -1)
    if matrices.shape[:-2] != weight.shape[:1]:
        raise RuntimeError(
            f"{name}: a weight of {len(weight)} experts needs as many matrices, got {list(matrices.shape)}"
        )
    rows = matrices if weight is other else matrices.mT
    M = rows.shape[1]
    offsets = torch.arange(1, len(weight) + 1, dtype=torch.int32, device=weight.device) * M
    product = multiply(name, rows.flatten(0, 1), weight, None, transposed=weight is other, offsets=offsets)
    product = product.unflatten(0, (len(weight), M))
    product = product if weight is other else product.mT
    return product.squeeze(-2 if weight is other else -1) if is_vector else product


def multiply(
    name: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    transposed: bool,
    offsets: Tensor | None = None,
) -> Tensor:
    """input times the weight, or beside offsets that of each row's expert, plus bias.

    input is [..., K] where the weight is `transposed` as `name` reads it, else [..., N].
    """
    if not isinstance(weight, QuantizedTensor) or isinstance(input, QuantizedTensor):
        raise _only_one(name, input, weight)
    if has_experts(weight) != (offsets is not None):
        wanted = "[N, K]" if offsets is None else "[E, N, K]"
        raise RuntimeError(f"{name}: the weight must be {wanted}, got {list(weight.shape)}")
    input = cast_by_autocast(name, input, weight)
    with without_autocast():
        return in_operators_dtype(input, weight, bias, transposed, offsets)


def _only_one(name: str, input: Tensor, weight: Tensor) -> NotImplementedError:
    return NotImplementedError(
        f"{name}: only the weight, the second factor, can be quantised, "
        f"got {type(input).__name__} and {type(weight).__name__}"
    )


def without_autocast() -> AbstractContextManager[Any]:
    """Autocast would reach into generic kernels, whose products are float32; compiled code runs without."""
    asked = not torch.compiler.is_compiling() and torch._C._is_any_autocast_enabled()
    return torch._C._DisableAutocast() if asked else nullcontext()


def in_operators_dtype(
    input: Tensor, weight: QuantizedTensor, bias: Tensor | None, transposed: bool, offsets: Tensor | None
) -> Tensor:
    """The product of what autocast has left, which is off."""
    if input.dtype is torch.float64:
        product = _product(input.float(), weight, None, transposed, offsets).double()
        return product if bias is None else product + bias_of_rows(bias, input, offsets)
    return _product(input, weight, bias, transposed, offsets)


def _product(
    input: Tensor, weight: QuantizedTensor, bias: Tensor | None, transposed: bool, offsets: Tensor | None
) -> Tensor:
    if weight.transposed == transposed:
        # The type's, so that torch.compile finds it, and the fields.
        return type(weight)._linear(weight, input, bias, ao, offsets)
    # The product with the weight as it lies, of which formulas of gradients are made.
    product = weight._linear_backward(input, offsets)
    return product if bias is None else product + bias_of_rows(bias, input, offsets)


def cast_by_autocast(name: str, input: Tensor, weight: Tensor) -> Tensor:
    """The input in autocast's dtype where that is on; else as it is, if it has the weight's."""
    device_type = input.device.type
    if (
        (device_type in _WITH_AUTOCAST or torch.amp.is_autocast_available(device_type))
        and torch.is_autocast_enabled(device_type)
        and input.dtype in FLOAT_DTYPES
    ):
        return input.to(torch.get_autocast_dtype(device_type))
    if input.dtype != weight.dtype:
        raise RuntimeError(
            f"{name}: input must have the weight's dtype {dtype_name(weight.dtype)}, "
            f"got {dtype_name(input.dtype)}"
        )
    return input
