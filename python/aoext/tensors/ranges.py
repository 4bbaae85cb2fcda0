"""Static ranges: activations in 8 bits whose scales were fixed while the model was trained.

Gemma's makers round what goes into a layer, and what comes out, to int8 times a number of the layer's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aoext.tensors.fields import FIXED, Axis, Field

if TYPE_CHECKING:
    from aoext.tensors.base import QuantizedTensor

_SCALE = Field((Axis(FIXED, 1),), (torch.float32,), optional=True)

# The fields of weights that may have them.
RANGES = {"input_scale": _SCALE, "output_scale": _SCALE}


def has_ranges(weight: QuantizedTensor) -> bool:
    return weight.input_scale is not None or weight.output_scale is not None


def in_range(x: Tensor, scale: Tensor | None) -> Tensor:
    """x as the nearest of the integers −128..127 times `scale` [1], in float32 rounded once; x for None.

    The gradient is that of the range: 1 within it, 0 beyond.
    """
    if scale is None:
        return x
    steps = (x.float() / scale).clamp(-128, 127)
    nearest = steps.round()
    if steps.requires_grad:
        nearest = steps + (nearest - steps).detach()
    return (nearest * scale).to(x.dtype)


def check_ranges(weight: QuantizedTensor) -> None:
    """ValueError for ranges of activations that are quantised by what is in them."""
    if has_ranges(weight) and weight.input_dtype is not None:
        raise ValueError(
            f"{type(weight).__name__}: input_scale and output_scale are for activations that are not "
            "quantised row by row besides"
        )
