"""torch.vmap over a product's input: one call with one more leading dimension.

Products with gradients take the rule with them (gradients.py); the others register it here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ao = torch.ops.ao


def vmap_rule(
    operator: Callable[..., Any], of_input: tuple[int, ...] = (0,), offsets: int | None = None
) -> Callable[..., tuple[Any, Any]]:
    """What torch.library.register_vmap takes. The batch of a result is its first dimension.

    of_input: the arguments that have the input's leading dimensions. offsets: the argument beside which rows
    belong to one call, if there is such an argument.
    """

    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        # Of a list of numbers `in_dims` has a list of None.
        given = [(a, dim if isinstance(a, Tensor) else None) for a, dim in zip(args, in_dims, strict=True)]
        by_expert = offsets is not None and offsets < len(args) and args[offsets] is not None
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


# Operators without gradients, and their arguments that have the input's leading dimensions.
_OF_INPUT: dict[str, tuple[int, ...]] = {
    "scaled_mm": (0, 2),
    "quantize": (0,),
    "dequantize": (),
    "int8_mm": (0,),
    "scaled_mm_rowwise": (0, 2),
    "scaled_mm_blockwise": (0, 2),
    "scaled_mm_int4": (0, 2),
    "quantize_rowwise": (0,),
    "quantize_blockwise": (0,),
    "dequantize_int4": (),
    "dequantize_lut4": (),
    "dequantize_rowwise": (),
    "dequantize_blockwise": (),
    "convert_weight_to_int4pack": (),
}

for _operator, _arguments in _OF_INPUT.items():
    _overload = getattr(ao, _operator).default
    _names = [argument.name for argument in _overload._schema.arguments]
    _offsets = _names.index("offsets") if "offsets" in _names else None
    torch.library.register_vmap(f"ao::{_operator}", vmap_rule(_overload, _arguments, _offsets))
