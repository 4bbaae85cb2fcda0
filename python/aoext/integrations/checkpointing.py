"""torch.distributed.checkpoint, which makes plain tensors of the size of a quantised weight in two places.

async_save copies a state dict to the CPU, the storage of every tensor that has an address. A quantised weight
has the address of its qdata, and storages are those of its fields. broadcast_from_rank0 has the other ranks
receive plain tensors; what they shall receive their own weights know.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch import Tensor, distributed

from aoext.models.shards import own_part
from aoext.tensors import QuantizedTensor


def stage_weights(stager: ModuleType) -> None:
    """Have StateDictStager copy quantised weights field by field."""
    cls: Any = getattr(stager, "StateDictStager", None)
    offload = getattr(cls, "_offload_tensor", None)
    if offload is None:  # another version of PyTorch
        return

    @functools.wraps(offload)
    def staged(self: Any, x: Tensor, memo: dict[int, Any], non_blocking: bool = False) -> Any:
        if not isinstance(x, QuantizedTensor):
            return offload(self, x, memo, non_blocking=non_blocking)
        copy = functools.partial(self.deepcopy_with_tensor_offload, memo=memo, non_blocking=non_blocking)
        memo[id(x)] = twin = x.mapped(copy)
        twin.__dict__.update(copy(x.remarks()))
        return twin

    cls._offload_tensor = staged


def broadcast_weights(utils: Any) -> None:
    """Have set_model_state_dict(broadcast_from_rank0=True) broadcast quantised weights field by field."""
    broadcast_plain = getattr(utils, "_broadcast_tensors", None)
    if broadcast_plain is None or not hasattr(utils, "_distribute_tensors"):  # another version of PyTorch
        return

    @functools.wraps(broadcast_plain)
    def broadcast(
        full_state_dict: dict[str, Any],
        local_state_dict: dict[str, Any],
        keys: list[str],
        device: Any,
        pg: Any = None,
    ) -> None:
        group = pg or distributed.distributed_c10d._get_default_group()
        types = [kind.type for kind in group._device_types]
        sender = device if device.type in types else types[0]  # a group of GPUs broadcasts on them
        plain = []
        for key in keys:
            local = local_state_dict.get(key)
            if not isinstance(local, Tensor) or not isinstance(own_part(local), QuantizedTensor):
                plain.append(key)
                continue
            if distributed.get_rank() == 0:
                whole = full_state_dict[key].detach().to(sender).contiguous()
            else:
                whole = own_part(local).new_empty(local.shape, device=sender)
            distributed.broadcast(whole, src=0, group=pg)
            whole = whole.to(device)
            local_state_dict[key] = (local, whole) if own_part(local) is not local else whole
            utils._distribute_tensors(local_state_dict, [key], device, pg)
        if plain:
            broadcast_plain(full_state_dict, local_state_dict, plain, device, pg)

    utils._broadcast_tensors = broadcast
