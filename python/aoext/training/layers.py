"""Linear layers whose products are of 8 bits while their weights are plain parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aoext.formats.dtypes import dtype_name
from aoext.models.layers import CLASSES, QuantizedLinear
from aoext.training.products import EightBits, linear_of_8_bits


class EightBitLinear(nn.Linear):
    """An nn.Linear that quantises weight, input and gradients for its products.

    Parameters are those of nn.Linear. An input of another dtype than the weight's raises RuntimeError, but
    under autocast, which casts both.
    """

    products: EightBits

    def forward(self, input: Tensor) -> Tensor:
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if type(weight) not in (nn.Parameter, Tensor):
            raise NotImplementedError(
                f"a layer with products of 8 bits takes a plain weight, got a {type(weight).__name__}; "
                "fully_shard may shard it, parallelize_module not"
            )
        device = input.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            input, weight = input.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        elif input.dtype != weight.dtype:
            raise RuntimeError(
                f"linear: input must have the weight's dtype {dtype_name(weight.dtype)}, "
                f"got {dtype_name(input.dtype)}"
            )
        return linear_of_8_bits(input, weight, bias, self.products)

    def extra_repr(self) -> str:
        how = self.products
        names = ("output", "grad_input", "grad_weight")
        others = [name for name in names if not getattr(how, name)]
        text = f"{super().extra_repr()}, products={dtype_name(how.dtype)}"
        if how.block is not None:
            text += f", blocks={how.block}"
        return text + (f", high precision: {', '.join(others)}" if others else "")


CLASSES[EightBitLinear] = QuantizedLinear  # once it has trained
