"""vLLM: checkpoints of aoext in its linear layers and experts, by the entry point `vllm.general_plugins`.

vLLM calls `register` as it starts. Which weights are quantised, and how, stands in the metadata of the
checkpoint's files; that is read as soon as vLLM knows where these are. Weights that vLLM merges (q, k and v;
gate and up; all experts of a layer) must be quantised alike; where each has one scale for all of it (nvfp4),
that goes into the scales of its blocks, which are float32 then.

config.py is what vLLM asks about a checkpoint, linear.py and experts.py run layers, fields.py has what a
layer loads before its weight is one.
"""

from __future__ import annotations

from aoext.integrations.vllm.config import AoextVllmConfig

__all__ = ["AoextVllmConfig", "register"]


def register() -> None:
    """The plug-in: importing this module has made aoext known to vLLM."""
