"""Linears that quantise one activation alike (q, k and v; gate and up) quantise it once.

    scaled_linear(x, w₁, s₁, …), scaled_linear(x, w₂, s₂, …), …
      ->  q, s = quantize(x, dtype, …)
          scaled_mm(q, w₁, s, s₁, …), scaled_mm(q, w₂, s, s₂, …), …

The contract makes both the same, bit for bit. A linear that is alone stays in one piece, and so do those that
the device's kernel quantises for on its own: sharing would be one launch more.
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
from aoext.formats.table import FORMATS, Code
from aoext.inductor import graph as fx
from aoext.inductor.graph import known, value
from aoext.library.info import explain

ao = torch.ops.ao

LINEAR = ao.scaled_linear.default


class Quantization(NamedTuple):
    """How a linear quantises its input."""

    x: Node
    dtype: torch.dtype
    block: tuple[int, ...] | None = None  # None for whole rows
    power_of_two: bool = False

    def call(self, graph: Graph) -> Node:
        block = [] if self.block is None else [list(self.block)]
        options = {"power_of_two": True} if self.power_of_two else {}
        return fx.call(graph, ao.quantize.default, self.x, self.dtype, *block, **options)


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
        if fx.is_call(node, LINEAR):
            groups[_quantization(node)].append(node)
    return groups


def _quantization(linear: Node) -> Quantization:
    arguments = fx.arguments(linear)
    format = FORMATS[Code(arguments["code"])]
    own = torch.int8 if format.is_packed else format.storage
    block = arguments["input_block"]
    return Quantization(
        arguments["input"],
        arguments["input_dtype"] or own,
        None if block is None else tuple(block),
        known(arguments["scale"]).dtype in EXPONENT_DTYPES,
    )


def takes_one_kernel(linear: Node) -> bool:
    """Whether the device quantises and multiplies in one kernel; False where sizes are not known."""
    arguments = {name: a for name, a in fx.arguments(linear).items() if a is not None}
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
        return "quantizes_input" in explain("scaled_linear", **alike).choices


# The arguments that a scaled linear and its product have in common, in their order.
_OF_WEIGHT = ["weight", "scale", "code", "bias", "input_block", "block_size", "zero_point", "offsets"]


def split(graph: Graph, quantization: Quantization, linears: Sequence[Node]) -> None:
    """Quantise once for `linears`, which come in the graph's order, so before the first of them."""
    with graph.inserting_before(linears[0]):
        pair = quantization.call(graph)
        q, scale = (_item(graph, pair, i) for i in range(2))
    for linear in linears:
        given = fx.arguments(linear)
        weight, *others = (given[name] for name in _OF_WEIGHT)
        dtype = known(quantization.x).dtype
        with graph.inserting_before(linear):
            product = fx.call(graph, ao.scaled_mm.default, q, weight, scale, *others, out_dtype=dtype)
        fx.replace(linear, product)


def _item(graph: Graph, pair: Node, index: int) -> Node:
    node = graph.call_function(operator.getitem, (pair, index))
    node.meta["val"] = pair.meta["val"][index]
    return node
