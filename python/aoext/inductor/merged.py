"""int4 linears with one input (q, k and v; gate and up) become one call on their weights, one below the other.

On request only (Options.merge_linears): the merged weights are new memory, beside those of the model unless Inductor is
told to drop them (freezing_discard_parameters). Fires where qdata, scales, zero points and biases are constants
of the graph that nothing else reads, as Inductor's option `freezing` makes them; their groups must be of one size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node

from aoext.inductor import graph as fx
from aoext.inductor.graph import aten, known
from aoext.inductor.weight_only import constant_of

ao = torch.ops.ao

# The dimension along which N lies, of qdata, scale, zero_point and bias.
DIMENSIONS = (0, 1, 1, 0)


def merge(graph: Graph) -> int:
    """Rewrite all such groups of a graph; how many linears were merged."""
    groups: dict[Any, list[Node]] = defaultdict(list)
    for target in (ao.bf16i4bf16_rowwise.default, ao.bf16i4bf16_rowwise_bias.default):
        for node in graph.find_nodes(op="call_function", target=target):
            constants = [constant_of(argument) for argument in node.args[1:]]
            alone = all(fx.only_user(argument) is node for argument in node.args[1:])
            if alone and all(constant is not None for constant in constants):
                alike = tuple((c.dtype, c.device, c.shape[0] if d else None) for c, d in _with_dimensions(constants))
                groups[target, node.args[0], alike].append(node)
    merged = [linears for linears in groups.values() if len(linears) > 1]
    for linears in merged:
        _merge(graph, linears)
    return sum(map(len, merged))


def _with_dimensions(constants: Sequence[Any]) -> list[tuple[torch.Tensor, int]]:
    return list(zip(constants, DIMENSIONS, strict=False))


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
        fx.replace(linear, part)
        begin = end


def _joined(graph: Graph, nodes: list[Node], dimension: int) -> Node:
    """A new constant of the graph, in place of those of `nodes`."""
    module = graph.owning_module
    constants = [constant_of(node) for node in nodes]
    with unset_fake_temporarily():
        joined = torch.cat([constant.detach() for constant in constants if constant is not None], dimension)
    name = f"_aoext_merged_{sum(1 for known_name in vars(module)['_buffers'] if '_aoext_merged' in known_name)}"
    module.register_buffer(name, joined)
    node = graph.get_attr(name)
    fake_mode = known(nodes[0]).fake_mode  # type: ignore[attr-defined]
    node.meta["val"] = fake_mode.from_tensor(joined, static_shapes=True)
    return node
