"""Products of experts in every number format: calls of them, and what these must give."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.formats.dtypes import dtype_name
from aoext.formats.table import FORMATS
from aoext.reference import Call, Problem, Stored, subjects
from aoext.reference.stored import EIGHT_BIT_BLOCKWISE, INT4, LUT4_BLOCKWISE, by_rows
from aoext.reference.subject import ALL, Subject, Tensors

INT8, E4M3, E5M2 = torch.int8, torch.float8_e4m3fn, torch.float8_e5m2


def _weight_only(w: Stored) -> tuple[str, Stored, torch.dtype]:
    return "weight_only_linear", w, w.dtype


def _under_8_bits(operator: str) -> list[tuple[str, Stored, torch.dtype]]:
    rows = [(operator, by_rows(dtype, torch.float32), dtype) for dtype in (INT8, E4M3, E5M2)]
    blocks = [(operator, w, w.dtype) for w in EIGHT_BIT_BLOCKWISE]
    return [*rows, *((operator, INT4, dtype) for dtype in (INT8, E4M3)), *blocks]


# The operator, the weight, and what the input is or becomes.
PRODUCTS = [
    *map(_weight_only, [INT4, *map(by_rows, (INT8, E4M3, E5M2)), *EIGHT_BIT_BLOCKWISE, *LUT4_BLOCKWISE]),
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


def _is_shared(w: Stored, i: int) -> bool:
    """Whether tensor i of a weight is that of all experts: a table, a global scale."""
    return FORMATS[w.code].has_table and 2 <= i < w.tensors


@dataclasses.dataclass(frozen=True)
class Experts:
    """The operands of a product; where the rows of experts end comes with each call."""

    subject: Subject
    problem: Problem
    inputs: Tensors
    each: tuple[Tensors, ...]  # of each expert its weight and bias
    stacked: Tensors

    def arguments(self, ends: Tensor, device: str) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = self.subject.arguments(self.problem, self.inputs, self.stacked)
        moved = [a.to(device) if isinstance(a, Tensor) else a for a in args]
        return moved, {**kwargs, "offsets": ends.to(device)}

    def expected(self, ends: Tensor) -> tuple[Tensor, Tensor]:
        """In float64, and the terms' magnitudes: each end counts as the largest so far, within the rows."""
        p = self.problem
        result = torch.zeros(p.M, p.N, dtype=torch.float64)
        terms = result.clone()
        begin = 0
        for weight, end in zip(self.each, ends.cpu().clamp(0, p.M).cummax(0).values.tolist(), strict=True):
            rows = slice(begin, end)
            if end > begin:
                values, magnitudes = self.subject.expected(p, self.inputs, weight, rows, ALL)
                result[rows] = values
                terms[rows] = magnitudes
            begin = end
        return result, terms


def draw(operator: str, w: Stored, dtype: torch.dtype, p: Problem, g: Generator) -> Experts:
    subject = subject_of(operator, w, dtype)
    each = tuple(subject.rotated(p, g) for _ in range(p.experts))
    if any(_is_shared(w, i) for i in range(len(each[0]))):
        each = tuple(tuple(each[0][i] if _is_shared(w, i) else t for i, t in enumerate(one)) for one in each)
    columns = enumerate(zip(*each, strict=True))
    stacked = tuple(parts[0] if _is_shared(w, i) else torch.stack(parts) for i, parts in columns)
    return Experts(subject, p, subject.inputs(p, g), each, stacked)


def call_of(operator: str, w: Stored, dtype: torch.dtype, p: Problem, g: Generator) -> Call:
    """A call whose rows have experts by chance, some of them none."""
    drawn = draw(operator, w, dtype, p, g)
    ends = random_ends(p.M, p.experts, g)
    args, kwargs = drawn.arguments(ends, "cpu")
    return Call(operator, tuple(args), kwargs, *drawn.expected(ends))


def random_ends(rows: int, experts: int, g: Generator) -> Tensor:
    """Some rows at the end have no expert."""
    expert = torch.randint(0, experts, (rows - rows // 7,), generator=g)
    return torch.bincount(expert, minlength=experts).cumsum(0).to(torch.int32)
