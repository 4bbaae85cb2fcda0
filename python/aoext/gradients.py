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

from aoext.batches import vmap_rule
from aoext.blocks import blocks_dequantized_zp
from aoext.layouts import tinygemm_to_plain
from aoext.packing import rows_dequantized

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
    """What gradients take a product for: input [..., K] times a weight [N, K] in high precision."""

    bias_wants_parts = False

    def times(self, input: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor | None) -> Tensor:
        return linear(input, weight, bias)

    def input_grad(self, grad: Tensor, weight: Tensor, offsets: Tensor | None) -> Tensor:
        return grad @ weight

    def bias_grad(self, grad: Tensor, offsets: Tensor | None) -> Tensor:
        return grad.reshape(-1, grad.shape[-1]).sum(0, dtype=torch.float32)


class _ByExpert(_OneWeight):
    """Rows of input [T, K] times the weights [E, N, K] of their experts."""

    bias_wants_parts = True

    def times(self, input: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor | None) -> Tensor:
        assert offsets is not None
        product = self.input_grad(input, weight.mT, offsets)
        if bias is None:
            return product
        return product + pad(bias, (0, 0, 0, 1))[_expert_of_row(offsets, input.shape[0])]

    def input_grad(self, grad: Tensor, weight: Tensor, offsets: Tensor | None) -> Tensor:
        return ao._times_experts(grad, weight, offsets)

    def bias_grad(self, grad: Tensor, offsets: Tensor | None) -> Tensor:
        assert offsets is not None
        sums = grad.new_zeros((len(offsets) + 1, grad.shape[-1]), dtype=torch.float32)
        return sums.index_add(0, _expert_of_row(offsets, grad.shape[0]), grad.float())[:-1]


def _expert_of_row(offsets: Tensor, rows: int) -> Tensor:
    """The expert of each row, as many as there are experts behind the last offset."""
    at = torch.arange(rows, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, at, right=True)


_ONE_WEIGHT, _BY_EXPERT = _OneWeight(), _ByExpert()

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
    dequantized: Callable[..., Tensor],
) -> None:
    """Gradients of a product of the argument `input` and a weight that the others make up, but for the bias.

    `dequantized(dtype, *parts)` gives the weight from these others in their order, of which some may be no
    tensors, or None; rounding or quantising the input counts as nothing.
    """
    overload, in_order = _positional(getattr(ao, operator).default)
    names = [argument.name for argument in getattr(ao, operator).default._schema.arguments]
    bias_argument = names.index("bias") if "bias" in names else len(names)
    offsets_argument = names.index("offsets") if "offsets" in names else len(names)
    weight_arguments = [i for i in range(1, len(names)) if i != bias_argument]

    def kind_of(arguments: Sequence[Any]) -> _OneWeight:
        by_expert = offsets_argument < len(arguments) and arguments[offsets_argument] is not None
        return _BY_EXPERT if by_expert else _ONE_WEIGHT

    def offsets_of(parts: Sequence[Any]) -> Any:
        return parts[weight_arguments.index(offsets_argument)] if offsets_argument < len(names) else None

    def product(input: Tensor, *others: Any) -> Tensor:
        """For any number of leading dimensions, where the operator may take one alone."""
        if kind_of((input, *others)) is _BY_EXPERT:
            return overload(input, *others)
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
            ctx.kind = kind_of(inputs)
            if ctx.needs_input_grad[0] or ctx.kind.bias_wants_parts:
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
            offsets = offsets_of(parts)
            if ctx.needs_input_grad[0]:
                grads[0] = ctx.kind.input_grad(grad, dequantized(grad.dtype, *parts), offsets)
            if ctx.bias_dtype is not None and ctx.needs_input_grad[bias_argument]:
                grads[bias_argument] = ctx.kind.bias_grad(grad, offsets).to(ctx.bias_dtype)
            return tuple(grads)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Tensor:
            parts = Product.parts(ctx)
            bias = bias_of(tangents)
            bias = None if bias is None else bias.to(ctx.dtype)
            return ctx.kind.times(tangents[0], dequantized(ctx.dtype, *parts), bias, offsets_of(parts))

        vmap = staticmethod(vmap_rule(product, offsets=offsets_argument))

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


def _dequantized(
    dtype: torch.dtype,
    weight: Tensor,
    scale: Tensor,
    block_size: list[int] | None,
    zero_point: Tensor | None,
    table: Tensor | None,
    global_scale: Tensor | None,
    offsets: Tensor | None,
    code: int,
) -> Tensor:
    """[N, K] of a weight in any format; [E, N, K] beside offsets, one expert after the other."""
    if offsets is None:
        return ao.dequantize(
            weight, scale, block_size, zero_point, table, global_scale, code=code, dtype=dtype
        )
    zeros = [None] * len(weight) if zero_point is None else zero_point
    experts = zip(weight, scale, zeros, strict=True)
    return torch.stack(
        [
            ao.dequantize(w, s, block_size, z, table, global_scale, code=code, dtype=dtype)
            for w, s, z in experts
        ]
    )


def _quantized_dequantized(
    dtype: torch.dtype,
    weight: Tensor,
    scale: Tensor,
    input_block: list[int] | None,
    block_size: list[int] | None,
    zero_point: Tensor | None,
    offsets: Tensor | None,
    code: int,
    input_dtype: torch.dtype | None,
) -> Tensor:
    return _dequantized(dtype, weight, scale, block_size, zero_point, None, None, offsets, code)


def _int4_dequantized(dtype: torch.dtype, weight: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    return ao.dequantize_int4(weight, scale, zero_point, dtype=dtype)


def _experts_dequantized(
    dtype: torch.dtype, weight: Tensor, scale: Tensor, zero_point: Tensor, offsets: Tensor
) -> Tensor:
    """[E, N, K], by one call: as one weight of E · N rows."""
    columns = (t.movedim(0, 1).flatten(1).contiguous() for t in (scale, zero_point))
    return _int4_dequantized(dtype, weight.flatten(0, 1), *columns).unflatten(0, weight.shape[:2])


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


def _pack_dequantized(dtype: torch.dtype, weight: Tensor, group_size: int, scale_and_zero: Tensor) -> Tensor:
    return _int4_dequantized(dtype, *tinygemm_to_plain(weight, scale_and_zero))


def _int4_scaled_dequantized(
    dtype: torch.dtype, weight: Tensor, scale: Tensor, zero_point: Tensor, input_dtype: torch.dtype | None
) -> Tensor:
    return _int4_dequantized(dtype, weight, scale, zero_point)


_register("weight_only_linear", _dequantized)
_register("scaled_linear", _quantized_dequantized)
_register("bf16i4bf16_rowwise", _int4_dequantized)
_register("bf16i4bf16_rowwise_bias", _int4_dequantized)
_register("bf16i4bf16_rowwise_grouped", _experts_dequantized)
_register("bf16i8bf16_rowwise", rows_dequantized)
_register("bf16f8bf16_rowwise", rows_dequantized)
_register("bf16i8bf16_blockwise", _blocks_dequantized)
_register("bf16i8bf16_blockwise_zp", blocks_dequantized_zp)
_register("bf16f8bf16_blockwise", _blocks_dequantized)
_register("bf16lut4bf16_blockwise", _lut4_dequantized)
_register("scaled_linear_rowwise", rows_dequantized)
_register("scaled_linear_blockwise", _blocks_of_both_dequantized)
_register("scaled_linear_int4", _int4_scaled_dequantized)
_register("weight_int4pack_mm", _pack_dequantized)
