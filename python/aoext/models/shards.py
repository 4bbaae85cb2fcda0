"""Weights that torch.distributed has sharded, DTensors: each rank quantises its own shard."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeGuard, cast

import torch
from torch import Tensor, nn

from aoext.configs import QuantizationConfig
from aoext.tensors import QuantizedTensor
from aoext.tensors.fields import E, Field, K, as_stored
from aoext.tensors.views import weight_dim

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement


def is_distributed(weight: object) -> TypeGuard[DTensor]:
    """Whether this is a DTensor, without importing their module, which takes more than a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(weight, module.DTensor)


def own_part(weight: Tensor) -> Tensor:
    """What this rank has of a weight: all of it, unless that is a DTensor."""
    return weight.to_local() if is_distributed(weight) else weight


def unlike_shards(placements: Sequence[Placement]) -> str | None:
    """What a weight of these placements is, in words, if ranks have it by neither Shard nor Replicate."""
    from torch.distributed.tensor import Replicate, Shard

    strange = next((p for p in placements if type(p) not in (Shard, Replicate)), None)
    return None if strange is None else f"distributed as {strange}, neither Shard nor Replicate"


def distributed(part: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], like: Tensor) -> DTensor:
    """A DTensor of this rank's part, of the whole's shape and strides."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, mesh, placements, run_check=False, shape=like.size(), stride=like.stride()
    )


def obstacle(config: QuantizationConfig, layer: nn.Module, weight: Tensor) -> str | None:
    """Why `config` cannot quantise the weight of a layer, or this rank's part of it; None if it can."""
    if getattr(layer, "_is_fsdp_managed_module", False):  # which keeps what it has made of the plain weight
        return "FSDP has sharded its weight: quantise the model first, then call fully_shard"
    if not is_distributed(weight):
        return config.obstacle(weight)
    if (unlike := unlike_shards(weight.placements)) is not None:
        return f"its weight is {unlike}"
    from torch.distributed.tensor import Shard

    within_matrix = along_k = False
    for placement, ranks in zip(weight.placements, weight.device_mesh.shape, strict=True):
        if isinstance(placement, Shard):
            if weight.shape[placement.dim] % ranks:
                return f"its weight {list(weight.shape)} has unlike parts on {ranks} ranks"
            dim = placement.dim % weight.dim() - weight.dim()
            within_matrix |= dim != E
            along_k |= dim == K
    part = weight.to_local()
    if (reason := config.obstacle(part)) is not None:
        return f"{reason}, in the part {list(part.shape)} of this rank"
    form = config.form(part)
    first = "quantise before the weight is sharded"
    if along_k and form.blocks_are_rows:
        return f"ranks have parts of rows, which need one scale: {first}"
    if within_matrix and getattr(form, "global_scale", None) is not None:
        return f"ranks have parts of a weight that needs one global scale: {first}"
    if form.any_blocks and any(
        size < whole and size % block
        for size, whole, block in zip(part.shape[-2:], weight.shape[-2:], form.block_size, strict=True)
    ):
        return f"ranks have parts of blocks {form.block_size}: {first}"
    return None


def quantize(config: QuantizationConfig, weight: Tensor, device: torch.device | str | int | None) -> Tensor:
    """The weight, or this rank's part of it, quantised on `device`."""
    part = own_part(weight).detach().to(device)
    if isinstance(part, QuantizedTensor):  # one that has trained
        part = cast(QuantizedTensor, part.to(torch.float32)).dequantize()
    quantized = config.quantize(part).to(weight.dtype)
    if not is_distributed(weight):
        return quantized
    return distributed(quantized, weight.device_mesh, weight.placements, weight)


def named_fields(name: str, weight: object) -> Iterator[tuple[str, DTensor]] | None:
    """Names and fields of a distributed quantised weight, as DTensors of the same memory; None for all else.

    NotImplementedError, which says `name`, for placements other than Shard and Replicate.
    """
    if not is_distributed(weight) or not isinstance(weight.to_local(), QuantizedTensor):
        return None
    if unlike_shards(weight.placements) is not None:
        raise NotImplementedError(
            f"{name}: fields of a quantised weight can be Shard or Replicate, got {list(weight.placements)}"
        )
    return _distributed_fields(weight)


def _distributed_fields(weight: DTensor) -> Iterator[tuple[str, DTensor]]:
    local = cast(QuantizedTensor, weight.to_local().detach())
    shape = as_stored(weight.shape, local.transposed)
    block_size = [1, shape[K]] if local.blocks_are_rows else local.block_size
    for name, tensor in local.named_fields():
        field = local.fields[name]
        whole = torch.empty(field.shape(shape, block_size), device="meta")
        placements = [_field_placement(local, field, placement) for placement in weight.placements]
        yield name, distributed(tensor, weight.device_mesh, placements, whole)


def _field_placement(local: QuantizedTensor, field: Field, placement: Placement) -> Placement:
    """Where a field lies whose weight has this placement. Shards along K share the scales of whole rows."""
    from torch.distributed.tensor import Replicate, Shard

    if isinstance(placement, Shard):
        dim = weight_dim(local, placement.dim)
        shared = dim == K and local.blocks_are_rows and field.per_block
        at = field.position(dim)
        if at is not None and not shared:
            return Shard(at + len(field.axes) + (local.dim() - 2))
    return Replicate()
