"""torch.vmap over a product's input: one call with one more leading dimension.

Products with gradients take the rule with them (gradients.py); the others register it here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ao = torch.ops.ao


def vmap_rule(product: Callable[..., Tensor], of_input: tuple[int, ...] = (0,)) -> Callable[..., Any]:
    """What torch.library.register_vmap takes.

    of_input: the arguments that have the input's leading dimensions.
    """

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any, **kwargs: Any) -> tuple[Tensor, int]:
        given = list(zip(args, in_dims, strict=True))
        if all((dim is not None) == (i in of_input) for i, dim in enumerate(in_dims)):
            return product(*(a if dim is None else a.movedim(dim, 0) for a, dim in given), **kwargs), 0
        # Each with a weight of its own, one after the other.
        results = [
            product(*(a if dim is None else a.select(dim, i) for a, dim in given), **kwargs)
            for i in range(info.batch_size)
        ]
        return torch.stack(results), 0

    return batched


torch.library.register_vmap("ao::int8_mm", vmap_rule(ao.int8_mm.default))
torch.library.register_vmap("ao::scaled_mm_rowwise", vmap_rule(ao.scaled_mm_rowwise.default, (0, 2)))
