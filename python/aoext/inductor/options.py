"""Which passes run: for the process, and for a block of code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any

ENABLED = "AOEXT_INDUCTOR"  # the environment variable; 0 turns the passes off


@dataclass(frozen=True)
class Options:
    """A switch for each pass. They are part of the key under which Inductor caches what it compiles."""

    enabled: bool = True
    # dequantisation and a product with its result become the fused weight-only operator
    weight_only: bool = True
    # products of two 8-bit operands, and the scales after them, become scaled_mm
    scaled_products: bool = True
    # a bias added to a product goes into its operator
    bias: bool = True
    # linears that quantise one activation alike quantise it once
    share_quantization: bool = True
    # quantisation of activations, and dequantisation of weights that no product took, become code of
    # Inductor's, which fuses them with what is around
    fuse_quantization: bool = True
    # attention reads keys and values that heads share without repeating them
    group_queries: bool = True
    # on CUDA the largest of few columns are the first of a sort, which Inductor fuses with what is around
    top_by_sort: bool = True
    # writes into quantised weights are counted for autograd
    count_writes: bool = True
    # int4 linears of one activation become one, where weights are constants (torch._inductor.config.freezing)
    merge_linears: bool = False
    # with max_autotune, the fused operator is timed against dequantisation and a plain product
    autotune: bool = True


def _changed(options: Options, changes: dict[str, Any]) -> Options:
    names = [field.name for field in fields(Options)]
    for name, value in changes.items():
        if name not in names:
            raise TypeError(f"aoext.inductor: an option must be one of {', '.join(names)}, got {name!r}")
        if not isinstance(value, bool):
            raise TypeError(f"aoext.inductor: {name} must be a bool, got {value!r}")
    return replace(options, **changes)


_process = Options(enabled=os.environ.get(ENABLED, "1") != "0")
_block: ContextVar[dict[str, bool] | None] = ContextVar("aoext_inductor_options", default=None)


def current() -> Options:
    """The options that hold here and now."""
    return replace(_process, **(_block.get() or {}))


def configure(**changes: bool) -> None:
    """Change options for the whole process. TypeError for what is no option or no bool.

    >>> aoext.inductor.configure(share_quantization=False)  # doctest: +SKIP
    """
    global _process
    _process = _changed(_process, changes)


@contextmanager
def patch(**changes: bool) -> Iterator[None]:
    """Options for what is compiled within the block, by this thread; compilation happens at the first call.

    >>> with aoext.inductor.patch(enabled=False):  # doctest: +SKIP
    ...     compiled(x)
    """
    _changed(_process, changes)
    token = _block.set({**(_block.get() or {}), **changes})
    try:
        yield
    finally:
        _block.reset(token)
