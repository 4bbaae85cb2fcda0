"""Models whose linear layers train by products of 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from aoext.configs.training import EightBitTrainingConfig, Float8LinearConfig
from aoext.formats.checks import is_dense
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name, one_of
from aoext.models.shards import is_distributed
from aoext.models.summary import grouped
from aoext.training.layers import EightBitLinear


@dataclass
class TrainingSummary:
    """Which layers have products of 8 bits, and reasons by the names of others; print it to read it."""

    config: EightBitTrainingConfig
    layers: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.config}: {len(self.layers)} layers train by products of 8 bits"]
        lines += [f"  skipped  {names}: {why}" for names, why in grouped(self.skipped)]
        return "\n".join(lines)


def train_in_8_bits(
    model: nn.Module,
    config: EightBitTrainingConfig,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
) -> TrainingSummary:
    """Have linear layers make their products as `config` says, in place; quantize_ calls it.

    filter_fn(module, fully qualified name) chooses the layers; all nn.Linear if it is not given. Parameters
    stay what they are, so that this may come before or after an optimizer is made, and before fully_shard or
    DDP.
    """
    summary = TrainingSummary(config)
    for name, module in model.named_modules():
        chosen = isinstance(module, nn.Linear) if filter_fn is None else filter_fn(module, name)
        if not chosen:
            continue
        if (reason := _obstacle(module)) is not None:
            summary.skipped[name] = reason
            continue
        module.__class__ = EightBitLinear
        module.products = config.products()
        summary.layers.append(name)
    return summary


def _obstacle(layer: nn.Module) -> str | None:
    """Why a layer cannot have products of 8 bits; None if it can."""
    if type(layer) not in (nn.Linear, EightBitLinear):
        return f"only nn.Linear can be trained so, not {type(layer).__name__}"
    weight = layer._parameters.get("weight")
    if weight is None:
        return "its weight is computed from other parameters"
    if nn.parameter.is_lazy(weight):
        return "its weight is not initialised yet"
    if (type(weight) is not nn.Parameter and not is_distributed(weight)) or not is_dense(weight):
        return f"its weight must be a dense tensor, not {type(weight).__name__}"
    if weight.dtype not in FLOAT_DTYPES:
        return f"its weight must be {one_of(FLOAT_DTYPES)}, not {dtype_name(weight.dtype)}"
    return f"its weight is empty: {list(weight.shape)}" if weight.numel() == 0 else None


def convert_to_float8_training(
    module: nn.Module,
    *,
    module_filter_fn: Callable[[nn.Module, str], bool] | None = None,
    config: Float8LinearConfig | None = None,
) -> nn.Module:
    """The model, whose linear layers now train in float8, in place; as torchao's function of this name.

    module_filter_fn(module, fully qualified name) chooses the layers; all nn.Linear if it is not given.
    config: Float8LinearConfig() if none is given, which has scales by rows.

    >>> model = aoext.convert_to_float8_training(torch.nn.Sequential(torch.nn.Linear(64, 32)))
    """
    config = Float8LinearConfig() if config is None else config
    if not isinstance(config, Float8LinearConfig):
        raise TypeError(f"convert_to_float8_training: config must be a Float8LinearConfig, got {config!r}")
    train_in_8_bits(module, config, module_filter_fn)
    return module
