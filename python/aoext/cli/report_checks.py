"""The operators in brief: each at a few shapes and with awkward numbers, on the device, against float64.

Everything is drawn and compared on the CPU, since some GPUs have no float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name
from aoext.reference import (
    QUANTIZE,
    SUBJECTS,
    Problem,
    Sample,
    Subject,
    Tensors,
    bound,
    routed,
    sorted_by_expert,
)

OUTLIER = 1000.0


def _as_drawn(x: Tensor, g: Generator) -> Tensor:
    return x


def _with_outliers(x: Tensor, g: Generator) -> Tensor:
    """One activation of each row a thousand times as large as it was."""
    columns = torch.randint(x.shape[1], (x.shape[0], 1), generator=g)
    return x.scatter(1, columns, x.gather(1, columns) * OUTLIER)


def _with_nan(x: Tensor, g: Generator) -> Tensor:
    """One NaN, in the first row."""
    x = x.clone()
    x[0, int(torch.randint(x.shape[1], (), generator=g))] = torch.nan
    return x


@dataclass(frozen=True)
class Case:
    """One call of each operator."""

    name: str
    M: int
    N: int
    K: int
    group_size: int
    dtype: torch.dtype = torch.bfloat16
    activation: Callable[[Tensor, Generator], Tensor] = _as_drawn  # of activations in high precision


CASES = (
    Case("one row", 1, 256, 512, 128),
    Case("odd sizes", 5, 33, 96, 32),
    Case("tails", 19, 130, 640, 64),
    Case("many rows", 70, 96, 384, 128),
    *(Case(f"in {dtype_name(dtype)}", 9, 48, 256, 32, dtype) for dtype in FLOAT_DTYPES[1:]),
    Case("outliers", 6, 64, 512, 128, activation=_with_outliers),
    Case("a row of NaN", 4, 40, 256, 128, activation=_with_nan),
)


@dataclass(frozen=True)
class Check:
    """What one call gave."""

    operator: str
    format: str
    case: str
    dtype: str
    M: int
    N: int
    K: int
    bound: float
    error: (
        float | None
    )  # the largest of a row; None where there is none to compare, or where it is not finite
    problem: str  # empty where all is well

    @property
    def passed(self) -> bool:
        return not self.problem


def check_operators(
    device: torch.device, seed: int, subjects: Sequence[Subject] = SUBJECTS
) -> Iterator[Check]:
    """Every operator in every format and case that applies to it."""
    for subject in subjects:
        generator = torch.Generator().manual_seed(seed)
        for case in CASES:
            p = Problem(case.M, case.N, case.K, case.group_size, case.dtype, None)
            if not subject.serves(p):
                continue
            inputs, rotated = subject.inputs(p, generator), subject.rotated(p, generator)
            if case.activation is not _as_drawn:
                changed = _change_activation(subject, case, inputs, rotated, generator)
                if changed is None:
                    continue
                inputs, rotated = changed
            yield _check(subject, case, p, inputs, rotated, device)
    yield from _check_sorting(device, torch.Generator().manual_seed(seed))


def _check_sorting(device: torch.device, generator: Generator) -> Iterator[Check]:
    """sort_by_expert, whose results are lists and no numbers of a product."""
    tokens, k, experts = 70, 8, 128
    ids = routed(tokens, k, experts, generator)
    try:
        results = torch.ops.ao.sort_by_expert(ids.to(device), experts)
    except (RuntimeError, NotImplementedError) as failure:
        error, problem = None, f"raised: {str(failure).splitlines()[0]}"
    else:
        same = tuple(result.tolist() for result in results) == sorted_by_expert(ids, experts)
        error, problem = (0.0, "") if same else (None, "the order, the places or the offsets are others")
    name = dtype_name(ids.dtype)
    yield Check("sort_by_expert", name, "many rows", name, tokens, experts, k, 0.0, error, problem)


def _change_activation(
    subject: Subject, case: Case, inputs: Tensors, rotated: Tensors, g: Generator
) -> tuple[Tensors, Tensors] | None:
    """The arguments with another activation; None for operators without one in high precision."""
    if subject.kind in QUANTIZE:
        return inputs, (case.activation(rotated[0], g),)
    if inputs and inputs[0].dtype in FLOAT_DTYPES:
        return (case.activation(inputs[0], g), *inputs[1:]), rotated
    return None


def _check(
    subject: Subject, case: Case, p: Problem, inputs: Tensors, rotated: Tensors, device: torch.device
) -> Check:
    allowed, error = 0.0, None
    try:
        result = _run(subject, p, inputs, rotated, device)
    except (RuntimeError, NotImplementedError) as failure:
        problem = f"raised: {str(failure).splitlines()[0]}"
    else:
        allowed = bound(result)
        error, problem = _judge(subject, case, p, inputs, rotated, result)
    return Check(
        operator=subject.operator,
        format=subject.format,
        case=case.name,
        dtype=dtype_name(case.dtype),
        M=case.M,
        N=case.N,
        K=case.K,
        bound=allowed,
        error=error,
        problem=problem,
    )


def _run(subject: Subject, p: Problem, inputs: Tensors, rotated: Tensors, device: torch.device) -> Any:
    there = [tuple(tensor.to(device) for tensor in tensors) for tensors in (inputs, rotated)]
    result = subject.call(getattr(torch.ops.ao, subject.operator), p, *there)
    return tuple(r.cpu() for r in result) if isinstance(result, tuple) else result.cpu()


def _judge(
    subject: Subject, case: Case, p: Problem, inputs: Tensors, rotated: Tensors, result: Any
) -> tuple[float | None, str]:
    """The largest error of a row, and what is wrong with the result."""
    sizes = [getattr(p, name) for name in subject.result]
    rows, columns = torch.arange(sizes[0]), torch.arange(sizes[1])
    if case.activation is _with_nan:
        first = torch.arange(1)
        expected = subject.reference(p, inputs, rotated, first, columns)[0].isnan()
        if not torch.equal(subject.dense(p, result)[0].isnan(), expected):
            return None, "the row of NaN has other values"
        rows = rows[1:]
    sample = Sample(rows, columns, subject.reference(p, inputs, rotated, rows, columns))
    error, allowed = sample.error(subject.dense(p, result)), bound(result)
    problem = (
        "" if error <= allowed else f"a row differs from float64 by {error:.1e}, allowed is {allowed:.1e}"
    )
    return (error if math.isfinite(error) else None), problem
