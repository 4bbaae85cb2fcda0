"""How a calibration goes, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from aoext.configs.base import check_positive

# What changes a block, with the same output, before its weights are rounded.
CHANGES = ("rotate", "awq", "smoothquant")
# What rounds.
ROUNDINGS = ("gptq", "signround", "search", "rounding")
ACT_ORDERS = ("static", "permute", None)

ActOrder = Literal["static", "permute"] | None


@dataclass(frozen=True)
class Settings:
    """The arguments of `calibrate` that say what is computed; its docstring has their meaning."""

    algorithm: str = "gptq"
    samples: int = 128
    length: int = 512
    batch_size: int = 4
    seed: int = 0
    act_order: ActOrder = "static"
    damping: float = 0.01
    correction: float = 0.25
    steps: int = 100
    statistics_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        who = "calibrate"
        for name in ("samples", "length", "batch_size", "steps", "statistics_bytes"):
            check_positive(who, name, getattr(self, name))
        if type(self.seed) is not int:
            raise TypeError(f"{who}: seed must be an int, got {self.seed!r}")
        if self.act_order not in ACT_ORDERS:
            raise ValueError(f"{who}: act_order must be 'static', 'permute' or None, got {self.act_order!r}")
        for name, least in (("damping", 0.0), ("correction", 0.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{who}: {name} must be a float, got {value!r}")
            if not least <= value <= 1:
                raise ValueError(f"{who}: {name} must lie in {least}..1, got {value}")
        known, steps = (*CHANGES, *ROUNDINGS), _steps(self.algorithm)
        wrong = [step for step in steps if step not in known]
        rounds = [step for step in steps if step in ROUNDINGS]
        if wrong or not steps or len(rounds) > 1 or (rounds and steps[-1] != rounds[0]):
            raise ValueError(
                f"{who}: algorithm must be one of {', '.join(known)}, or some of the first "
                f"{len(CHANGES)} and one of the others, as in 'awq+gptq', got {self.algorithm!r}"
            )

    @property
    def changes(self) -> tuple[str, ...]:
        return tuple(step for step in _steps(self.algorithm) if step in CHANGES)

    @property
    def rounding(self) -> str:
        last = _steps(self.algorithm)[-1]
        return last if last in ROUNDINGS else "search"

    @property
    def follows_float(self) -> bool:
        """Whether the float model's activations are wanted beside those of the quantised one."""
        return self.rounding == "signround" or (self.rounding == "gptq" and self.correction > 0)


def _steps(algorithm: Any) -> list[str]:
    return algorithm.split("+") if isinstance(algorithm, str) else [repr(algorithm)]
