"""The operators of `torch.ops.ao` by name, and their fake kernels.

Fake kernels compute shape, dtype and device, and refuse what the operators refuse: by the same checks, which
stand in C++ (csrc/common/checks.cpp). What else an operator needs in Python: its gradient (gradients.py) and
what torch.vmap makes of it (batches.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

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


def _check(operator: str, *arguments: Any, dtype: torch.dtype | None = None) -> None:
    """Raises what the operator raises for arguments that it refuses, fake ones; None stands for no tensor.

    The checks are those of csrc/common/checks.cpp, on meta tensors. Sizes that a program leaves open are
    taken as they were traced, so that nothing is guarded on. Where some are known at run time alone, the
    operator checks.
    """
    names = [a.name for a in getattr(ao, operator).default._schema.arguments]
    tensors = {n: a for n, a in zip(names, arguments, strict=False) if not isinstance(a, (int, torch.dtype))}
    (first_name, first), *_ = tensors.items()
    given = []
    # Meta tensors beside real ones, or beside None, come here and nowhere else.
    for name, t in tensors.items():
        if t is None:
            if name == "bias" and not operator.endswith("_bias"):
                continue
            raise RuntimeError(f"ao::{operator}: {name} must be a tensor, got None")
        if t.device != first.device:
            raise RuntimeError(
                f"ao::{operator}: {name} must be on the device of {first_name}, {first.device}, "
                f"got {t.device}"
            )
        given.append(t)
    number = next((a for a in arguments if isinstance(a, int)), None)
    with _disable_current_modes():
        traced = [_traced(t) for t in given]
        if all(t is not None for t in traced):
            ao._check_call(operator, traced, number, dtype)


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


def _linear_result(input: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]), dtype=dtype)


def _register_fakes() -> None:
    def fake(operator: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return torch.library.register_fake(f"ao::{operator}")

    def weight_only(operator: str) -> None:
        @fake(operator)
        def _(input: Tensor, weight: Tensor, *others: Tensor) -> Tensor:
            _check(operator, input, weight, *others)
            return _linear_result(input, weight, input.dtype)

    for operator in _WEIGHT_ONLY:
        weight_only(operator)
        weight_only(f"{operator}_bias")

    @fake("dequantize_int4")
    def _(weight: Tensor, scale: Tensor, zero_point: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        _check("dequantize_int4", weight, scale, zero_point, dtype=dtype)
        return weight.new_empty((weight.shape[0], 2 * weight.shape[1]), dtype=dtype or scale.dtype)

    @fake("convert_weight_to_int4pack")
    def _(weight: Tensor, inner_k_tiles: int) -> Tensor:
        _check("convert_weight_to_int4pack", weight, inner_k_tiles)
        shape = (weight.shape[0] // 8, weight.shape[1] // (8 * inner_k_tiles), 32, inner_k_tiles // 2)
        return weight.new_empty(shape, dtype=torch.int32)

    @fake("weight_int4pack_mm")
    def _(input: Tensor, weight: Tensor, group_size: int, scale_and_zero: Tensor) -> Tensor:
        _check("weight_int4pack_mm", input, weight, group_size, scale_and_zero)
        return input.new_empty((*input.shape[:-1], 8 * weight.shape[0]))

    @fake("int8_mm")
    def _(input: Tensor, weight: Tensor) -> Tensor:
        _check("int8_mm", input, weight)
        return _linear_result(input, weight, torch.int32)

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
        _check("scaled_mm_rowwise", input, weight, input_scale, weight_scale, bias, dtype=out_dtype)
        return _linear_result(input, weight, out_dtype or torch.bfloat16)

    @fake("scaled_linear_rowwise")
    def _(input: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
        _check("scaled_linear_rowwise", input, weight, weight_scale, bias)
        return _linear_result(input, weight, input.dtype)

    @fake("quantize_rowwise")
    def _(input: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        _check("quantize_rowwise", input, dtype=dtype)
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
