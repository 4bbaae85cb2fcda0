"""With max_autotune, Inductor times the weight-only operators against dequantisation and a plain product.

The operator stays unless the other way is faster by a margin that is not noise, so the outcome is never
slower than the plan alone. Only products whose sizes are numbers are timed: what is best for one number of
rows need not be for another, and one graph serves them all where they are dynamic. Needs
register_custom_op_autotuning, of torch 2.13; without it nothing is timed, and the operators' own plans
choose as always.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from aoext.inductor.options import current

ao = torch.ops.ao

MARGIN = 1.05


def _int4(x: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, ao.dequantize_int4(weight, scale, zero_point, dtype=x.dtype))


def _int4_bias(x: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor, bias: Tensor) -> Tensor:
    return (_int4(x, weight, scale, zero_point).float() + bias.float()).to(x.dtype)


def _rows(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    y = torch.nn.functional.linear(x, (weight.float() * scale.float()).to(x.dtype))
    return y if bias is None else (y.float() + bias.float()).to(x.dtype)


# What else gives an operator's result. (Sums with a bias are made in float32, which Inductor fuses.)
ALTERNATIVES: dict[str, Callable[..., Tensor]] = {
    "bf16i4bf16_rowwise": _int4,
    "bf16i4bf16_rowwise_bias": _int4_bias,
    "bf16i8bf16_rowwise": _rows,
    "bf16f8bf16_rowwise": _rows,
}


def wanted() -> bool:
    """Whether what is compiled now is to be timed."""
    from torch._inductor import config

    options = current()
    return options.enabled and options.autotune and (config.max_autotune or config.max_autotune_gemm)


def register_if_wanted() -> None:
    """Tell Inductor of the alternatives, the first time that something is to be timed."""
    if wanted():
        _register()


@cache
def _register() -> bool:
    """Whether this torch can time operators of others."""
    try:
        from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning
    except ImportError:
        return False
    if "min_speedup_threshold" not in inspect.signature(register_custom_op_autotuning).parameters:
        return False  # before torch 2.13: noise alone would decide

    def choices(alternative: Callable[..., Tensor]) -> Callable[[dict[str, Tensor]], list[Any]]:
        def generate(tensors: dict[str, Tensor]) -> list[Any]:
            fixed = all(isinstance(size, int) for tensor in tensors.values() for size in tensor.shape)
            return [CustomOpConfig(alternative)] if fixed and wanted() else []

        return generate

    for name, alternative in ALTERNATIVES.items():
        register_custom_op_autotuning(
            getattr(ao, name).default, config_generator=choices(alternative), min_speedup_threshold=MARGIN
        )
    return True
