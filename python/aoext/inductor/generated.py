"""quantize and dequantize by rows as code of Inductor's, fused with what is around them.

The bits of quantize are the contract's: IEEE division, ties to even, saturation, rows with NaN or
Inf. What Inductor fuses keeps its 16-bit results in float32, so the value is rounded here as if it had been
stored.

quantize is rewritten where it was measured to pay, with the norm or activation before it. On CPUs for
few elements: one call less counts more than Inductor's slower loop below about two thousand, 512 rows of 4096
took 1.3 to 3.8 times as long. On NVIDIA GPUs behind a norm, whose loop over the row is there already; behind
an activation Inductor reads it twice, and longer rows it splits over kernels.

dequantize is always rewritten: as one loop, in which a lookup gathers its rows, where the operator
calls several kernels of PyTorch's for each block of rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from aoext.formats.dtypes import FLOAT8_DTYPES, FLOAT_DTYPES
from aoext.formats.table import FORMATS, Code
from aoext.inductor import graph as fx
from aoext.inductor.graph import known, value
from aoext.inductor.shared import alike, split, takes_one_kernel

aten, ao = torch.ops.aten, torch.ops.ao

CALLS = {ao.quantize.default, ao.dequantize.default}
QUANTIZED_DTYPES = (torch.int8, *FLOAT8_DTYPES)
MOST_ELEMENTS = 2048  # on CPUs
LONGEST_ROW = 8192  # on NVIDIA GPUs
# What norms take of a row.
REDUCTIONS = {aten.mean.dim, aten.var_mean.correction, aten.sum.dim_IntList, aten.linalg_vector_norm.default}


def quantize_rowwise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The operator's contract (docs/operators.md) in operators that Inductor generates code for.

    Divisions are exact on devices that divide float32 inexactly: a quotient of two float32 lies 2^-49 or more
    from where its rounding changes, and the product of a float64 and a reciprocal is off by 2^-52. A quotient
    exceeds the limit by two roundings at most, which rounding to dtype takes back.
    """
    values = _as_stored(x).float()
    # Magnitudes order as their bits do, with NaN above infinity.
    absmax = values.abs().view(torch.int32).amax(-1, keepdim=True).view(torch.float32)
    finite = torch.isfinite(absmax)
    limit = 127.0 if dtype is torch.int8 else torch.finfo(dtype).max
    scale = (absmax.double() / limit).float().clamp(min=torch.finfo(torch.float32).tiny)
    scale = torch.where(absmax == 0, 1.0, scale)
    q = (values.double() * scale.double().reciprocal()).float()
    q = q.round() if dtype is torch.int8 else q
    return torch.where(finite, q, 0.0).to(dtype), torch.where(finite, scale, torch.nan)


def _as_stored(x: Tensor) -> Tensor:
    """x, where fused code would keep more than its 16 bits; two views alone would be none."""
    return x if x.dtype is torch.float32 else (x.view(torch.int16) | 0).view(x.dtype)


def dequantize_rowwise(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The operator's contract, likewise."""
    return (weight.float() * scale.float()).to(dtype)


def generate(graph: Graph) -> int:
    """Rewrite quantisations behind code of Inductor's, and all dequantisations; how many there were."""
    for quantization, linears in alike(graph).items():
        by_row = quantization.block is None
        if by_row and _pays(quantization.x, quantization.dtype) and not all(map(takes_one_kernel, linears)):
            split(graph, quantization, linears)
    count = 0
    for node in graph.find_nodes(op="call_function", target=ao.quantize.default):
        given = fx.arguments(node)
        x, dtype = given["input"], given["dtype"]
        if given["block_size"] is None and not given["power_of_two"] and _pays(x, dtype):
            results = _inline(graph, node, quantize_rowwise, x, dtype)
            for item in list(node.users):
                fx.replace(item, results[item.args[1]])  # the last takes the call with it
            count += 1
    for node in graph.find_nodes(op="call_function", target=ao.dequantize.default):
        given = fx.arguments(node)
        if _is_by_rows(given):
            weight, scale = given["weight"], given["scale"]
            (result,) = _inline(graph, node, dequantize_rowwise, weight, scale, known(node).dtype)
            fx.replace(node, result)
            count += 1
    return count


def _is_by_rows(given: dict[str, Any]) -> bool:
    """Whether a weight has one element a byte, and nothing but a scale for each row."""
    format = FORMATS[Code(given["code"])]
    others = [given[name] for name in ("block_size", "zero_point", "table", "global_scale")]
    return not format.is_packed and others == [None] * 4 and known(given["scale"]).dtype in FLOAT_DTYPES


def _pays(x: Any, dtype: torch.dtype) -> bool:
    found = value(x)
    if found is None or found.dtype not in FLOAT_DTYPES or dtype not in QUANTIZED_DTYPES or not _is_fused(x):
        return False
    fits = {"cpu": _is_small, "cuda": _is_short_behind_norm}.get(found.device.type)
    return fits is not None and fits(x)


def _is_fused(x: Node) -> bool:
    """Whether Inductor computes x in a loop that others can join."""
    return fx.is_conversion(x) or torch.Tag.pointwise in getattr(x.target, "tags", ())


def _is_small(x: Node) -> bool:
    sizes = known(x).shape
    return all(isinstance(size, int) for size in sizes) and 0 < known(x).numel() <= MOST_ELEMENTS


def _is_short_behind_norm(x: Node) -> bool:
    size = known(x).shape[-1]
    if not isinstance(size, int) or not 0 < size <= LONGEST_ROW:
        return False
    seen, behind = {x}, [x]
    while behind:
        node = behind.pop()
        if node.target in REDUCTIONS:
            return True
        if _is_fused(node) or node.target is operator.getitem or node.target in fx.RESHAPES:
            fresh = [source for source in node.all_input_nodes if source not in seen]
            seen.update(fresh)
            behind += fresh
    return False


def _inline(graph: Graph, before: Node, function: Callable[..., Any], *arguments: Any) -> list[Node]:
    """Nodes of one of the functions above for these tensors and this dtype; those of its results."""
    from torch._inductor.decomposition import select_decomp_table

    *inputs, dtype = arguments
    fakes = [known(node) for node in inputs]
    with fakes[0].fake_mode:  # type: ignore[attr-defined]
        traced = make_fx(lambda *tensors: function(*tensors, dtype), select_decomp_table())(*fakes)
    placeholders = traced.graph.find_nodes(op="placeholder")
    copies: dict[Node, Node] = dict(zip(placeholders, inputs, strict=True))
    results: Any = ()
    with graph.inserting_before(before):
        for node in traced.graph.nodes:
            if node.op == "output":
                (results,) = node.args
            elif node.op != "placeholder":
                copies[node] = graph.node_copy(node, copies.__getitem__)
    return [copies[result] for result in (results if isinstance(results, (list, tuple)) else [results])]
