"""torchao: its int4 weights on aoext's kernels, and weights from one to the other.

`enable()` leaves torchao's tensors what they are and gives their products to aoext's operators; `to_aoext`
and `to_torchao` exchange the tensors of a model, without a copy where the layouts agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchao.quantization as torchao
from torch import Tensor, nn
from torchao.utils import TorchAOBaseTensor

from aoext.checkpoints.torchao import convert
from aoext.checkpoints.torchao_tensors import weight_to_torchao as weight_to_torchao
from aoext.integrations import adopt
from aoext.models.layers import set_weight
from aoext.tensors import QuantizedTensor


def to_aoext(model: nn.Module) -> list[str]:
    """Replace torchao's weights of a model's linear layers by aoext's, in place; returns the layers' names.

    Nothing is changed where one of them cannot be served: ValueError, which names it.
    """
    return _replace(model, lambda weight: isinstance(weight, TorchAOBaseTensor), weight_to_aoext)


def to_torchao(model: nn.Module) -> list[str]:
    """The way back: aoext's weights become torchao's. Errors and result as for to_aoext."""
    return _replace(model, lambda weight: isinstance(weight, QuantizedTensor), weight_to_torchao)


def weight_to_aoext(name: str, weight: Any) -> QuantizedTensor:
    """The weight of aoext that a tensor of torchao stands for; ValueError, which begins with `name`."""
    fields = {
        field: getattr(weight, field)
        for field in (*weight.tensor_data_names, *getattr(weight, "optional_tensor_data_names", ()))
        if getattr(weight, field, None) is not None
    }
    attributes = {
        attribute: getattr(weight, attribute, None)
        for attribute in (
            *weight.tensor_attribute_names,
            *getattr(weight, "optional_tensor_attribute_names", ()),
        )
    }
    return convert(name, type(weight).__name__, fields, attributes, weight.dtype)


def _replace(
    model: nn.Module, chosen: Callable[[Tensor], bool], change: Callable[[str, Any], Tensor]
) -> list[str]:
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and chosen(module.weight)
    }
    # One for each weight, so that ties stay ties; all of them before the model changes.
    changed = {id(m.weight): change(name, m.weight) for name, m in found.items()}
    parameters = {key: nn.Parameter(weight, requires_grad=False) for key, weight in changed.items()}
    for module in found.values():
        set_weight(module, parameters[id(module.weight)])
    adopt(model)
    return list(found)


def enable() -> None:
    """Have F.linear of torchao's Int4Tensor computed by aoext's operators instead of mslk's, on every device.

    In eager calls, torch.compile and torch.export. Calling it again changes nothing.
    """
    kind = torchao.Int4Tensor
    kind.implements([torch.ops.aten.linear.default])(_linear)
    kind.implements_torch_function([torch.nn.functional.linear])(_linear)


def _linear(func: Any, types: Any, args: Any, kwargs: Any) -> Tensor:
    input, weight, bias = (*args, kwargs.get("bias"))[:3]
    if weight.activation_dtype != torch.bfloat16:
        raise NotImplementedError("F.linear: torchao's int4 with float8 activations does not run on aoext")
    if weight.act_pre_scale is not None:
        input = input * weight.act_pre_scale
    fields = (weight.qdata.contiguous(), weight.scale.contiguous(), weight.zero_point.contiguous())
    if bias is None:
        return torch.ops.ao.bf16i4bf16_rowwise(input, *fields)
    return torch.ops.ao.bf16i4bf16_rowwise_bias(input, *fields, bias)
