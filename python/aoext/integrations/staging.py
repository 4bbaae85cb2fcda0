"""torch.distributed.checkpoint: async_save copies a state dict to the CPU, quantised weights field by field.

PyTorch's own way copies the storage of every tensor that has an address. A quantised weight has the address of
its qdata, and storages are those of its fields.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint import _state_dict_stager

from aoext.tensors import QuantizedTensor

Stager: Any = getattr(_state_dict_stager, "StateDictStager", None)


def _staging(offload: Any) -> Any:
    """PyTorch's function that copies a tensor for a stager, with quantised weights among the tensors."""

    @functools.wraps(offload)
    def staged(self: Any, x: Tensor, memo: dict[int, Any], non_blocking: bool = False) -> Any:
        if not isinstance(x, QuantizedTensor):
            return offload(self, x, memo, non_blocking=non_blocking)
        copy = functools.partial(self.deepcopy_with_tensor_offload, memo=memo, non_blocking=non_blocking)
        memo[id(x)] = twin = x.mapped(copy)
        twin.__dict__.update(copy(x.remarks()))
        return twin

    return staged


if hasattr(Stager, "_offload_tensor"):
    Stager._offload_tensor = _staging(Stager._offload_tensor)
