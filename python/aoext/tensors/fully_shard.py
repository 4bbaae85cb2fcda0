"""The protocol of torch.distributed.fsdp.fully_shard, which shares the rows of weights, or their experts.

Fields are gathered as plain tensors, with the dimension first that ranks share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from aoext.tensors.base import QuantizedTensor
from aoext.tensors.each_expert import has_experts
from aoext.tensors.fields import E, N

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy


def _pre_all_gather(
    self: QuantizedTensor,
    mesh: DeviceMesh,
    outer_size: Sequence[int],
    outer_stride: Sequence[int],
    module: torch.nn.Module,
    mp_policy: MixedPrecisionPolicy,
) -> tuple[tuple[Tensor, ...], Any]:
    """This rank's fields as fully_shard gathers them."""
    rows, *others = self.shape
    if list(outer_size) != [mesh.size() * rows, *others]:
        raise ValueError(
            f"{type(self).__name__}: fully_shard needs as many whole rows of each weight on every rank, "
            f"got {list(outer_size)} for {mesh.size()} ranks with {[rows, *others]} on this one"
        )
    weight = self if mp_policy.param_dtype is None else cast(QuantizedTensor, self.to(mp_policy.param_dtype))
    parts = (tensor.movedim(_shared(weight, name), 0) for name, tensor in weight.named_fields())
    return tuple(part.contiguous() for part in parts), (outer_size, weight.dtype)


def _shared(weight: QuantizedTensor, name: str) -> int:
    """The dimension of a field that ranks share, or 0 of one that is the same on all."""
    at = weight.fields[name].position(E if has_experts(weight) else N)
    return 0 if at is None else at


def _post_all_gather(
    self: QuantizedTensor,
    all_gather_outputs: Sequence[Tensor],
    metadata: Any,
    param_dtype: torch.dtype,
    *,
    out: Tensor | None = None,
) -> tuple[QuantizedTensor, Sequence[Tensor]] | None:
    """The weight of all ranks, whose fields are views of what was gathered."""
    if out is not None:  # made of the same memory the first time
        return None
    shape, dtype = metadata
    tensors = {}
    for (name, _), gathered in zip(self.named_fields(), all_gather_outputs, strict=True):
        at = _shared(self, name)
        size = self.fields[name].shape(shape, self.block_size)[at]
        tensors[name] = gathered[:size].movedim(0, at)
    return self.remade(tensors, shape=shape, dtype=dtype), all_gather_outputs


QuantizedTensor.fsdp_pre_all_gather = _pre_all_gather  # type: ignore[attr-defined]
QuantizedTensor.fsdp_post_all_gather = _post_all_gather  # type: ignore[attr-defined]
