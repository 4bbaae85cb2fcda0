"""The operators of `torch.ops.ao` for who works on them: names, generic kernels, plans, error bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from aoext.operators.calls import ao, bound, described
from aoext.operators.calls import operators as operators

# Largest relative Frobenius error of a row of a result against float64, by the result's dtype.
ERROR_BOUND = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 2e-5, torch.int32: 0.0}

# What an element may be off by in any case: numbers below the smallest normal one have few bits, and the
# instructions of CPUs for bfloat16 take such numbers for 0, those among a product's terms too.
ERROR_FLOOR = {torch.bfloat16: 2.0**-120, torch.float16: 2.0**-24, torch.float32: 2.0**-136}

# A row of fewer columns may be one sum that cancels, of which no float32 sum keeps more: to its bound comes
# so much of the same row of Σ|x·w|, scaled codes and zero points of w each for themselves.
FEW_COLUMNS = 8
ERROR_OF_SUMS = 2.0**-20


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

    `config` are fields of the kernel's configuration, which `aoext.explain` shows (csrc/cuda/kernels has
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
