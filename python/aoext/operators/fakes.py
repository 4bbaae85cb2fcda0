"""Fake kernels: shape, dtype and device of results.

They refuse what the operators refuse, by the same checks, which stand in C++ (csrc/common/checks.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.operators.calls import ao, bound, described, operators


def _check(operator: str, arguments: dict[str, Any]) -> None:
    """Raises what the operator raises for arguments that it refuses, fake ones; None stands for no tensor.

    The checks are those of csrc/common/checks.cpp, on meta tensors. Sizes that a program leaves open are
    taken as they were traced, so that nothing is guarded on. Where some are known at run time alone, the
    operator checks.
    """
    schema = getattr(ao, operator).default._schema
    first_name, first = next(iter(arguments.items()))
    # Meta tensors beside real ones, or None in a tensor's place, come here and nowhere else.
    for argument in schema.arguments:
        value = arguments[argument.name]
        if isinstance(value, Tensor) and value.device != first.device:
            raise RuntimeError(
                f"ao::{operator}: {argument.name} must be on the device of {first_name}, {first.device}, "
                f"got {value.device}"
            )
        if value is None and isinstance(argument.real_type, torch.TensorType):
            raise RuntimeError(f"ao::{operator}: {argument.name} must be a tensor, got None")
    tensors, numbers, dtype = described(operator, arguments)
    known = [_hint(n) for n in numbers]
    with _disable_current_modes():
        traced = [None if t is None else _traced(t) for t in tensors]
        if None not in known and all(
            (t is None) == (u is None) for t, u in zip(tensors, traced, strict=True)
        ):
            ao._check_call(operator, traced, known, dtype)


def _traced(t: Tensor) -> Tensor | None:
    """A meta tensor of a fake one's sizes and strides when it was traced; None where these are not known."""
    strided = t.layout is torch.strided
    numbers = [_hint(n) for n in (*t.shape, *(t.stride() if strided else ()))]
    known = [n for n in numbers if n is not None]
    if len(known) < len(numbers):
        return None
    sizes, strides = known[: t.dim()], known[t.dim() :]
    if not strided:
        return torch.empty(sizes, dtype=t.dtype, layout=t.layout, device="meta")
    return torch.empty_strided(sizes, strides, dtype=t.dtype, device="meta")


def _hint(number: int | torch.SymInt) -> int | None:
    return number.node.hint if isinstance(number, torch.SymInt) else number


def _product(dtype: Callable[..., torch.dtype]) -> Callable[..., Tensor]:
    """[..., N] of input [..., K] and weight [N, …], of the dtype that the arguments give."""

    def result(*, input: Tensor, weight: Tensor, **others: Any) -> Tensor:
        sizes = (*input.shape[:-1], weight.shape[0])
        return input.new_empty(sizes, dtype=dtype(input=input, weight=weight, **others))

    return result


def _linear(dtype: Callable[..., torch.dtype]) -> Callable[..., Tensor]:
    """[..., N] of input [..., K] and weight [N, …], or [E, N, …] beside offsets."""

    def result(*, input: Tensor, weight: Tensor, **others: Any) -> Tensor:
        sizes = (*input.shape[:-1], weight.shape[-2])
        return input.new_empty(sizes, dtype=dtype(input=input, weight=weight, **others))

    return result


def _quantized(
    *, input: Tensor, dtype: torch.dtype, block_size: list[int] | None, **_: Any
) -> tuple[Tensor, Tensor]:
    blocks = -(-input.shape[-1] // block_size[-1]) if block_size else 1
    scales = input.new_empty((*input.shape[:-1], blocks), dtype=torch.float32)
    return input.new_empty(input.shape, dtype=dtype), scales


def _any_dequantized(
    *, weight: Tensor, scale: Tensor, code: int, dtype: torch.dtype | None, **_: Any
) -> Tensor:
    own = scale.dtype if scale.dtype in FLOAT_DTYPES else torch.float32
    K = (2 if code in (0, 4) else 1) * weight.shape[1]
    return weight.new_empty((weight.shape[0], K), dtype=dtype or own)


def _grouped_product(*, input: Tensor, weight: Tensor, **_: Any) -> Tensor:
    """[T, N] of input [T, K] and weight [E, N, …], of the input's dtype."""
    return input.new_empty((input.shape[0], weight.shape[1]))


def _of_input(*, input: Tensor, **_: Any) -> torch.dtype:
    return input.dtype


def _blocks_quantized(
    *, input: Tensor, dtype: torch.dtype, block_size: list[int], **_: Any
) -> tuple[Tensor, Tensor]:
    blocks = -(-input.shape[-1] // block_size[-1])
    scales = input.new_empty((*input.shape[:-1], blocks), dtype=torch.float32)
    return input.new_empty(input.shape, dtype=dtype), scales


def _of_out_dtype(*, out_dtype: torch.dtype | None, **_: Any) -> torch.dtype:
    return out_dtype or torch.bfloat16


def _dequantized(per_element: int) -> Callable[..., Tensor]:
    """[N, K] of a weight with so many numbers in an element."""

    def result(*, weight: Tensor, scale: Tensor, dtype: torch.dtype | None, **_: Any) -> Tensor:
        own = scale.dtype if scale.dtype in FLOAT_DTYPES else torch.float32
        return weight.new_empty((weight.shape[0], per_element * weight.shape[1]), dtype=dtype or own)

    return result


def _packed(*, weight: Tensor, inner_k_tiles: int) -> Tensor:
    shape = (weight.shape[0] // 8, weight.shape[1] // (8 * inner_k_tiles), 32, inner_k_tiles // 2)
    return weight.new_empty(shape, dtype=torch.int32)


def _packed_product(*, input: Tensor, weight: Tensor, **_: Any) -> Tensor:
    return input.new_empty((*input.shape[:-1], 8 * weight.shape[0]))


def _rows_quantized(*, input: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    scales = input.new_empty((*input.shape[:-1], 1), dtype=torch.float32)
    return input.new_empty(input.shape, dtype=dtype), scales


# An operator's result: its shape, dtype and device, from all of its arguments by name.
_RESULTS: dict[str, Callable[..., Any]] = {
    "bf16i4bf16_rowwise": _product(_of_input),
    "bf16i4bf16_rowwise_bias": _product(_of_input),
    "bf16i4bf16_rowwise_grouped": _grouped_product,
    "weight_only_linear": _linear(_of_input),
    "scaled_linear": _linear(_of_input),
    "scaled_mm": _linear(_of_out_dtype),
    "quantize": _quantized,
    "dequantize": _any_dequantized,
    "bf16i8bf16_rowwise": _product(_of_input),
    "bf16f8bf16_rowwise": _product(_of_input),
    "bf16i8bf16_blockwise": _product(_of_input),
    "bf16i8bf16_blockwise_zp": _product(_of_input),
    "bf16f8bf16_blockwise": _product(_of_input),
    "bf16lut4bf16_blockwise": _product(_of_input),
    "scaled_linear_rowwise": _product(_of_input),
    "scaled_linear_blockwise": _product(_of_input),
    "scaled_linear_int4": _product(_of_input),
    "int8_mm": _product(lambda **_: torch.int32),
    "scaled_mm_rowwise": _product(_of_out_dtype),
    "scaled_mm_blockwise": _product(_of_out_dtype),
    "scaled_mm_int4": _product(_of_out_dtype),
    "quantize_rowwise": _rows_quantized,
    "quantize_blockwise": _blocks_quantized,
    "dequantize_int4": _dequantized(2),
    "dequantize_lut4": _dequantized(2),
    "dequantize_rowwise": _dequantized(1),
    "dequantize_blockwise": _dequantized(1),
    "convert_weight_to_int4pack": _packed,
    "weight_int4pack_mm": _packed_product,
}


def _register_fake(operator: str) -> None:
    def fake(*args: Any, **kwargs: Any) -> Any:
        arguments = bound(operator, args, kwargs)
        _check(operator, arguments)
        return _RESULTS[operator](**arguments)

    torch.library.register_fake(f"ao::{operator}", fake)


if _others := set(_RESULTS) ^ set(operators()):
    raise ImportError(
        "aoext: libaoext.so is of another version than these Python files, by operators such as "
        f"{min(_others)}; install both from one version"
    )

for _operator in _RESULTS:
    _register_fake(_operator)
