"""transformers: `from_pretrained(..., quantization_config=AoextConfig("int4"))`, and `save_pretrained`.

Imported as soon as a program has imported both aoext and transformers, in whatever order. Checkpoints have
the tensors and the metadata of aoext.save_model, and AoextConfig in their config.json.

config.py is what users give, quantizer.py what transformers asks, weights.py how a weight comes of a file's
tensors, experts.py of which of them those of experts come, hooks.py what transformers asks nobody about.
"""

from __future__ import annotations

from aoext.integrations.transformers import hooks
from aoext.integrations.transformers.config import METHOD, AoextConfig
from aoext.integrations.transformers.models import candidates, conversions_of, has_quantised
from aoext.integrations.transformers.quantizer import AoextQuantizer, adopt

__all__ = [
    "METHOD",
    "AoextConfig",
    "AoextQuantizer",
    "adopt",
    "candidates",
    "conversions_of",
    "has_quantised",
]

hooks.keep_foreign_checkpoints()
hooks.save_experts_as_they_are()
hooks.offload_quantized_weights()
