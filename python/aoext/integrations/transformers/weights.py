"""How a quantised weight comes of the tensors of a checkpoint while transformers loads a model, and names."""

from __future__ import annotations

import copy
from collections import defaultdict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers.quantizers_utils import get_module_from_name

from aoext import serialization
from aoext.checkpoints.experts import read_experts
from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.models.layers import as_rows, as_weight
from aoext.tensors import QuantizedTensor

if TYPE_CHECKING:
    from aoext.integrations.transformers.models import Conversions
    from aoext.integrations.transformers.quantizer import AoextQuantizer


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


class OwnConverter(Converter):
    """Leaves to transformers what is no parameter of the model, such as plain weights of single experts."""

    def rename_source_key(self, source_key: str) -> tuple[str, str | None]:
        name, pattern = super().rename_source_key(source_key)
        quantizer = self.operations[0].hf_quantizer
        return (name, pattern) if pattern and name in quantizer.places else (source_key, None)


class ExpertsConverter(Converter):
    """Collects the tensors of weights of experts, and has each read when its expert's turn comes."""

    def __init__(self, quantizer: AoextQuantizer, conversions: Conversions) -> None:
        super().__init__("aoext: experts", "aoext: experts", [ReadExperts(quantizer)])
        self.arrived: dict[str, Any] = {}  # futures, or functions that read, by the checkpoint's names
        # The parameter that a tensor is of, by its name after transformers' renamings, too.
        self.parameter_of: dict[str, str] = {}
        for parameter, experts in quantizer.experts.items():
            for layer in experts.layers:
                for key in quantizer.parts[layer].values():
                    self.parameter_of[key] = self.parameter_of[conversions.renamed(key)] = parameter

    def __deepcopy__(self, memo: dict[int, Any]) -> ExpertsConverter:
        twin: Any = super().__deepcopy__(memo)
        twin.arrived = {}
        return twin

    def rename_source_key(self, source_key: str) -> tuple[str, str | None]:
        parameter = self.parameter_of.get(source_key)
        return (source_key, None) if parameter is None else (parameter, self.source_patterns[0])

    def add_tensor(self, target_key: str, source_key: str, source_pattern: str, future: Any) -> None:
        self.arrived[source_key] = future
        self.layer_targets[target_key].add(source_key)

    def materialize_tensors(self) -> Any:
        return {self.source_patterns[0]: self.arrived}


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


class ReadExperts(Operation):
    """Reads what another library has saved of all experts, one expert after the other."""

    def weight(self, model: Any, name: str, tensors: dict[str, Any]) -> Tensor:
        quantizer = self.hf_quantizer
        assert quantizer.reader is not None
        (arrived,) = tensors.values()

        def of_layer(layer: str) -> dict[str, Tensor]:
            values = {leaf: arrived.pop(key) for leaf, key in quantizer.parts[layer].items()}
            return {
                leaf: value.result() if isinstance(value, Future) else value()
                for leaf, value in values.items()
            }

        dtype = quantizer.dtype_of(model, name)
        module, _ = get_module_from_name(model, name)
        experts = quantizer.experts[name]
        return as_weight(module, read_experts(quantizer.reader, name, experts, of_layer, dtype))
