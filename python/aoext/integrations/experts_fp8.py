"""Experts of checkpoints in float8, or in e2m1 with exponents, that transformers itself keeps quantised.

ALL_FP8_EXPERTS_FUNCTIONS["aoext"], which `experts_implementation="aoext"` chooses, runs them on every device.
Imported once these functions are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS

from aoext.formats.lookup_tables import E2M1
from aoext.formats.table import Code, code_of
from aoext.integrations.experts import routed
from aoext.models.experts import IMPLEMENTATION
from aoext.tensors.fields import ceil_div

ao = torch.ops.ao

# Columns of e2m1 that share an exponent.
FP4_BLOCK = [1, 32]


def fp8_experts_forward(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The output of FP8Experts for each token, whose activations are quantised too, but for weights of e2m1.

    NotImplementedError for scales of activations that were fixed beforehand.
    """
    if self.activation_scheme == "static":
        raise NotImplementedError("experts: aoext has no activation_scheme='static', only 'dynamic'")
    up_name = "gate_up_proj" if getattr(self, "has_gate", True) else "up_proj"

    def product(rows: Tensor, name: str, offsets: Tensor) -> Tensor:
        return _product(
            rows, getattr(self, name), getattr(self, f"{name}_scale_inv"), self.block_size, offsets
        )

    experts = getattr(self, up_name).shape[0]
    return routed(self, up_name, experts, product, hidden_states, top_k_index, top_k_weights)


def _product(
    rows: Tensor, weight: Tensor, scale: Tensor, block_size: list[int] | None, offsets: Tensor
) -> Tensor:
    """rows times the weights [E, N, K] of their experts, or [E, N, K/2] of e2m1."""
    scale = scale.view(torch.uint8) if scale.dtype is torch.float8_e8m0fnu else scale
    if weight.dtype is torch.int8:
        codes, table = weight.view(torch.uint8), _table(rows.device)
        return ao.weight_only_linear(
            rows, codes, scale, Code.LUT4, None, FP4_BLOCK, None, table, None, offsets
        )
    if block_size is None:  # one scale, or one for each fused part
        block_size = [ceil_div(size, of) for size, of in zip(weight.shape[1:], scale.shape[1:], strict=True)]
    return ao.scaled_linear(
        rows, weight, scale, code_of(weight.dtype), None, [1, block_size[1]], list(block_size), None, offsets
    )


@lru_cache
def _table(device: torch.device) -> Tensor:
    return torch.tensor(E2M1, dtype=torch.float32, device=device)


ALL_FP8_EXPERTS_FUNCTIONS[IMPLEMENTATION] = fp8_experts_forward
