"""Calls as the operators before the five took them, by the five: what names, args and kwargs become."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aoext.formats.table import Code
from aoext.operators.calls import ao

CODES = {
    torch.int8: Code.INT8,
    torch.float8_e4m3fn: Code.E4M3,
    torch.float8_e5m2: Code.E5M2,
    torch.uint8: Code.LUT4,
}

# The names of arguments, in the order of each older operator; "weight" is one whose dtype says its code.
INT4 = "input int4 scale zero_point"
ARGUMENTS = {
    "bf16i4bf16_rowwise": INT4,
    "bf16i4bf16_rowwise_bias": f"{INT4} bias",
    "bf16i4bf16_rowwise_grouped": f"{INT4} offsets bias",
    "bf16i8bf16_rowwise": "input weight scale bias",
    "bf16f8bf16_rowwise": "input weight scale bias",
    "bf16i8bf16_blockwise": "input weight scale block_size bias",
    "bf16f8bf16_blockwise": "input weight scale block_size bias",
    "bf16lut4bf16_blockwise": "input lut4 table scale block_size global_scale bias",
    "scaled_mm_rowwise": "input weight input_scale scale bias",
    "scaled_mm_blockwise": "input weight input_scale scale input_block block_size bias",
    "scaled_mm_int4": "input int4 input_scale scale zero_point bias",
    "scaled_linear_rowwise": "input weight scale bias",
    "scaled_linear_blockwise": "input weight scale input_block block_size bias",
    "scaled_linear_int4": f"{INT4} bias",
}


def folded(operator: str, *args: Any, **kwargs: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """One of the five, its positional arguments and the others; an operator that stays goes through."""
    if operator not in ARGUMENTS:
        return operator, args, kwargs
    given = {**dict(zip(ARGUMENTS[operator].split(), args, strict=False)), **kwargs}
    code = Code.INT4 if "int4" in given else Code.LUT4 if "lut4" in given else CODES[given["weight"].dtype]
    weight: Tensor = given.pop(code.name.lower() if code in (Code.INT4, Code.LUT4) else "weight")
    name = "weight_only_linear" if operator.startswith("bf16") else "_".join(operator.split("_")[:2])
    first = ["input", "input_scale", "scale"] if name == "scaled_mm" else ["input", "scale"]
    x, *scales = (given.pop(argument) for argument in first)
    return name, (x, weight, *scales), {**given, "code": code}


def run(operator: str, *args: Any, **kwargs: Any) -> Any:
    name, positional, named = folded(operator, *args, **kwargs)
    return getattr(ao, name)(*positional, **named)
