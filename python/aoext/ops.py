"""The operators of `torch.ops.ao` by name, and their fake kernels.

Fake kernels compute shape, dtype and device alone; the checks stand in C++ (csrc/common/checks.cpp). What
else an operator needs in Python: its gradient (gradients.py) and what torch.vmap makes of it (batches.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ao = torch.ops.ao

# Products that have a twin with `_bias`.
_WEIGHT_ONLY = ("bf16i4bf16_rowwise", "bf16i8bf16_rowwise", "bf16f8bf16_rowwise")

# Largest relative Frobenius error of a row of a result against float64, by the result's dtype.
ERROR_BOUND = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 2e-5, torch.int32: 0.0}
# What an element may be off by in any case: numbers below the smallest normal one have few bits, and the
# instructions of CPUs for bfloat16 take such numbers for 0, those among a product's terms too.
ERROR_FLOOR = {torch.bfloat16: 2.0**-120, torch.float16: 2.0**-24, torch.float32: 2.0**-142}
# A row of fewer columns may be one sum that cancels, of which no float32 sum keeps more: to its bound comes
# so much of the same row of Σ|x·w|.
FEW_COLUMNS = 8
ERROR_OF_SUMS = 2.0**-20


def operators() -> list[str]:
    """The names of aoext's public operators; torchao has some of its own in the namespace ao."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if re.match("ao::(?!_)", name)]
    return sorted(
        {name.split("::")[1] for name in names if "csrc/schema.cpp" in torch._C._dispatch_dump(name)}
    )


def _check_device(operator: str, **tensors: Tensor | None) -> None:
    """Meta tensors beside real ones, or beside None, reach a fake kernel and no other."""
    for name, t in tensors.items():
        if t is None:
            raise RuntimeError(f"ao::{operator}: {name} must be a tensor, got None")
    (first_name, first), *others = _given(**tensors).items()
    for name, t in others:
        if t.device != first.device:
            raise RuntimeError(
                f"ao::{operator}: {name} must be on the device of {first_name}, {first.device}, "
                f"got {t.device}"
            )


def _given(**optional: Tensor | None) -> dict[str, Tensor]:
    return {name: t for name, t in optional.items() if t is not None}


def _check_matrix(operator: str, weight: Tensor) -> None:
    """Shapes are read off the weight, so it must have some."""
    if weight.dim() != 2:
        raise RuntimeError(f"ao::{operator}: weight must be a matrix, got {list(weight.shape)}")


def _linear_result(operator: str, input: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    _check_matrix(operator, weight)
    return input.new_empty((*input.shape[:-1], weight.shape[0]), dtype=dtype)


def _register_fakes() -> None:
    def fake(operator: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return torch.library.register_fake(f"ao::{operator}")

    def weight_only(operator: str, names: tuple[str, ...]) -> None:
        @fake(operator)
        def _(*tensors: Tensor) -> Tensor:
            _check_device(operator, **dict(zip(names, tensors, strict=True)))
            return _linear_result(operator, tensors[0], tensors[1], tensors[0].dtype)

    for operator in _WEIGHT_ONLY:
        names = ("input", "weight", "scale", *(("zero_point",) if "i4" in operator else ()))
        weight_only(operator, names)
        weight_only(f"{operator}_bias", (*names, "bias"))

    @fake("dequantize_int4")
    def _(weight: Tensor, scale: Tensor, zero_point: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        _check_device("dequantize_int4", weight=weight, scale=scale, zero_point=zero_point)
        _check_matrix("dequantize_int4", weight)
        return weight.new_empty((weight.shape[0], 2 * weight.shape[1]), dtype=dtype or scale.dtype)

    @fake("convert_weight_to_int4pack")
    def _(weight: Tensor, inner_k_tiles: int) -> Tensor:
        _check_device("convert_weight_to_int4pack", weight=weight)
        _check_matrix("convert_weight_to_int4pack", weight)
        if inner_k_tiles not in (2, 4, 8):
            raise RuntimeError(
                f"ao::convert_weight_to_int4pack: inner_k_tiles must be 2, 4 or 8, got {inner_k_tiles}"
            )
        shape = (weight.shape[0] // 8, weight.shape[1] // (8 * inner_k_tiles), 32, inner_k_tiles // 2)
        return weight.new_empty(shape, dtype=torch.int32)

    @fake("weight_int4pack_mm")
    def _(input: Tensor, weight: Tensor, group_size: int, scale_and_zero: Tensor) -> Tensor:
        _check_device("weight_int4pack_mm", input=input, weight=weight, scale_and_zero=scale_and_zero)
        if weight.dim() != 4:
            raise RuntimeError(f"ao::weight_int4pack_mm: weight must be 4-D, got {list(weight.shape)}")
        return input.new_empty((*input.shape[:-1], 8 * weight.shape[0]))

    @fake("int8_mm")
    def _(input: Tensor, weight: Tensor) -> Tensor:
        _check_device("int8_mm", input=input, weight=weight)
        return _linear_result("int8_mm", input, weight, torch.int32)

    @fake("scaled_mm_rowwise")
    def _(
        input: Tensor,
        weight: Tensor,
        input_scale: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None = None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        _check_device(
            "scaled_mm_rowwise",
            input=input,
            weight=weight,
            input_scale=input_scale,
            weight_scale=weight_scale,
            **_given(bias=bias),
        )
        return _linear_result("scaled_mm_rowwise", input, weight, out_dtype or torch.bfloat16)

    @fake("scaled_linear_rowwise")
    def _(input: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
        _check_device(
            "scaled_linear_rowwise",
            input=input,
            weight=weight,
            weight_scale=weight_scale,
            **_given(bias=bias),
        )
        return _linear_result("scaled_linear_rowwise", input, weight, input.dtype)

    @fake("quantize_rowwise")
    def _(input: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        _check_device("quantize_rowwise", input=input)
        scales = input.new_empty((*input.shape[:-1], 1), dtype=torch.float32)
        return input.new_empty(input.shape, dtype=dtype), scales


_register_fakes()


def generic(operator: str) -> Callable[..., Any]:
    """The generic kernel of an operator as a function, whatever kernels its arguments' device has.

    For tests and benchmarks: the twin that a device's own kernel is held against. It is what the
    dispatcher would run for a device that nobody has registered a kernel for.
    """
    kernel = torch.library.get_kernel(f"ao::{operator}", "MPS")

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in args if isinstance(a, Tensor)]
        return kernel.call_boxed(torch._C._dispatch_keys(tensors[0]), *args, **kwargs)

    return call
