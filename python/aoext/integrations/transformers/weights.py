"""How a quantised weight comes of the tensors of a checkpoint while transformers loads a model, and names."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    ConversionOps,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)
from transformers.quantizers.quantizers_utils import get_module_from_name

from aoext import serialization
from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.models.experts import IMPLEMENTATION
from aoext.models.layers import as_rows, as_weight, quantized_weights
from aoext.tensors import QuantizedTensor

if TYPE_CHECKING:
    from aoext.integrations.transformers.quantizer import AoextQuantizer


def renaming(model: Any) -> Callable[[str], str]:
    """What the model calls a tensor that its checkpoints call otherwise."""
    conversions = get_model_conversion_mapping(model)
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    return lambda name: rename_source_key(name, renamings, [])[0]


def candidates(model: Any, name: str) -> tuple[str, ...]:
    """A name, with and without the prefix that a model with a head gives to its base model."""
    prefix = f"{model.base_model_prefix}."
    return name, prefix + name, name.removeprefix(prefix)


def has_quantised(file: str) -> bool:
    """Whether a file of a checkpoint has weights that aoext has quantised."""
    return str(file).endswith(".safetensors") and serialization.has_quantised(file)


def run_experts(model: Any) -> None:
    """Has a model keep to aoext's function of experts where it has quantised ones, in all of its configs.

    generate would have another one for decoding wherever it finds transformers' default.
    """
    if any(p.dim() == 3 for module in model.modules() for _, p in quantized_weights(module)):
        model.config._experts_implementation = IMPLEMENTATION


class Operation(ConversionOps):
    """Makes a weight of what a checkpoint has of it.

    All weights share one, for the quantiser that it has knows every tensor of the checkpoint.
    """

    def __init__(self, quantizer: AoextQuantizer) -> None:
        self.hf_quantizer = quantizer  # transformers casts no tensor of an operation that has this attribute
        self.stored_as: dict[str, str] = {}  # what the checkpoint calls a weight, by the model's name

    def __deepcopy__(self, memo: dict[int, Any]) -> Operation:
        return self

    def convert(
        self, input_dict: dict[str, Any], model: Any = None, full_layer_name: str = "", **_: Any
    ) -> dict[str, Tensor]:
        tensors = {key: value[0] if isinstance(value, list) else value for key, value in input_dict.items()}
        weight = self.weight(model, full_layer_name, tensors)
        quantized = isinstance(weight, QuantizedTensor)
        if full_layer_name in self.hf_quantizer.distributions:
            weight = self.hf_quantizer.distributions[full_layer_name].distributed(weight)
        return {full_layer_name: nn.Parameter(weight, requires_grad=not quantized)}

    def weight(self, model: Any, name: str, tensors: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError


class Converter(WeightConverter):
    """Tells its operation what the checkpoint calls a weight; a base model's name lacks the prefix there.

    transformers makes a deep copy for each tensor of a file, to collect those of one weight in it.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Converter:
        twin = copy.copy(self)
        twin.collected_tensors, twin.layer_targets = defaultdict(list), defaultdict(set)
        return twin

    def convert(self, layer_name: str, *args: Any, **kwargs: Any) -> Any:
        (operation,) = self.operations
        key = min(self.layer_targets[layer_name])
        leaves = sorted(self.source_patterns, key=len, reverse=True)
        leaf = next((leaf for leaf in leaves if key.endswith(leaf)), "")
        operation.stored_as[layer_name] = key.removesuffix(leaf) + layer_name.rpartition(".")[2]
        return super().convert(layer_name, *args, **kwargs)


class Quantize(Operation):
    """Quantises a weight of a checkpoint that has plain ones."""

    def weight(self, model: Any, name: str, tensors: dict[str, Tensor]) -> Tensor:
        (plain,) = tensors.values()
        config = self.hf_quantizer.config_for(model, name)
        assert config is not None
        try:
            module, leaf = get_module_from_name(model, name)
            plain = plain.to(getattr(module, leaf).dtype)  # which a model may set for itself
            return as_weight(module, config.quantize(as_rows(module, plain)))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


class Assemble(Operation):
    """Puts the fields together that aoext has saved."""

    def weight(self, model: Any, name: str, tensors: dict[str, Tensor]) -> Tensor:
        path, dot, leaf = name.rpartition(".")
        stored = {path + dot + leaf + key.removeprefix(leaf): value for key, value in tensors.items()}
        description = self.hf_quantizer.describes(model, self.stored_as[name], name)
        weight = serialization.assembled(name, description, stored)
        return weight.to(self.hf_quantizer.dtype_of(model, name))


class Read(Operation):
    """Reads what another library has saved."""

    def weight(self, model: Any, name: str, tensors: dict[str, Tensor]) -> Tensor:
        dtype = self.hf_quantizer.dtype_of(model, name)
        if tensors.keys() == {"weight"} and tensors["weight"].dtype in FLOAT_DTYPES:  # not quantised
            return tensors["weight"].to(dtype)
        assert self.hf_quantizer.reader is not None
        layer = self.stored_as[name].removesuffix(".weight")
        module, _ = get_module_from_name(model, name)
        return as_weight(module, self.hf_quantizer.reader.weight(layer, tensors, dtype))
