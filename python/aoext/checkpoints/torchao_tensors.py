"""Tensors and configs of torchao for weights of aoext, which need torchao itself; torchao.py reads them."""

from __future__ import annotations

from typing import Any

import torch
import torchao.quantization as torchao
from torch import Tensor
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.inference_workflow import (
    MXDynamicActivationMXWeightConfig,
    NVFP4WeightOnlyConfig,
)
from torchao.prototype.mx_formats.mx_tensor import MXTensor, QuantizeTensorToMXKwargs
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from torchao.quantization.quantize_.common import KernelPreference
from torchao.quantization.quantize_.workflows import (
    QuantizeTensorToFloat8Kwargs,
    QuantizeTensorToInt8Kwargs,
)

from aoext.checkpoints.blocks import looks_up
from aoext.checkpoints.groups import integers
from aoext.formats.checks import describe
from aoext.formats.dtypes import EXPONENT_DTYPES, FLOAT8_DTYPES, FLOAT_DTYPES, dtype_name
from aoext.formats.lookup_tables import E2M1
from aoext.formats.table import FORMATS, Code
from aoext.tensors import (
    BlockwiseTensor,
    Float8Tensor,
    Int4Tensor,
    Int8Tensor,
    Lut4Tensor,
    QuantizedTensor,
)
from aoext.tensors.groups import GroupsTensor
from aoext.tensors.nested import with_float_scales
from aoext.tensors.ranges import has_ranges


def weight_to_torchao(name: str, weight: QuantizedTensor) -> Tensor:
    """The tensor of torchao that a weight of aoext stands for; ValueError, which begins with `name`."""
    if getattr(weight, "k_order", None) is not None:
        raise ValueError(f"{name}: torchao's weights have no columns in another order")
    if has_ranges(weight):
        raise ValueError(f"{name}: torchao's weights have no static ranges of activations")
    if isinstance(weight, Int4Tensor):
        if weight.activation is not None:
            raise ValueError(f"{name}: torchao's int4 weights have no activations of 8 bits")
        if weight.scale.dtype != weight.dtype:
            raise ValueError(f"{name}: torchao's int4 weights have no float32 scales under another dtype")
        return torchao.Int4Tensor(
            weight.qdata,
            weight.scale,
            weight.zero_point,
            list(weight.block_size),
            weight.shape,
            weight.act_pre_scale,
        )
    if isinstance(weight, GroupsTensor) or (isinstance(weight, BlockwiseTensor) and _in_groups(weight)):
        return _intx(name, weight)
    if isinstance(weight, (BlockwiseTensor, Lut4Tensor)):
        return _by_blocks(name, with_float_scales(weight))
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


def _intx(name: str, weight: GroupsTensor | BlockwiseTensor) -> Tensor:
    """Integers, each in a byte of its own."""
    if weight.quantizes_input_to is not None:
        raise ValueError(f"{name}: torchao's integers have no symmetric activations of 8 bits")
    if isinstance(weight, BlockwiseTensor):
        bits, qdata, scale = 8, weight.qdata, weight.scale
        zero = qdata.new_zeros(scale.shape) if weight.zero_point is None else weight.zero_point.contiguous()
    else:
        made = integers(name, weight)
        bits, scale = made.bits, made.scale.t().contiguous()
        half = 1 << (bits - 1)
        qdata, zero = (codes.view(torch.int8) - half for codes in (made.codes, made.zero.t().contiguous()))
    return torchao.IntxUnpackedToInt8Tensor(
        qdata,
        scale,
        zero,
        getattr(torch, f"int{bits}"),
        tuple(weight.block_size),
        weight.dtype,
        None,  # how activations are quantised
    )


def _in_groups(weight: BlockwiseTensor) -> bool:
    """Whether it is int8 with a float for each group along K, all of them whole."""
    return (
        weight.qdata.dtype is torch.int8
        and weight.scale.dtype in FLOAT_DTYPES
        and weight.block_size[0] == 1
        and weight.shape[1] % weight.block_size[1] == 0
    )


def _by_blocks(name: str, weight: BlockwiseTensor | Lut4Tensor) -> Tensor:
    exponents = weight.scale.dtype in EXPONENT_DTYPES
    block_size, e2m1 = list(weight.block_size), looks_up(weight, E2M1)
    global_scale = weight.global_scale if isinstance(weight, Lut4Tensor) else None
    whole_blocks = all(size % block == 0 for size, block in zip(weight.shape, block_size, strict=True))
    float8 = weight.qdata.dtype in FLOAT8_DTYPES
    if exponents and block_size[0] == 1 and whole_blocks and (float8 or (e2m1 and global_scale is None)):
        element = weight.qdata.dtype if float8 else torch.float4_e2m1fn_x2
        dynamic = weight.quantizes_input_to is not None
        return MXTensor(
            weight.qdata,
            weight.scale.view(torch.float8_e8m0fnu),
            element,
            block_size[1],
            weight.dtype,
            KernelPreference.EMULATED,
            QuantizeTensorToMXKwargs(element, block_size[1], ScaleCalculationMode.RCEIL) if dynamic else None,
            False,  # whether scales lie in cuBLAS' tiles
        )
    if e2m1 and block_size == [1, 16] and whole_blocks and weight.scale.dtype is torch.float8_e4m3fn:
        whole = None if global_scale is None else global_scale.reshape(())
        return NVFP4Tensor(weight.qdata, weight.scale, block_size[1], weight.dtype, whole)
    if (
        float8
        and weight.scale.dtype is torch.float32
        and whole_blocks
        and weight.shape[0] % block_size[0] == 0
    ):
        kwargs: Any = None
        if weight.quantizes_input_to is not None:
            kwargs = QuantizeTensorToFloat8Kwargs(weight.qdata.dtype, torchao.PerBlock((1, block_size[1])))
        return torchao.Float8Tensor(
            weight.qdata, weight.scale, block_size, act_quant_kwargs=kwargs, dtype=weight.dtype
        )
    raise ValueError(
        f"{name}: torchao has float8 with float32 scales or exponents, e2m1 with exponents or float8_e4m3fn "
        f"for groups of 16, and integers in groups along K, all for whole blocks, got "
        f"{describe(weight.qdata)} with {dtype_name(weight.scale.dtype)} for blocks of {block_size}"
    )


def config_like(weight: QuantizedTensor) -> Any:
    """The config by which torchao makes weights of this kind, or where it has none, the nearest."""
    intx = isinstance(weight, GroupsTensor) and not isinstance(weight, Int4Tensor)
    if intx or (isinstance(weight, BlockwiseTensor) and _in_groups(weight)):
        bits, group = FORMATS[Code(weight.code)].bits, torchao.PerGroup(weight.block_size[1])
        return torchao.IntxWeightOnlyConfig(weight_dtype=getattr(torch, f"int{bits}"), granularity=group)
    if isinstance(weight, (BlockwiseTensor, Lut4Tensor)):
        if weight.scale.dtype in EXPONENT_DTYPES:
            four = isinstance(weight, Lut4Tensor)
            element = torch.float4_e2m1fn_x2 if four else weight.qdata.dtype
            return MXDynamicActivationMXWeightConfig(
                block_size=weight.block_size[1], activation_dtype=element, weight_dtype=element
            )
        if isinstance(weight, Lut4Tensor):
            return NVFP4WeightOnlyConfig()
        if weight.block_size == [128, 128]:
            blocks = (torchao.PerBlock((1, 128)), torchao.PerBlock((128, 128)))
            return torchao.Float8DynamicActivationFloat8WeightConfig(granularity=blocks)
    if isinstance(weight, Int4Tensor):
        return torchao.Int4WeightOnlyConfig(group_size=weight.block_size[1])
    if isinstance(weight, Int8Tensor):
        if weight.dynamic_activation:
            return torchao.Int8DynamicActivationInt8WeightConfig(version=2)
        return torchao.Int8WeightOnlyConfig(version=2)
    if isinstance(weight, Float8Tensor) and weight.dynamic_activation:
        return torchao.Float8DynamicActivationFloat8WeightConfig(granularity=torchao.PerRow())
    return torchao.Float8WeightOnlyConfig()
