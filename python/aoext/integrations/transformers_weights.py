"""How a quantised weight comes of the tensors of a checkpoint, while transformers loads a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.quantizers_utils import get_module_from_name

from aoext import serialization
from aoext.layers import as_rows, as_weight
from aoext.packing import FLOAT_DTYPES
from aoext.tensors import QuantizedTensor

if TYPE_CHECKING:
    from aoext.integrations.transformers import AoextQuantizer


class Operation(ConversionOps):
    """Makes a weight of what a checkpoint has of it."""

    def __init__(self, quantizer: AoextQuantizer) -> None:
        self.hf_quantizer = quantizer

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


class Quantize(Operation):
    """Of one that is not quantised."""

    def weight(self, model: Any, name: str, tensors: dict[str, Tensor]) -> Tensor:
        (plain,) = tensors.values()
        config = self.hf_quantizer.config_for(model, name)
        assert config is not None
        try:
            module, _ = get_module_from_name(model, name)
            return as_weight(module, config.quantize(as_rows(module, plain)))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


class Assemble(Operation):
    """Of the fields that aoext has saved."""

    def weight(self, model: Any, name: str, tensors: dict[str, Tensor]) -> Tensor:
        stored = {name + key.removeprefix("weight"): value for key, value in tensors.items()}
        weight = serialization.assembled(name, self.hf_quantizer.describes(model, name), stored)
        return weight.to(self.hf_quantizer.dtype_of(model, name))


class Read(Operation):
    """Of what another library has saved."""

    def weight(self, model: Any, name: str, tensors: dict[str, Tensor]) -> Tensor:
        dtype = self.hf_quantizer.dtype_of(model, name)
        if tensors.keys() == {"weight"} and tensors["weight"].dtype in FLOAT_DTYPES:  # not quantised
            return tensors["weight"].to(dtype)
        assert self.hf_quantizer.reader is not None
        return self.hf_quantizer.reader.weight(name.removesuffix(".weight"), tensors, dtype)
