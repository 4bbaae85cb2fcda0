"""Tensors and configs of torchao for weights of aoext, which need torchao itself; torchao.py reads them."""

from __future__ import annotations

from typing import Any

import torchao.quantization as torchao
from torch import Tensor
from torchao.quantization.quantize_.workflows import (
    QuantizeTensorToFloat8Kwargs,
    QuantizeTensorToInt8Kwargs,
)

from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor, QuantizedTensor


def weight_to_torchao(name: str, weight: QuantizedTensor) -> Tensor:
    """The tensor of torchao that a weight of aoext stands for; ValueError, which begins with `name`."""
    if isinstance(weight, Int4Tensor):
        if weight.activation is not None:
            raise ValueError(f"{name}: torchao's int4 weights have no activations of 8 bits")
        if weight.k_order is not None or weight.scale.dtype != weight.dtype:
            raise ValueError(
                f"{name}: torchao's int4 weights have neither columns in another order nor float32 scales "
                "under another dtype"
            )
        return torchao.Int4Tensor(
            weight.qdata,
            weight.scale,
            weight.zero_point,
            list(weight.block_size),
            weight.shape,
            weight.act_pre_scale,
        )
    block_size, rows = list(weight.block_size), torchao.PerRow()
    dynamic: Any = None
    if isinstance(weight, Int8Tensor):
        if weight.dynamic_activation:
            dynamic = QuantizeTensorToInt8Kwargs(rows)
        return torchao.Int8Tensor(
            weight.qdata, weight.scale, block_size, weight.dtype, act_quant_kwargs=dynamic
        )
    if not isinstance(weight, Float8Tensor):
        raise ValueError(f"{name}: aoext makes no tensor of torchao of a {type(weight).__name__}")
    if weight.dynamic_activation:
        dynamic = QuantizeTensorToFloat8Kwargs(weight.qdata.dtype, rows)
    return torchao.Float8Tensor(
        weight.qdata, weight.scale, block_size, act_quant_kwargs=dynamic, dtype=weight.dtype
    )


def config_like(weight: QuantizedTensor) -> Any:
    """The config by which torchao makes weights of this kind."""
    if isinstance(weight, Int4Tensor):
        return torchao.Int4WeightOnlyConfig(group_size=weight.block_size[1])
    if isinstance(weight, Int8Tensor):
        if weight.dynamic_activation:
            return torchao.Int8DynamicActivationInt8WeightConfig(version=2)
        return torchao.Int8WeightOnlyConfig(version=2)
    if isinstance(weight, Float8Tensor) and weight.dynamic_activation:
        return torchao.Float8DynamicActivationFloat8WeightConfig(granularity=torchao.PerRow())
    return torchao.Float8WeightOnlyConfig()
