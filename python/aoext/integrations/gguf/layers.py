"""The layers of transformers' packed GGUF models, for any number of rows. Imported with transformers' own."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.gguf import utils

from aoext.integrations.gguf.kernels import times_experts
from aoext.models.routing import routed


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """GgufExperts.forward, with rows sorted by expert once for both products."""

    def run(rows: Tensor, offsets: Tensor) -> Tensor:
        gate, up = times_experts(rows, self.gate_up_proj, offsets, self.gate_up_type).chunk(2, dim=-1)
        return times_experts(self.act_fn(gate) * up, self.down_proj, offsets, self.down_type)

    return routed(hidden_states, top_k_index, top_k_weights, self.num_experts, run)


if not torch.backends.mps.is_available():
    theirs: Any = utils
    theirs.MAX_GEMV_ROWS = sys.maxsize
    if hasattr(theirs, "GgufExperts"):  # which early releases with packed models have not
        theirs.GgufExperts.forward = experts_forward
