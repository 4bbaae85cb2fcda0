"""Gradients of the operators of `torch.ops.ao`: backward, forward, and under the transforms of torch.func.

Gradients go to `input` and to the bias; quantised weights and their scales get none. The operators
that work on 8-bit inputs, quantize_rowwise and dequantize_int4 have no gradient: PyTorch warns in a
backward pass through them. (A refusal in Python would be a step on the hot path of every call.)

torch.library.register_autograd knows no forward mode and no torch.func, whose jvp then takes an operator
for a constant; so the kernels of the key Autograd stand here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import linear, pad

from aoext.operators.batches import vmap_rule
from aoext.packing.blockwise import blocks_dequantized_zp
from aoext.packing.dequantized import rows_dequantized
from aoext.packing.layouts import tinygemm_to_plain

ao = torch.ops.ao

# The kernels live as long as this object.
_library = torch.library.Library("ao", "FRAGMENT")


def _in_forward_mode() -> bool:
    return forward_ad._current_level >= 0


def may_skip_autograd(input: Tensor, bias: Tensor | None) -> bool:
    """Whether a product of these with a quantised weight has no gradient and no transform to think of."""
    return (
        not (torch.is_grad_enabled() and (input.requires_grad or (bias is not None and bias.requires_grad)))
        and not _in_forward_mode()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def times_dequantized(input: Tensor, dequantized: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    """input [..., N] times the weight [N, K] that `dequantized(dtype, *parts)` gives.

    Derivatives keep the parts and not the weight, and make it anew.
    """
    return _TimesDequantized.apply(input, False, dequantized, *parts)


class _TimesDequantized(torch.autograd.Function):
    @staticmethod
    def forward(
        input: Tensor, transposed: bool, dequantized: Callable[..., Tensor], *parts: Tensor
    ) -> Tensor:
        weight = dequantized(input.dtype, *parts)
        return input @ (weight.mT if transposed else weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.transposed, ctx.dequantized, *parts = inputs
        ctx.save_for_backward(*parts)
        ctx.save_for_forward(*parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        parts = ctx.saved_tensors
        input_grad = _TimesDequantized.apply(grad, not ctx.transposed, ctx.dequantized, *parts)
        return (input_grad, None, None, *(None for _ in parts))

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return _TimesDequantized.apply(tangent, ctx.transposed, ctx.dequantized, *ctx.saved_tensors)

    vmap = staticmethod(vmap_rule(lambda *arguments: _TimesDequantized.apply(*arguments)))


class _OneWeight:
    """What gradients take a product for: input [..., K] times a weight [N, K] in high precision.

    `parts` are the arguments that make up the weight.
    """

    of_input: tuple[int, ...] = (0,)  # as in vmap_rule
    bias_wants_parts = False

    def times(self, input: Tensor, weight: Tensor, bias: Tensor | None, parts: Sequence[Any]) -> Tensor:
        return linear(input, weight, bias)

    def input_grad(self, grad: Tensor, weight: Tensor, parts: Sequence[Any]) -> Tensor:
        return grad @ weight

    def bias_grad(self, grad: Tensor, parts: Sequence[Any]) -> Tensor:
        return grad.reshape(-1, grad.shape[-1]).sum(0, dtype=torch.float32)


class _ByExpert(_OneWeight):
    """Rows of input [T, K] times the weights [E, N, K] of their experts; the last part is the offsets."""

    of_input = ()  # rows belong to the offsets of their call
    bias_wants_parts = True

    def times(self, input: Tensor, weight: Tensor, bias: Tensor | None, parts: Sequence[Any]) -> Tensor:
        product = self.input_grad(input, weight.mT, parts)
        if bias is None:
            return product
        return product + pad(bias, (0, 0, 0, 1))[_expert_of_row(parts[-1], input.shape[0])]

    def input_grad(self, grad: Tensor, weight: Tensor, parts: Sequence[Any]) -> Tensor:
        return ao._times_experts(grad, weight, parts[-1])

    def bias_grad(self, grad: Tensor, parts: Sequence[Any]) -> Tensor:
        offsets = parts[-1]
        sums = grad.new_zeros((len(offsets) + 1, grad.shape[-1]), dtype=torch.float32)
        return sums.index_add(0, _expert_of_row(offsets, grad.shape[0]), grad.float())[:-1]


def _expert_of_row(offsets: Tensor, rows: int) -> Tensor:
    """The expert of each row, as many as there are experts behind the last offset."""
    at = torch.arange(rows, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, at, right=True)


_ONE_WEIGHT = _OneWeight()

_library.define("_times_experts(Tensor rows, Tensor weight, Tensor offsets) -> Tensor")


def _times_experts(rows: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """rows [T, A] times the weights [E, A, B] of their experts; zeros where a row has none. Of one dtype.

    An operator, since a graph holds no loop whose steps depend on offsets; torch._grouped_mm is it for
    bfloat16 on CUDA alone, and where rows have whole 16 bytes.
    """
    result = rows.new_zeros((rows.shape[0], weight.shape[2]))
    begin = 0
    for of_expert, end in zip(weight, offsets.tolist(), strict=True):
        result[begin:end] = rows[begin:end] @ of_expert
        begin = end
    return result


def _register_times_experts() -> None:
    name = "ao::_times_experts"
    _library.impl("_times_experts", _times_experts, "CompositeExplicitAutograd")
    torch.library.register_fake(
        name, lambda rows, weight, offsets: rows.new_empty((rows.shape[0], weight.shape[2]))
    )

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, offsets = ctx.saved_tensors
        return ao._times_experts(grad, weight.mT, offsets), None, None

    torch.library.register_autograd(name, backward, setup_context=setup_context)
    torch.library.register_vmap(name, vmap_rule(ao._times_experts.default, ()))


_register_times_experts()


def _register(
    operator: str,
    weight_arguments: tuple[int, ...],
    dequantized: Callable[..., Tensor],
    kind: _OneWeight = _ONE_WEIGHT,
) -> None:
    """Gradients of a product of the argument 0 and a weight that others make up.

    `dequantized(dtype, *parts)` gives the weight from the arguments `weight_arguments`, of which some may be
    no tensors, or None; rounding or quantising the input counts as nothing. Behind the weight comes the bias,
    if there is one; it may be None.
    """
    overload, in_order = _positional(getattr(ao, operator).default)
    bias_argument = weight_arguments[-1] + 1

    def product(input: Tensor, *others: Any) -> Tensor:
        """For any number of leading dimensions, where the operator may take one alone."""
        *leading, K = input.shape
        result = overload(input.reshape(math.prod(leading), K), *others)
        return result.reshape(*leading, result.shape[1])

    def bias_of(arguments: tuple[Any, ...]) -> Any:
        return arguments[bias_argument] if len(arguments) > bias_argument else None

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Tensor:
            with torch._C._AutoDispatchBelowAutograd():
                return overload(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            parts = [inputs[i] if i < len(inputs) else None for i in weight_arguments]
            tensors = [part if isinstance(part, Tensor) else None for part in parts]
            if ctx.needs_input_grad[0] or kind.bias_wants_parts:
                ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)  # compiled code does not say here whether it is in forward mode
            ctx.others = [None if isinstance(part, Tensor) else part for part in parts]
            bias = bias_of(inputs)
            ctx.bias_dtype = None if bias is None else bias.dtype
            ctx.count = len(inputs)
            ctx.dtype = output.dtype

        @staticmethod
        def parts(ctx: Any) -> list[Any]:
            saved = zip(ctx.saved_tensors, ctx.others, strict=False)
            return [other if tensor is None else tensor for tensor, other in saved]

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            grads: list[Tensor | None] = [None] * ctx.count
            parts = Product.parts(ctx)
            if ctx.needs_input_grad[0]:
                grads[0] = kind.input_grad(grad, dequantized(grad.dtype, *parts), parts)
            if ctx.bias_dtype is not None and ctx.needs_input_grad[bias_argument]:
                grads[bias_argument] = kind.bias_grad(grad, parts).to(ctx.bias_dtype)
            return tuple(grads)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Tensor:
            parts = Product.parts(ctx)
            bias = bias_of(tangents)
            bias = None if bias is None else bias.to(ctx.dtype)
            return kind.times(tangents[0], dequantized(ctx.dtype, *parts), bias, parts)

        vmap = staticmethod(vmap_rule(product if kind.of_input else overload, kind.of_input))

    # Not Product.apply itself, which reads the signature of forward at every call; nor other steps.
    apply = super(torch.autograd.Function, Product).apply
    call = getattr(ao, operator).default._op
    is_grad_enabled, any_requires_grad = torch.is_grad_enabled, torch._C._any_requires_grad
    below_autograd = torch._C._AutoDispatchBelowAutograd

    def kernel(*arguments: Any, **options: Any) -> Tensor:
        backward = is_grad_enabled() and any_requires_grad(*arguments)
        if backward or _in_forward_mode():
            return apply(*in_order(arguments, options))
        with below_autograd():
            return call(*arguments, **options)

    def transformed(*arguments: Any, **options: Any) -> Tensor:
        return _transformed(Product, overload, in_order(arguments, options))

    Product.__name__ = Product.__qualname__ = operator
    _library.impl(operator, kernel, "Autograd")
    _library.impl(operator, transformed, "FuncTorchDynamicLayerFrontMode")  # before a transform of torch.func


def _positional(overload: Any) -> tuple[Callable[..., Any], Callable[..., tuple[Any, ...]]]:
    """An operator that takes all of its arguments by position, and how those of a call are put in order."""
    schema = overload._schema.arguments
    names = [argument.name for argument in schema if argument.kwarg_only]
    others = schema[: len(schema) - len(names)]
    if not names:
        return overload, lambda arguments, options: arguments

    def call(*given: Any) -> Any:
        return overload(*given[: len(others)], **dict(zip(names, given[len(others) :], strict=False)))

    def in_order(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
        left_out = (argument.default_value for argument in others[len(arguments) :])
        return *arguments, *left_out, *(options.get(name) for name in names)

    return call, in_order


def _transformed(
    function: type[torch.autograd.Function], overload: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """A call under a transform of torch.func: a function that it differentiates or takes over a batch.

    Under functionalize it is the plain operator, which changes none of its arguments.
    """
    # Internals of PyTorch, so importing aoext shall not need them.
    from torch._functorch.autograd_function import custom_function_call
    from torch._functorch.pyfunctorch import FunctionalizeInterpreter, retrieve_current_functorch_interpreter
    from torch._subclasses.functional_tensor import FunctorchFunctionalizeAPI

    transform = retrieve_current_functorch_interpreter()
    if not isinstance(transform, FunctionalizeInterpreter):
        return custom_function_call(function, *arguments)
    functionalized = FunctorchFunctionalizeAPI(transform)
    with functionalized.redispatch_to_next():
        result = overload(*functionalized.unwrap_tensors(arguments))
    return functionalized.wrap_tensors(result)


def _int4_dequantized(dtype: torch.dtype, weight: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    return ao.dequantize_int4(weight, scale, zero_point, dtype=dtype)


def _experts_dequantized(
    dtype: torch.dtype, weight: Tensor, scale: Tensor, zero_point: Tensor, offsets: Tensor
) -> Tensor:
    """[E, N, K], by one call: as one weight of E · N rows."""
    columns = (t.movedim(0, 1).flatten(1).contiguous() for t in (scale, zero_point))
    return _int4_dequantized(dtype, weight.flatten(0, 1), *columns).unflatten(0, weight.shape[:2])


def _int4pack_dequantized(dtype: torch.dtype, weight: Tensor, scale_and_zero: Tensor) -> Tensor:
    return _int4_dequantized(dtype, *tinygemm_to_plain(weight, scale_and_zero))


def _blocks_dequantized(dtype: torch.dtype, weight: Tensor, scale: Tensor, block_size: list[int]) -> Tensor:
    return ao.dequantize_blockwise(weight, scale, block_size, dtype=dtype)


def _lut4_dequantized(
    dtype: torch.dtype,
    weight: Tensor,
    table: Tensor,
    scale: Tensor,
    block_size: list[int],
    global_scale: Tensor | None,
) -> Tensor:
    return ao.dequantize_lut4(weight, table, scale, block_size, global_scale, dtype=dtype)


def _blocks_of_both_dequantized(
    dtype: torch.dtype, weight: Tensor, scale: Tensor, input_block: list[int], weight_block: list[int]
) -> Tensor:
    return _blocks_dequantized(dtype, weight, scale, weight_block)


_register("bf16i4bf16_rowwise", (1, 2, 3), _int4_dequantized)
_register("bf16i4bf16_rowwise_bias", (1, 2, 3), _int4_dequantized)
_register("bf16i4bf16_rowwise_grouped", (1, 2, 3, 4), _experts_dequantized, _ByExpert())
_register("bf16i8bf16_rowwise", (1, 2), rows_dequantized)
_register("bf16f8bf16_rowwise", (1, 2), rows_dequantized)
_register("bf16i8bf16_blockwise", (1, 2, 3), _blocks_dequantized)
_register("bf16i8bf16_blockwise_zp", (1, 2, 3, 4), blocks_dequantized_zp)
_register("bf16f8bf16_blockwise", (1, 2, 3), _blocks_dequantized)
_register("bf16lut4bf16_blockwise", (1, 2, 3, 4, 5), _lut4_dequantized)
_register("scaled_linear_rowwise", (1, 2), rows_dequantized)
_register("scaled_linear_blockwise", (1, 2, 3, 4), _blocks_of_both_dequantized)
_register("scaled_linear_int4", (1, 2, 3), _int4_dequantized)
_register("weight_int4pack_mm", (1, 3), _int4pack_dequantized)
