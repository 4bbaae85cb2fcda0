"""Quantised weights of every kind, and what they mean in float64, for the tests of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import aoext
from aoext import reference
from aoext.formats import table
from aoext.formats.dtypes import EXPONENT_DTYPES
from aoext.formats.table import Code
from aoext.reference import values
from aoext.tensors import (
    BlockwiseTensor,
    Float8Tensor,
    Int2Tensor,
    Int3Tensor,
    Int4Tensor,
    Int6Tensor,
    Int8Tensor,
    Lut4Tensor,
    NestedLut4Tensor,
    QuantizedTensor,
)
from aoext.tensors.groups import GroupsTensor

HIGH_PRECISION = reference.HIGH_PRECISION
E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu

OPERATORS = aoext.ops.operators()
# Every kind of call of these operators.
KINDS = [*reference.ALL_CALLS, *reference.QUANTIZE, "sort_by_expert"]
# What the generic kernels serve on XPUs.
BY_ATEN_ON_XPU = (
    "convert_weight_to_int4pack",
    "weight_only_linear int8 zeros",
)
# One kind of each operator.
KIND_OF = {reference.operator_of(kind): kind for kind in reversed(KINDS)}


def call_of_any(
    kind: str, problem: reference.Problem, generator: torch.Generator
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a good call of any kind."""
    if kind == "sort_by_expert":
        return [reference.routed(problem.M, 2, problem.experts, generator), problem.experts], {}
    if kind in reference.QUANTIZE:
        x = reference.randn(generator, problem.M, problem.K, dtype=problem.dtype)
        return [x, problem.eight_bit, *([[1, 16]] if kind == "quantize blocks" else [])], {}
    call = reference.ALL_CALLS[kind](problem, generator)
    return list(call.args), call.kwargs


# The weight's K must be a multiple of this, and of columns_step(format).
GROUP_SIZE = 16
BLOCK = [1, GROUP_SIZE]

FORMATS: dict[str, Callable[[Tensor], QuantizedTensor]] = {
    "int4": lambda w: Int4Tensor.from_hp(w, [1, GROUP_SIZE]),
    "int4_symmetric": lambda w: Int4Tensor.from_hp(w, [1, GROUP_SIZE], symmetric=True),
    "int4_prescaled": lambda w: _prescaled(Int4Tensor.from_hp(w, [1, GROUP_SIZE])),
    "int4_int8": lambda w: Int4Tensor.from_hp(w, BLOCK, activation=torch.int8),
    "int4_float8": lambda w: Int4Tensor.from_hp(w, BLOCK, symmetric=True, activation=E4M3),
    "int2": lambda w: Int2Tensor.from_hp(w, BLOCK),
    "int3": lambda w: Int3Tensor.from_hp(w, BLOCK),
    "int6_int8": lambda w: Int6Tensor.from_hp(w, BLOCK, activation=torch.int8),
    "int2_symmetric": lambda w: Int2Tensor.from_hp(w, BLOCK, symmetric=True, activation=torch.int8),
    "int8": Int8Tensor.from_hp,
    "int8_dynamic": lambda w: Int8Tensor.from_hp(w, dynamic_activation=True),
    "float8": Float8Tensor.from_hp,
    "float8_e5m2": lambda w: Float8Tensor.from_hp(w, E5M2),
    "float8_dynamic": lambda w: Float8Tensor.from_hp(w, dynamic_activation=True),
    "float8_e5m2_dynamic": lambda w: Float8Tensor.from_hp(w, E5M2, dynamic_activation=True),
    "block_int8": lambda w: BlockwiseTensor.from_hp(w, BLOCK, torch.int8, scale_dtype=torch.bfloat16),
    "block_int8_dynamic": lambda w: BlockwiseTensor.from_hp(w, BLOCK, torch.int8, input_block=[1, 32]),
    "block_int8_zeros": lambda w: BlockwiseTensor.from_hp(w, BLOCK, torch.int8, symmetric=False),
    "block_int8_zeros_dynamic": lambda w: BlockwiseTensor.from_hp(
        w, BLOCK, torch.int8, symmetric=False, scale_dtype=torch.bfloat16, input_block=[1, 32]
    ),
    "block_float8": lambda w: BlockwiseTensor.from_hp(w, BLOCK, E5M2),
    "block_float8_dynamic": lambda w: BlockwiseTensor.from_hp(w, BLOCK, input_block=BLOCK),
    "mxfp8": lambda w: BlockwiseTensor.from_hp(w, BLOCK, E4M3, scale_dtype=E8M0, input_block=BLOCK),
    "mxfp4": lambda w: Lut4Tensor.from_hp(w, "mxfp4", block_size=BLOCK),
    "nvfp4": lambda w: Lut4Tensor.from_hp(w, "nvfp4"),
    "nf4": lambda w: Lut4Tensor.from_hp(w, "nf4", block_size=BLOCK),
    "nf4_nested": lambda w: NestedLut4Tensor.from_hp(w, "nf4", block_size=BLOCK),
}

# Those whose parts are views, wherever they are cut.
SLICED = [name for name in FORMATS if name != "nf4_nested"]

# The formats whose groups divide K, by name, and the largest magnitude of their codes.
LARGEST_CODES = {f.name: max(-f.lowest, f.highest) for f in table.FORMATS.values() if f.scales == "groups"}


def is_by_groups(format: str) -> bool:
    return format.split("_")[0] in LARGEST_CODES


def columns_step(format: str) -> int:
    """How many columns have whole bytes."""
    return next((f.values for f in table.FORMATS.values() if f.name == format.split("_")[0]), 1)


# The largest loss of weights, by what their format's name has; in this order.
LARGEST_LOSS = {
    "int2": 0.45,
    "int3": 0.25,
    "int6": 0.04,
    "int4": 0.13,
    "int8": 0.02,
    "float8": 0.07,
    "fp8": 0.07,
    "fp4": 0.16,
    "nf4": 0.13,
}

# One of each class, for tests of what does not depend on the rest.
CLASSES = ["int4", "int8_dynamic", "float8", "block_float8_dynamic", "nvfp4"]


def largest_loss(format: str) -> float:
    """The most that the format may lose, as a share of the norm of normally distributed weights."""
    return next(bound for kind, bound in LARGEST_LOSS.items() if kind in format)


def _prescaled(weight: Int4Tensor) -> Int4Tensor:
    factors = torch.linspace(0.5, 2, weight.shape[1], dtype=torch.float32, device="cpu").to(weight.scale)
    fields = (weight.qdata, weight.scale, weight.zero_point, weight.block_size, weight.shape)
    return Int4Tensor(*fields, act_pre_scale=factors)


def quantized(
    format: str,
    N: int,
    K: int,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> QuantizedTensor:
    """A random weight [N, K]."""
    return FORMATS[format](reference.randn(generator, N, K, dtype=dtype).to(device))


def meaning(weight: QuantizedTensor) -> Tensor:
    """The weight [N, K] in float64, on the CPU, from the fields by the contract's formulas."""
    fields = {name: tensor.cpu() for name, tensor in weight.named_fields()}
    qdata = fields["qdata"]
    if isinstance(weight, GroupsTensor):
        codes = reference.Stored("", Code(weight.code)).codes(qdata)
        return values.groups_float64(codes, fields["scale"], fields["zero_point"])
    if not weight.any_blocks:
        return qdata.double() * fields["scale"].double()
    codes = values.lut4_float64(qdata, fields["table"]) if "table" in fields else qdata.double()
    if isinstance(weight, NestedLut4Tensor):
        scale = nested_scales(fields["scale"], fields["table"], fields["global_scale"], fields["zero_point"])
        return values.blockwise_float64(codes, scale, weight.block_size, slice(None))
    if "zero_point" in fields:
        ones = torch.ones_like(codes)
        codes = codes - values.blockwise_float64(
            ones, fields["zero_point"].float(), weight.block_size, slice(None)
        )
    result = values.blockwise_float64(codes, fields["scale"], weight.block_size, slice(None))
    return result * fields["global_scale"].double() if "global_scale" in fields else result


def nested_scales(codes: Tensor, table: Tensor, global_scale: Tensor, zero_point: Tensor) -> Tensor:
    """Scales of 8 bits in float32, where the product rounds and then the sum."""
    products = [
        table[16 + code] * global_scale.flatten()[i // 256] for i, code in enumerate(codes.flatten().tolist())
    ]
    return (torch.stack(products) + zero_point).view(codes.shape) if products else codes.float()


def product(input: Tensor, weight: QuantizedTensor, bias: Tensor | None = None) -> Tensor:
    """What F.linear(input, weight, bias) stands for, in float64 on the CPU."""
    x = input.detach().cpu()
    factors = getattr(weight, "act_pre_scale", None)
    if factors is not None:
        x = (x * factors.cpu()).to(x.dtype)
    if (dtype := weight.quantizes_input_to) is not None:
        block = getattr(weight, "input_block", None)
        block_k = x.shape[-1] if block is None else block[1]
        exponents = weight.scale.dtype in EXPONENT_DTYPES
        q, scale = values.quantized_blocks(x, dtype, block_k, exponents)
        x = q.double() * values.spread(scale.double(), block_k, x.shape[-1])
    result = x.double() @ meaning(weight).t()
    return result if bias is None else result + bias.detach().cpu().double()


def same(a: QuantizedTensor, b: QuantizedTensor) -> bool:
    """Whether two weights are of one kind and equal in every field and attribute."""
    ours, theirs = dict(a.named_fields()), dict(b.named_fields())
    return (
        type(a) is type(b)
        and a.shape == b.shape
        and a.dtype is b.dtype
        and a.named_attributes() == b.named_attributes()
        and ours.keys() == theirs.keys()
        and all(ours[name].dtype is theirs[name].dtype for name in ours)
        and all(torch.equal(bits(ours[name]), bits(theirs[name])) for name in ours)
    )


def bits(tensor: Tensor) -> Tensor:
    """A field as integers, for float8 knows no torch.equal on every device."""
    tensor = tensor.contiguous()
    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
