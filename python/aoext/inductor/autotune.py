"""With max_autotune, Inductor times products with int4 weights against dequantisation and a plain product.

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
from torch.fx import Graph, Node

from aoext.formats.table import Code
from aoext.inductor import graph as fx
from aoext.inductor.options import current

ao = torch.ops.ao

MARGIN = 1.05


def _int4(x: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    plain = ao.dequantize(weight, scale, int(Code.INT4), None, zero_point, dtype=x.dtype)
    return torch.nn.functional.linear(x, plain)


def _int4_bias(x: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor, bias: Tensor) -> Tensor:
    return (_int4(x, weight, scale, zero_point).float() + bias.float()).to(x.dtype)


# What else gives an operator's result. (Sums with a bias are made in float32, which Inductor fuses.) Inductor
# takes tensors for an operator's first arguments, so these stand for the products that are timed.
ALTERNATIVES: dict[str, Callable[..., Tensor]] = {
    "bf16i4bf16_rowwise": _int4,
    "bf16i4bf16_rowwise_bias": _int4_bias,
}


def use_timed(graph: Graph) -> int:
    """Write products that are to be timed as the operators that Inductor times; how many there were."""
    count = 0
    if wanted():
        for node in graph.find_nodes(op="call_function", target=ao.weight_only_linear.default):
            count += _use_timed(graph, node)
    return count


def _use_timed(graph: Graph, product: Node) -> bool:
    given = fx.arguments(product)
    if given["code"] != Code.INT4 or given["block_size"] or given["offsets"] is not None:
        return False
    operands = [given[name] for name in ("input", "weight", "scale", "zero_point")]
    target = ao.bf16i4bf16_rowwise.default
    if given["bias"] is not None:
        target = ao.bf16i4bf16_rowwise_bias.default
        operands.append(given["bias"])
    with graph.inserting_before(product):
        timed = fx.call(graph, target, *operands)
    # A traced call has them too. Without, Inductor asks inputs for strides that it has not put into memory.
    timed.meta["eager_input_vals"] = tuple(map(fx.known, operands)), {}
    fx.replace(product, timed)
    return True


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
