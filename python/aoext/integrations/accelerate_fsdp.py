"""accelerate's loading of a model in rank 0 alone (cpu_ram_efficient_loading of its FSDP2 plug-in).

Its other ranks receive plain tensors of the size of each weight. PyTorch's broadcast_from_rank0 does the same
work, and knows quantised weights (checkpointing.py).
"""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from aoext.models.shards import own_part
from aoext.tensors import QuantizedTensor


def load_weights(fsdp_utils: Any) -> None:
    """Have accelerate distribute models with quantised weights by PyTorch's function."""
    load_plain = getattr(fsdp_utils, "fsdp2_load_full_state_dict", None)
    if load_plain is None:  # another version of accelerate
        return

    @functools.wraps(load_plain)
    def load(accelerator: Any, model: nn.Module, full_sd: dict[str, Any], **others: Any) -> Any:
        if not any(isinstance(own_part(p), QuantizedTensor) for p in model.parameters()):
            return load_plain(accelerator, model, full_sd, **others)
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        state = full_sd if accelerator.is_main_process else {}
        options = StateDictOptions(
            full_state_dict=True, broadcast_from_rank0=True, cpu_offload=others.get("cpu_offload", False)
        )
        set_model_state_dict(model, state, options=options)
        return model

    fsdp_utils.fsdp2_load_full_state_dict = load
