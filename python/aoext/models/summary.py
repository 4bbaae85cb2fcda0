"""What quantising does to a model: what is quantised, what is not and why, and the bytes of both."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from aoext.models.layers import quantizable, weight_name
from aoext.models.shards import own_part
from aoext.tensors import QuantizedTensor

# Above this share of a model's values, what stays unquantised is worth a word in the first line.
NOTABLE_SHARE = 0.1

# Below this share of a model's values, parameters that stay are not listed.
LARGE_SHARE = 0.01


@dataclass(frozen=True)
class QuantizedLayer:
    """One quantised weight."""

    name: str
    shape: tuple[int, ...]  # [N, K], or [E, N, K] of experts
    bytes_before: int
    bytes_after: int
    tied: tuple[str, ...] = ()  # other layers that share this weight


@dataclass(frozen=True)
class PlainParameter:
    """A parameter that stays as it is, and why."""

    name: str
    shape: tuple[int, ...]  # () for nested ones
    values: int  # elements
    bytes: int
    reason: str


@dataclass
class QuantizationSummary:
    """What quantize_ has done; print it to read it."""

    config: Any  # what quantize_ was given
    layers: list[QuantizedLayer] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # reasons by the layer's name
    plain: list[PlainParameter] = field(default_factory=list)  # of floating point, skipped layers' too
    model_bytes_before: int = 0  # all parameters and buffers
    model_bytes_after: int = 0
    model_values: int = 0  # elements of all parameters of floating point, quantised or not
    done: str = "quantised"  # what was done to weights

    @property
    def bytes_before(self) -> int:
        """Bytes of the quantised layers' weights as they were."""
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        """Bytes of the quantised layers' weights, with scales and zero points."""
        return sum(layer.bytes_after for layer in self.layers)

    @property
    def bits_per_weight(self) -> float:
        """Stored bits for each element of the quantised weights; NaN if there are none."""
        elements = sum(math.prod(layer.shape) for layer in self.layers)
        return 8 * self.bytes_after / elements if elements else float("nan")

    @property
    def plain_share(self) -> float:
        """Which share of the model's values no package has quantised, from 0 to 1."""
        return _share(self.plain, self.model_values)

    def count(self, model: nn.Module, chosen: Collection[str] = ()) -> None:
        """Enter what the model consists of after quantising; `chosen` layers will be quantised."""
        self.model_bytes_after = model_bytes(model)
        self.plain, self.model_values = plain_parameters(model, self.skipped, chosen)

    def plain_experts(self) -> Iterator[str]:
        """Lines on weights of experts that stay plain and are large."""
        experts = [p for p in self.plain if len(p.shape) == 3]
        return _large(experts, {}, self.model_values)

    def __str__(self) -> str:
        outcome = _outcome(len(self.layers), self.skipped, self.plain, self.model_values, self.done)
        first = f"{self.config}: {outcome}"
        lines = [first]
        if self.layers:
            lines.append(
                f"  weights  {_megabytes(self.bytes_before)} -> {_megabytes(self.bytes_after)}, "
                f"{self.bits_per_weight:.3f} bits per weight"
            )
        lines.append(
            f"  model    {_megabytes(self.model_bytes_before)} -> {_megabytes(self.model_bytes_after)}"
        )
        lines += [f"  skipped  {names}: {why}" for names, why in grouped(self.skipped)]
        lines += _large(self.plain, self.skipped, self.model_values)
        return "\n".join(lines)


def what_stays(
    model: nn.Module, chosen: Collection[str], refused: Mapping[str, str], tied: Collection[str] = ()
) -> Iterator[str]:
    """What to warn of before a model is quantised: layers that cannot be, and much that stays.

    chosen: names of the layers that are quantised.
    refused: reasons by the names of those that were meant to be.
    tied: names of parameters that will be those of other names.
    """
    sizes = {weight_name(*_parted(name)): stored_bytes(p) for name, _, p in _parameters(model)}
    if refused:
        left = sum(sizes.get(name, 0) for name in refused)
        meant = left + sum(sizes.get(name, 0) for name in chosen)
        yield (
            f"{len(chosen)} of {len(chosen) + len(refused)} layers are quantised; the other {len(refused)}, "
            f"{_megabytes(left)} of {_megabytes(meant)}, stay as they are"
        )
    plain, values = plain_parameters(model, refused, chosen, "the config leaves it as it is", tied)
    if _share(plain, values) > NOTABLE_SHARE:
        yield "\n".join((_outcome(len(chosen), refused, plain, values), *_large(plain, refused, values)))


def plain_parameters(
    model: nn.Module,
    skipped: Mapping[str, str],
    chosen: Collection[str] = (),
    not_named: str = "filter_fn does not name it",
    tied: Collection[str] = (),
) -> tuple[list[PlainParameter], int]:
    """The parameters that stay unquantised, and how many values the model has.

    skipped: reasons by the names of layers.
    chosen: names of layers whose weights do not stay.
    not_named: the reason of layers that could be quantised and are in neither.
    tied: names of parameters that do not count.
    """
    leaving = set(chosen)

    def reason(name: str, module: nn.Module, parameter: Tensor) -> str:
        stays = skipped.get(weight_name(*_parted(name)))
        return reason_to_stay(module, name, parameter, not_named) if stays is None else stays

    found = [each for each in _parameters(model) if each[0] not in tied]
    plain = [
        PlainParameter(
            name,
            () if parameter.is_nested else tuple(parameter.shape),
            parameter.numel(),
            stored_bytes(parameter),
            reason(name, module, parameter),
        )
        for name, module, parameter in found
        if not isinstance(parameter, QuantizedTensor) and weight_name(*_parted(name)) not in leaving
    ]
    return plain, sum(parameter.numel() for _, _, parameter in found)


def large_tensors(forms: Mapping[str, Tensor], values: int, reason: Callable[[str], str]) -> list[str]:
    """Lines on plain tensors of floating point that are large in a model of so many values."""
    plain = [
        PlainParameter(name, tuple(form.shape), form.numel(), form.nbytes, reason(name))
        for name, form in forms.items()
        if form.is_floating_point() and not isinstance(form, QuantizedTensor)
    ]
    return list(_large(plain, {}, values))


def _share(plain: list[PlainParameter], values: int) -> float:
    return sum(parameter.values for parameter in plain) / max(1, values)


def _outcome(
    count: int,
    skipped: Mapping[str, str],
    plain: list[PlainParameter],
    values: int,
    done: str = "quantised",
) -> str:
    """What a summary says first."""
    line = f"{count} weights {done}, {len(skipped)} skipped"
    if (share := _share(plain, values)) > NOTABLE_SHARE:
        line += f"; {share:.0%} of the model's values stay unquantised"
    return line


def _large(plain: list[PlainParameter], skipped: Mapping[str, str], values: int) -> Iterator[str]:
    """Lines on parameters that stay plain and are large, those of a kind together, without skipped layers."""
    kinds: dict[tuple[str, str], list[PlainParameter]] = {}
    for parameter in plain:
        is_skipped = skipped.get(weight_name(*_parted(parameter.name))) == parameter.reason
        if len(parameter.shape) > 1 and not is_skipped:
            kinds.setdefault((_pattern(parameter.name), parameter.reason), []).append(parameter)
    for (names, reason), alike in kinds.items():
        if sum(p.values for p in alike) >= LARGE_SHARE * values > 0:
            size = _megabytes(sum(p.bytes for p in alike))
            several = f"{len(alike)} of " if len(alike) > 1 else ""
            names = names if len(alike) > 1 else alike[0].name
            yield f"  stays    {names} ({several}{list(alike[0].shape)}, {size}): {reason}"


def _parted(name: str) -> tuple[str, str]:
    """A parameter's layer, and its name there."""
    path, _, leaf = name.rpartition(".")
    return path, leaf


def reason_to_stay(module: nn.Module, name: str, parameter: Tensor, not_named: str) -> str:
    """Why a parameter is not quantised that is no weight of a layer to be quantised."""
    kind = type(module).__name__
    if isinstance(module, nn.Embedding):
        return "an embedding (quantize_embeddings=True)"
    if _parted(name)[1] in quantizable(module):
        return not_named
    if isinstance(module, nn.EmbeddingBag):
        return "an embedding bag"
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return f"{kind} computes with its weights itself"
    if isinstance(module, nn.modules.conv._ConvNd):
        return "a convolution"
    if parameter.dim() == 3:
        return f"{kind} keeps the weights of several layers, such as experts, in one 3-D parameter"
    return f"a parameter of {kind}, which is no nn.Linear's weight"


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """(name, the module, this rank's part) of all of floating point, each once."""
    seen: set[int] = set()
    for owner, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            known = id(parameter) in seen
            seen.add(id(parameter))
            if not known and not nn.parameter.is_lazy(parameter) and parameter.is_floating_point():
                yield (f"{owner}.{leaf}" if owner else leaf), module, own_part(parameter)


def grouped(reasons: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names and their reason, names that differ in numbers alone together: `layers.*.up (30)`."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault((_pattern(name), reason), []).append(name)
    for (pattern, reason), names in groups.items():
        yield (f"{pattern} ({len(names)})" if len(names) > 1 else names[0] or "(the model)"), reason


def _pattern(name: str) -> str:
    """A name whose numbers are stars: `layers.*.up`."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def model_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, each counted once."""
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
    return sum(stored_bytes(tensor) for tensor in tensors if not nn.parameter.is_lazy(tensor))


def bits_per_weight(model: nn.Module) -> float:
    """Stored bits for each weight of linear layers and experts, with scales; NaN if there are none.

    What an embedding has too counts where it is quantised.
    """
    embeddings = {
        id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)
    }
    found = {
        id(weight): weight
        for module in model.modules()
        for name in quantizable(module)
        if (weight := module._parameters.get(name)) is not None and not nn.parameter.is_lazy(weight)
        if id(weight) not in embeddings or isinstance(own_part(weight), QuantizedTensor)
    }
    weights = sum(own_part(weight).numel() for weight in found.values())
    return 8 * sum(map(stored_bytes, found.values())) / weights if weights else math.nan


def stored_bytes(tensor: Tensor) -> int:
    """Bytes of what this rank has of a tensor's numbers, of a quantised or sparse one those of its parts."""
    tensor = own_part(tensor)
    if isinstance(tensor, QuantizedTensor):
        return tensor.stored_bytes
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    return tensor.nbytes


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
