"""The dtypes of quantised weights, and dtypes in words."""

from __future__ import annotations

from collections.abc import Sequence

import torch

FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FLOAT8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)

# The dtypes of scales for blocks; uint8 holds exponents, as float8_e8m0fnu does.
EXPONENT_DTYPES = (torch.float8_e8m0fnu, torch.uint8)
BLOCK_SCALE_DTYPES = (*FLOAT_DTYPES, *EXPONENT_DTYPES, torch.float8_e4m3fn)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as users write it: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def one_of(dtypes: Sequence[torch.dtype]) -> str:
    """Dtypes as a choice: `bfloat16, float16 or float32`."""
    names = [dtype_name(dtype) for dtype in dtypes]
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
