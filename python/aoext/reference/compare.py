"""Whether a result is what it must be: all of it, or a sample of its rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.ops import ERROR_BOUND, ERROR_FLOOR, ERROR_OF_SUMS, FEW_COLUMNS

from .subject import Problem, Subject, Tensors

# Enough rows and columns to find what is wrong, few enough to be quick.
ROWS, COLUMNS = 4, 64


def assert_close(result: Tensor, reference: Tensor, terms: Tensor | None = None, *, slack: float = 1) -> None:
    """Every row of the result within its dtype's bound, or `slack` times that; rows of zeros exact.

    terms: those of a Call, where rows have so few columns that they may cancel.
    """
    assert result.shape == reference.shape
    result = result.cpu()
    if reference.dtype is torch.int32:
        assert torch.equal(result, reference)
        return
    if reference.numel() == 0:
        return

    def rows(t: Tensor) -> Tensor:
        return t.double().reshape(-1, t.shape[-1])

    error = (rows(result) - rows(reference)).norm(dim=1)
    norm = rows(reference).norm(dim=1)
    floor = ERROR_FLOOR[result.dtype] * (rows(reference) != 0).sum(dim=1) ** 0.5
    bound = slack * ERROR_BOUND[result.dtype] * norm + floor
    if terms is not None and terms.shape[-1] < FEW_COLUMNS:
        bound += ERROR_OF_SUMS * rows(terms).norm(dim=1)
    assert torch.isfinite(rows(result)).all(), "the result is not finite"
    worst = int((error - bound).argmax())
    assert (error <= bound).all(), f"row {worst}: error {error[worst]:.3e} > bound {bound[worst]:.3e}"


def bound(result: Any) -> float:
    """The largest relative error that a row of a kernel's result may have."""
    # Quantised values are exact once their scale is: what is left is float32 rounding.
    return ERROR_BOUND[torch.float32 if isinstance(result, tuple) else result.dtype]


@dataclass(frozen=True)
class Sample:
    """Values that a result must have where the rows and columns cross."""

    rows: Tensor
    columns: Tensor
    values: Tensor  # float64

    @classmethod
    def draw(cls, subject: Subject, p: Problem, inputs: Tensors, rotated: Tensors, g: Generator) -> Sample:
        """A random sample of the result of a call, computed on the CPU: not every GPU has float64."""
        inputs, rotated = (tuple(t.cpu() for t in tensors) for tensors in (inputs, rotated))
        sizes = [getattr(p, name) for name in subject.result]
        rows, columns = (
            torch.randperm(size, generator=g, device=g.device)[:most].cpu()
            for size, most in zip(sizes, (ROWS, COLUMNS), strict=True)
        )
        return cls(rows, columns, subject.reference(p, inputs, rotated, rows, columns))

    def error(self, result: Tensor) -> float:
        """The largest relative error of a row of what Subject.dense makes of a result."""
        result = result.flatten(1)  # a packed weight has more dimensions
        here = [index.to(result.device) for index in (self.rows, self.columns)]
        difference = result[here[0]][:, here[1]].cpu().double() - self.values
        return float((difference.norm(dim=1) / self.values.norm(dim=1).clamp(min=1e-30)).max())
