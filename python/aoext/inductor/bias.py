"""A bias that is added to the result of an operator goes into the operator.

Fires for a bias [N] that is all that reads the product (a reshape may stand between) and does not widen its
dtype. Activations after the bias stay where they are: no device has a kernel with one, and Inductor fuses
them with what follows.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from aoext.inductor import graph as fx
from aoext.inductor.graph import aten, is_call, known
from aoext.inductor.weight_only import is_bias
from aoext.operators.calls import ao, operators


def _position_of_bias(target: Any) -> int | None:
    names = [argument.name for argument in target._schema.arguments]
    return names.index("bias") if "bias" in names else None


# Operators by those that take a bias, and its position among their arguments.
WITH_BIAS: dict[Any, tuple[Any, int]] = {
    target: (target, position)
    for target in (getattr(ao, name).default for name in operators())
    if (position := _position_of_bias(target)) is not None
}
WITH_BIAS[ao.bf16i4bf16_rowwise.default] = WITH_BIAS[ao.bf16i4bf16_rowwise_bias.default]


def fuse(graph: Graph) -> int:
    """Rewrite all such sums of a graph; how many there were."""
    count = 0
    for target in WITH_BIAS:
        for node in graph.find_nodes(op="call_function", target=target):
            count += _fuse_sum(graph, node)
    return count


def _fuse_sum(graph: Graph, product: Node) -> bool:
    operator, position = WITH_BIAS[product.target]
    given = fx.arguments(product)
    if given.get("bias") is not None or given.get("offsets") is not None:  # each expert has a bias of its own
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
        arguments = [*product.args[:position], *left_out, bias, *product.args[position + 1 :]]
        fused = fx.call(graph, operator, *arguments, **product.kwargs)
        if reshaped is not None:
            fused = fx.call(graph, reshaped.target, fused, reshaped.args[1])
    fx.replace(total, fused)
    return True
