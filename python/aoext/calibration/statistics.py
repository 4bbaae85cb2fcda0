"""What is kept of a layer's inputs X [T, K]: second moments, and how they differ from the float model's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Columns of a Hessian that are added at once: of those to the left, rows have the same already.
_COLUMNS = 1024


@dataclass
class Statistics:
    """hessian: XᵀX, float32 [K, K]
    cross: (X~ − X)ᵀ X, float32 [K, K], where the float model's inputs X~ are known
    """

    hessian: Tensor
    cross: Tensor | None = None
    tokens: int = 0

    @classmethod
    def of(cls, columns: int, device: torch.device, with_cross: bool = False) -> Statistics:
        def zeros() -> Tensor:
            return torch.zeros(columns, columns, dtype=torch.float32, device=device)

        return cls(zeros(), zeros() if with_cross else None)

    @staticmethod
    def bytes_for(columns: int, with_cross: bool = False) -> int:
        return 4 * columns * columns * (1 + with_cross)

    def add(self, rows: Tensor, of_float: Tensor | None = None) -> None:
        """Rows [T, K], and those of the float model."""
        x = rows.to(self.hessian.device).float()
        for begin in range(0, x.shape[1], _COLUMNS):
            end = begin + _COLUMNS
            self.hessian[begin:end, begin:].addmm_(x[:, begin:end].t(), x[:, begin:])
        self.tokens += len(x)
        if self.cross is not None and of_float is not None:
            change = of_float.to(x.device).float() - x
            if rows.dtype is torch.bfloat16:  # twice as fast; nothing takes its inverse
                self.cross.add_(change.bfloat16().t() @ rows.to(x.device))
            else:
                self.cross.addmm_(change.t(), x)

    def complete(self) -> Statistics:
        """Once all rows are added: what is below the diagonal, of which `add` leaves most out."""
        self.hessian.triu_().add_(self.hessian.triu(1).t())
        return self

    def scaled(self, factors: Tensor) -> Statistics:
        """Those of X·diag(factors)."""
        both = factors.unsqueeze(0) * factors.unsqueeze(1)
        cross = None if self.cross is None else self.cross * both
        return Statistics(self.hessian * both, cross, self.tokens)


@dataclass
class ExpertStatistics:
    """Statistics for some experts of a layer, and for all tokens together.

    A Hessian of fewer tokens than `floor` gets what it lacks of the mean of all tokens, so that an expert
    that few tokens reach is not fitted to these alone.
    """

    each: dict[int, Statistics]
    whole: Statistics
    floor: int

    def add(self, rows: Tensor, offsets: Tensor, with_whole: bool) -> None:
        """Rows sorted by expert, of which those of each end at its offset."""
        ends = offsets.tolist()
        for e, statistics in self.each.items():
            begin = ends[e - 1] if e else 0
            if ends[e] > begin:
                statistics.add(rows[begin : ends[e]])
        if with_whole:
            self.whole.add(rows[: ends[-1]])

    def of_expert(self, e: int) -> Statistics:
        """Those of an expert, with the mean's share; without tokens, as they are."""
        own = self.each[e]
        lacking = self.floor - own.tokens
        if lacking <= 0 or not own.tokens or not self.whole.tokens:
            return own
        mixed = own.hessian + self.whole.hessian * (lacking / self.whole.tokens)
        return Statistics(mixed, None, own.tokens)
