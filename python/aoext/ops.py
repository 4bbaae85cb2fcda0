"""The operators of `torch.ops.ao` by name, and their fake kernels.

Fake kernels compute shape, dtype and device, and refuse what the operators refuse: by the same checks, which
stand in C++ (csrc/common/checks.cpp). What else an operator needs in Python: its gradient (gradients.py) and
what torch.vmap makes of it (batches.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from aoext.packing import FLOAT_DTYPES

ao = torch.ops.ao

# Largest relative Frobenius error of a row of a result against float64, by the result's dtype.
ERROR_BOUND = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 2e-5, torch.int32: 0.0}
# What an element may be off by in any case: numbers below the smallest normal one have few bits, and the
# instructions of CPUs for bfloat16 take such numbers for 0, those among a product's terms too.
ERROR_FLOOR = {torch.bfloat16: 2.0**-120, torch.float16: 2.0**-24, torch.float32: 2.0**-136}
# A row of fewer columns may be one sum that cancels, of which no float32 sum keeps more: to its bound comes
# so much of the same row of Σ|x·w|.
FEW_COLUMNS = 8
ERROR_OF_SUMS = 2.0**-20


def operators() -> list[str]:
    """The names of aoext's public operators; torchao has some of its own in the namespace ao."""
    return sorted(ao._operators().split()) if hasattr(ao, "_operators") else []


def bound(operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names in the operator's schema, in its order; None where left out."""
    names = [a.name for a in getattr(ao, operator).default._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: given.get(name) for name in names}


def described(
    operator: str, arguments: dict[str, Any]
) -> tuple[list[Tensor | None], list[int], torch.dtype | None]:
    """The arguments of a call, as `bound` gives them, by kind, each kind in order: what `_explain` takes.

    A list of numbers has its length first, −1 for None; what is left out and has a default of its own takes
    that.
    """
    tensors: list[Tensor | None] = []
    numbers: list[int] = []
    dtype = None
    for argument in getattr(ao, operator).default._schema.arguments:
        value = arguments[argument.name]
        if value is None:
            value = argument.default_value
        kind = argument.real_type
        if isinstance(kind, torch.OptionalType):
            kind = kind.getElementType()
        if isinstance(kind, torch.TensorType):
            tensors.append(value)
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (list, tuple)):
            numbers += [len(value), *value]
        elif value is not None:
            numbers.append(int(value))
        elif isinstance(kind, torch.ListType):
            numbers.append(-1)
    return tensors, numbers, dtype


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


def _has_plans() -> bool:
    """Whether the library has kernels for CUDA, whose plans can be asked for on a computer without a GPU."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel("ao::_kernel_instances", "CompositeExplicitAutograd")


def plan(device: str, operator: str, *arguments: Any, **options: Any) -> str:
    """The whole plan of `torch.ops.ao.<operator>` on a device by name, which need not be at hand.

    Takes the operator's own arguments, on any device, meta too; operands are taken to be aligned. "H200",
    "H100 SXM", "A100", "L40S", "RTX 4090", "B200" and others are known where the library has kernels for CUDA
    (csrc/cuda/gpus.h). RuntimeError for another, for an operator that chooses nothing and for arguments that
    the operator would refuse.

    >>> aoext.ops.plan("H200", "bf16i4bf16_rowwise", x, weight, scale, zero_point)  # doctest: +SKIP
    'int4_mma block_n=128 block_m=64 splits=2 | scale=BFloat16'
    """
    described_call = described(operator, bound(operator, arguments, options))
    return ao._plan(device, operator, *described_call).splitlines()[0]


@contextmanager
def with_plan(kernel: str, **config: int) -> Iterator[None]:
    """Has this thread's calls run a kernel by name, for tests and benchmarks.

    `config` are fields of the kernel's configuration, which `aoext.explain` shows (csrc/cuda/fields.h has
    CUDA's); those left out are what the kernel would be given. Operators and devices that have no such kernel
    run what they always do. RuntimeError that names the argument for a kernel or a field that there is not;
    a call raises it where the kernel does not take the problem, the configuration does not fit it, or the
    device lacks what it needs.

    >>> with aoext.ops.with_plan("int4_ring", tiles=2, k_splits=4):  # doctest: +SKIP
    ...     y = torch.ops.ao.bf16i4bf16_rowwise(x, weight, scale, zero_point)
    """
    before = ao._force_plan(" ".join([kernel, *(f"{name}={value}" for name, value in config.items())]))
    try:
        yield
    finally:
        ao._force_plan(before)
