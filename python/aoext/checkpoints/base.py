"""What the readers and writers of other libraries' checkpoints share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aoext.checkpoints.experts import Experts
from aoext.checkpoints.settings import Settings, named
from aoext.formats.checks import describe, has_values
from aoext.formats.dtypes import one_of
from aoext.tensors import QuantizedTensor
from aoext.tensors.fields import ceil_div
from aoext.tensors.ranges import RANGES


class Model(NamedTuple):
    """What is known of the model that a checkpoint is read for."""

    module: Callable[[str], nn.Module | None]  # by the name that the files have for a layer
    config: Mapping[str, Any]  # of its config.json, what is said of its text part
    # The weights of experts that layers of a checkpoint make, by the weights' names in the model, and why
    # other layers cannot make one.
    experts: Callable[[Iterable[str]], tuple[dict[str, Experts], dict[str, str]]] = lambda layers: ({}, {})


# A tensor of all experts, by the name of the parameter that it belongs to.
_OF_EXPERTS = re.compile(r"(?P<layer>.*\.experts\.(?:gate_up_proj|gate_proj|up_proj|down_proj))(?P<leaf>\w*)")


class Reader:
    """Makes quantised weights of the tensors that a checkpoint has of a layer.

    names: what the tensors are called behind the layer's name, such as "qweight"

    A subclass brings _weight. Whatever is wrong in the tensors ends in a ValueError that names the layer.
    """

    names: tuple[str, ...] = ()
    # None where it is not known.
    model: Model | None = None
    # What tensors of all experts are called behind the parameter's name, and which of `names` they are.
    names_of_experts: Mapping[str, str] = {}
    # Those of them whose values say what the others must be, by their last parts; they are small.
    telling: tuple[str, ...] = ()
    # Expressions, searched in names, for tensors that are of no layer's weight and that no model has.
    left_aside: tuple[str, ...] = ()
    # What users should know of how the weights run.
    notes: tuple[str, ...] = ()

    def __init__(self, settings: Settings) -> None:
        """settings: the quantization_config of the checkpoint. ValueError for what cannot be served."""

    def read_metadata(self, metadata: Mapping[str, str]) -> None:
        """Takes what the metadata of a safetensors file says, before the weights; ValueError."""

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        """The weight [N, K] of a layer, for activations of `dtype`; ValueError, which names the layer."""
        with named(layer):
            return self._weight(layer, tensors, dtype)

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        raise NotImplementedError

    def layers(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Those of a checkpoint's tensors that make quantised weights: by layer, and by the name behind it.

        A layer that was left alone has `weight` and nothing else. Tensors of all experts are a layer, too.
        """
        found: dict[str, dict[str, str]] = {}
        longest_first = sorted(self.names, key=len, reverse=True)
        for name in names:
            leaf = next((leaf for leaf in longest_first if name.endswith(f".{leaf}")), None)
            if leaf is not None:
                found.setdefault(name.removesuffix(f".{leaf}"), {})[leaf] = name
            elif (match := _OF_EXPERTS.fullmatch(name)) and match["leaf"] in self.names_of_experts:
                found.setdefault(match["layer"], {})[self.names_of_experts[match["leaf"]]] = name
        return {layer: parts for layer, parts in found.items() if parts.keys() != {"weight"}}


class Writer:
    """Makes of quantised weights the tensors that another library's checkpoint has of a layer.

    Facts of a layer are what `settings` needs to know of it, in JSON's types.
    """

    # That of its scales, where the format has one alone; weights that are quantised for it get such scales.
    scale_dtype: torch.dtype | None = None

    def __init__(self, *, symmetric: bool) -> None:
        """symmetric: whether the weights are known to have no zero points."""
        self.symmetric = symmetric

    def write(self, layer: str, weight: QuantizedTensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors by their names behind the layer's, and facts.

        ValueError, which names the layer, where the format cannot say exactly what the weight is.
        """
        raise NotImplementedError

    def metadata(self, layers: Mapping[str, Mapping[str, Any]], others: Sequence[str]) -> dict[str, str]:
        """The metadata of a file with these layers, by their facts, and with other tensors of these names."""
        return {}

    def settings(self, layers: Mapping[str, Mapping[str, Any]], left_alone: Sequence[str]) -> dict[str, Any]:
        """The quantization_config of a checkpoint with these layers, by their facts.

        left_alone: names of linear layers that are not quantised
        """
        raise NotImplementedError


def refuse_what_is_aoexts_own(layer: str, weight: QuantizedTensor) -> None:
    """ValueError, which names the layer, for what other libraries have no place for."""
    if weight.transposed:
        raise ValueError(f"{layer}: a transposed weight has no place in the format")
    for field in ("act_pre_scale", *RANGES):
        if getattr(weight, field, None) is not None:
            raise ValueError(f"{layer}: {field} has no place in the format")


def exactly(layer: str, scale: Tensor, *dtypes: torch.dtype) -> Tensor:
    """Scales or zero points in the first of these dtypes that holds them exactly; ValueError for none."""
    for dtype in dtypes:
        if torch.equal(scale.to(dtype).float(), scale.float()):
            return scale.to(dtype).contiguous()
    raise ValueError(
        f"{layer}: its scales and zero points are not exact in {one_of(dtypes)}, as the format has them"
    )


def take(
    layer: str,
    tensors: Mapping[str, Tensor],
    name: str,
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int],
    *,
    finite: bool = True,
) -> Tensor:
    """The tensor of this name, if it has one of the dtypes and the shape; -1 stands for any size but 0.

    finite: whether floats must be
    """
    value = tensors.get(name)
    if value is None:
        raise ValueError(f"{layer}: the checkpoint lacks {layer}.{name}")
    if value.dim() == 3 and len(shape) == 2:
        raise ValueError(
            f"{layer}: {name} has several weights, such as those of experts, in one 3-D tensor, and which "
            f"parameter of the model they are is not known: {describe(value)}"
        )
    sizes = ", ".join("*" if size < 0 else str(size) for size in shape)
    fits = value.dim() == len(shape) and all(
        given == size or (size == -1 and given > 0) for size, given in zip(shape, value.shape, strict=True)
    )
    if value.dtype not in dtypes or not fits:
        raise ValueError(f"{layer}: {name} must be {one_of(dtypes)} [{sizes}], got {describe(value)}")
    sound = not finite or not value.is_floating_point() or not has_values(value)
    if not sound and not bool(value.float().isfinite().all()):
        raise ValueError(f"{layer}: {name} must be finite, got NaN or Inf")
    return value


def order_of_groups(
    layer: str, tensors: Mapping[str, Tensor], name: str, columns: int, group_size: int
) -> Tensor | None:
    """The columns sorted by their groups, which tensors[name] has if it is there; None where they are.

    The last group may be partial.
    """
    if name not in tensors:
        return None
    group = take(layer, tensors, name, (torch.int32, torch.int64), (columns,)).long()
    groups = ceil_div(columns, group_size)
    sizes = torch.bincount(group.clamp(0, groups - 1), minlength=groups)
    wanted = torch.full_like(sizes, group_size)
    wanted[-1] = columns - (groups - 1) * group_size
    if bool(((group < 0) | (group >= groups)).any()) or not torch.equal(sizes, wanted):
        raise ValueError(
            f"{layer}: {name} must name each of the {groups} groups {group_size} times, "
            f"got values in {int(group.min())}..{int(group.max())}"
        )
    return None if bool((group.diff() >= 0).all()) else group.argsort(stable=True)


def in_whole_groups(columns: int, group_size: int, *of_groups: Tensor) -> tuple[Tensor, ...]:
    """What there is for each group along K, [⌈K/group_size⌉, N], for groups that all are whole ones.

    Where group_size does not divide K these are the parts of groups that do.
    """
    whole = math.gcd(columns, group_size)
    if whole == group_size:
        return of_groups
    firsts = torch.arange(0, columns, whole, device=of_groups[0].device)
    return tuple(tensor[firsts // group_size] for tensor in of_groups)


def left_as_they_are(bits: Any, kind: str) -> str:
    """A note on activations that run as they come, and not as the checkpoint has them."""
    return f"activations stay as they are, where the checkpoint has them in {bits} bits, {kind}"


def is_nonzero(tensor: Tensor | None) -> bool:
    """Whether there are values, and one of them is not 0."""
    return tensor is not None and has_values(tensor) and bool(tensor.any())
