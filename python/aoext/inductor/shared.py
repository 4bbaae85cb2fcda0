"""Linears that quantise one activation alike (q, k and v; gate and up) quantise it once.

    scaled_linear_rowwise(x, w₁, s₁), scaled_linear_rowwise(x, w₂, s₂), …
      ->  q, s = quantize_rowwise(x, dtype)
          scaled_mm_rowwise(q, w₁, s, s₁), scaled_mm_rowwise(q, w₂, s, s₂), …

and likewise of scaled_linear_int4, with the same quantisation, and of scaled_linear_blockwise. The contract
makes both the same, bit for bit. A linear that is alone stays in one piece, and so do those that the device's
kernel quantises for on its own: sharing would be one launch more.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node

from aoext.formats.dtypes import EXPONENT_DTYPES
from aoext.inductor import graph as fx
from aoext.inductor.graph import known, value
from aoext.library.info import explain
from aoext.operators.calls import bound

ao = torch.ops.ao

# Linears that quantise their input, and the products that they have within.
LINEARS: dict[Any, Any] = {
    ao.scaled_linear_rowwise.default: ao.scaled_mm_rowwise.default,
    ao.scaled_linear_int4.default: ao.scaled_mm_int4.default,
    ao.scaled_linear_blockwise.default: ao.scaled_mm_blockwise.default,
}


class Quantization(NamedTuple):
    """How a linear quantises its input."""

    x: Node
    dtype: torch.dtype
    block: tuple[int, ...] | None = None  # None for whole rows
    power_of_two: bool = False

    def call(self, graph: Graph) -> Node:
        if self.block is None:
            return fx.call(graph, ao.quantize_rowwise.default, self.x, self.dtype)
        block, options = list(self.block), {"power_of_two": self.power_of_two}
        return fx.call(graph, ao.quantize_blockwise.default, self.x, self.dtype, block, **options)


def share(graph: Graph) -> int:
    """Rewrite all such groups of a graph; how many linears share now."""
    count = 0
    for quantization, linears in alike(graph).items():
        if len(linears) > 1 and not all(map(takes_one_kernel, linears)):
            split(graph, quantization, linears)
            count += len(linears)
    return count


def alike(graph: Graph) -> dict[Quantization, list[Node]]:
    """The linears of a graph by what they quantise, and how, in the graph's order."""
    groups: dict[Quantization, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if fx.is_call(node, *LINEARS):
            groups[_quantization(node)].append(node)
    return groups


def _arguments(linear: Node) -> dict[str, Any]:
    """A call's arguments by their names; None of those that are left out."""
    return bound(_name(linear), linear.args, linear.kwargs)


def _name(linear: Node) -> str:
    target: Any = linear.target
    return target._opname


def _quantization(linear: Node) -> Quantization:
    arguments = _arguments(linear)
    x = arguments["input"]
    if fx.is_call(linear, ao.scaled_linear_int4.default):
        return Quantization(x, arguments["input_dtype"] or torch.int8)
    dtype = known(arguments["weight"]).dtype
    if fx.is_call(linear, ao.scaled_linear_rowwise.default):
        return Quantization(x, dtype)
    power_of_two = known(arguments["weight_scale"]).dtype in EXPONENT_DTYPES
    return Quantization(x, dtype, tuple(arguments["input_block"]), power_of_two)


def takes_one_kernel(linear: Node) -> bool:
    """Whether the device quantises and multiplies in one kernel; False where sizes are not known."""
    arguments = {name: a for name, a in _arguments(linear).items() if a is not None}
    tensors = [found for a in arguments.values() if (found := value(a)) is not None]
    if any(not isinstance(size, int) for tensor in tensors for size in tensor.shape):
        return False

    def unread(argument: Any) -> Any:
        found = value(argument)
        if found is None:
            return argument
        return torch.empty(found.shape, dtype=found.dtype, device=found.device)

    with unset_fake_temporarily():
        alike = {name: unread(argument) for name, argument in arguments.items()}
        return "quantizes_input" in explain(_name(linear), **alike).choices


def split(graph: Graph, quantization: Quantization, linears: Sequence[Node]) -> None:
    """Quantise once for `linears`, which come in the graph's order, so before the first of them."""
    with graph.inserting_before(linears[0]):
        pair = quantization.call(graph)
        q, scale = (_item(graph, pair, i) for i in range(2))
    for linear in linears:
        _, weight, *others = _arguments(linear).values()
        if fx.is_call(linear, ao.scaled_linear_int4.default):
            others.pop()  # the dtype to which it quantises
        with graph.inserting_before(linear):
            dtype = known(quantization.x).dtype
            target = LINEARS[linear.target]
            product = fx.call(graph, target, q, weight, scale, *others, out_dtype=dtype)
        fx.replace(linear, product)


def _item(graph: Graph, pair: Node, index: int) -> Node:
    node = graph.call_function(operator.getitem, (pair, index))
    node.meta["val"] = pair.meta["val"][index]
    return node
