"""What transformers' quantiser of packed GGUF models takes for granted of kernels, and these do otherwise."""

from __future__ import annotations

import functools
from typing import Any

import torch


def adapt(quantizer: Any) -> None:
    """Have models keep their attention, in place of one that goes with kernels for Apple's devices, and
    their dtype without a warning that kernels compute in float32.
    """
    if torch.backends.mps.is_available():
        return
    kind = quantizer.GgufHfQuantizer
    kind.update_attn_implementation = lambda self, config: config
    update = kind.update_dtype

    @functools.wraps(update)
    def update_dtype(self: Any, dtype: Any) -> Any:
        config = self.quantization_config
        dequantize, config.dequantize = config.dequantize, True  # where there is nothing to warn of
        try:
            return update(self, dtype)
        finally:
            config.dequantize = dequantize

    kind.update_dtype = update_dtype
