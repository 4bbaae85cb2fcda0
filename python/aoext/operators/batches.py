"""torch.vmap over a product's input: one call with one more leading dimension.

Products with gradients take the rule with them (gradients.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

ao = torch.ops.ao


def vmap_rule(operator: Callable[..., Any], names: Sequence[str]) -> Callable[..., tuple[Any, Any]]:
    """What torch.library.register_vmap takes. The batch of a result is its first dimension.

    names: those of the arguments by position, as in schemas. `input` and `input_scale` have the leading
    dimensions, but for rows of experts: these belong to the `offsets` of their call.
    """
    of_input = [i for i, name in enumerate(names) if name in ("input", "input_scale")]
    offsets = names.index("offsets") if "offsets" in names else len(names)

    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        # `in_dims` has a list of None for a list of numbers.
        given = [(a, dim if isinstance(a, Tensor) else None) for a, dim in zip(args, in_dims, strict=True)]
        by_expert = offsets < len(args) and args[offsets] is not None
        leading = () if by_expert else of_input
        if all((dim is not None) == (i in leading) for i, (_, dim) in enumerate(given)):
            result = operator(*(a if dim is None else a.movedim(dim, 0) for a, dim in given), **kwargs)
        else:
            result = _one_after_the_other(operator, info.batch_size, given, kwargs)
        return result, (0,) * len(result) if isinstance(result, tuple) else 0

    return batched


def _one_after_the_other(
    operator: Callable[..., Any],
    batch_size: int,
    given: list[tuple[Any, int | None]],
    kwargs: dict[str, Any],
) -> Any:
    """Each with a weight of its own. The results of an empty batch have the shape of what one entry gives."""

    def entry(a: Tensor, dim: int, i: int) -> Tensor:
        if not batch_size:
            return a.new_zeros(a.movedim(dim, 0).shape[1:])
        return a.select(dim, i).contiguous()  # whose strides come of the batch, which the caller does not see

    results = [
        operator(*(a if dim is None else entry(a, dim, i) for a, dim in given), **kwargs)
        for i in range(max(batch_size, 1))
    ]

    def together(parts: list[Tensor]) -> Tensor:
        return torch.stack(parts) if batch_size else parts[0].new_empty((0, *parts[0].shape))

    if isinstance(results[0], tuple):
        return tuple(together(list(parts)) for parts in zip(*results, strict=True))
    return together(results)


def register(operator: str) -> None:
    """The rule of an operator without gradients."""
    overload = getattr(ao, operator).default
    names = [argument.name for argument in overload._schema.arguments]
    torch.library.register_vmap(f"ao::{operator}", vmap_rule(overload, names))
