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
from aoext.formats.table import FORMATS, Code
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


def _product(
    *,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    """[..., N] of input [..., K] and weight [N, …], or [E, N, …] beside offsets."""
    own = input.dtype if input.dtype in FLOAT_DTYPES else torch.bfloat16
    return input.new_empty(
        (*input.shape[:-1], weight.shape[0 if offsets is None else 1]), dtype=out_dtype or own
    )


def _exact_product(*, input: Tensor, weight: Tensor) -> Tensor:
    return _product(input=input, weight=weight, out_dtype=torch.int32)


def _quantized(
    *, input: Tensor, dtype: torch.dtype, block_size: list[int] | None = None, **_: Any
) -> tuple[Tensor, Tensor]:
    blocks = -(-input.shape[-1] // block_size[-1]) if block_size else 1
    scales = input.new_empty((*input.shape[:-1], blocks), dtype=torch.float32)
    return input.new_empty(input.shape, dtype=dtype), scales


def _dequantized(*, weight: Tensor, scale: Tensor, code: int, dtype: torch.dtype | None, **_: Any) -> Tensor:
    own = scale.dtype if scale.dtype in FLOAT_DTYPES else torch.float32
    columns = FORMATS[Code(code)].columns(weight.shape)
    return weight.new_empty((weight.shape[0], columns), dtype=dtype or own)


def _sorted(*, expert: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    order, place = (expert.new_empty((expert.numel(),), dtype=torch.int64) for _ in range(2))
    return order, place, expert.new_empty((experts,), dtype=torch.int32)


def _packed(*, weight: Tensor, inner_k_tiles: int) -> Tensor:
    shape = (weight.shape[0] // 8, weight.shape[1] // (8 * inner_k_tiles), 32, inner_k_tiles // 2)
    return weight.new_empty(shape, dtype=torch.int32)


def _packed_product(*, input: Tensor, weight: Tensor, **_: Any) -> Tensor:
    return input.new_empty((*input.shape[:-1], 8 * weight.shape[0]))


# Shape, dtype and device of results, from arguments by name, of operators that are no plain products.
_RESULTS: dict[str, Callable[..., Any]] = {
    "int8_mm": _exact_product,
    "quantize": _quantized,
    "dequantize": _dequantized,
    "sort_by_expert": _sorted,
    "convert_weight_to_int4pack": _packed,
    "weight_int4pack_mm": _packed_product,
}


def _register_fake(operator: str) -> None:
    result = _RESULTS.get(operator, _product)

    def fake(*args: Any, **kwargs: Any) -> Any:
        arguments = bound(operator, args, kwargs)
        _check(operator, arguments)
        return result(**arguments)

    torch.library.register_fake(f"ao::{operator}", fake)


if _missing := _RESULTS.keys() - set(operators()):
    raise ImportError(
        "aoext: libaoext.so is of another version than these Python files, by operators such as "
        f"{min(_missing)}; install both from one version"
    )
for _operator in operators():
    _register_fake(_operator)
