"""Quantising the linear layers of a model in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from aoext import shards
from aoext.configs import QuantizationConfig
from aoext.integrations import adopt
from aoext.layers import set_weight
from aoext.tensors import QuantizedTensor

Item = TypeVar("Item")

# A progress bar shows up after this many seconds; shorter work is silent.
SECONDS_BEFORE_PROGRESS = 1.0


@dataclass(frozen=True)
class QuantizedLayer:
    """One quantised weight."""

    name: str
    shape: tuple[int, int]
    bytes_before: int
    bytes_after: int
    tied: tuple[str, ...] = ()  # other layers that share this weight


@dataclass
class QuantizationSummary:
    """What quantize_ has done; print it to read it."""

    config: QuantizationConfig
    layers: list[QuantizedLayer] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # reasons by the layer's name
    model_bytes_before: int = 0  # all parameters and buffers
    model_bytes_after: int = 0

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
        elements = sum(rows * columns for rows, columns in (layer.shape for layer in self.layers))
        return 8 * self.bytes_after / elements if elements else float("nan")

    def __str__(self) -> str:
        lines = [f"{self.config}: {len(self.layers)} weights quantised, {len(self.skipped)} skipped"]
        if self.layers:
            lines.append(
                f"  weights  {_megabytes(self.bytes_before)} -> {_megabytes(self.bytes_after)}, "
                f"{self.bits_per_weight:.3f} bits per weight"
            )
        lines.append(
            f"  model    {_megabytes(self.model_bytes_before)} -> {_megabytes(self.model_bytes_after)}"
        )
        lines += [f"  skipped  {name or '(the model)'}: {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)


@torch.no_grad()
def quantize_(
    model: nn.Module,
    config: QuantizationConfig,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
    device: torch.device | str | int | None = None,
) -> QuantizationSummary:
    """Replace the weights of a model's linear layers by quantised ones, in place.

    filter_fn(module, fully qualified name) chooses the layers; all nn.Linear if it is not given.
    device: where to quantise and where the model ends up; weights move there one at a time. Without
        it every weight stays where it is.

    Layers are replaced one by one, so that no more memory is needed than the model and one layer
    take. Weights that several layers share stay shared. A layer that cannot be quantised is
    skipped, and the summary tells why. Of a weight that parallelize_module has sharded each rank
    quantises its own part, and the summary counts that. A weight with NaN or Inf raises ValueError,
    which names its layer; the layers before it are quantised by then.

    >>> print(quantize_(model, Int4WeightOnlyConfig(group_size=128)))  # doctest: +SKIP
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize_: model must be an nn.Module, got a {type(model).__name__}")
    if not isinstance(config, QuantizationConfig):
        raise TypeError(
            f"quantize_: config must be one of aoext's, such as Int4WeightOnlyConfig(), got {config!r}"
        )
    summary = QuantizationSummary(config, model_bytes_before=_model_bytes(model))
    for owners in _with_progress(_choose(model, config, filter_fn, summary.skipped)):
        summary.layers.append(_quantize_layer(owners, config, device))
    if device is not None:
        model.to(device)
    adopt(model)
    summary.model_bytes_after = _model_bytes(model)
    return summary


# The layers that own one weight, with their names; more than one where layers share it.
Owners = list[tuple[str, nn.Linear]]


def _choose(
    model: nn.Module,
    config: QuantizationConfig,
    filter_fn: Callable[[nn.Module, str], bool] | None,
    skipped: dict[str, str],
) -> list[Owners]:
    """The layers to quantise, grouped by weight; writes the reasons for all others into `skipped`.

    Keeps no reference to a weight, so that each is freed as soon as it is replaced.
    """
    users: dict[int, list[tuple[str, nn.Module]]] = {}
    chosen: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append((name, module))
        if filter_fn(module, name) if filter_fn else isinstance(module, nn.Linear):
            chosen[name] = module

    groups: dict[int, Owners] = {}
    for name, module in chosen.items():
        weight = module._parameters.get("weight")
        if not isinstance(module, nn.Linear):
            if weight is not None:  # containers and the like are passed over without a word
                skipped[name] = f"only nn.Linear can be quantised, not {type(module).__name__}"
        elif weight is None:
            skipped[name] = "its weight is computed from other parameters"
        elif nn.parameter.is_lazy(weight):
            skipped[name] = "its weight is not initialised yet"
        elif (reason := shards.obstacle(config, module, weight)) is not None:
            skipped[name] = reason
        elif strangers := [
            user
            for user, owner in users[id(weight)]
            if user not in chosen or not isinstance(owner, nn.Linear)
        ]:
            skipped[name] = f"its weight is shared with {', '.join(strangers)}, not to be quantised"
        else:
            groups.setdefault(id(weight), []).append((name, module))
    return list(groups.values())


def _quantize_layer(
    owners: Owners, config: QuantizationConfig, device: torch.device | str | int | None
) -> QuantizedLayer:
    """Quantise the weight of `owners` on `device` and give it to all of them."""
    (name, first), *others = owners
    weight = first.weight
    try:
        quantized = shards.quantize(config, weight, device)
    except ValueError as error:
        raise ValueError(f"quantize_: layer {name!r}: {error}") from error
    parameter = nn.Parameter(quantized, requires_grad=False)
    for _, layer in owners:
        set_weight(layer, parameter)
    rows, columns = shards.own_part(weight).shape
    tied = tuple(other for other, _ in others)
    return QuantizedLayer(name, (rows, columns), _bytes(weight), _bytes(quantized), tied)


def _with_progress(items: Sequence[Item]) -> Iterable[Item]:
    """`items` with a progress bar on a terminal, if tqdm is installed and the work takes long."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return items
    # disable=None: no bar where the output is not a terminal.
    return tqdm(items, desc="quantising", unit="layer", delay=SECONDS_BEFORE_PROGRESS, disable=None)


def _model_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, each counted once."""
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
    return sum(_bytes(tensor) for tensor in tensors if not nn.parameter.is_lazy(tensor))


def _bytes(tensor: Tensor) -> int:
    """Bytes of what this rank has of a tensor."""
    tensor = shards.own_part(tensor)
    return tensor.stored_bytes if isinstance(tensor, QuantizedTensor) else tensor.nbytes


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
