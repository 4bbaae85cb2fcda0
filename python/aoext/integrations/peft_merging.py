"""Merging PEFT's adapters, of every kind, into quantised weights, and taking them off again.

PEFT's own merge writes into a plain weight. Here the layer has one meanwhile, dequantised in float32, to
which all adapters that are to be merged are added at once; then it is quantised once, by its own scheme.
unmerge gives back what was there before, to the bit.

How much of a change survives is measured. For a weight W and the change D that adapters make to it,

    survived = Σ R·D / Σ D·D    with R = dequantise(quantise(W + D)) − W

over the values of a layer, or of all layers of a model: the part of D that the new weight has, whatever noise
lies beside it. 1 is all of it, 0 nothing: values are rounded back to where they were.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aoext.tensors import QuantizedTensor
from aoext.tensors.rows import with_rows

# The part of a change that may be lost without a word.
MAY_BE_LOST = 0.1

Method = Callable[..., Any]

# Σ R·D and Σ D·D of the layers that are merged meanwhile.
_sums: ContextVar[dict[nn.Module, tuple[float, float]] | None] = ContextVar("sums", default=None)


@dataclass
class Survival:
    """How much of a change survives: Σ R·D and Σ D·D of each layer by its name."""

    sums: dict[str, tuple[float, float]]

    @property
    def layers(self) -> dict[str, float]:
        """The part that survives of each layer's change; layers without one are left out."""
        return {name: kept / whole for name, (kept, whole) in self.sums.items() if whole > 0}

    @property
    def total(self) -> float:
        """The part of all changes together; 1 if there are none."""
        kept, whole = (math.fsum(column) for column in zip((0.0, 0.0), *self.sums.values(), strict=True))
        return kept / whole if whole > 0 else 1.0


def quantized_weight(layer: nn.Module) -> QuantizedTensor | None:
    """A layer's quantised weight, or None."""
    weight = layer._parameters.get("weight")
    return weight if isinstance(weight, QuantizedTensor) else None


def merging(merge: Method, without_loss: Callable[..., Any] = lambda *_: None) -> Method:
    """The merge of a class of tuner layers, for quantised weights too.

    without_loss: of a layer, its weight and adapters' names the weight with these, if nothing has to be
        quantised for it; else None
    """
    signature = inspect.signature(merge)

    @functools.wraps(merge)
    def merged(self: Any, *args: Any, **kwargs: Any) -> None:
        base = self.get_base_layer()
        current = quantized_weight(base)
        if current is None:
            merge(self, *args, **kwargs)
            return
        from peft.tuners.tuners_utils import check_adapters_to_merge

        arguments = signature.bind(self, *args, **kwargs).arguments
        names = check_adapters_to_merge(self, arguments.get("adapter_names"))
        if not names:
            return
        before, holder = list(self.merged_adapters), _holder(self)
        alone = holder.__dict__.get("merged_layers", 0) == bool(before)
        weight, bias = current, _bias(base)
        if alone:  # all of its adapters at once, so that no rounding adds up
            weight = holder._buffers.get("unmerged_weight", current)
            bias = holder._buffers.get("unmerged_bias", bias)
            self.merged_adapters, names = [], [*before, *names]
        try:
            with _plain(base, weight, bias) as plain:
                merge(**{**arguments, "adapter_names": names})
            exact = without_loss(self, weight, names)
            new, sums = requantized(weight, _change(weight, plain), names, exact)
        except BaseException:
            self.merged_adapters = before
            raise
        if not self.merged_adapters:  # none of them is on this layer
            return
        _keep(holder, base, first=not before)
        base._parameters["weight"] = _tied(self, nn.Parameter(new, requires_grad=False))
        if plain["bias"] is not None:
            base.bias.data = plain["bias"]
        report(self, sums)

    return merged


def unmerging(unmerge: Method) -> Method:
    """The unmerge of a class of tuner layers, for quantised weights too."""

    @functools.wraps(unmerge)
    def unmerged(self: Any, *args: Any, **kwargs: Any) -> None:
        base, holder = self.get_base_layer(), _holder(self)
        current = quantized_weight(base)
        if current is None or not self.merged or "unmerged_weight" not in holder._buffers:
            unmerge(self, *args, **kwargs)
            return
        names = list(self.merged_adapters)
        with warnings.catch_warnings(), _plain(base, current, _bias(base)) as plain:
            warnings.simplefilter("ignore")  # its inexact sums count only beside another kind
            unmerge(self, *args, **kwargs)
        if holder.merged_layers == 1:
            _give_back(holder, base)
            return
        new, _ = requantized(current, _change(current, plain), names)
        base._parameters["weight"] = nn.Parameter(new, requires_grad=False)
        if plain["bias"] is not None:
            base.bias.data = plain["bias"]
        holder.merged_layers -= 1

    return unmerged


# What a base layer had before anything was merged into it is kept by the tuner layer next to it, in buffers:
# they move, are cast and copied with the model, and no state_dict has them. `merged_layers` counts the tuner
# layers that have merged, for with several kinds of adapters one is around another.


def _holder(layer: Any) -> Any:
    from peft.tuners.tuners_utils import BaseTunerLayer

    while isinstance(getattr(layer, "base_layer", None), BaseTunerLayer):
        layer = layer.base_layer
    return layer


def _keep(holder: Any, base: nn.Module, first: bool) -> None:
    if "unmerged_weight" not in holder._buffers:
        bias = _bias(base)
        holder.register_buffer("unmerged_weight", base._parameters["weight"], persistent=False)
        holder.register_buffer("unmerged_bias", bias, persistent=False)
    holder.merged_layers = holder.__dict__.get("merged_layers", 0) + first


def _give_back(holder: Any, base: nn.Module) -> None:
    base._parameters["weight"] = nn.Parameter(holder.unmerged_weight, requires_grad=False)
    if holder.unmerged_bias is not None:
        base.bias.data = holder.unmerged_bias
    del holder.unmerged_weight, holder.unmerged_bias, holder.merged_layers


def _bias(base: nn.Module) -> Tensor | None:
    bias = base._parameters.get("bias")
    return None if bias is None else bias.data


def _tied(layer: Any, weight: nn.Parameter) -> Any:
    """A merged weight, or that of the layer which shares its weight and adapter with this one."""
    other = getattr(layer, "tied_adapter", None)
    shared = quantized_weight(other.get_base_layer()) if other is not None and other.merged else None
    return weight if shared is None else shared


@contextlib.contextmanager
def _plain(base: nn.Module, weight: Any, bias: Tensor | None) -> Iterator[dict[str, Any]]:
    """Gives a layer plain parameters meanwhile; what they then are, by name, without gradients."""
    result: dict[str, Any] = {}
    current, own_bias = base._parameters["weight"], _bias(base)
    try:
        base._parameters["weight"] = nn.Parameter(_effective(weight), requires_grad=False)
        if bias is not None:
            base.bias.data = bias.clone()
        with torch.no_grad():
            yield result
        result.update(weight=base.weight.data, bias=_bias(base))
    finally:
        base._parameters["weight"] = current
        if own_bias is not None:
            base.bias.data = own_bias


def _change(weight: QuantizedTensor, plain: dict[str, Any]) -> Tensor:
    """How far what `_plain` gives is from a weight."""
    return plain["weight"].float() - _effective(weight)


def _effective(weight: QuantizedTensor) -> Tensor:
    """The plain weight in float32 that an activation meets: with what multiplies the activation before."""
    plain = weight.to(torch.float32).dequantize()
    factors = _activation_factors(weight)
    return plain if factors is None else plain * factors


def _activation_factors(weight: QuantizedTensor) -> Tensor | None:
    factors = getattr(weight, "act_pre_scale", None)
    return factors.float().unsqueeze(-1) if factors is not None and weight.transposed else factors


@torch.no_grad()
def requantized(
    weight: Any, change: Tensor, names: list[str], exact: Any = None
) -> tuple[Any, tuple[float, float]]:
    """A weight with `change` added to what activations meet of it, and Σ R·D and Σ D·D.

    It is in the scheme of `weight`, whose rows it has to the bit where nothing changes; or `exact`.
    """
    if not change.isfinite().all():
        raise ValueError(f"merge: NaN or Inf in the weight with {', '.join(names)} merged into it")
    kept = (change == 0).all(0 if weight.transposed else 1)
    if kept.all():
        return weight, (0.0, 0.0)
    factors = _activation_factors(weight)
    plain = weight.to(torch.float32).dequantize()
    changed = plain + (change if factors is None else change / factors)
    new = with_rows(weight, changed, kept) if exact is None else exact
    got = _effective(new) - _effective(weight)
    return new, ((got * change).sum().item(), change.square().sum().item())


@contextlib.contextmanager
def measuring(model: nn.Module) -> Iterator[Survival]:
    """Collects meanwhile how much survives in each tuner layer of a model; nothing warns but the caller."""
    names = {module: name for name, module in model.named_modules()}
    survival, sums = Survival({}), dict[nn.Module, tuple[float, float]]()
    token = _sums.set(sums)
    try:
        yield survival
    finally:
        survival.sums.update((names.get(layer, ""), pair) for layer, pair in sums.items())
        _sums.reset(token)


@contextlib.contextmanager
def reporting(model: nn.Module) -> Iterator[None]:
    """Around merging all layers of a model: one warning for all of them."""
    if _sums.get() is not None:
        yield
        return
    with measuring(model) as survival:
        yield
    _warn(survival)


def report(layer: nn.Module, sums: tuple[float, float]) -> None:
    collected = _sums.get()
    if collected is None:
        _warn(Survival({type(layer).__name__: sums}))
    else:
        collected[layer] = sums


def _warn(survival: Survival) -> None:
    if survival.total >= 1 - MAY_BE_LOST:
        return
    layers = survival.layers
    least = min(layers, key=lambda name: layers[name])
    warnings.warn(
        f"{survival.total:.0%} of the adapters' change survives in the merged weights (least in {least}: "
        f"{layers[least]:.0%}); quantising them again rounds the rest away. To keep it all, dequantise the "
        "model first, by model.dequantize() or by loading it unquantised, merge, and leave it plain or "
        "quantise it with data; or keep the adapter apart",
        stacklevel=5,
    )
