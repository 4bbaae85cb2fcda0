"""Tensor parallel plans of transformers: a rank quantises a whole weight, or reads one, and keeps its part.

So all ranks together have the numbers that one would have. A part lies in a DTensor, as transformers has it.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, Shard

from aoext.models import shards
from aoext.tensors import QuantizedTensor

logger = logging.getLogger(__name__)


class Distribution(NamedTuple):
    """How ranks share a weight."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]

    def distributed(self, weight: QuantizedTensor) -> DTensor:
        """A weight of which this rank has its part. ValueError where parts do not end on group boundaries."""
        if self.packed is not None:
            return shards.distributed(self._packed_part(weight), self.mesh, self.placements, weight)
        if (unlike := shards.unlike_shards(self.placements)) is not None:
            raise ValueError(f"it is {unlike}")
        lengths, offsets = compute_local_shape_and_global_offset(weight.shape, self.mesh, self.placements)
        part: Tensor = weight
        for dim, (length, offset) in enumerate(zip(lengths, offsets, strict=True)):
            if length < weight.shape[dim]:
                part = part.narrow(dim, offset, length)
        part = weight if part is weight else part.clone()  # a view would keep the whole weight's memory
        return shards.distributed(part, self.mesh, self.placements, weight)

    # Fused weights, such as gate and up: a rank has a part of each.

    @property
    def packed(self) -> Any:
        """Their placement where it is all that there is, else None; its split_factor counts what is fused."""
        (placement, *others) = self.placements
        return placement if hasattr(placement, "split_factor") and not others else None

    def _packed_part(self, weight: QuantizedTensor) -> Tensor:
        rank, dim = self.mesh.get_local_rank(), self.packed.dim
        fused = weight.chunk(self.packed.split_factor, dim)
        return torch.cat([each.chunk(self.mesh.size(), dim)[rank] for each in fused], dim)

    def whole(self, weight: DTensor) -> Tensor:
        """The weight of all ranks."""
        if self.packed is None:
            return weight.full_tensor()
        dim = self.packed.dim
        behind_each_other = shards.distributed(weight.to_local(), self.mesh, (Shard(dim),), weight)
        of_ranks = behind_each_other.full_tensor().chunk(self.mesh.size(), dim)
        fused = zip(*(part.chunk(self.packed.split_factor, dim) for part in of_ranks), strict=True)
        return torch.cat([part for each in fused for part in each], dim)


def take_whole(model: Any, quantizer: Any) -> None:
    """Have the weights that are to be quantised read whole, and tell the quantiser how they are distributed.

    A weight whose parts cannot be quantised stays as it is, which a warning says; where it is quantised in
    the file already, ValueError says so.
    """
    reasons: dict[str, str] = {}
    for name, parameter in list(model.named_parameters()):
        if not isinstance(parameter, DTensor):
            continue
        path, _, leaf = name.rpartition(".")
        if quantizer.reader is not None:
            raise ValueError(
                "AoextConfig.keep(): a tensor parallel plan needs a checkpoint of aoext's; `aoext convert` "
                "makes one"
            )
        module = model.get_submodule(path)
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        module._parameters[leaf] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
        form = quantizer.form_of(model, name)
        distribution = Distribution(parameter.device_mesh, tuple(parameter.placements))
        reason = None if form is None else _obstacle(module, form, distribution)
        if form is not None and reason is None:
            quantizer.distributions[name] = distribution
            module._hf_quantized_needs_local_tp = True
            continue
        module._parameters[leaf] = parameter
        if reason is not None:
            reasons[path] = reason
    if reasons and quantizer.pre_quantized:
        raise ValueError(f"AoextConfig: the ranks cannot share {_listed(reasons)}")
    quantizer.left_alone += reasons
    if reasons:
        logger.warning("not quantised, for the ranks cannot share it: %s", _listed(reasons))


def _obstacle(module: nn.Module, form: QuantizedTensor, distribution: Distribution) -> str | None:
    if isinstance(module, nn.Embedding):
        return "it is an embedding"
    try:
        distribution.distributed(form)
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return None


def _listed(reasons: dict[str, str]) -> str:
    return "; ".join(f"{path} ({reason})" for path, reason in reasons.items())
