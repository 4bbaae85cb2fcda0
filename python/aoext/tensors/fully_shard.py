"""The protocol of torch.distributed.fsdp.fully_shard: fields are gathered as plain tensors, rows first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from aoext.tensors.base import QuantizedTensor

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
    """This rank's fields as fully_shard gathers them, rows of the weight first."""
    rows, columns = self.shape
    if list(outer_size) != [mesh.size() * rows, columns]:
        raise ValueError(
            f"{type(self).__name__}: fully_shard needs as many whole rows of each weight on every rank, "
            f"got {list(outer_size)} for {mesh.size()} ranks with {[rows, columns]} on this one"
        )
    weight = self if mp_policy.param_dtype is None else cast(QuantizedTensor, self.to(mp_policy.param_dtype))
    parts = (tensor.movedim(weight.fields[name].rows, 0) for name, tensor in weight.named_fields())
    return tuple(part.contiguous() for part in parts), (outer_size, weight.dtype)


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
        rows = self.fields[name].rows
        size = self.fields[name].shape(shape, self.block_size)[rows]
        tensors[name] = gathered[:size].movedim(0, rows)
    return self.remade(tensors, shape=shape, dtype=dtype), all_gather_outputs


QuantizedTensor.fsdp_pre_all_gather = _pre_all_gather  # type: ignore[attr-defined]
QuantizedTensor.fsdp_post_all_gather = _post_all_gather  # type: ignore[attr-defined]
