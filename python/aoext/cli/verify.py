"""Whether a kernel computes what it should: some rows and columns of its result against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.cli.subjects import Problem, Subject, Tensors
from aoext.ops import ERROR_BOUND

# Enough rows and columns to find what is wrong, few enough to be quick.
ROWS, COLUMNS = 4, 64

# torch's operators round more often than the contract allows; beyond this they compute something else.
PEER_BOUND = 5e-2


class WrongResultError(Exception):
    """A kernel's result differs from float64 by more than it may."""


@dataclass(frozen=True)
class Sample:
    """Values that a result must have where the rows and columns cross."""

    rows: Tensor
    columns: Tensor
    values: Tensor  # float64

    def error(self, result: Any) -> float:
        """The largest relative error of a row; of values times scales where the result is both."""
        if isinstance(result, tuple):
            values, scales = (r.cpu() for r in result)
            result = values.double() * scales.double()
        result = result.flatten(1)  # a packed weight has more dimensions
        here = [index.to(result.device) for index in (self.rows, self.columns)]
        difference = result[here[0]][:, here[1]].cpu().double() - self.values
        return float((difference.norm(dim=1) / self.values.norm(dim=1).clamp(min=1e-30)).max())


def draw(subject: Subject, p: Problem, inputs: Tensors, rotated: Tensors, g: Generator) -> Sample:
    """A random sample of the result of a call, computed on the CPU: not every GPU has float64."""
    inputs, rotated = (tuple(t.cpu() for t in tensors) for tensors in (inputs, rotated))
    sizes = [getattr(p, name) for name in subject.result]
    rows, columns = (
        torch.randperm(size, generator=g, device=g.device)[:most].cpu()
        for size, most in zip(sizes, (ROWS, COLUMNS), strict=True)
    )
    return Sample(rows, columns, subject.reference(p, inputs, rotated, rows, columns))


def bound(result: Any) -> float:
    """The largest error that a kernel of aoext may have."""
    # Quantised values are exact once their scale is: what is left is float32 rounding.
    return ERROR_BOUND[torch.float32 if isinstance(result, tuple) else result.dtype]
