"""Gradients of the operators of `torch.ops.ao`: backward, forward, and under the transforms of torch.func.

Gradients go to `input` and to the bias; quantised weights and their scales get none. The operators
that work on 8-bit inputs, quantize and dequantize have no gradient: PyTorch warns in a
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

from aoext.formats.table import Code
from aoext.operators import batches
from aoext.operators.batches import vmap_rule
from aoext.operators.calls import ao, operators
from aoext.operators.choice import prefers_plain_weight
from aoext.operators.experts import BY_EXPERT, ONE_WEIGHT, OneWeight, times
from aoext.packing.layouts import tinygemm_to_plain

# The kernels live as long as this object.
_library = torch.library.Library("ao", "FRAGMENT")


def _in_forward_mode() -> bool:
    return forward_ad._current_level >= 0


def in_transform() -> bool:
    """Whether derivatives are taken forward, or a transform of torch.func is on."""
    return _in_forward_mode() or torch._C._functorch.peek_interpreter_stack() is not None


def may_skip_autograd(input: Tensor, bias: Tensor | None, trains: bool) -> bool:
    """Whether a product of these with a quantised weight has no gradient and no transform to think of.

    trains: whether weights of its kind may take gradients
    """
    return (
        not (
            torch.is_grad_enabled()
            and (trains or input.requires_grad or (bias is not None and bias.requires_grad))
        )
        and not in_transform()
    )


def times_weight(
    input: Tensor, offsets: Tensor | None, product: Callable[..., Tensor], *parts: Tensor
) -> Tensor:
    """input [..., N] times a weight [N, K], or beside offsets [E, N, K], that `parts` make.

    product: product(input, offsets, transposed, *parts) is this or, where `transposed`, that of [..., K].
    Derivatives keep the parts and not the weight, and make it anew.
    """
    return _TimesWeight.apply(input, offsets, False, product, *parts)


class _TimesWeight(torch.autograd.Function):
    @staticmethod
    def forward(
        input: Tensor,
        offsets: Tensor | None,
        transposed: bool,
        product: Callable[..., Tensor],
        *parts: Tensor,
    ) -> Tensor:
        return product(input, offsets, transposed, *parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, offsets, ctx.transposed, ctx.product, *parts = inputs
        ctx.save_for_backward(offsets, *parts)
        ctx.save_for_forward(offsets, *parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        offsets, *parts = ctx.saved_tensors
        input_grad = _TimesWeight.apply(grad, offsets, not ctx.transposed, ctx.product, *parts)
        return (input_grad, None, None, None, *(None for _ in parts))

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        offsets, *parts = ctx.saved_tensors
        return _TimesWeight.apply(tangent, offsets, ctx.transposed, ctx.product, *parts)

    vmap = staticmethod(vmap_rule(lambda *arguments: _TimesWeight.apply(*arguments), ("input", "offsets")))


def _register(operator: str, dequantized: Callable[..., Tensor]) -> None:
    """Gradients of a product of the argument `input` and a weight that the others make up, but for the bias.

    `dequantized(dtype, **parts)` gives the weight from these others by name, of which some may be no
    tensors, or None; rounding or quantising the input counts as nothing.
    """
    overload, in_order = _positional(getattr(ao, operator).default)
    names = [argument.name for argument in getattr(ao, operator).default._schema.arguments]
    bias_argument = names.index("bias") if "bias" in names else len(names)
    offsets_argument = names.index("offsets") if "offsets" in names else len(names)
    weight_arguments = [i for i in range(1, len(names)) if i != bias_argument]
    weight_names = [names[i] for i in weight_arguments]

    def kind_of(arguments: Sequence[Any]) -> OneWeight:
        by_expert = offsets_argument < len(arguments) and arguments[offsets_argument] is not None
        return BY_EXPERT if by_expert else ONE_WEIGHT

    def product(input: Tensor, *others: Any) -> Tensor:
        """For any number of leading dimensions, where the operator may take one alone."""
        if kind_of((input, *others)) is BY_EXPERT:
            return overload(input, *others)
        *leading, K = input.shape
        result = overload(input.reshape(math.prod(leading), K), *others)
        return result.reshape(*leading, result.shape[1])

    def bias_of(arguments: tuple[Any, ...]) -> Any:
        return arguments[bias_argument] if len(arguments) > bias_argument else None

    def is_by_plain_weight(arguments: tuple[Any, ...]) -> bool:
        return (
            operator == "weight_only_linear"
            and kind_of(arguments) is ONE_WEIGHT
            and prefers_plain_weight(arguments[0], arguments[names.index("code")])
        )

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Tensor:
            with torch._C._AutoDispatchBelowAutograd():
                if is_by_plain_weight(arguments):
                    parts = dict(zip(names, arguments, strict=False))
                    return ONE_WEIGHT.times(arguments[0], bias_of(arguments), dequantized, parts)
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
        def parts(ctx: Any) -> dict[str, Any]:
            saved = zip(weight_names, ctx.saved_tensors, ctx.others, strict=False)
            return {name: other if tensor is None else tensor for name, tensor, other in saved}

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            grads: list[Tensor | None] = [None] * ctx.count
            parts = Product.parts(ctx)
            if ctx.needs_input_grad[0]:
                grads[0] = ctx.kind.input_grad(grad, dequantized, parts)
            if ctx.bias_dtype is not None and ctx.needs_input_grad[bias_argument]:
                grads[bias_argument] = ctx.kind.bias_grad(grad, parts).to(ctx.bias_dtype)
            return tuple(grads)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Tensor:
            parts = Product.parts(ctx)
            bias = bias_of(tangents)
            bias = None if bias is None else bias.to(ctx.dtype)
            return ctx.kind.times(tangents[0], bias, dequantized, parts)

        vmap = staticmethod(vmap_rule(product, names))

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


def _register_linear(
    operator: str,
    transposed: Callable[..., Sequence[Any]],
    weight_grad: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Gradients of an operator that is linear in its first argument, the rows [T, A] of experts.

    transposed: of the other arguments, those with which the operator multiplies by the transposed weights
    weight_grad: of rows, offsets and the result's gradient, where the last argument is weights that train
    """
    overload = getattr(ao, operator).default

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Tensor:
            with torch._C._AutoDispatchBelowAutograd():
                return overload(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            tensors = [other if isinstance(other, Tensor) else None for other in inputs[1:]]
            rows = inputs[0] if weight_grad is not None else None
            ctx.save_for_backward(rows if ctx.needs_input_grad[-1] else None, *tensors)
            ctx.save_for_forward(rows, *tensors)
            ctx.others = [None if isinstance(other, Tensor) else other for other in inputs[1:]]

        @staticmethod
        def saved(ctx: Any) -> tuple[Any, list[Any]]:
            rows, *tensors = ctx.saved_tensors  # once: checkpointing lets nobody ask again
            pairs = zip(tensors, ctx.others, strict=True)
            return rows, [other if tensor is None else tensor for tensor, other in pairs]

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            rows, others = Linear.saved(ctx)
            grads: list[Tensor | None] = [None] * (1 + len(others))
            if ctx.needs_input_grad[0]:
                grads[0] = overload(grad, *transposed(*others))
            if rows is not None and weight_grad is not None:
                grads[-1] = weight_grad(rows, others[0], grad)
            return tuple(grads)

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor | None, *tangents: Any) -> Tensor:
            rows, others = Linear.saved(ctx)
            parts = [] if tangent is None else [overload(tangent, *others)]
            if weight_grad is not None and tangents[-1] is not None:
                parts.append(overload(rows, *others[:-1], tangents[-1]))
            return sum(parts[1:], parts[0])

        vmap = staticmethod(vmap_rule(overload, [argument.name for argument in overload._schema.arguments]))

    def kernel(rows: Tensor, *others: Any) -> Tensor:
        wanted = rows.requires_grad or (weight_grad is not None and others[-1].requires_grad)
        if (torch.is_grad_enabled() and wanted) or _in_forward_mode():
            return Linear.apply(rows, *others)
        with torch._C._AutoDispatchBelowAutograd():
            return overload(rows, *others)

    _library.impl(operator, kernel, "Autograd")
    _library.impl(
        operator,
        lambda *arguments: _transformed(Linear, overload, arguments),
        "FuncTorchDynamicLayerFrontMode",
    )


class _ExpertsGrad(torch.autograd.Function):
    """ao::_experts_grad, rowsᵀ·grad of each expert, which is linear in both."""

    @staticmethod
    def forward(rows: Tensor, offsets: Tensor, grad: Tensor) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return ao._experts_grad(rows, offsets, grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor, None, Tensor]:
        rows, offsets, grad = ctx.saved_tensors
        return times(grad, weights.mT, offsets), None, times(rows, weights, offsets)


def _experts_grad(rows: Tensor, offsets: Tensor, grad: Tensor) -> Tensor:
    if torch.is_grad_enabled() and (rows.requires_grad or grad.requires_grad):
        return _ExpertsGrad.apply(rows, offsets, grad)
    with torch._C._AutoDispatchBelowAutograd():
        return ao._experts_grad(rows, offsets, grad)


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
    *,
    weight: Tensor,
    scale: Tensor,
    block_size: list[int] | None = None,
    zero_point: Tensor | None = None,
    table: Tensor | None = None,
    global_scale: Tensor | None = None,
    code: int = Code.INT4,
    **_: Any,
) -> Tensor:
    """[N, K] of a weight in any format."""
    return ao.dequantize(weight, scale, code, block_size, zero_point, table, global_scale, dtype=dtype)


def _pack_dequantized(dtype: torch.dtype, *, weight: Tensor, scale_and_zero: Tensor, **_: Any) -> Tensor:
    qdata, scale, zero_point = tinygemm_to_plain(weight, scale_and_zero)
    return _dequantized(dtype, weight=qdata, scale=scale, zero_point=zero_point)


# Products with gradients, by what makes their weights plain.
_DEQUANTIZED: dict[str, Callable[..., Tensor]] = {
    "weight_only_linear": _dequantized,
    "scaled_linear": _dequantized,
    "bf16i4bf16_rowwise": _dequantized,
    "bf16i4bf16_rowwise_bias": _dequantized,
    "weight_int4pack_mm": _pack_dequantized,
}

for _operator in operators():
    if _operator in _DEQUANTIZED:
        _register(_operator, _DEQUANTIZED[_operator])
    else:
        batches.register(_operator)

_register_linear(
    "_times_experts", lambda offsets, weight: (offsets, weight.mT), lambda *given: ao._experts_grad(*given)
)
_register_linear(
    "_times_quantized_experts",
    lambda offsets, transposed, *operands: (offsets, not transposed, *operands),
)
_library.impl("_experts_grad", _experts_grad, "Autograd")
