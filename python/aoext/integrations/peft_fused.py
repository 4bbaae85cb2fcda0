"""LoRA's layers on quantised weights as one function, instead of a dozen of PEFT's operations.

It is for plain LoRA whose layers PyTorch calls as they are. All else goes PEFT's way: dropout, DoRA and other
variants, mixed batches, hooks, sharded parameters; compiled code too, which fuses by itself.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from aoext.integrations.peft_merging import Method, quantized_weight
from aoext.models.layers import QuantizedLinear
from aoext.operators.gradients import in_transform
from aoext.tensors import QuantizedTensor
from aoext.tensors.low_rank import Adapter, adapted_linear
from aoext.tensors.products import cast_by_autocast
from aoext.tensors.ranges import has_ranges

_FORWARDS = (nn.Linear.forward, QuantizedLinear.forward)


def fused(forward: Method) -> Method:
    """The forward of LoRA's linear layer."""

    @functools.wraps(forward)
    def adapted(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and not args and not kwargs:
            base = self._modules["base_layer"]
            weight = quantized_weight(base) if isinstance(base, nn.Linear) else None
            if weight is not None and _takes(weight, x) and _is_called_plainly(base):
                plain = x.dtype is weight.activation_dtype and not torch._C._is_any_autocast_enabled()
                input = x if plain else cast_by_autocast("linear", x, weight)
                adapters = _adapters(self, input.dtype)
                if adapters:
                    return adapted_linear(input, weight, base.bias, adapters)
        return forward(self, x, *args, **kwargs)

    return adapted


def _takes(weight: QuantizedTensor, input: Tensor) -> bool:
    return (
        type(input) is Tensor
        and weight.activation_dtype is not None
        and not weight.trains
        and not weight.transposed
        and not has_ranges(weight)
        and not in_transform()
    )


def _adapters(layer: Any, dtype: torch.dtype) -> list[Adapter] | None:
    """The active adapters of a layer whose products are in `dtype`; None if one of them is not plain LoRA."""
    if layer.disable_adapters or layer.merged or modules._has_any_global_hook():
        return None
    # What a module holds, read where it lies: asking the module for each costs as much as a product.
    parts = layer._modules
    all_a, all_b, dropouts = (parts[name]._modules for name in ("lora_A", "lora_B", "lora_dropout"))
    adapters = []
    for name in layer.active_adapters:
        if name not in all_a:
            continue
        dropout, scale = dropouts[name], layer.scaling[name]
        a, b = _factor(all_a[name], dtype), _factor(all_b[name], dtype)
        if (
            a is None
            or b is None
            or name in layer.lora_variant
            or not isinstance(scale, (int, float))
            or not (isinstance(dropout, nn.Identity) or not dropout.training)
        ):
            return None
        adapters.append(Adapter(a, b, scale))
    return adapters


def _factor(layer: Any, dtype: torch.dtype) -> Tensor | None:
    """The weight of a layer that is no more than a factor for activations in `dtype`; None for others.

    bfloat16 multiplies by parameters in float32 as under autocast; float16, whose range they may leave, does
    not.
    """
    parameters = layer._parameters
    weight = parameters.get("weight")
    takes = (
        _is_called_plainly(layer)
        and parameters["bias"] is None
        and type(weight) in (nn.Parameter, Tensor)
        and (weight.dtype is dtype or (dtype is torch.bfloat16 and weight.dtype is torch.float32))
    )
    return weight if takes else None


def _is_called_plainly(layer: nn.Module) -> bool:
    """Whether a call of a linear layer is its forward, and no hook or wrapper has a part in it."""
    return (
        type(layer).forward in _FORWARDS
        and "forward" not in layer.__dict__
        and not (
            layer._forward_hooks
            or layer._forward_pre_hooks
            or layer._backward_hooks
            or layer._backward_pre_hooks
        )
    )
