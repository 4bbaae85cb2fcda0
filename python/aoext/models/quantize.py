"""Quantising the linear layers of a model in place, and its embeddings where that is asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, overload

import torch
from torch import Tensor, nn

from aoext.configs import QuantizationConfig
from aoext.configs.per_module import AnyConfig, PerModuleConfig
from aoext.configs.training import EightBitTrainingConfig
from aoext.formats.checks import has_values
from aoext.integrations import adopt
from aoext.models import shards
from aoext.models.choice import Owner, Owners, choose
from aoext.models.layers import as_rows, as_weight, set_weight
from aoext.models.summary import QuantizationSummary, QuantizedLayer, model_bytes, stored_bytes
from aoext.packing.scales import is_surely_finite
from aoext.qat.config import QATConfig
from aoext.qat.layers import refuse_prepared
from aoext.tensors import QuantizedTensor
from aoext.training.convert import TrainingSummary, train_in_8_bits

Item = TypeVar("Item")

# A progress bar shows up after this many seconds; shorter work is silent.
SECONDS_BEFORE_PROGRESS = 1.0


@overload
def quantize_(
    model: nn.Module,
    config: AnyConfig | QATConfig,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
    device: torch.device | str | int | None = None,
    *,
    quantize_trainable: bool = False,
    quantize_embeddings: bool = False,
    algorithm: str | None = None,
) -> QuantizationSummary: ...


@overload
def quantize_(
    model: nn.Module,
    config: EightBitTrainingConfig,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
    device: torch.device | str | int | None = None,
) -> TrainingSummary: ...


@torch.inference_mode(False)  # weights that are made in it can train no adapter later
@torch.no_grad()
def quantize_(
    model: nn.Module,
    config: AnyConfig | QATConfig | EightBitTrainingConfig,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
    device: torch.device | str | int | None = None,
    *,
    quantize_trainable: bool = False,
    quantize_embeddings: bool = False,
    algorithm: str | None = None,
) -> QuantizationSummary | TrainingSummary:
    """Replace the weights of a model's linear layers and experts by quantised ones, in place.

    config: one of aoext's for all layers, or a PerModuleConfig. A QATConfig prepares layers to be trained for
        that, or converts prepared ones. A config of training with products of 8 bits leaves the weights as
        they are and changes the layers' products, and gives a TrainingSummary
    filter_fn(module, fully qualified name) chooses the layers, and experts by their module's name or their
        parameter's; all nn.Linear, and Conv1D and experts of transformers, if it is not given, but for
        subclasses whose own forward cannot take a quantised weight, or cannot be tried.
    device: where to quantise and where the model ends up; weights move there one at a time. Without
        it every weight stays where it is.
    quantize_trainable: whether to quantise, and so to freeze, what is to be trained: adapters of PEFT,
        and in models that are partly frozen all weights that require gradients. Partly frozen are models
        in which the weight of a linear layer is, or more than half of all parameters but embeddings.
    quantize_embeddings: whether to quantise nn.Embedding too. A head that shares its weight with an
        embedding goes on sharing it: one quantised weight serves both. Else both keep the plain one, which a
        second call can quantise by another config.
    algorithm: how scales and zero points are chosen, "rounding", "search" or "hqq" (docs/quality.md); the
        config's own, rounding, if it is not given.

    Layers are replaced one by one, and experts quantised one by one, so that no more memory is needed than
    the model and one layer take. Weights that several layers share stay shared. A layer that cannot be
    quantised is skipped, and the summary tells why, as it tells what else stays as it is and is large; a
    UserWarning tells of experts among that. Each rank
    quantises its own part of a weight that parallelize_module has sharded, and the summary counts that.

    ValueError, before anything changes, for a weight with NaN or Inf, for a layer that torchao or
    bitsandbytes has quantised or that accelerate has offloaded, and for tensors on the meta device that
    would have to go to another. Weights are read for this, and copied nowhere. Only what nobody can
    foresee, such as memory that runs out, leaves some layers quantised; the call can then be repeated.

    >>> print(quantize_(model, Int4WeightOnlyConfig(group_size=128)))  # doctest: +SKIP
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize_: model must be an nn.Module, got a {type(model).__name__}")
    if isinstance(config, EightBitTrainingConfig):
        if device is not None:
            model.to(device)
        return train_in_8_bits(model, config, filter_fn)
    if not isinstance(config, (QuantizationConfig, PerModuleConfig, QATConfig)):
        raise TypeError(
            f"quantize_: config must be one of aoext's, such as Int4WeightOnlyConfig(), got {config!r}"
        )
    if not isinstance(quantize_embeddings, bool):
        raise TypeError(f"quantize_: quantize_embeddings must be a bool, got {quantize_embeddings!r}")
    if isinstance(config, QATConfig):
        from aoext.qat.prepare import take_step

        config = config.with_algorithm(algorithm)
        return take_step(model, config, filter_fn, device, quantize_trainable, quantize_embeddings)
    refuse_prepared("quantize_", model)
    config = config.with_algorithm(algorithm)
    choice = choose(model, config, filter_fn, quantize_trainable, quantize_embeddings)
    _check_values(choice.groups)
    if device is not None:
        _check_device(model, torch.device(device))
    summary = QuantizationSummary(config, skipped=choice.skipped, model_bytes_before=model_bytes(model))
    for owners in with_progress(choice.groups, "quantising"):
        summary.layers.append(_quantize_layer(owners, device))
    if device is not None:
        model.to(device)
    adopt(model)
    summary.count(model)
    if lines := list(summary.plain_experts()):
        warnings.warn("\n".join(("quantize_: experts are left as they are:", *lines)), stacklevel=3)
    return summary


def _check_values(groups: Sequence[Owners]) -> None:
    """Raise if a weight's values cannot be quantised, while all of them are as they were."""
    for owner, *_ in groups:
        weight = shards.own_part(owner.weight)
        if has_values(weight) and not is_surely_finite(weight):
            _quantized(owner, weight, None)  # which tells


def _check_device(model: nn.Module, device: torch.device) -> None:
    """Raise if a device is not there, or if a tensor without values would have to go to it."""
    torch.empty(0, device=device)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta and device.type != "meta":
            raise ValueError(f"quantize_: {name} is on the meta device and has no values for {device}")


def _quantized(owner: Owner, weight: Tensor, device: torch.device | str | int | None) -> Tensor:
    assert owner.config is not None
    try:
        quantized = shards.quantize(owner.config, as_rows(owner.layer, weight), device)
        return as_weight(owner.layer, quantized) if isinstance(quantized, QuantizedTensor) else quantized
    except ValueError as error:
        raise ValueError(f"quantize_: layer {owner.name!r}: {error}") from error


def _quantize_layer(owners: Owners, device: torch.device | str | int | None) -> QuantizedLayer:
    """Quantise the weight of `owners` on `device` and give it to all of them."""
    first = owners[0]
    return give(owners, _quantized(first, first.weight, device))


def give(owners: Owners, quantized: Tensor) -> QuantizedLayer:
    """Replace the weight of `owners` by a quantised one, which they then share."""
    first, *others = owners
    weight = first.weight
    trains = isinstance(quantized, QuantizedTensor) and quantized.trains and weight.requires_grad
    parameter = nn.Parameter(quantized, requires_grad=trains)
    for owner in owners:
        set_weight(owner.layer, parameter, owner.parameter)
    shape = tuple(as_rows(first.layer, shards.own_part(weight)).shape)
    tied = tuple(other.name for other in others)
    return QuantizedLayer(first.name, shape, stored_bytes(weight), stored_bytes(quantized), tied)


def with_progress(items: Sequence[Item], doing: str) -> Iterable[Item]:
    """`items` with a progress bar on a terminal, if tqdm is installed and the work takes long."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return items
    # disable=None: no bar where the output is not a terminal.
    return tqdm(items, desc=doing, delay=SECONDS_BEFORE_PROGRESS, disable=None)
