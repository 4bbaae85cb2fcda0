"""Reading and rewriting graphs of aten operators: what all passes share.

Graphs are functional where our passes run: a node's value never changes, and what is written into inputs is
written by copies at the end. A node carries a fake tensor of its value, from which shapes and dtypes are
read.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.operators.calls import bound

aten = torch.ops.aten
prims = torch.ops.prims

# Views that leave elements in their order; sizes are read off the result.
RESHAPES = {
    aten.reshape.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
    aten.clone.default,
    aten.alias.default,
}


def value(node: Any) -> Tensor | None:
    """The fake tensor of a node's value; None for what is no tensor."""
    found = node.meta.get("val") if isinstance(node, Node) else None
    return found if isinstance(found, Tensor) else None


def known(node: Any) -> Tensor:
    """As value, for a node that gives a tensor."""
    found = value(node)
    assert found is not None, node
    return found


def is_call(node: Any, *targets: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def only_user(node: Node) -> Node | None:
    """The one node that reads this one, if there is one alone."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def arguments(node: Node) -> dict[str, Any]:
    """The arguments of a call of one of our operators by their names; None of those that are left out."""
    target: Any = node.target
    return bound(target._opname, node.args, node.kwargs)


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal; asking adds no guard to a compiled graph."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return str(a) == str(b)


def same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def static_matrix(tensor: Tensor | None) -> bool:
    """Whether this is a contiguous matrix with columns whose sizes are numbers, as stored weights are."""
    return (
        tensor is not None
        and tensor.dim() == 2
        and all(isinstance(size, int) for size in tensor.shape)
        and tensor.shape[1] > 0
        and tensor.is_contiguous()
    )


def is_vector(tensor: Tensor) -> bool:
    """Whether at most one size differs from 1, so that an exchange of dimensions moves no element."""
    return sum(not same(size, 1) for size in tensor.shape) <= 1


def constant_of(node: Any) -> Tensor | None:
    """The tensor of a constant of the graph, as freezing makes them."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    found = getattr(node.graph.owning_module, str(node.target), None)
    return found if isinstance(found, Tensor) else None


def is_returned(node: Node) -> bool:
    """Whether the graph returns a node's value, or a view of it."""
    return any(user.op == "output" or (_is_view(user) and is_returned(user)) for user in node.users)


def _is_view(node: Node) -> bool:
    """Whether a node's value may lie in the memory of its input; an item of several views may, too."""
    target: Any = node.target
    return is_call(node, *RESHAPES, operator.getitem) or getattr(target, "is_view", False)


def is_transposition(node: Any) -> bool:
    """Whether a node exchanges the dimensions of a matrix."""
    if is_call(node, aten.t.default):
        return True
    if is_call(node, aten.permute.default):
        return [dim % 2 for dim in node.args[1]] == [1, 0] if len(node.args[1]) == 2 else False
    if is_call(node, aten.transpose.int) and known(node).dim() == 2:
        return {dim % 2 for dim in node.args[1:3]} == {0, 1}
    return False


def narrows(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether a conversion between floats only rounds, which a fused product need not do in between."""
    return source in FLOAT_DTYPES and target in FLOAT_DTYPES and source.itemsize >= target.itemsize


def is_conversion(node: Any) -> bool:
    return is_call(node, prims.convert_element_type.default)


def unrounded(node: Any) -> Any:
    """The node behind conversions that only round."""
    while is_conversion(node):
        source = value(node.args[0])
        if source is None or not narrows(source.dtype, node.args[1]):
            break
        node = node.args[0]
    return node


def on_one_device(*nodes: Any) -> bool:
    return len({known(node).device for node in nodes if node is not None}) == 1


def call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new call at the graph's point of insertion, with its fake value."""
    node = graph.call_function(target, args, kwargs)

    def fake(item: Any) -> Any:
        if isinstance(item, Node):
            return item.meta["val"]
        return [fake(each) for each in item] if isinstance(item, (list, tuple)) else item

    mode = next((known(a).fake_mode for a in args if value(a) is not None), None)  # type: ignore[attr-defined]
    named = {name: fake(item) for name, item in kwargs.items()}
    if mode is None:
        node.meta["val"] = target(*map(fake, args), **named)
    else:
        with mode:
            node.meta["val"] = target(*map(fake, args), **named)
    return node


def column(graph: Graph, scale: Any, rows: int, like: Node) -> Node:
    """A node [rows, 1] of a scale: a number, one element, or one for each row in whatever shape."""
    if not isinstance(scale, Node):
        return _full(graph, [rows, 1], float(scale), like)
    if known(scale).dtype not in FLOAT_DTYPES:
        scale = call(graph, prims.convert_element_type.default, scale, torch.float32)
    shape = known(scale).shape
    if same_shape(shape, (rows, 1)) and known(scale).is_contiguous():
        return scale
    if known(scale).numel() == 1 and rows != 1:
        scale = call(graph, aten.expand.default, call(graph, aten.reshape.default, scale, [1, 1]), [rows, 1])
        return call(graph, aten.clone.default, scale, memory_format=torch.contiguous_format)
    return call(graph, aten.reshape.default, scale, [rows, 1])


def _full(graph: Graph, size: list[int], fill: float, like: Node) -> Node:
    """A float32 tensor of one number, where `like` is."""
    options: dict[str, Any] = {"dtype": torch.float32, "device": known(like).device}
    node = graph.call_function(aten.full.default, (size, fill), options)
    with known(like).fake_mode:  # type: ignore[attr-defined]
        node.meta["val"] = torch.full(size, fill, **options)
    return node


def replace(old: Node, new: Node) -> None:
    """`new` takes the place of `old`, which goes, as does what only `old` read."""
    for name in ("stack_trace", "nn_module_stack"):  # the rest of its notes is about the old call's arguments
        if name in old.meta:
            new.meta[name] = old.meta[name]
    old.replace_all_uses_with(new)
    erase(old)


def erase(node: Node) -> None:
    """Remove a node that nobody reads, and its inputs that nobody else reads; not those of the graph."""
    inputs = node.all_input_nodes
    node.graph.erase_node(node)
    for each in inputs:
        if not each.users and each.op in ("call_function", "get_attr") and not each.is_impure():
            erase(each)
