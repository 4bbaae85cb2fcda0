"""Experts that transformers itself keeps in float8 or fp4: ALL_FP8_EXPERTS_FUNCTIONS["aoext"].

Imported once these are. Their weights stay transformers' plain parameters, and
set_experts_implementation("aoext") chooses this function. Older releases have no such registry.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from transformers.integrations import finegrained_fp8

from aoext.formats.lookup_tables import E2M1
from aoext.formats.table import Code
from aoext.integrations.experts import routed
from aoext.models.experts import IMPLEMENTATION

ao = torch.ops.ao

_CODES = {torch.float8_e4m3fn: Code.E4M3, torch.float8_e5m2: Code.E5M2}
_FP4_BLOCK = [1, 32]


def fp8_experts_forward(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The output of a layer's experts for each token; arguments as those of experts_forward.

    Activations are quantised in the weight's blocks along K where the checkpoint's activation_scheme is
    "dynamic"; else, and beside fp4, they stay as they are.
    """
    up_name = "gate_up_proj" if self.has_gate else "up_proj"
    experts = self.down_proj.shape[0]

    def product(rows: Tensor, name: str, offsets: Tensor) -> Tensor:
        return _product(self, rows, getattr(self, name), getattr(self, f"{name}_scale_inv"), offsets)

    return routed(self, hidden_states, top_k_index, top_k_weights, experts, up_name, product)


def _product(self: Any, rows: Tensor, weight: Tensor, scale: Tensor, offsets: Tensor) -> Tensor:
    if scale.dtype is torch.float8_e8m0fnu:
        scale = scale.view(torch.uint8)
    if weight.dtype is torch.int8:
        pairs, table = weight.view(torch.uint8), _e2m1(weight.device)
        return ao.weight_only_linear(
            rows, pairs, scale, int(Code.LUT4), None, _FP4_BLOCK, None, table, None, offsets
        )
    code, N, dynamic = int(_CODES[weight.dtype]), weight.shape[1], self.activation_scheme == "dynamic"
    block_size = None if self.block_size is None else list(self.block_size)
    if block_size is None:  # one scale, or one for gate and one for up
        scale = scale.float().repeat_interleave(N // scale.shape[1], 1)
    elif scale.shape[1] != -(-N // block_size[0]):  # gate and up are less than a block together
        block_size[0] = N // scale.shape[1]
    if not dynamic:
        return ao.weight_only_linear(rows, weight, scale, code, None, block_size, None, None, None, offsets)
    input_block = None if block_size is None else [1, block_size[1]]
    return ao.scaled_linear(
        rows, weight, scale, code, None, input_block, block_size, None, offsets, weight.dtype
    )


@functools.cache
def _e2m1(device: torch.device) -> Tensor:
    return torch.tensor(E2M1, dtype=torch.float32, device=device)


if hasattr(finegrained_fp8, "ALL_FP8_EXPERTS_FUNCTIONS"):
    finegrained_fp8.ALL_FP8_EXPERTS_FUNCTIONS[IMPLEMENTATION] = fp8_experts_forward
