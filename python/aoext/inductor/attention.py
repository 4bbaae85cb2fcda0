"""Attention with heads that share keys and values: the repetition of these goes.

Where a graph is compiled and has a mask, transformers repeats keys and values for each query head of a group,
a copy of the whole cache once a layer and token. cuDNN takes fewer heads of keys and values as they are. For
others the queries of a group are, of one token, as many rows of one head::

    attention(q [B, H, 1, D], repeated(k), repeated(v))  =  attention(q as [B, H/G, G, D], k, v)
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, cast

from torch.fx import Graph, Node

from aoext.inductor import graph as fx

aten = fx.aten


class _Attention(NamedTuple):
    """Where one of PyTorch's attentions has its arguments; the mask may go by its name alone.

    shares: whether it takes keys and values of fewer heads
    """

    mask: str
    mask_at: int | None
    dropout_at: int
    causal_at: int
    shares: bool = False


_ATTENTIONS: dict[Any, _Attention] = {
    getattr(aten, name).default: attention
    for name, attention in {
        "_scaled_dot_product_flash_attention_for_cpu": _Attention("attn_mask", None, 3, 4),
        "_scaled_dot_product_efficient_attention": _Attention("attn_bias", 3, 5, 6),
        "_scaled_dot_product_cudnn_attention": _Attention("attn_bias", 3, 5, 6, shares=True),
    }.items()
    if hasattr(aten, name)
}


def group(graph: Graph) -> int:
    """Rewrite all such attentions of a graph; how many there were."""
    attentions = [node for node in graph.nodes if fx.is_call(node, *_ATTENTIONS)]
    return sum(_grouped(graph, node, _ATTENTIONS[node.target]) for node in attentions)


def _grouped(graph: Graph, node: Node, attention: _Attention) -> bool:
    query, key, value = (cast(Node, each) for each in node.args[:3])
    repeats = [each for each in map(_repetition, (key, value)) if each is not None]
    if len(repeats) < 2 or not _gives_its_result_alone(node):
        return False
    keys, values = (fx.known(each) for each in repeats)
    batch, heads, group_size = keys.shape[:3]
    sizes = [batch, heads, group_size, fx.known(query).shape[3]]
    if keys.shape[:3] != values.shape[:3] or not all(isinstance(size, int) for size in sizes):
        return False
    if fx.known(query).shape[:2] != (batch, heads * group_size):
        return False
    with graph.inserting_before(node):
        if attention.shares:
            node.args = (query, *(_unrepeated(graph, each) for each in repeats), *node.args[3:])
            for each in {key, value}:
                if not each.users:
                    fx.erase(each)
            return True
        return _is_of_one_token(node, attention) and _by_rows(graph, node, attention, repeats, sizes)


def _by_rows(graph: Graph, node: Node, attention: _Attention, repeats: list[Node], sizes: list[int]) -> bool:
    """Make queries [B, H, 1, D] rows, of `sizes`, of the heads that keys have; False where a mask forbids."""
    mask = _mask_of(node, attention)
    if mask is not None and not _is_of_all_heads(mask):
        return False
    (item,) = node.users
    args, kwargs = list(node.args), dict(node.kwargs)
    args[0] = fx.call(graph, aten.reshape.default, node.args[0], sizes)
    args[1:3] = [_unrepeated(graph, each) for each in repeats]
    if mask is not None:
        kwargs.pop(attention.mask, None)
        for_rows = fx.call(graph, aten.expand.default, _source(mask), [*sizes[:3], -1])
        if attention.mask_at is None:
            kwargs[attention.mask] = for_rows
        else:
            args[attention.mask_at] = for_rows
    result = fx.call(graph, operator.getitem, fx.call(graph, node.target, *args, **kwargs), 0)
    fx.replace(item, fx.call(graph, aten.reshape.default, result, list(fx.known(item).shape)))
    fx.erase(node)  # which fx leaves where it is, since dropout is random
    return True


def _gives_its_result_alone(node: Node) -> bool:
    """Whether nothing is read but the result, as gradients would."""
    users = list(node.users)
    return len(users) == 1 and users[0].args[1:] == (0,)


def _is_of_one_token(node: Node, attention: _Attention) -> bool:
    """Whether there is one query a head."""
    return (
        fx.same(fx.known(node.args[0]).shape[2], 1)
        and not fx.argument(node, attention.causal_at, "is_causal", False)
        and not fx.argument(node, attention.dropout_at, "dropout_p", 0.0)
    )


def _repetition(node: Any) -> Node | None:
    """The node that repeats [B, H/G, 1, L, D] to [B, H/G, G, L, D]; `node` is a view [B, H, L, D] of it."""
    while fx.is_call(node, *fx.RESHAPES):
        node = node.args[0]
    if not fx.is_call(node, aten.expand.default):
        return None
    shape, source = fx.known(node).shape, fx.known(node.args[0]).shape
    if len(shape) != 5 or len(source) != 5 or not fx.same(source[2], 1):
        return None
    return node if all(fx.same(shape[dim], source[dim]) for dim in (0, 1, 3, 4)) else None


def _unrepeated(graph: Graph, repeat: Node) -> Node:
    """What a repetition [B, H/G, G, L, D] repeats, [B, H/G, L, D]."""
    return fx.call(graph, aten.squeeze.dim, repeat.args[0], 2)


def _mask_of(node: Node, attention: _Attention) -> Any:
    at = len(node.args) if attention.mask_at is None else attention.mask_at
    return fx.argument(node, at, attention.mask)


def _source(mask: Node) -> Any:
    """What was spread over heads."""
    return mask.args[0] if fx.is_call(mask, aten.expand.default) else mask


def _is_of_all_heads(mask: Node) -> bool:
    shape = fx.known(_source(mask)).shape
    return len(shape) == 4 and fx.same(shape[1], 1) and fx.same(shape[2], 1)
