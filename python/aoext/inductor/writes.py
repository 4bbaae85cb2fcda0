"""Writes into stored values of quantised weights are counted, so that a backward pass with them raises.

Fires for copies into inputs of the graph that are matrices of 8 bits, as `qdata` is: plain PyTorch trains no
such tensor. In code for AOTInductor there is no backward pass.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from aoext.formats.dtypes import FLOAT8_DTYPES
from aoext.inductor.graph import aten, known

COUNT = torch.ops.ao._count_write.default


def into_weights(graph: Graph) -> list[Node]:
    """The copies of a graph that write into inputs which may be stored values."""
    from torch._inductor.virtualized import V

    if getattr(V, "aot_compilation", False):
        return []
    return [
        node
        for node in graph.find_nodes(op="call_function", target=aten.copy_.default)
        if isinstance(node.args[0], Node) and _may_be_stored(node.args[0])
    ]


def _may_be_stored(node: Node) -> bool:
    if node.op != "placeholder":
        return False
    tensor = known(node)
    return tensor.dim() == 2 and tensor.dtype in (torch.int8, *FLOAT8_DTYPES)


def count(graph: Graph) -> int:
    """Count each such write; how many there were."""
    writes = into_weights(graph)
    for write in writes:
        if any(user.target is COUNT for user in write.args[0].users):  # type: ignore[union-attr]
            continue
        with graph.inserting_after(write):
            graph.call_function(COUNT, (write.args[0],)).meta["val"] = None
    return len(writes)
