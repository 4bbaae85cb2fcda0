"""quantize_rowwise as code of Inductor's, which it fuses with the norm or activation before it.

The bits are the contract's: IEEE division, ties to even, saturation, rows with NaN or Inf. What Inductor
fuses keeps its bfloat16 results in float32, so the value is rounded here by integer arithmetic, as if it
had been stored.

Fires where it was measured to pay: on CPUs, for few elements (below about two thousand, one call less
counts more than Inductor's slower loop; 512 rows of 4096 took 1.3 to 3.8 times as long), so for sizes that
are numbers. Not on GPUs, where Inductor divides inexactly, and not for float16, whose subnormals that
rounding does not know.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from aoext.inductor import graph as fx
from aoext.inductor.graph import known, value
from aoext.inductor.shared import LINEAR, split
from aoext.packing import FLOAT8_DTYPES

ao = torch.ops.ao

MOST_ELEMENTS = 2048


def quantize_rowwise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The operator's contract (docs/operators.md) in operators that Inductor generates code for."""
    values = x.float()
    if x.dtype is torch.bfloat16:
        bits = values.view(torch.int32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000  # to nearest, ties to even
        values = torch.where(torch.isfinite(values), rounded.view(torch.float32), values)
    limit = 127.0 if dtype is torch.int8 else torch.finfo(dtype).max
    absmax = values.abs().amax(-1, keepdim=True)
    finite = torch.isfinite(absmax)
    scale = (absmax / limit).clamp(min=torch.finfo(torch.float32).tiny)
    scale = torch.where(finite, torch.where(absmax == 0, 1.0, scale), torch.nan)
    q = values / scale
    q = (q.round() if dtype is torch.int8 else q).clamp(-limit, limit)
    return torch.where(finite, q, 0.0).to(dtype), scale


def generate(graph: Graph) -> int:
    """Rewrite quantisations behind code of Inductor's; how many there were."""
    for node in graph.find_nodes(op="call_function", target=LINEAR):
        x, weight = node.args[:2]
        if _pays(x, known(weight).dtype):
            split(graph, x, known(weight).dtype, [node])
    count = 0
    for node in graph.find_nodes(op="call_function", target=ao.quantize_rowwise.default):
        x, dtype = node.args
        if _pays(x, dtype):
            _inline(graph, node, x, dtype)
            count += 1
    return count


def _pays(x: Any, dtype: torch.dtype) -> bool:
    found = value(x)
    if found is None or found.device.type != "cpu" or found.dtype not in (torch.bfloat16, torch.float32):
        return False
    if dtype is not torch.int8 and dtype not in FLOAT8_DTYPES:
        return False
    if not all(isinstance(size, int) for size in found.shape) or not 0 < found.numel() <= MOST_ELEMENTS:
        return False
    return fx.is_conversion(x) or torch.Tag.pointwise in getattr(x.target, "tags", ())


def _inline(graph: Graph, old: Node, x: Node, dtype: torch.dtype) -> None:
    """Nodes of the function above instead of a call of the operator."""
    from torch._inductor.decomposition import select_decomp_table

    fake = known(x)
    with fake.fake_mode:  # type: ignore[attr-defined]
        traced = make_fx(lambda t: quantize_rowwise(t, dtype), select_decomp_table())(fake)
    copies: dict[Node, Node] = {}
    results: Any = ()
    with graph.inserting_before(old):
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                copies[node] = x
            elif node.op == "output":
                results = [copies[result] for result in node.args[0]]
            else:
                copies[node] = graph.node_copy(node, copies.__getitem__)
    for item in list(old.users):
        fx.replace(item, results[item.args[1]])  # the last takes the call with it
