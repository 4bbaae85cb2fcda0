"""Linears with one input and scales of groups or blocks (q, k and v; gate and up) become one call.

On request only (Options.merge_linears): the merged weights are new memory, beside those of the model unless
Inductor is told to drop them (freezing_discard_parameters). Fires where the fields of weights and biases
are constants of the graph that nothing else reads, as torch._inductor.config.freezing makes them; what has
no rows of the weight, such as block sizes and tables, must be equal, and all but the last must have whole
blocks.
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

# Of the arguments behind the input, the dimension along which N lies, or None of those that must be equal:
# of qdata, scale, zero_point and bias; of qdata, scale, block_size and bias; and so on.
INT4, BLOCKS = (0, 1, 1, 0), (0, 0, None, 0)
DIMENSIONS: dict[Any, tuple[int | None, ...]] = {
    ao.bf16i4bf16_rowwise.default: INT4,
    ao.bf16i4bf16_rowwise_bias.default: INT4,
    ao.scaled_linear_int4.default: INT4,
    ao.bf16i8bf16_blockwise.default: BLOCKS,
    ao.bf16i8bf16_blockwise_zp.default: (0, 0, 0, None, 0),
    ao.bf16f8bf16_blockwise.default: BLOCKS,
    ao.scaled_linear_blockwise.default: (0, 0, None, None, 0),
    ao.bf16lut4bf16_blockwise.default: (0, None, 0, None, None, 0),
}
# Which of those arguments has the rows that share a scale.
BLOCK_SIZE: dict[Any, int] = {
    ao.bf16i8bf16_blockwise.default: 2,
    ao.bf16i8bf16_blockwise_zp.default: 3,
    ao.bf16f8bf16_blockwise.default: 2,
    ao.scaled_linear_blockwise.default: 3,
    ao.bf16lut4bf16_blockwise.default: 3,
}


def merge(graph: Graph) -> int:
    """Rewrite all such groups of a graph; how many linears were merged."""
    groups: dict[Any, list[list[Node]]] = defaultdict(list)
    for target in DIMENSIONS:
        for node in graph.find_nodes(op="call_function", target=target):
            alike = _form(node)
            if alike is not None:
                _add(groups[target, node.args[0], alike], node)
    merged = [linears for sets in groups.values() for linears in sets if len(linears) > 1]
    for linears in merged:
        _merge(graph, linears)
    return sum(map(len, merged))


def _form(linear: Node) -> tuple[Any, ...] | None:
    """What linears must have in common; None where something is no constant, or read elsewhere."""
    form: list[Any] = [str(linear.kwargs)]
    for argument, dimension in zip(linear.args[1:], DIMENSIONS[linear.target], strict=False):
        if not isinstance(argument, Node):
            form.append(str(argument))
            continue
        constant = constant_of(argument)
        if constant is None or fx.only_user(argument) is not linear:
            return None
        if dimension is None:
            shape: Any = constant.shape
        else:
            shape = None if constant.dim() == 1 else constant.shape[1 - dimension]
        form.append((constant.dtype, constant.device, shape))
    return tuple(form)


def _add(sets: list[list[Node]], linear: Node) -> None:
    """Put a linear to the first of its form that it can stand behind, else alone."""
    for linears in sets:
        if _has_whole_blocks(linears[-1]) and _common_are_equal(linears[0], linear):
            linears.append(linear)
            return
    sets.append([linear])


def _has_whole_blocks(linear: Node) -> bool:
    at = BLOCK_SIZE.get(linear.target)
    if at is None:
        return True
    block_size: Any = linear.args[1 + at]
    return known(linear).shape[-1] % block_size[0] == 0


def _common_are_equal(one: Node, other: Node) -> bool:
    arguments = zip(one.args[1:], other.args[1:], DIMENSIONS[one.target], strict=False)
    pairs = [(constant_of(a), constant_of(b)) for a, b, dimension in arguments if dimension is None]
    with unset_fake_temporarily():
        return all(a is None or b is None or torch.equal(a, b) for a, b in pairs)


def _merge(graph: Graph, linears: list[Node]) -> None:
    first = linears[0]
    with graph.inserting_before(first):
        columns = zip(*(linear.args[1:] for linear in linears), strict=True)
        arguments = [
            column[0] if dimension is None or column[0] is None else _joined(graph, list(column), dimension)
            for column, dimension in zip(columns, DIMENSIONS[first.target], strict=False)
        ]
        product = fx.call(graph, first.target, first.args[0], *arguments, **first.kwargs)
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
