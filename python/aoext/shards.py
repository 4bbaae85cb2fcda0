"""Quantising weights that torch.distributed has sharded: each rank quantises its own part."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aoext.configs import QuantizationConfig
from aoext.tensors.fields import K

if torch.distributed.is_available():
    from torch.distributed.tensor import DTensor, Replicate, Shard


def own_part(weight: Tensor) -> Tensor:
    """What this rank has of a weight: all of it, unless that is a DTensor."""
    return weight.to_local() if torch.distributed.is_available() and isinstance(weight, DTensor) else weight


def obstacle(config: QuantizationConfig, layer: nn.Module, weight: Tensor) -> str | None:
    """Why `config` cannot quantise the weight of a layer, or this rank's part of it; None if it can."""
    if getattr(layer, "_is_fsdp_managed_module", False):  # which keeps what it has made of the plain weight
        return "FSDP has sharded its weight: quantise the model first, then call fully_shard"
    if not torch.distributed.is_available() or not isinstance(weight, DTensor):
        return config.obstacle(weight)
    along_k = False
    for placement, ranks in zip(weight.placements, weight.device_mesh.shape, strict=True):
        if type(placement) not in (Shard, Replicate):
            return f"its weight is distributed as {placement}, neither Shard nor Replicate"
        if isinstance(placement, Shard):
            if weight.shape[placement.dim] % ranks:
                return f"its weight {list(weight.shape)} has unlike parts on {ranks} ranks"
            along_k |= placement.dim == K
    part = weight.to_local()
    if (reason := config.obstacle(part)) is not None:
        return f"{reason}, in the part {list(part.shape)} of this rank"
    if along_k and config.quantize(torch.empty_like(part, device="meta")).blocks_are_rows:
        return "ranks have parts of rows, which need one scale: quantise before the weight is sharded"
    return None


def quantize(config: QuantizationConfig, weight: Tensor, device: torch.device | str | int | None) -> Tensor:
    """The weight, or this rank's part of it, quantised on `device`."""
    quantized = config.quantize(own_part(weight).detach().to(device))
    if not torch.distributed.is_available() or not isinstance(weight, DTensor):
        return quantized
    return DTensor.from_local(
        quantized,
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )
