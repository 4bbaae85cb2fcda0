"""Layers that are prepared for training: their weight is plain, and their forward quantises it.

A prepared layer says in `fake_quantized` which of its parameters are meant and how, as text in JSON. What
trains beside one stands beside it, as `weight_scale` and `weight_offset`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from aoext.configs.base import QuantizationConfig
from aoext.models.experts import run_by_aoext
from aoext.models.layers import as_rows, has_transposed_weight, quantizable
from aoext.other_packages import quantised_by
from aoext.qat.products import trained_linear, trained_lookup
from aoext.qat.schemes import Scheme, as_text
from aoext.tensors.products import cast_by_autocast

_NUMBERS = ("scale", "offset", "global_scale")


def scheme_of(layer: nn.Module, parameter: str = "weight") -> Scheme | None:
    """How a layer's parameter is quantised in its forward; None where it is not prepared."""
    known: Any = layer
    schemes = getattr(known, "fake_quantized", None)
    text = None if schemes is None else schemes.get(parameter)
    if text is None:
        return None
    return Scheme(text, *(getattr(known, f"{parameter}_{name}", None) for name in _NUMBERS))


def product(layer: Any, input: Tensor, weight: Tensor) -> Tensor:
    """input [..., K] times a prepared layer's `weight`, given as [N, K], plus its bias."""
    scheme = scheme_of(layer)
    assert scheme is not None
    return trained_linear(cast_by_autocast("linear", input, weight), weight, layer.bias, scheme)


def expert_product(
    layer: nn.Module, name: str, rows: Tensor, bias: Tensor | None, offsets: Tensor
) -> Tensor | None:
    """Rows times the weights of their experts, a prepared layer's `name`; None where it is not prepared."""
    scheme = scheme_of(layer, name)
    if scheme is None:
        return None
    weight = as_rows(layer, layer.get_parameter(name))
    return trained_linear(cast_by_autocast("linear", rows, weight), weight, bias, scheme, offsets)


class FakeQuantizedLinear(nn.Linear):
    """An nn.Linear in training, whose product is that of its quantised weight."""

    fake_quantized: dict[str, str]

    def forward(self, input: Tensor) -> Tensor:
        return product(self, input, self.weight)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, fake_quantized={self.fake_quantized['weight']}"


class FakeQuantizedEmbedding(nn.Embedding):
    """An nn.Embedding in training, which gives the rows of its quantised weight."""

    fake_quantized: dict[str, str]

    def forward(self, input: Tensor) -> Tensor:
        scheme = scheme_of(self)
        assert scheme is not None
        padding = -1 if self.padding_idx is None else self.padding_idx
        return trained_lookup(input, self.weight, scheme, padding)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, fake_quantized={self.fake_quantized['weight']}"


# What layers become for training; experts keep their class.
CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: FakeQuantizedLinear,
    nn.Embedding: FakeQuantizedEmbedding,
}


def why_not_trained(layer: nn.Module, weight: Tensor) -> str | None:
    """Why a layer cannot be prepared, though its weight can be quantised; None if it can."""
    if type(weight) not in (Tensor, nn.Parameter) or quantised_by(weight) is not None:
        return f"its weight is a {type(weight).__name__}: prepare the model before it is distributed"
    if getattr(layer, "sparse", False):
        return "its gradient is sparse"
    if has_transposed_weight(layer) and not isinstance(layer, tuple(CLASSES)) and weight.dim() == 2:
        return f"{type(layer).__name__} cannot be prepared for training"
    if weight.dim() == 3:
        known: Any = layer
        if not hasattr(getattr(known, "config", None), "_experts_implementation"):
            return f"{type(layer).__name__} runs its experts by a forward of its own"
        return None
    return None if type(layer) in CLASSES else f"the forward of {type(layer).__name__} is its own"


def prepare_layer(
    layer: nn.Module, parameter: str, config: QuantizationConfig, numbers: dict[str, Tensor]
) -> None:
    """Have a layer's forward quantise its weight, by numbers that train where there are any."""
    known: Any = layer
    if "fake_quantized" not in layer.__dict__:
        known.fake_quantized = {}
    known.fake_quantized[parameter] = as_text(config)
    layer.__class__ = CLASSES.get(type(layer), type(layer))
    for name, number in numbers.items():
        if isinstance(number, nn.Parameter):
            layer.register_parameter(f"{parameter}_{name}", number)
        else:
            layer.register_buffer(f"{parameter}_{name}", number)
    run_by_aoext(layer)


def restore_layer(layer: nn.Module) -> None:
    """Undo prepare_layer: the class that the layer had, and its plain weights as they are now."""
    for parameter in layer.__dict__.pop("fake_quantized"):
        for name in _NUMBERS:
            if hasattr(layer, f"{parameter}_{name}"):
                delattr(layer, f"{parameter}_{name}")
    layer.__class__ = next((kind for kind, own in CLASSES.items() if type(layer) is own), type(layer))


def is_prepared(layer: nn.Module) -> bool:
    return "fake_quantized" in layer.__dict__


def refuse_prepared(who: str, model: nn.Module) -> None:
    """ValueError for a model that is in training for a scheme; `who` begins its text."""
    for name, module in model.named_modules():
        if is_prepared(module):
            raise ValueError(
                f"{who}: layer {name!r} is prepared for training: "
                'QATConfig(step="convert") converts it, with the same base_config'
            )


def trained_weights(layer: nn.Module) -> tuple[str, ...]:
    """The names of a prepared layer's parameters that are quantised in its forward."""
    return tuple(name for name in quantizable(layer) if name in getattr(layer, "fake_quantized", {}))
