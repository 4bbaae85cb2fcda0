"""int4 linears with one input (q, k and v; gate and up) become one call on joined weights.

On request only (Options.merge_linears): the merged weights are new memory, beside those of the model unless
Inductor is told to drop them (freezing_discard_parameters). Fires where qdata, scales, zero points and
biases are constants of the graph that nothing else reads, as torch._inductor.config.freezing
makes them; their groups must be of one size.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node

from aoext.inductor import graph as fx
from aoext.inductor.graph import aten, constant_of, known

ao = torch.ops.ao

# The dimension along which N lies, of qdata, scale, zero_point and bias.
DIMENSIONS = (0, 1, 1, 0)


def merge(graph: Graph) -> int:
    """Rewrite all such groups of a graph; how many linears were merged."""
    groups: dict[Any, list[Node]] = defaultdict(list)
    for target in (ao.bf16i4bf16_rowwise.default, ao.bf16i4bf16_rowwise_bias.default):
        for node in graph.find_nodes(op="call_function", target=target):
            alike = _form(node)
            if alike is not None:
                groups[target, node.args[0], alike].append(node)
    merged = [linears for linears in groups.values() if len(linears) > 1]
    for linears in merged:
        _merge(graph, linears)
    return sum(map(len, merged))


def _form(linear: Node) -> tuple[Any, ...] | None:
    """What linears must have in common; None where something is no constant, or read elsewhere."""
    form = []
    for argument, dimension in zip(linear.args[1:], DIMENSIONS, strict=False):
        constant = constant_of(argument)
        if constant is None or not isinstance(argument, Node) or fx.only_user(argument) is not linear:
            return None
        other = None if constant.dim() == 1 else constant.shape[1 - dimension]
        form.append((constant.dtype, constant.device, other))
    return tuple(form)


def _merge(graph: Graph, linears: list[Node]) -> None:
    first = linears[0]
    with graph.inserting_before(first):
        columns = zip(*(linear.args[1:] for linear in linears), strict=True)
        arguments = [_joined(graph, list(column), d) for column, d in zip(columns, DIMENSIONS, strict=False)]
        product = fx.call(graph, first.target, first.args[0], *arguments)
    begin = 0
    for linear in linears:
        end = begin + known(linear).shape[-1]
        with graph.inserting_before(linear):
            part = fx.call(graph, aten.slice.Tensor, product, -1, begin, end)
            if fx.is_returned(linear):  # with the strides and in the memory that eager gives it
                part = fx.call(graph, aten.clone.default, part, memory_format=torch.contiguous_format)
        fx.replace(linear, part)
        begin = end


def _joined(graph: Graph, nodes: list[Node], dimension: int) -> Node:
    """A new constant of the graph, in place of those of `nodes`."""
    module = graph.owning_module
    assert module is not None
    constants = [constant_of(node) for node in nodes]
    with unset_fake_temporarily():
        joined = torch.cat([constant.detach() for constant in constants if constant is not None], dimension)
    name = next(name for i in count() if not hasattr(module, name := f"_aoext_merged_{i}"))
    module.register_buffer(name, joined)
    node = graph.get_attr(name)
    fake_mode = known(nodes[0]).fake_mode  # type: ignore[attr-defined]
    node.meta["val"] = fake_mode.from_tensor(joined, static_shapes=True)
    return node
