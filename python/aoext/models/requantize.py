"""New weights for a model that is in use, such as those of a policy that is trained elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from aoext.formats.checks import describe
from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.models.shards import is_distributed, own_part
from aoext.models.summary import grouped
from aoext.tensors import QuantizedTensor, in_place
from aoext.tensors.copies import requantize_into
from aoext.tensors.rowwise import RowScaledTensor


@dataclass
class RequantizationSummary:
    """What requantize_ has done, by names of parameters and buffers; print it to read it."""

    requantized: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)  # plain ones
    left: list[str] = field(default_factory=list)  # of the model, which nothing was given for
    unknown: list[str] = field(default_factory=list)  # given, but not of the model

    def __str__(self) -> str:
        lines = [f"{len(self.requantized)} weights quantised anew, {len(self.copied)} tensors copied"]
        for what, names in (("left as they are", self.left), ("not of the model", self.unknown)):
            lines += [f"  {what}  {text}" for text, _ in grouped(dict.fromkeys(names, ""))]
        return "\n".join(lines)


@torch.no_grad()
def requantize_(
    model: nn.Module, weights: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]
) -> RequantizationSummary:
    """Write plain weights into a quantised model, each quantised in the scheme that its place has, in place.

    weights: tensors by names as state_dict() has them, or pairs of both one after the other, so that no more
        than one need be in memory. Each has its place's shape, such as [N, K] or [E, N, K] of a weight, any
        floating dtype, strides and device. Quantised ones of the place's scheme are copied. Each rank is
        given all of a sharded weight, or a DTensor of its placements.

    All memory stays where it is, so that graphs that were captured and code that was compiled go on with the
    new weights. ValueError, which names the tensors, for another shape, and for NaN, Inf, or more than the
    scales' dtype holds in a weight. Where kernels write the weights (int4, 8 bits and tables, on CPU and
    CUDA; int8 and float8 with a scale a row anywhere) the host waits once, after all of them: a weight that
    is refused has been overwritten by then, with NaN or Inf where it was broken. Others stay as they were,
    and what comes after them is not written.

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32))
    >>> _ = aoext.quantize_(model, aoext.Int8WeightOnlyConfig())
    >>> print(aoext.requantize_(model, {"0.weight": torch.randn(32, 64)}))
    1 weights quantised anew, 0 tensors copied
      left as they are  0.bias
    """
    summary = RequantizationSummary()
    own: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    own.update(model.named_buffers(remove_duplicate=False))
    written, broken = set(), dict[str, list[Tensor]]()
    for name, given in weights.items() if isinstance(weights, Mapping) else weights:
        place = own.get(name)
        if place is None:
            summary.unknown.append(name)
            continue
        try:
            broken[name] = _write(place, given)
        except (ValueError, NotImplementedError) as error:
            raise type(error)(f"requantize_: {name}: {error}") from error
        written.add(id(place))
        is_quantized = isinstance(own_part(place), QuantizedTensor)
        (summary.requantized if is_quantized else summary.copied).append(name)
    _check(broken)
    summary.left = [name for name, place in own.items() if id(place) not in written]
    return summary


def _check(broken: Mapping[str, list[Tensor]]) -> None:
    """Waits once for all answers."""
    flags = [(name, flag) for name, of_one in broken.items() for flag in of_one]
    if not flags:
        return
    first = flags[0][1].device
    answers = torch.stack([flag.to(first, torch.int32) for _, flag in flags]).tolist()
    names = dict.fromkeys(name for (name, _), answer in zip(flags, answers, strict=True) if answer)
    if names:
        raise ValueError(
            f"requantize_: {', '.join(names)}: it and its scales must be finite, got NaN, Inf, or more than "
            "the scales' dtype holds"
        )


def _write(place: Tensor, given: Tensor) -> list[Tensor]:
    """Writes a tensor; flags that are set where it was not finite, where that is still to be asked."""
    if place.shape != given.shape:
        raise ValueError(f"it must be {list(place.shape)}, got {describe(given)}")
    target, source = own_part(place), own_part(_as_sharded(given, place))
    if not isinstance(target, QuantizedTensor) or isinstance(source, QuantizedTensor) or target.trains:
        target.copy_(source)
    elif (told := in_place.write(target, source)) is not None:
        return in_place.broken(target, told)
    elif isinstance(target, RowScaledTensor) and target.dim() == 2 and source.dtype in FLOAT_DTYPES:
        return [target.overwrite(source).logical_not()]
    else:
        requantize_into(target, source)
    return []


def _as_sharded(given: Tensor, place: Tensor) -> Tensor:
    """A tensor as its place is distributed."""
    if not is_distributed(place):
        return given.full_tensor() if is_distributed(given) else given
    if is_distributed(given):
        return given.redistribute(placements=place.placements)
    from torch.distributed.tensor import distribute_tensor

    # Every rank has all of it: nothing is sent.
    return distribute_tensor(given.to(place.device), place.device_mesh, place.placements, src_data_rank=None)
