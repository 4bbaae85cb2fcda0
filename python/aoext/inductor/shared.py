"""Linears that quantise one activation alike (q, k and v; gate and up) quantise it once.

    scaled_linear_rowwise(x, w₁, s₁), scaled_linear_rowwise(x, w₂, s₂), …
      ->  q, s = quantize_rowwise(x, dtype)
          scaled_mm_rowwise(q, w₁, s, s₁), scaled_mm_rowwise(q, w₂, s, s₂), …

The contract makes both the same, bit for bit. A linear that is alone stays in one piece, and so do those that
the device's kernel quantises for on its own: sharing would be one launch more.
"""

from __future__ import annotations

import operator
from collections import defaultdict

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node

from aoext.inductor import graph as fx
from aoext.inductor.graph import known
from aoext.info import explain

ao = torch.ops.ao

LINEAR = ao.scaled_linear_rowwise.default


def share(graph: Graph) -> int:
    """Rewrite all such groups of a graph; how many linears share now."""
    count = 0
    for (x, dtype), linears in alike(graph).items():
        if len(linears) > 1 and not all(map(takes_one_kernel, linears)):
            split(graph, x, dtype, linears)
            count += len(linears)
    return count


def alike(graph: Graph) -> dict[tuple[Node, torch.dtype], list[Node]]:
    """The linears of a graph by the activation that they quantise, and what to."""
    groups: dict[tuple[Node, torch.dtype], list[Node]] = defaultdict(list)
    for node in graph.find_nodes(op="call_function", target=LINEAR):
        x, weight = node.args[:2]
        groups[x, known(weight).dtype].append(node)
    return groups


def takes_one_kernel(linear: Node) -> bool:
    """Whether the device quantises and multiplies in one kernel; False where sizes are not known."""
    nodes = [*linear.args[:3], fx.argument(linear, 3, "bias")]
    tensors = [known(node) for node in nodes if node is not None]
    if any(not isinstance(size, int) for tensor in tensors for size in tensor.shape):
        return False
    with unset_fake_temporarily():  # tensors that nobody reads
        alike = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in tensors]
        return "quantizes_input" in explain("scaled_linear_rowwise", *alike).choices


def split(graph: Graph, x: Node, dtype: torch.dtype, linears: list[Node]) -> None:
    """Quantise x once for `linears`, which come in the graph's order, so before the first of them."""
    with graph.inserting_before(linears[0]):
        quantized = fx.call(graph, ao.quantize_rowwise.default, x, dtype)
        q, scale = (_item(graph, quantized, i) for i in range(2))
    for linear in linears:
        weight, weight_scale = linear.args[1:3]
        bias = fx.argument(linear, 3, "bias")
        with graph.inserting_before(linear):
            arguments = (q, weight, scale, weight_scale, bias)
            product = fx.call(graph, ao.scaled_mm_rowwise.default, *arguments, out_dtype=known(x).dtype)
        fx.replace(linear, product)


def _item(graph: Graph, pair: Node, index: int) -> Node:
    node = graph.call_function(operator.getitem, (pair, index))
    node.meta["val"] = pair.meta["val"][index]
    return node
