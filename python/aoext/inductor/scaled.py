"""Products of two 8-bit operands with the scales after them become scaled_mm.

    aten._int_mm(x, wᵀ) · x_scale · w_scaleᵀ (+ bias)          as torchao's dynamic int8 tensors compute
    aten._int_mm(x + 128, wᵀ) − 128 · Σ w, then likewise       as they do on CPUs with VNNI and no AMX
    aten._scaled_mm(x, wᵀ, x_scale [M, 1], w_scale [1, N], …)  as torchao's dynamic float8 tensors compute

Scales, bias and conversions may come in any order, with a reshape among them; roundings between them go, as
the operator rounds once. How activations are quantised before is left as it is: those formulas differ from
quantize in their last bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from aoext.formats.dtypes import FLOAT8_DTYPES, FLOAT_DTYPES
from aoext.formats.table import code_of
from aoext.inductor import graph as fx
from aoext.inductor.graph import aten, is_call, known, value
from aoext.inductor.weight_only import is_bias, row_scale

ao = torch.ops.ao

PRODUCTS = {aten._int_mm.default, aten._scaled_mm.default}

# scaled_mm refuses longer sums, as they need not fit in an int32; _int_mm wraps.
INT8_MAX_K = torch.iinfo(torch.int32).max // 128**2


@dataclass
class Tail:
    """What follows a product of int8, one reader after the other."""

    last: Node
    row: Any = None
    column: Any = None
    bias: Node | None = None
    converted: bool = False  # from int32 to a float, which comes first
    sizes: Any = None  # those of a reshape

    @property
    def complete(self) -> bool:
        return self.row is not None and self.column is not None and known(self.last).dtype in FLOAT_DTYPES


def fuse(graph: Graph) -> int:
    """Rewrite all such products of a graph; how many there were."""
    count = 0
    for node in graph.find_nodes(op="call_function", target=aten._int_mm.default):
        count += _fuse_int_mm(graph, node)
    for node in graph.find_nodes(op="call_function", target=aten._scaled_mm.default):
        count += _fuse_scaled_mm(graph, node)
    return count


def _untransposed(node: Any) -> Node | None:
    """The stored weight [N, K] of a second factor [K, N]."""
    if not fx.is_transposition(node):
        return None
    weight: Node = node.args[0]
    return weight if fx.static_matrix(value(weight)) else None


def _signed(x: Any) -> Node | None:
    """The int8 numbers that x, uint8, has plus 128."""
    shifted: Any = x.args[0] if fx.is_conversion(x) and known(x).dtype is torch.uint8 else None
    if not is_call(shifted, aten.add.Tensor) or shifted.args[1] != 128 or shifted.kwargs:
        return None
    source = shifted.args[0]
    signed = source.args[0] if fx.is_conversion(source) and known(source).dtype is torch.int32 else None
    return signed if isinstance(signed, Node) and known(signed).dtype is torch.int8 else None


def _is_shift(node: Any, transposed: Any) -> bool:
    """Whether a node is 128 times the sums of each column of the second factor, as int32."""
    if not is_call(node, aten.mul.Tensor) or node.args[1] != 128:
        return False
    sums = node.args[0]
    return (
        is_call(sums, aten.sum.dim_IntList)
        and sums.args[0] is transposed
        and [dim % 2 for dim in sums.args[1]] == [0]
        and known(sums).dtype is torch.int32
        and known(sums).dim() == 2
    )


def _fuse_int_mm(graph: Graph, product: Node) -> bool:
    x, weight = product.args[0], _untransposed(product.args[1])
    if weight is None or not isinstance(x, Node):
        return False
    if known(x).dtype is torch.uint8:
        signed, unshifted = _signed(x), fx.only_user(product)
        if signed is None or unshifted is None or not is_call(unshifted, aten.sub.Tensor) or unshifted.kwargs:
            return False
        if unshifted.args[0] is not product or not _is_shift(unshifted.args[1], product.args[1]):
            return False
        x, product = signed, unshifted
    if known(x).dtype is not torch.int8 or known(weight).shape[1] > INT8_MAX_K:
        return False
    tail = _follow(product, known(weight).shape[0])
    if tail is None:
        return False
    given = [node for node in (tail.row, tail.column, tail.bias) if isinstance(node, Node)]
    if not fx.on_one_device(x, weight, *given):
        return False
    with graph.inserting_before(tail.last):
        result = _scaled_mm(graph, x, weight, tail.row, tail.column, tail.bias, known(tail.last).dtype)
        if tail.sizes is not None:
            result = fx.call(graph, aten.reshape.default, result, tail.sizes)
    fx.replace(tail.last, result)
    return True


def _scaled_mm(
    graph: Graph, x: Node, weight: Node, row: Any, column: Any, bias: Node | None, dtype: torch.dtype
) -> Node:
    rows = known(weight).shape[0]
    if known(row).dtype is not torch.float32:
        row = fx.call(graph, fx.prims.convert_element_type.default, row, torch.float32)
    if known(row).dim() != 2:
        row = fx.call(graph, aten.reshape.default, row, [-1, 1])
    column = fx.column(graph, column, rows, weight)
    if known(column).dtype is not torch.float32:
        column = fx.call(graph, fx.prims.convert_element_type.default, column, torch.float32)
    code_and_bias = int(code_of(known(weight).dtype)), *([] if bias is None else [bias])
    return fx.call(graph, ao.scaled_mm.default, x, weight, row, column, *code_and_bias, out_dtype=dtype)


def _follow(product: Node, rows: int) -> Tail | None:
    """As far as scales, bias, reshapes and conversions go; None where both scales never come together."""
    tail, found = Tail(product), None
    while (user := fx.only_user(tail.last)) is not None and _take(tail, user, rows):
        tail.last = user
        if tail.complete:
            found = replace(tail)
    return found


def _take(tail: Tail, user: Node, rows: int) -> bool:
    """Whether `user` continues the tail; notes what it brings."""
    before, after = value(tail.last), value(user)
    if before is None or after is None:
        return False
    if fx.is_conversion(user):
        first = not tail.converted and after.dtype is torch.float32
        tail.converted |= first
        return first or (tail.converted and after.dtype in FLOAT_DTYPES)
    if is_call(user, aten.reshape.default, aten.view.default):
        if before.dim() != 2 or after.dim() <= 2 or not fx.same(after.shape[-1], rows):
            return False
        tail.sizes = user.args[1]
        return True
    if not tail.converted or not fx.same_shape(before.shape, after.shape):
        return False
    others = [argument for argument in user.args if argument is not tail.last]
    if len(others) != 1 or not isinstance(others[0], Node) or user.kwargs:
        return False
    if is_call(user, aten.mul.Tensor):
        return _take_scale(tail, others[0], before, rows)
    if is_call(user, aten.add.Tensor) and tail.complete and tail.bias is None and is_bias(others[0], rows):
        tail.bias = others[0]
        return True
    return False


def _take_scale(tail: Tail, scale: Node, product: torch.Tensor, rows: int) -> bool:
    shape = known(scale).shape
    if known(scale).dtype not in FLOAT_DTYPES:
        return False
    if tail.row is None and fx.same_shape(shape, (*product.shape[:-1], 1)):
        tail.row = fx.unrounded(scale)
        return True
    if tail.column is None:
        tail.column = row_scale(scale, [(rows,), (1, rows)])
        return tail.column is not None
    return False


def _fuse_scaled_mm(graph: Graph, product: Node) -> bool:
    names = ("scale_a", "scale_b", "bias", "scale_result", "out_dtype")
    x_scale, w_scale, bias, result_scale, dtype = (
        fx.argument(product, 2 + i, name) for i, name in enumerate(names)
    )
    x, weight = product.args[0], _untransposed(product.args[1])
    if weight is None or result_scale is not None or dtype not in FLOAT_DTYPES:
        return False
    kind = known(weight).dtype
    if kind not in FLOAT8_DTYPES or known(x).dtype is not kind:
        return False
    rows = known(weight).shape[0]
    of_rows = value(x_scale) is not None and fx.same_shape(known(x_scale).shape, (*known(x).shape[:-1], 1))
    if not of_rows or not fx.same_shape(known(w_scale).shape, (1, rows)):
        return False
    if known(x_scale).dtype is not torch.float32 or (bias is not None and not is_bias(bias, rows)):
        return False
    column = row_scale(w_scale, [(1, rows)])
    with graph.inserting_before(product):
        assert isinstance(x, Node)
        result = _scaled_mm(graph, x, weight, x_scale, column, bias, dtype)
    fx.replace(product, result)
    return True
