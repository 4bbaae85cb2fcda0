"""A bias that is added to the result of an operator goes into the operator.

Fires for a bias [N] that is all that reads the product (a reshape may stand between) and does not widen its
dtype. Activations after the bias stay where they are: no device has a kernel with one, and Inductor fuses
them with what follows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from aoext.inductor import graph as fx
from aoext.inductor.graph import aten, is_call, known
from aoext.inductor.weight_only import is_bias

ao = torch.ops.ao

# Operators by those that take a bias, and its position among their arguments.
WITH_BIAS: dict[Any, tuple[Any, int]] = {
    ao.bf16i4bf16_rowwise.default: (ao.bf16i4bf16_rowwise_bias.default, 4),
    ao.bf16i8bf16_rowwise.default: (ao.bf16i8bf16_rowwise.default, 3),
    ao.bf16f8bf16_rowwise.default: (ao.bf16f8bf16_rowwise.default, 3),
    ao.scaled_linear_rowwise.default: (ao.scaled_linear_rowwise.default, 3),
    ao.scaled_mm_rowwise.default: (ao.scaled_mm_rowwise.default, 4),
    ao.bf16i8bf16_blockwise.default: (ao.bf16i8bf16_blockwise.default, 4),
    ao.bf16i8bf16_blockwise_zp.default: (ao.bf16i8bf16_blockwise_zp.default, 5),
    ao.bf16f8bf16_blockwise.default: (ao.bf16f8bf16_blockwise.default, 4),
    ao.bf16lut4bf16_blockwise.default: (ao.bf16lut4bf16_blockwise.default, 6),
    ao.scaled_linear_blockwise.default: (ao.scaled_linear_blockwise.default, 5),
    ao.scaled_mm_blockwise.default: (ao.scaled_mm_blockwise.default, 6),
    ao.scaled_linear_int4.default: (ao.scaled_linear_int4.default, 4),
    ao.scaled_mm_int4.default: (ao.scaled_mm_int4.default, 5),
}


def fuse(graph: Graph) -> int:
    """Rewrite all such sums of a graph; how many there were."""
    count = 0
    for target in WITH_BIAS:
        for node in graph.find_nodes(op="call_function", target=target):
            count += _fuse_sum(graph, node)
    return count


def _fuse_sum(graph: Graph, product: Node) -> bool:
    operator, position = WITH_BIAS[product.target]
    if fx.argument(product, position, "bias") is not None:
        return False
    reshaped = fx.only_user(product)
    rows = known(product).shape[-1]
    if reshaped is not None and is_call(reshaped, aten.reshape.default, aten.view.default):
        before = reshaped if fx.same(known(reshaped).shape[-1], rows) else None
    else:
        before, reshaped = product, None
    total = fx.only_user(before) if before is not None else None
    if before is None or total is None or not is_call(total, aten.add.Tensor) or total.kwargs:
        return False
    bias = next((a for a in total.args if a is not before), None)
    if not isinstance(bias, Node) or not is_bias(bias, rows):
        return False
    if known(total).dtype is not known(product).dtype or not fx.on_one_device(product, bias):
        return False
    left_out = [None] * (position - len(product.args))
    with graph.inserting_before(total):
        fused = fx.call(graph, operator, *product.args[:position], *left_out, bias, **product.kwargs)
        if reshaped is not None:
            fused = fx.call(graph, reshaped.target, fused, reshaped.args[1])
    fx.replace(total, fused)
    return True
