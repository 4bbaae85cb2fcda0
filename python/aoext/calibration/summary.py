"""What calibrating has done to a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aoext.calibration.rounding import Errors
from aoext.models.summary import QuantizationSummary, grouped


@dataclass
class CalibrationSummary(QuantizationSummary):
    """What calibrate has done; print it to read it.

    errors: of each weight, ‖(Q − W) Xᵀ‖ / ‖W Xᵀ‖ by rounding to nearest and after, on the inputs X here
    notes: what to know of single weights
    """

    errors: dict[str, Errors] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def error_by_rounding(self) -> float:
        """The mean of all weights."""
        return _mean([each.rounding for each in self.errors.values()])

    @property
    def error(self) -> float:
        """The mean of all weights."""
        return _mean([each.after for each in self.errors.values()])

    def __str__(self) -> str:
        return "\n".join((super().__str__(), *self._lines()))

    def _lines(self) -> Iterator[str]:
        if self.errors:
            yield f"  errors   {self.error_by_rounding:.2%} of outputs by rounding -> {self.error:.2%}"
        for names, why in grouped(self.notes):
            yield f"  note     {names}: {why}"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
