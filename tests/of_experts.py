"""Products of experts in every number format: calls of them, and what these must give."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.formats.dtypes import dtype_name
from aoext.reference import Call, Problem, Stored, subjects
from aoext.reference.calls import moved, op
from aoext.reference.stored import EIGHT_BIT_BLOCKWISE, INT4, LUT4_BLOCKWISE, WITH_ZERO_POINTS, by_rows
from aoext.reference.subject import ALL, Subject, Tensors

INT8, E4M3, E5M2 = torch.int8, torch.float8_e4m3fn, torch.float8_e5m2


def _weight_only(w: Stored) -> tuple[str, Stored, torch.dtype]:
    return "weight_only_linear", w, w.dtype


def _under_8_bits(operator: str) -> list[tuple[str, Stored, torch.dtype]]:
    rows = [(operator, by_rows(dtype, torch.float32), dtype) for dtype in (INT8, E4M3, E5M2)]
    blocks = [(operator, w, w.dtype) for w in (*EIGHT_BIT_BLOCKWISE, WITH_ZERO_POINTS)]
    return [*rows, *((operator, INT4, dtype) for dtype in (INT8, E4M3)), *blocks]


# The operator, the weight, and what the input is or becomes.
PRODUCTS = [
    *map(_weight_only, [INT4, *map(by_rows, (INT8, E4M3, E5M2)), *EIGHT_BIT_BLOCKWISE, *LUT4_BLOCKWISE]),
    _weight_only(WITH_ZERO_POINTS),
    *_under_8_bits("scaled_mm"),
    *_under_8_bits("scaled_linear"),
]


def _name(operator: str, w: Stored, dtype: torch.dtype) -> str:
    under = w is INT4 and operator != "weight_only_linear"
    return f"{operator} {w.name}" + (f" by {dtype_name(dtype)}" if under else "")


BY_NAME = {_name(*product): product for product in PRODUCTS}


def subject_of(operator: str, w: Stored, dtype: torch.dtype) -> Subject:
    """The product of one weight."""
    if operator == "weight_only_linear":
        return subjects.weight_only_linear(w, "")
    return (subjects.scaled_mm if operator == "scaled_mm" else subjects.scaled_linear)(w, "", dtype)


@dataclasses.dataclass(frozen=True)
class Experts:
    """The operands of a product; where the rows of experts end comes with each call."""

    subject: Subject
    problem: Problem
    inputs: Tensors
    weights: Tensors  # and bias

    def arguments(self, ends: Tensor, device: str) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = self.subject.arguments(self.problem, self.inputs, (*self.weights, ends))
        return [moved(argument, device) for argument in args], kwargs

    def expected(self, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        """In float64, and the terms' magnitudes: each end counts as the largest so far, within the rows."""
        meant = ends.cpu().clamp(0, self.problem.M).cummax(0).values
        return self.subject.expected(self.problem, self.inputs, (*self.weights, meant), ALL, ALL)


def draw(operator: str, w: Stored, dtype: torch.dtype, p: Problem, g: Generator) -> Experts:
    subject = subjects.experts(subject_of(operator, w, dtype), w)
    return Experts(subject, p, subject.inputs(p, g), subject.rotated(p, g)[:-1])


def call_of(operator: str, w: Stored, dtype: torch.dtype, p: Problem, g: Generator) -> Call:
    """A call whose rows have experts by chance, some of them none."""
    drawn = draw(operator, w, dtype, p, g)
    ends = random_ends(p.M, p.experts, g)
    args, kwargs = drawn.arguments(ends, "cpu")
    return Call(operator, tuple(args), kwargs, *drawn.expected(ends))


def on_meta(operator: str, w: Stored, dtype: torch.dtype, p: Problem) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call without numbers: those of one expert, as many times."""
    one = draw(operator, w, dtype, dataclasses.replace(p, experts=1), torch.Generator().manual_seed(0))
    args, kwargs = one.arguments(torch.zeros(1, dtype=torch.int32), "meta")
    names = [argument.name for argument in op(operator)._schema.arguments]
    of_each = ["weight", "scale", "zero_point", "bias", "offsets", *["global_scale"] * w.scales_each_expert]
    for i, name in enumerate(names[: len(args)]):
        if name in of_each and args[i] is not None:
            args[i] = args[i].new_empty(p.experts, *args[i].shape[1:])
    return args, kwargs


def random_ends(rows: int, experts: int, g: Generator) -> Tensor:
    """Some rows at the end have no expert."""
    expert = torch.randint(0, experts, (rows - rows // 7,), generator=g)
    return torch.bincount(expert, minlength=experts).cumsum(0).to(torch.int32)
