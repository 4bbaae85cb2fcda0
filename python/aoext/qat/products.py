"""Products with a plain weight as its quantised one gives them, and their gradients.

The forward quantises the weight and calls what a converted layer calls. The backward has the quantised weight
from the forward; of the gradient that it finds for that, Grid.gradients makes those of what trains.

Operators, because rounding looks at values, where a graph would break, and because compiled code shall
round as all other does. A scheme comes to them as text in JSON.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aoext.configs.base import QuantizationConfig
from aoext.formats.dtypes import EXPONENT_DTYPES
from aoext.packing.blockwise import in_blocks
from aoext.qat.schemes import Scheme, config_of, form_of, grid_of, quantized
from aoext.quality.grid import Grid
from aoext.tensors import QuantizedTensor
from aoext.tensors.each_expert import expert_of
from aoext.tensors.fields import K
from aoext.tensors.lookups import lookup
from aoext.tensors.products import in_operators_dtype

ao = torch.ops.ao

# The operators live as long as this object.
_library = torch.library.Library("ao", "FRAGMENT")


# The forward


def trained_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None, scheme: Scheme, offsets: Tensor | None = None
) -> Tensor:
    """F.linear as the layer that is converted gives it; beside offsets by the experts of rows."""
    config, *numbers = scheme
    result: Tensor = ao._trained_linear(input, weight, bias, offsets, *numbers, config)[0]
    return result


def trained_lookup(indices: Tensor, weight: Tensor, scheme: Scheme, padding: int = -1) -> Tensor:
    """F.embedding as the layer that is converted gives it; the row `padding` gets no gradient."""
    config, *numbers = scheme
    result: Tensor = ao._trained_lookup(indices, weight, padding, *numbers, config)
    return result


_NUMBERS = "Tensor? scale, Tensor? offset, Tensor? global_scale, str config"


def _operator(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Define an operator with the decorated function as its kernel, without autocast and gradients."""

    def define(kernel: Callable[..., Any]) -> Callable[..., Any]:
        _library.define(schema)

        @functools.wraps(kernel)
        def run(*arguments: Any) -> Any:
            with torch.no_grad(), torch._C._DisableAutocast():
                return kernel(*arguments)

        _library.impl(schema.partition("(")[0], run, "CompositeExplicitAutograd")
        return kernel

    return define


@_operator(
    f"_trained_linear(Tensor input, Tensor weight, Tensor? bias, Tensor? offsets, {_NUMBERS}) -> Tensor[]"
)
def _trained_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor | None, *scheme: Any
) -> list[Tensor]:
    """The product, and the fields of the quantised weight."""
    *numbers, config = scheme
    own = quantized(weight, Scheme(config, *numbers))
    # Copies of what may be memory of an argument, or of a table.
    fields = [t if name == "qdata" else t.clone() for name, t in own.named_fields()]
    return [in_operators_dtype(input, own, bias, False, offsets), *fields]


@_operator(f"_trained_lookup(Tensor indices, Tensor weight, int padding, {_NUMBERS}) -> Tensor")
def _trained_lookup(indices: Tensor, weight: Tensor, padding: int, *scheme: Any) -> Tensor:
    *numbers, config = scheme
    return lookup(indices, quantized(weight, Scheme(config, *numbers)))


# The backward


@_operator(
    "_trained_linear_backward(Tensor grad, Tensor input, Tensor weight, Tensor? offsets, Tensor[] fields, "
    f"bool of_input, bool of_weight, {_NUMBERS}) -> Tensor[]"
)
def _trained_linear_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None,
    fields: Sequence[Tensor],
    of_input: bool,
    of_weight: bool,
    *scheme: Any,
) -> list[Tensor]:
    """The gradient of input, then that of the weight, scale and offset, as far as they are wanted."""
    *numbers, config = scheme
    form = form_of(config_of(config), weight)
    own = form.remade(dict(zip((name for name, _ in form.named_fields()), fields, strict=True)))
    grads = []
    if of_input:
        grads.append(own._linear_backward(grad, offsets))
    if of_weight:
        rows = _as_multiplied(input, own).to(grad.dtype)
        if offsets is None:
            of_quantized = grad.reshape(-1, grad.shape[-1]).t() @ rows.reshape(-1, rows.shape[-1])
        else:
            of_quantized = ao._experts_grad(grad, offsets, rows)
        grads += _through_rounding(of_quantized, weight, own, Scheme(config, *numbers))
    return grads


@_operator(
    "_trained_lookup_backward(Tensor grad, Tensor indices, Tensor weight, int padding, "
    f"{_NUMBERS}) -> Tensor[]"
)
def _trained_lookup_backward(
    grad: Tensor, indices: Tensor, weight: Tensor, padding: int, *scheme: Any
) -> list[Tensor]:
    *numbers, config = scheme
    of_quantized = torch.zeros_like(weight, dtype=torch.float32)
    flat = indices.reshape(-1).long()
    rows = grad.reshape(len(flat), -1).float().masked_fill((flat == padding).unsqueeze(1), 0)
    of_quantized.index_add_(0, flat, rows)
    own = Scheme(config, *numbers)
    return _through_rounding(of_quantized, weight, quantized(weight, own), own)


def _as_multiplied(input: Tensor, weight: QuantizedTensor) -> Tensor:
    """The input as the product took it: rounded, where it is quantised for it."""
    if weight.input_dtype is None:
        return input
    block = weight.input_block or [1, input.shape[-1]]
    codes, scale = ao.quantize(
        input, weight.input_dtype, block, power_of_two=weight.scale.dtype in EXPONENT_DTYPES
    )
    rounded = in_blocks(codes.float(), block[K]) * scale.unsqueeze(-1)
    return rounded.flatten(-2)[..., : input.shape[-1]]


def _through_rounding(grad: Tensor, weight: Tensor, own: QuantizedTensor, scheme: Scheme) -> list[Tensor]:
    """The gradients of a weight, and of scale and offset where they train, from that of the quantised one."""
    learnt = [each for each in scheme[1:] if each is not None]
    config = config_of(scheme.config)
    if weight.dim() == 3:
        of_experts = [
            _of_matrix(grad[e], weight[e], expert_of(own, e), [each[e] for each in learnt], config)
            for e in range(len(weight))
        ]
        return [torch.stack(each) for each in zip(*of_experts, strict=True)]
    return _of_matrix(grad, weight, own, learnt, config)


def _of_matrix(
    grad: Tensor, weight: Tensor, own: QuantizedTensor, learnt: list[Tensor], config: QuantizationConfig
) -> list[Tensor]:
    grid = grid_of(config, weight, *learnt) if learnt else Grid.of(own)
    of_weight, of_scale, of_offset = grid.gradients(weight.float(), grad.float())
    grads = [of_weight.to(weight.dtype)]
    if learnt:
        # As LSQ has it, so that a scale moves as fast as weights, in proportion to its size.
        values = math.prod(grid.block_size)
        factor = 1 / math.sqrt(values * grid.levels.largest)
        grads += [(each * factor).to(weight.dtype) for each in (of_scale, of_offset) if each is not None]
    return grads


# What autograd and torch.compile ask of the operators


def _forms(weight: Tensor, config: str) -> list[Tensor]:
    form = form_of(config_of(config), weight)
    return [weight.new_empty(field.shape, dtype=field.dtype) for _, field in form.named_fields()]


def _of_all(weight: Tensor, *numbers: Tensor | None) -> list[Tensor]:
    """Gradients of the weight, of scale and of offset, without values."""
    return [torch.empty_like(each) for each in (weight, *numbers[:2]) if each is not None]


def _fake_linear(input: Tensor, weight: Tensor, bias: Any, offsets: Any, *scheme: Any) -> list[Tensor]:
    result = input.new_empty((*input.shape[:-1], weight.shape[-2]))
    return [result, *_forms(weight, scheme[-1])]


def _fake_linear_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    offsets: Any,
    fields: Any,
    of_input: bool,
    of_weight: bool,
    *rest: Any,
) -> list[Tensor]:
    grads = [grad.new_empty(input.shape)] if of_input else []
    return [*grads, *_of_all(weight, *rest[:-1])] if of_weight else grads


torch.library.register_fake("ao::_trained_linear", _fake_linear)
torch.library.register_fake("ao::_trained_linear_backward", _fake_linear_backward)
torch.library.register_fake(
    "ao::_trained_lookup",
    lambda indices, weight, *_: weight.new_empty((*indices.shape, weight.shape[1])),
)
torch.library.register_fake(
    "ao::_trained_lookup_backward", lambda grad, indices, weight, padding, *rest: _of_all(weight, *rest[:-1])
)


def _keep_linear(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    input, weight, bias, offsets, *numbers, ctx.config = inputs
    ctx.has_bias, ctx.bias_dtype = bias is not None, None if bias is None else bias.dtype
    ctx.save_for_backward(input, weight, offsets, *numbers, *output[1:])


def _linear_grads(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    grad = grads[0]
    input, weight, offsets, scale, offset, global_scale, *fields = ctx.saved_tensors
    needs = ctx.needs_input_grad
    of_input, of_weight = needs[0], needs[1] or needs[4] or needs[5]
    numbers = (scale, offset, global_scale, ctx.config)
    found = ao._trained_linear_backward(grad, input, weight, offsets, fields, of_input, of_weight, *numbers)
    rest = list(found)
    input_grad = rest.pop(0).to(input.dtype) if of_input else None
    of_all = _in_places(rest, scale, offset) if of_weight else (None, None, None)
    bias_grad = None
    if ctx.has_bias and needs[2]:
        bias_grad = _bias_grad(grad, offsets).to(ctx.bias_dtype)
    return input_grad, of_all[0], bias_grad, None, of_all[1], of_all[2], None, None


def _bias_grad(grad: Tensor, offsets: Tensor | None) -> Tensor:
    if offsets is None:
        return grad.reshape(-1, grad.shape[-1]).sum(0, dtype=torch.float32)
    ones = grad.new_ones(grad.shape[0], 1)
    sums: Tensor = ao._experts_grad(ones, offsets, grad)
    return sums.squeeze(1)


def _in_places(found: list[Tensor], *numbers: Tensor | None) -> tuple[Tensor | None, ...]:
    rest = iter(found)
    return next(rest), *(None if each is None else next(rest) for each in numbers)


def _keep_lookup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    indices, weight, ctx.padding, *numbers, ctx.config = inputs
    ctx.save_for_backward(indices, weight, *numbers)


def _lookup_grads(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    indices, weight, scale, offset, global_scale = ctx.saved_tensors
    found = ao._trained_lookup_backward(
        grad, indices, weight, ctx.padding, scale, offset, global_scale, ctx.config
    )
    of_weight, *of_numbers = _in_places(list(found), scale, offset)
    return None, of_weight, None, *of_numbers, None, None


torch.library.register_autograd("ao::_trained_linear", _linear_grads, setup_context=_keep_linear)
torch.library.register_autograd("ao::_trained_lookup", _lookup_grads, setup_context=_keep_lookup)
