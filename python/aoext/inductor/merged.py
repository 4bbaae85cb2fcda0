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

from aoext.formats.table import FORMATS, Code
from aoext.inductor import graph as fx
from aoext.inductor.graph import aten, constant_of, known

ao = torch.ops.ao

LINEARS = (ao.weight_only_linear.default, ao.scaled_linear.default)


def merge(graph: Graph) -> int:
    """Rewrite all such groups of a graph; how many linears were merged."""
    groups: dict[Any, list[list[Node]]] = defaultdict(list)
    for target in LINEARS:
        for node in graph.find_nodes(op="call_function", target=target):
            alike = _form(node)
            if alike is not None:
                _add(groups[target, node.args[0], alike], node)
    merged = [linears for sets in groups.values() for linears in sets if len(linears) > 1]
    for linears in merged:
        _merge(graph, linears)
    return sum(map(len, merged))


def _dimensions(linear: Node) -> list[int | None]:
    """The dimension along which N lies, of each positional argument behind the input; None of the others."""
    scales = 1 if FORMATS[Code(fx.arguments(linear)["code"])].scales == "groups" else 0
    known_ones = {"weight": 0, "scale": scales, "zero_point": scales, "bias": 0}
    names = list(fx.arguments(linear))[1 : len(linear.args)]
    return [known_ones.get(name) for name in names]


def _form(linear: Node) -> tuple[Any, ...] | None:
    """What linears must have in common; None where something is no constant, or read elsewhere."""
    arguments = fx.arguments(linear)
    by_groups = FORMATS[Code(arguments["code"])].scales == "groups"
    if arguments["offsets"] is not None or not (by_groups or arguments["block_size"]):
        return None
    form: list[Any] = [str(linear.kwargs)]
    for argument, dimension in zip(linear.args[1:], _dimensions(linear), strict=True):
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
    block_size = fx.arguments(linear)["block_size"]
    return block_size is None or known(linear).shape[-1] % block_size[0] == 0


def _common_are_equal(one: Node, other: Node) -> bool:
    arguments = zip(one.args[1:], other.args[1:], _dimensions(one), strict=True)
    pairs = [(constant_of(a), constant_of(b)) for a, b, dimension in arguments if dimension is None]
    with unset_fake_temporarily():
        return all(a is None or b is None or torch.equal(a, b) for a, b in pairs)


def _merge(graph: Graph, linears: list[Node]) -> None:
    first = linears[0]
    with graph.inserting_before(first):
        columns = zip(*(linear.args[1:] for linear in linears), strict=True)
        arguments = [
            column[0] if dimension is None or column[0] is None else _joined(graph, list(column), dimension)
            for column, dimension in zip(columns, _dimensions(first), strict=True)
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
