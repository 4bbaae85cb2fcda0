"""The passes as Inductor sees them: one object for each slot, with a key for its cache of compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch._inductor import custom_graph_pass
from torch.fx import Graph

import aoext
from aoext.inductor import (
    attention,
    autotune,
    bias,
    generated,
    merged,
    scaled,
    shared,
    top,
    weight_only,
    writes,
)
from aoext.inductor.options import Options, current

GraphPass = Callable[[Graph], None]
# Passes that ask whether the graph is for inference, where torch has such passes.
_InferenceAware: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)

# How often each pass has rewritten something in this process, for tests and the curious.
rewrites: dict[str, int] = {}

# Order counts: a product is fused before its bias is, and shared before its quantisation is.
BEFORE_FREEZING = ("weight_only", "scaled_products", "bias")
AFTER_PARTITION = (
    *BEFORE_FREEZING,
    "merge_linears",
    "share_quantization",
    "fuse_quantization",
    "autotune",
    "group_queries",
    "top_by_sort",
    "count_writes",
)
PASSES: dict[str, Callable[[Graph], int]] = {
    "weight_only": weight_only.fuse,
    "scaled_products": scaled.fuse,
    "bias": bias.fuse,
    "merge_linears": merged.merge,
    "share_quantization": shared.share,
    "fuse_quantization": generated.generate,
    "autotune": autotune.use_timed,
    "group_queries": attention.group,
    "top_by_sort": top.sort,
    "count_writes": writes.count,
}


@cache
def sources(package: Path) -> str:
    """A hash of aoext's Python: passes, fake kernels and what they read decide about a graph together."""
    digest = sha256(aoext.__version__.encode())
    for file in sorted(package.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


class AoextPass(custom_graph_pass.CustomGraphPass):
    """Those of our passes that run in one of Inductor's slots, as the current options say."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def __call__(self, graph: Graph) -> None:
        options = current()
        autotune.register_if_wanted()
        if not options.enabled or not _has_work(graph):
            return
        for name in self.names:
            if getattr(options, name):
                rewrites[name] = rewrites.get(name, 0) + PASSES[name](graph)
        graph.lint()

    def uuid(self) -> tuple[str, tuple[str, ...], Options]:
        return sources(Path(aoext.__file__).parent), self.names, current()


def _has_work(graph: Graph) -> bool:
    """Whether there is a product or a write at all; most graphs of other people's code have none of these."""
    has_product = any(node.op == "call_function" and node.target in HEADS for node in graph.nodes)
    return has_product or bool(writes.into_weights(graph))


HEADS = weight_only.PRODUCTS.keys() | scaled.PRODUCTS | bias.WITH_BIAS.keys() | generated.CALLS


_Base: Any = _InferenceAware or custom_graph_pass.CustomGraphPass


class _Chain(_Base):
    """Passes in their order, those of others and ours, in one slot."""

    def __init__(self, passes: tuple[GraphPass, ...]) -> None:
        self.passes = passes

    def __call__(self, graph: Graph, is_inference: bool | None = None) -> None:
        for each in self.passes:
            if _InferenceAware is not None and isinstance(each, _InferenceAware) and is_inference is not None:
                each(graph, is_inference)
            else:
                each(graph)

    def uuid(self) -> tuple[Any, ...] | None:
        """None, with which Inductor caches nothing, where one of them has no key."""
        keys = tuple(getattr(each, "uuid", lambda: None)() for each in self.passes)
        return keys if all(keys) else None


def chain(theirs: Any, ours: AoextPass) -> Any:
    """What a slot holds where others put `theirs` into it: None, a pass, or several."""
    if not current().enabled:
        return theirs
    passes = tuple(theirs) if isinstance(theirs, (list, tuple)) else (theirs,) if theirs else ()
    # Code that reads a slot and sets it again, to add something or to restore it, sets ours with it.
    if not any(each is ours or (isinstance(each, _Chain) and ours in each.passes) for each in passes):
        passes = (*passes, ours)
    return passes[0] if len(passes) == 1 else _Chain(passes)


# Products are also fused before Inductor folds constants (its option `freezing`), which makes weights plain.
OURS = {"before_freezing": AoextPass(BEFORE_FREEZING), "after_partition": AoextPass(AFTER_PARTITION)}
