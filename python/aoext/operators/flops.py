"""What torch.utils.flop_counter.FlopCounterMode counts for the products of `torch.ops.ao`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch.utils.flop_counter import register_flop_formula

from aoext.operators.calls import ao, operators


def _product(input: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any) -> int:
    """Two for each product of an element of input [..., K] with one of a weight's N rows."""
    return 2 * math.prod(input) * out_shape[-1]


def _is_product(operator: Any) -> bool:
    names = {argument.name for argument in operator.default._schema.arguments}
    return {"input", "weight"} <= names


register_flop_formula([p for p in (getattr(ao, name) for name in operators()) if _is_product(p)])(_product)
