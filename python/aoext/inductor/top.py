"""The largest of few columns, which routers of experts ask for: the first columns of a sort.

PyTorch finds them by two kernels, which nothing is fused with. Inductor has code of its own for a sort of up
to 512 columns, and puts the softmax before it and the sum behind it into the same kernel.
"""

from __future__ import annotations

import operator

from torch.fx import Graph, Node

from aoext.inductor import graph as fx

aten = fx.aten

_MOST_COLUMNS = 512  # of torch._inductor.ir.Sort


def sort(graph: Graph) -> int:
    """Rewrite all such calls of a graph; how many there were."""
    return sum(_sorted(graph, node) for node in list(graph.nodes) if fx.is_call(node, aten.topk.default))


def _sorted(graph: Graph, node: Node) -> bool:
    input, k = node.args[:2]
    of = fx.known(input)
    dim, largest = fx.argument(node, 2, "dim", -1), fx.argument(node, 3, "largest", True)
    if of.device.type != "cuda" or of.dim() == 0 or not largest or dim % of.dim() != of.dim() - 1:
        return False
    columns = of.shape[-1]
    if not (isinstance(columns, int) and isinstance(k, int) and 0 < k <= columns <= _MOST_COLUMNS):
        return False
    with graph.inserting_before(node):
        both = fx.call(graph, aten.sort.stable, input, stable=True, dim=-1, descending=True)
        for item in list(node.users):
            part = fx.call(graph, operator.getitem, both, item.args[1])
            item.replace_all_uses_with(fx.call(graph, aten.slice.Tensor, part, -1, 0, k))
            graph.erase_node(item)
    fx.erase(node)
    return True
