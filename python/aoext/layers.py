"""The class that quantize_ and load_model give to a linear layer with a quantised weight."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor, nn

from aoext.tensors import QuantizedTensor
from aoext.tensors.base import check_torchscript
from aoext.tensors.products import linear


class QuantizedLinear(nn.Linear):
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

    def _slow_forward(self, *args: Any, **kwargs: Any) -> Any:
        """What PyTorch calls instead of forward while TorchScript traces."""
        check_torchscript()
        return super()._slow_forward(*args, **kwargs)

    def __prepare_scriptable__(self) -> NoReturn:
        raise NotImplementedError(
            "torch.jit.script of a module with quantised weights is not implemented: use torch.export"
        )

    def extra_repr(self) -> str:
        weight = self._parameters.get("weight")
        scheme = f", weight={weight!r}" if isinstance(weight, QuantizedTensor) else ""
        return super().extra_repr() + scheme


def set_weight(layer: nn.Linear, weight: nn.Parameter) -> None:
    """Give `layer` a quantised weight, and the class above where it is an nn.Linear and no subclass of it."""
    layer.weight = weight
    if type(layer) is nn.Linear:
        layer.__class__ = QuantizedLinear
