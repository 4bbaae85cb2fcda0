"""Dequantisation of a weight followed by a product becomes one weight-only operator.

    x · (dequantize(q, s, …))ᵀ                      -> weight_only_linear(x, q, s, …)
    x · (q.to(dtype) · s)ᵀ, (x · q.to(dtype)ᵀ) · sᵀ  -> the same, by rows

and with a bias, for mm, addmm, linear, and bmm where one weight is expanded to the batch. The last
forms are what torchao's weight-only tensors and PyTorch's dequantize_per_channel come down to.
Roundings in between may go, as the operators round once; conversions to a wider type, after which rounded
weights would be exact, may not.

A chain stays where something else reads any part of it: the plain weight would be made all the same. It
also stays where the weight is stored [K, N], has zero points that are not known to be 0, or lies elsewhere
than the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node

from aoext.formats.dtypes import FLOAT8_DTYPES, FLOAT_DTYPES
from aoext.formats.table import Code, code_of
from aoext.inductor import graph as fx
from aoext.inductor.graph import aten, is_call, known, value

ao = torch.ops.ao

# Products by the position of input and weight among their arguments.
PRODUCTS: dict[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.linear.default: (0, 1),
    aten.bmm.default: (0, 1),
}


@dataclass(frozen=True)
class Weight:
    """A weight [N, K] that a chain of nodes makes plain, by the names of the operators' arguments."""

    weight: Node
    code: int
    scale: Any = None  # a node, a number, or None where the product is scaled instead
    block_size: Any = None
    zero_point: Node | None = None
    table: Node | None = None
    global_scale: Node | None = None
    of_chain: bool = True  # by nodes that are no operator of ours, so that the scale may have any shape

    @property
    def rows(self) -> int:
        return known(self.weight).shape[0]

    def times(self, graph: Graph, x: Any, bias: Any) -> Node:
        """The product with an input, and a bias or None."""
        others: list[Any] = [bias, self.block_size, self.zero_point, self.table, self.global_scale]
        while others and others[-1] is None:
            others.pop()
        operands = x, self.weight, self.scale, self.code, *others
        return fx.call(graph, ao.weight_only_linear.default, *operands)


def fuse(graph: Graph) -> int:
    """Rewrite all such products of a graph; how many there were."""
    count = 0
    for target, positions in PRODUCTS.items():
        for node in graph.find_nodes(op="call_function", target=target):
            count += _fuse_product(graph, node, *positions)
    return count


def _fuse_product(graph: Graph, product: Node, input_at: int, weight_at: int) -> bool:
    x, plain = product.args[input_at], product.args[weight_at]
    if is_call(product, aten.bmm.default):
        plain = _without_batch(plain)
    weight = _read(plain, transposed=not is_call(product, aten.linear.default))
    if weight is None or not _fits(x, weight):
        return False
    bias, summand = None, None
    if is_call(product, aten.addmm.default):
        if product.kwargs.get("beta", 1) != 1 or product.kwargs.get("alpha", 1) != 1:
            return False
        bias = product.args[0]
        if not is_bias(bias, weight.rows):
            bias, summand = None, bias
    elif is_call(product, aten.linear.default):
        bias = fx.argument(product, 2, "bias")
    last = product
    if weight.scale is None:
        scaled = None if bias is not None or summand is not None else _scaled_later(product, weight)
        if scaled is None:
            return False
        last, weight = scaled
    if summand is not None and known(summand).dtype != known(product).dtype:
        return False
    with graph.inserting_before(last):
        if weight.of_chain:
            weight = changed(weight, scale=fx.column(graph, weight.scale, weight.rows, weight.weight))
        fused = weight.times(graph, x, bias)
        if summand is not None:
            fused = fx.call(graph, aten.add.Tensor, fused, summand)
    fx.replace(last, fused)
    return True


def _without_batch(node: Any) -> Any:
    """The matrix [K, N] that is expanded to [B, K, N], or None."""
    if not is_call(node, aten.expand.default) or fx.only_user(node) is None:
        return None
    source = node.args[0]
    if is_call(source, aten.unsqueeze.default) and source.args[1] == 0 and fx.only_user(source):
        source = source.args[0]
    found = value(source)
    return source if found is not None and fx.same_shape(found.shape, known(node).shape[1:]) else None


def _fits(x: Any, weight: Weight) -> bool:
    """Whether the operator takes them: dtypes, layout, device, and who else reads the chain."""
    if value(x) is None or known(x).dtype not in FLOAT_DTYPES or known(x).dim() < 2:
        return False
    tensors = [weight.weight, weight.scale, weight.zero_point, weight.table, weight.global_scale]
    nodes = [node for node in tensors if isinstance(node, Node)]
    return fx.static_matrix(value(weight.weight)) and fx.on_one_device(x, *nodes)


def is_bias(node: Any, rows: int) -> bool:
    """Whether a node has one float for each output channel, in one dimension."""
    found = value(node)
    return found is not None and found.dtype in FLOAT_DTYPES and fx.same_shape(found.shape, (rows,))


def _read(node: Any, transposed: bool) -> Weight | None:
    """The weight [N, K], or transposed, that a chain ends in at `node`; None if others read it."""
    if not isinstance(node, Node) or node.op != "call_function" or fx.only_user(node) is None:
        return None
    if fx.is_transposition(node):
        return _read(node.args[0], not transposed)
    if is_call(node, aten.clone.default, aten.alias.default):
        return _read(node.args[0], transposed)
    if fx.is_conversion(node):
        source = value(node.args[0])
        if source is None:
            return None
        if source.dtype is torch.int8 or source.dtype in FLOAT8_DTYPES:
            qdata = _stored(node.args[0], transposed)
            if qdata is None or node.args[1] not in FLOAT_DTYPES:
                return None
            return Weight(qdata, int(code_of(source.dtype)))
        return _read(node.args[0], transposed) if fx.narrows(source.dtype, known(node).dtype) else None
    if is_call(node, aten.mul.Tensor):
        return _read_scaled(node, transposed)
    if is_call(node, ao.dequantize.default):
        fields = fx.arguments(node)
        del fields["dtype"]
        return None if transposed else Weight(**fields, of_chain=False)
    if is_call(node, *_per_channel()):
        return _read_per_channel(node, transposed)
    return None


def _stored(node: Any, transposed: bool) -> Node | None:
    """The node [N, K] behind transpositions of 8-bit values."""
    while fx.is_transposition(node):
        node, transposed = node.args[0], not transposed
    return node if isinstance(node, Node) and not transposed else None


def _read_scaled(node: Node, transposed: bool) -> Weight | None:
    for factor, scale in (node.args, node.args[::-1]):
        weight = _read(factor, transposed) if isinstance(factor, Node) else None
        if weight is not None and weight.scale is None:
            shape = (1, weight.rows) if transposed else (weight.rows, 1)
            found = row_scale(scale, [shape, shape[1:]] if transposed else [shape])
            return None if found is None else changed(weight, scale=found)
    return None


def row_scale(scale: Any, shapes: list[tuple[int, ...]]) -> Any:
    """A scale that broadcasts along the rows of a weight as one of `shapes`, or to all of it; else None."""
    if isinstance(scale, (int, float)):
        return scale
    found = value(scale)
    if found is None or found.dtype not in (*FLOAT_DTYPES, torch.float64):
        return None
    one = all(fx.same(size, 1) for size in found.shape) and found.dim() <= 2
    if not one and not any(fx.same_shape(found.shape, shape) for shape in shapes):
        return None
    # Behind reshapes, and transpositions of a vector, its elements stay in order.
    node = fx.unrounded(scale)
    while is_call(node, *fx.RESHAPES) or (fx.is_transposition(node) and fx.is_vector(known(node))):
        source = value(node.args[0])
        if source is None or not fx.same(source.numel(), found.numel()):
            break
        node = fx.unrounded(node.args[0])
    return node if value(node) is not None and known(node).is_contiguous() else scale


def _per_channel() -> list[Any]:
    """PyTorch's operators of that name, which exist where its quantisation has been imported."""
    namespace = torch.ops.quantized_decomposed
    found = (getattr(namespace, name, None) for name in ("dequantize_per_channel", "dequantize_per_tensor"))
    return [operator.default for operator in found if operator is not None]


def _read_per_channel(node: Node, transposed: bool) -> Weight | None:
    """dequantize_per_channel(q, scales, zero_points, axis, …) or _per_tensor(q, scale, zero_point, …)."""
    by_channel = "per_channel" in str(node.target)
    qdata, scale, zero_point = node.args[:3]
    if value(qdata) is None or known(qdata).dtype is not torch.int8 or not _is_zero(zero_point):
        return None
    if by_channel and (transposed or node.args[3] != 0):
        return None
    qdata = _stored(qdata, transposed)
    if qdata is None:
        return None
    found = row_scale(scale, [(known(qdata).shape[0],)]) if by_channel else scale
    return None if found is None else Weight(qdata, int(Code.INT8), found)


def _is_zero(zero_point: Any) -> bool:
    """Whether zero points are known to be 0 while compiling: absent, a number, or a constant."""
    if zero_point is None or isinstance(zero_point, (int, float)):
        return not zero_point
    if is_call(zero_point, aten.full.default):
        return zero_point.args[1] == 0
    if is_call(zero_point, aten.zeros.default):
        return True
    constant = fx.constant_of(zero_point)
    if constant is None:
        return False
    with unset_fake_temporarily():
        return not bool(constant.any())


def _scaled_later(product: Node, weight: Weight) -> tuple[Node, Weight] | None:
    """The multiplication by a row of scales that is all that reads the product, and the weight with them."""
    user = fx.only_user(product)
    if user is None or not is_call(user, aten.mul.Tensor):
        return None
    others = [factor for factor in user.args if factor is not product]
    if len(others) != 1 or known(user).dtype != known(product).dtype:
        return None
    if not fx.same_shape(known(user).shape, known(product).shape):
        return None
    scale = row_scale(others[0], [(weight.rows,), (1, weight.rows)])
    if scale is None or (isinstance(scale, Node) and not fx.on_one_device(scale, product)):
        return None
    return user, changed(weight, scale=scale)
