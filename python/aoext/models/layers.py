"""Which layers can have quantised weights, and the classes that they get with them.

A layer's weight has the layer's name; a weight of experts, of which a module has several, its parameter's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from aoext.formats.checks import is_dense
from aoext.models.experts import are_transposed, expert_weights, run_by_aoext
from aoext.other_packages import quantised_by
from aoext.tensors import QuantizedTensor
from aoext.tensors.lookups import lookup
from aoext.tensors.products import linear
from aoext.tensors.recording import check_torchscript
from aoext.tensors.views import seen_as


def scheme_text(parameters: Mapping[str, Tensor | None]) -> str:
    """What print(model) adds of a layer's quantised weights."""
    return "".join(f", {name}={p!r}" for name, p in parameters.items() if isinstance(p, QuantizedTensor))


class _WithScheme:
    """extra_repr of one layer that keeps its class: what that says, and the scheme.

    It holds the layer's parameters and not the layer, which would outlive its last use by a cycle.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.text = type(layer).extra_repr(layer)
        self.parameters = layer._parameters

    def __call__(self) -> str:
        return (self.text + scheme_text(self.parameters)).removeprefix(", ")


class HasQuantizedWeight(nn.Module):
    """What layers with a quantised weight do beside their forward."""

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *others: Any
    ) -> None:
        """nn.Module's, but for weights of another package: load_state_dict(assign=True) raises for them."""
        weight = state_dict.get(f"{prefix}weight")
        owner = quantised_by(weight)
        if owner is not None and local_metadata.get("assign_to_params_buffers", False):
            *_, errors = others
            errors.append(
                f"{prefix}weight was quantised by {owner} ({type(weight).__name__}) and would replace one of "
                "aoext's: load it into a model that is not quantised, or dequantise it first; "
                "aoext.from_torchao takes over what torchao has made"
            )
            return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)

    def _slow_forward(self, *args: Any, **kwargs: Any) -> Any:
        """What PyTorch calls instead of forward while TorchScript traces."""
        check_torchscript()
        return super()._slow_forward(*args, **kwargs)

    def __prepare_scriptable__(self) -> NoReturn:
        raise NotImplementedError(
            "torch.jit.script of a module with quantised weights is not implemented: use torch.export"
        )

    def extra_repr(self) -> str:
        return super().extra_repr() + scheme_text(self._parameters)


class QuantizedLinear(HasQuantizedWeight, nn.Linear):
    """An nn.Linear whose forward gives the fields of its quantised weight to the operator.

    `weight` is a parameter as in nn.Linear and may be replaced by any other, plain ones too. What this class
    saves is the way of F.linear(input, weight) through __torch_function__, and in a compiled region the
    tensor subclass: compiled code takes the fields as inputs, which are plain tensors.
    """

    def forward(self, input: Tensor) -> Tensor:
        parameters = self._parameters
        weight = parameters.get("weight")
        if isinstance(weight, QuantizedTensor) and type(input) is Tensor and "bias" in parameters:
            return linear(input, weight, parameters["bias"])
        return super().forward(input)


class QuantizedEmbedding(HasQuantizedWeight, nn.Embedding):
    """An nn.Embedding that dequantises the rows that it gives and no others, in the weight's dtype.

    `weight` is a parameter as in nn.Embedding, may be that of a linear layer too, and may be replaced by any
    other. max_norm raises NotImplementedError.
    """

    def forward(self, input: Tensor) -> Tensor:
        weight = self._parameters.get("weight")
        if isinstance(weight, QuantizedTensor) and type(input) is Tensor and self.max_norm is None:
            return lookup(input, weight)
        return super().forward(input)


# What layers become with a quantised weight; subclasses of them keep their class.
CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: QuantizedLinear,
    nn.Embedding: QuantizedEmbedding,
}

# Those of them that keep their weight as [K, N]: what they get is a transposed view of a quantised one.
WITH_TRANSPOSED_WEIGHT: set[type[nn.Module]] = set()


def quantizable(layer: nn.Module) -> tuple[str, ...]:
    """The names of a layer's parameters that can be quantised; none of most modules."""
    return ("weight",) if isinstance(layer, tuple(CLASSES)) else expert_weights(layer)


def weight_name(path: str, parameter: str) -> str:
    """What a layer's parameter is called where weights are named: the layer, if it is its weight."""
    return path if parameter == "weight" else f"{path}.{parameter}".lstrip(".")


def has_transposed_weight(layer: nn.Module) -> bool:
    """Whether a layer keeps its weights as [K, N], or those of experts as [E, K, N]."""
    return isinstance(layer, tuple(WITH_TRANSPOSED_WEIGHT)) or are_transposed(layer)


def as_rows(layer: nn.Module, weight: Tensor) -> Tensor:
    """A layer's plain weight as configs quantise it, [N, K] or [E, N, K]; what is neither stays as it is."""
    turns = has_transposed_weight(layer) and is_dense(weight) and weight.dim() in (2, 3)
    return weight.mT if turns else weight


def as_weight(layer: nn.Module, quantized: QuantizedTensor) -> QuantizedTensor:
    """A quantised weight [N, K] or [E, N, K] as a layer keeps it."""
    return seen_as(quantized, has_transposed_weight(layer))


def why_never_quantized(layer: nn.Module) -> str | None:
    """Why this layer can have no quantised weight, or None if it can."""
    if not quantizable(layer):
        return (
            "only nn.Linear, nn.Embedding, Conv1D and experts of transformers can be quantised, "
            f"not {type(layer).__name__}"
        )
    if getattr(layer, "max_norm", None) is not None:
        return "its max_norm changes its weight at every call"
    weight = layer._parameters.get("weight")
    if weight is None or is_lazy(weight) or not is_dense(weight):
        return None
    is_stack = weight.dim() == 3 and isinstance(layer, tuple(CLASSES))
    return f"its weight must be [N, K], not {list(weight.shape)}" if is_stack else None


def set_weight(layer: nn.Module, weight: nn.Parameter, name: str = "weight") -> None:
    """Give a layer a quantised weight, and its class of CLASSES; what has none there keeps its own."""
    layer._parameters[name] = weight  # as Module._apply does, for a class's own __setattr__ may refuse it
    layer.__class__ = CLASSES.get(type(layer), type(layer))
    run_by_aoext(layer)
    if not isinstance(layer, HasQuantizedWeight):
        layer.__dict__["extra_repr"] = _WithScheme(layer)


def set_plain_weight(layer: nn.Module, weight: nn.Parameter, name: str = "weight") -> None:
    """Undo set_weight: give a layer a plain weight, and the class that it had."""
    layer._parameters[name] = weight
    layer.__class__ = next((kind for kind, own in CLASSES.items() if type(layer) is own), type(layer))
    if isinstance(layer.__dict__.get("extra_repr"), _WithScheme):
        del layer.__dict__["extra_repr"]


def give_classes(model: nn.Module) -> None:
    """Give their class to all layers of a model that have got quantised weights."""
    for module in model.modules():
        for name, weight in quantized_weights(module):
            set_weight(module, weight, name)


def quantized_weights(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """Names and values of a layer's parameters that are quantised."""
    for name in quantizable(layer):
        weight = layer._parameters[name]
        if isinstance(weight, QuantizedTensor):
            yield name, weight
