"""Quantising the linear layers of a model in place, and its embeddings where that is asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from aoext.configs import QuantizationConfig
from aoext.formats.checks import has_values
from aoext.integrations import adopt
from aoext.models import shards
from aoext.models.choice import Owner, Owners, choose
from aoext.models.layers import as_rows, as_weight, set_weight
from aoext.models.summary import QuantizationSummary, QuantizedLayer, model_bytes, stored_bytes
from aoext.packing.scales import is_surely_finite
from aoext.tensors import QuantizedTensor

Item = TypeVar("Item")

# A progress bar shows up after this many seconds; shorter work is silent.
SECONDS_BEFORE_PROGRESS = 1.0


@torch.inference_mode(False)  # weights that are made in it can train no adapter later
@torch.no_grad()
def quantize_(
    model: nn.Module,
    config: QuantizationConfig,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
    device: torch.device | str | int | None = None,
    *,
    quantize_trainable: bool = False,
    quantize_embeddings: bool = False,
) -> QuantizationSummary:
    """Replace the weights of a model's linear layers and experts by quantised ones, in place.

    filter_fn(module, fully qualified name) chooses the layers, and experts by their module's name or their
        parameter's; all nn.Linear, and Conv1D and experts of transformers, if it is not given, but for
        subclasses whose own forward cannot take a quantised weight, or cannot be tried.
    device: where to quantise and where the model ends up; weights move there one at a time. Without
        it every weight stays where it is.
    quantize_trainable: whether to quantise, and so to freeze, what is to be trained: adapters of PEFT,
        and in models that are partly frozen all weights that require gradients. Partly frozen are models
        in which the weight of a linear layer is, or more than half of all parameters but embeddings.
    quantize_embeddings: whether to quantise nn.Embedding too. A head that shares its weight with an
        embedding goes on sharing it: one quantised weight serves both. Else both keep the plain one.

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
    if not isinstance(config, QuantizationConfig):
        raise TypeError(
            f"quantize_: config must be one of aoext's, such as Int4WeightOnlyConfig(), got {config!r}"
        )
    if not isinstance(quantize_embeddings, bool):
        raise TypeError(f"quantize_: quantize_embeddings must be a bool, got {quantize_embeddings!r}")
    choice = choose(model, config, filter_fn, quantize_trainable, quantize_embeddings)
    _check_values(choice.groups, config)
    if device is not None:
        _check_device(model, torch.device(device))
    summary = QuantizationSummary(config, skipped=choice.skipped, model_bytes_before=model_bytes(model))
    for owners in _with_progress(choice.groups):
        summary.layers.append(_quantize_layer(owners, config, device))
    if device is not None:
        model.to(device)
    adopt(model)
    summary.count(model)
    if lines := list(summary.plain_experts()):
        warnings.warn("\n".join(("quantize_: experts are left as they are:", *lines)), stacklevel=3)
    return summary


def _check_values(groups: Sequence[Owners], config: QuantizationConfig) -> None:
    """Raise if a weight's values cannot be quantised, while all of them are as they were."""
    for owner, *_ in groups:
        weight = shards.own_part(owner.weight)
        if has_values(weight) and not is_surely_finite(weight):
            _quantized(owner, weight, config, None)  # which tells


def _check_device(model: nn.Module, device: torch.device) -> None:
    """Raise if a device is not there, or if a tensor without values would have to go to it."""
    torch.empty(0, device=device)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta and device.type != "meta":
            raise ValueError(f"quantize_: {name} is on the meta device and has no values for {device}")


def _quantized(
    owner: Owner,
    weight: Tensor,
    config: QuantizationConfig,
    device: torch.device | str | int | None,
) -> Tensor:
    try:
        quantized = shards.quantize(config, as_rows(owner.layer, weight), device)
        return as_weight(owner.layer, quantized) if isinstance(quantized, QuantizedTensor) else quantized
    except ValueError as error:
        raise ValueError(f"quantize_: layer {owner.name!r}: {error}") from error


def _quantize_layer(
    owners: Owners, config: QuantizationConfig, device: torch.device | str | int | None
) -> QuantizedLayer:
    """Quantise the weight of `owners` on `device` and give it to all of them."""
    first, *others = owners
    weight = first.weight
    quantized = _quantized(first, weight, config, device)
    parameter = nn.Parameter(quantized, requires_grad=False)
    for owner in owners:
        set_weight(owner.layer, parameter, owner.parameter)
    shape = tuple(as_rows(first.layer, shards.own_part(weight)).shape)
    tied = tuple(other.name for other in others)
    return QuantizedLayer(first.name, shape, stored_bytes(weight), stored_bytes(quantized), tied)


def _with_progress(items: Sequence[Item]) -> Iterable[Item]:
    """`items` with a progress bar on a terminal, if tqdm is installed and the work takes long."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return items
    # disable=None: no bar where the output is not a terminal.
    return tqdm(items, desc="quantising", unit="layer", delay=SECONDS_BEFORE_PROGRESS, disable=None)
