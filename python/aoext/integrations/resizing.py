"""resize_token_embeddings of models whose embeddings are quantised. Imported with PreTrainedModel.

transformers makes the new rows of a plain weight, and here gets one. Rows that were there keep their bits,
new ones are quantised by the same scheme.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from aoext.models.layers import set_weight
from aoext.tensors import QuantizedTensor
from aoext.tensors.rows import with_rows

# What transformers changes of an embedding beside its weight.
_SIZES = ("num_embeddings", "padding_idx")


def _resizing(resize: Callable[..., Any]) -> Callable[..., Any]:
    """A method that gives the layer, or a new one, with another number of rows in its weight."""

    @functools.wraps(resize)
    def resized(self: Any, layer: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        quantized = getattr(layer, "weight", None)
        if not isinstance(quantized, QuantizedTensor):
            return resize(self, layer, *args, **kwargs)
        sizes = {name: getattr(layer, name) for name in _SIZES if hasattr(layer, name)}
        layer._parameters["weight"] = nn.Parameter(quantized.dequantize(), requires_grad=False)
        try:
            result = resize(self, layer, *args, **kwargs)
            plain = result.weight.detach()
            rows = torch.arange(len(plain), device=plain.device)
            weight = with_rows(quantized, plain, rows < len(quantized))
        except BaseException:
            for name, value in sizes.items():
                setattr(layer, name, value)
            raise
        finally:
            layer._parameters["weight"] = cast(nn.Parameter, quantized)
        if len(plain) != len(quantized):
            if result is layer:
                quantized.data = weight  # also of a head that shares it
            else:
                set_weight(result, nn.Parameter(weight, requires_grad=False))
        return result

    return resized


def _install() -> None:
    for name in ("_get_resized_embeddings", "_get_resized_lm_head"):
        setattr(PreTrainedModel, name, _resizing(getattr(PreTrainedModel, name)))


_install()
