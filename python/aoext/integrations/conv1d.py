"""Conv1D of transformers, the linear layer of GPT-2 and its like, which keeps its weight as [K, N].

Quantised, `weight` is a transposed view of a weight [N, K]. Imported once transformers' layers are.
"""

from __future__ import annotations

from torch import Tensor
from transformers.pytorch_utils import Conv1D

from aoext.models.layers import CLASSES, WITH_TRANSPOSED_WEIGHT, HasQuantizedWeight, scheme_text
from aoext.qat import layers as in_training
from aoext.tensors import QuantizedTensor
from aoext.tensors.products import linear


class QuantizedConv1D(HasQuantizedWeight, Conv1D):
    """A Conv1D whose forward gives the fields of its quantised weight to the operator."""

    def forward(self, x: Tensor) -> Tensor:
        parameters = self._parameters
        weight = parameters.get("weight")
        if isinstance(weight, QuantizedTensor) and type(x) is Tensor and "bias" in parameters:
            return linear(x, weight, parameters["bias"], transposed=True)
        return super().forward(x)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nf={self.nf}, nx={self.nx}{scheme_text(self._parameters)})"


class FakeQuantizedConv1D(Conv1D):
    """A Conv1D in training, whose product is that of its quantised weight."""

    def forward(self, x: Tensor) -> Tensor:
        return in_training.product(self, x, self.weight.mT)


in_training.CLASSES[Conv1D] = FakeQuantizedConv1D
CLASSES[Conv1D] = QuantizedConv1D
WITH_TRANSPOSED_WEIGHT.add(Conv1D)
