"""Weights that train in int8.

They take gradients, plain ones. What changes them in place, as optimizers do, computes in float32 and rounds
the result at random, up or down with the odds that keep the mean: steps smaller than one of int8 would else
be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from aoext.formats.checks import describe
from aoext.tensors import computing
from aoext.tensors.base import Operation
from aoext.tensors.int8 import Int8Tensor
from aoext.tensors.outer import counted_versions

if TYPE_CHECKING:
    from typing_extensions import Self

aten, ao = torch.ops.aten, torch.ops.ao

LARGEST = 127


class Int8TrainingTensor(Int8Tensor):
    """A weight [N, K] as Int8Tensor has it, which takes a gradient and which optimizers change in place.

    Products dequantise it, activations stay as they are. The random numbers are those of torch.manual_seed. A
    row that gets NaN or Inf becomes NaN.

    >>> weight = torch.nn.Parameter(Int8TrainingTensor.from_hp(torch.randn(64, 256)))
    >>> torch.nn.functional.linear(torch.randn(3, 256), weight).sum().backward()
    >>> weight.grad.shape
    torch.Size([64, 256])
    """

    trains = True
    # What to do, by the overload that is dispatched and by the function of PyTorch that is called; all others
    # are as those of a frozen weight.
    own_overloads: ClassVar[dict[Any, Operation]] = {}
    own_functions: ClassVar[dict[Any, Operation]] = {}

    def frozen(self) -> Int8Tensor:
        """The same weight, which takes no gradient; it shares the fields."""
        return Int8Tensor._make(
            dict(self.named_fields()),
            self.named_attributes(),
            self.weight_shape,
            self.dtype,
            self.transposed,
        )

    def dequantize(self) -> Tensor:
        """The plain tensor that this one stands for, which passes gradients on."""
        return cast(Tensor, _Dequantize.apply(self, self.qdata, self.scale))

    def in_float32(self) -> Tensor:
        """What it stands for, in float32."""
        plain = ao.dequantize(
            self.qdata.contiguous(), self.scale.contiguous(), self.code, dtype=torch.float32
        )
        return plain.t() if self.transposed else plain

    def become_rounded(self, plain: Tensor) -> Self:
        """Become a plain weight of this shape, rounded at random."""
        if plain.shape != self.shape:
            raise ValueError(
                f"{type(self).__name__}: a weight {list(self.shape)} cannot become {describe(plain)}"
            )
        rows = (plain.t() if self.transposed else plain).float()
        qdata, scale = round_rows(rows)
        with counted_versions():
            self.qdata.copy_(qdata)
            self.scale.copy_(scale)
        return self

    def _linear(
        self, input: Tensor, bias: Tensor | None, operators: Any = ao, offsets: Tensor | None = None
    ) -> Tensor:
        if not torch.is_grad_enabled():
            return computing.linear(self, input, bias, operators, offsets)
        return cast(Tensor, _Product.apply(input, self, bias, self.qdata, self.scale, True, self.transposed))

    def _linear_backward(self, grad: Tensor, offsets: Tensor | None = None) -> Tensor:
        return cast(Tensor, _Product.apply(grad, self, None, self.qdata, self.scale, False, self.transposed))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        own = cls.own_functions.get(func)
        if own is None:
            return super().__torch_function__(func, types, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return own(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        own = cls.own_overloads.get(func)
        with torch.no_grad():  # autograd has been above
            if own is None:
                return super().__torch_dispatch__(func, types, args, kwargs)
            return own(*args, **(kwargs or {}))


def round_rows(w: Tensor) -> tuple[Tensor, Tensor]:
    """Row-wise int8 of w float32 [N, K], rounded at random: q int8 and scale float32 [N, 1].

    The scale is that of ao.quantize, and NaN where a row has NaN or Inf.
    """
    largest = w.abs().amax(1, keepdim=True)
    scale = (largest / LARGEST).clamp_(min=torch.finfo(torch.float32).smallest_normal)
    scale = torch.where(largest == 0, 1.0, scale)
    finite = largest.isfinite()
    steps = torch.where(finite, w / scale, 0.0)
    q = (steps + torch.rand_like(steps)).floor_().clamp_(-LARGEST, LARGEST)
    return q.to(torch.int8), torch.where(finite, scale, torch.nan)


def _plain_of(qdata: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return ao.dequantize(qdata.contiguous(), scale.contiguous(), Int8TrainingTensor.codes[0], dtype=dtype)


class _Dequantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Int8TrainingTensor, qdata: Tensor, scale: Tensor) -> Tensor:
        plain = _plain_of(qdata, scale, weight.operator_dtype).to(weight.dtype)
        return plain.t() if weight.transposed else plain

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad, None, None


class _Product(torch.autograd.Function):
    """input [..., K] times a weight [N, K] transposed, or [..., N] times it as it is."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,  # which the gradient goes to; of its fields the product is made
        bias: Tensor | None,
        qdata: Tensor,
        scale: Tensor,
        times_transposed: bool,
        is_transposed: bool,
    ) -> Tensor:
        ctx.times_transposed, ctx.is_transposed = times_transposed, is_transposed
        ctx.save_for_backward(input if ctx.needs_input_grad[1] else None, qdata, scale)
        ctx.bias_dtype = None if bias is None else bias.dtype
        if times_transposed:
            code = int(Int8TrainingTensor.codes[0])
            return ao.weight_only_linear(input, qdata.contiguous(), scale.contiguous(), code, bias)
        return input @ _plain_of(qdata, scale, input.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, qdata, scale = ctx.saved_tensors
        input_grad = weight_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            plain = _plain_of(qdata, scale, grad.dtype)
            input_grad = grad @ (plain if ctx.times_transposed else plain.t())
        if input is not None:
            rows, grads = (t.reshape(-1, t.shape[-1]) for t in (input, grad))
            left, right = (grads, rows) if ctx.times_transposed else (rows, grads)
            weight_grad = right.t() @ left if ctx.is_transposed else left.t() @ right
        if ctx.needs_input_grad[2]:
            bias_grad = grad.reshape(-1, grad.shape[-1]).sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return input_grad, weight_grad, bias_grad, None, None, None, None
