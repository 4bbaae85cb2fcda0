"""A weight's quantised form, by the statistics of its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aoext.calibration.gptq import by_activity, corrected, gptq, relative_error
from aoext.calibration.settings import Settings
from aoext.calibration.statistics import ExpertStatistics, Statistics
from aoext.configs import QuantizationConfig
from aoext.quality.grid import Grid
from aoext.quality.scales import grid_for
from aoext.tensors import QuantizedTensor
from aoext.tensors.each_expert import collected


@dataclass(frozen=True)
class Errors:
    """‖(Q − W) Xᵀ‖ / ‖W Xᵀ‖ by rounding to nearest and after; of experts their mean."""

    rounding: float
    after: float
    tokens: int


@dataclass
class Rounding:
    """How weights are rounded, and the factors by which their inputs are multiplied."""

    config: QuantizationConfig
    settings: Settings
    pre_scale: Tensor | None = None

    def of_matrix(self, weight: Tensor, statistics: Statistics) -> tuple[QuantizedTensor, Errors]:
        """A weight [N, K], quantised. ValueError where its inputs have NaN."""
        w, hessian = weight.float(), statistics.hessian
        if not bool(hessian.diagonal().isfinite().all()):
            raise ValueError("activations have NaN or Inf")
        nearest = self.config.rounded(weight).to(torch.float32)
        before = relative_error(nearest.dequantize() - w, w, hessian)
        quantized = self.config.stored(self._rounded(weight, w, statistics))
        after = relative_error(effective(quantized).float() - w, w, hessian)
        return quantized, Errors(before, after, statistics.tokens)

    def _rounded(self, weight: Tensor, w: Tensor, statistics: Statistics) -> QuantizedTensor:
        settings = self.settings
        if self.pre_scale is not None:
            statistics, w = statistics.scaled(self.pre_scale), w / self.pre_scale
        hessian, tokens = statistics.hessian, statistics.tokens
        importance = hessian.diagonal() / tokens if tokens else None
        if settings.rounding in ("search", "rounding") or not tokens:
            grid = self._grid(w.to(weight.dtype), importance)
            return with_factors(grid.tensor(w), self.pre_scale, None)
        if statistics.cross is not None and settings.correction:
            w = corrected(w, hessian, statistics.cross, settings.damping, settings.correction)
        order = by_activity(hessian) if settings.act_order is not None else None
        k_order = None
        if settings.act_order == "permute" and self._can_permute(weight):
            k_order, order = order, None
            w, hessian, importance = (
                w[:, k_order],
                hessian[k_order][:, k_order],
                hessian.diagonal()[k_order] / tokens,
            )
        grid = self._grid(w.to(weight.dtype), importance)
        values = gptq(w, hessian, grid, settings.damping, order)
        return with_factors(grid.tensor(values), self.pre_scale, k_order)

    def _grid(self, weight: Tensor, importance: Tensor | None) -> Grid:
        algorithm = self.config.algorithm
        if algorithm == "rounding" and self.settings.rounding != "rounding":
            algorithm = "search"
        return grid_for(self.config, weight, importance, algorithm)

    def _can_permute(self, weight: Tensor) -> bool:
        return "k_order" in self.config.form(weight).fields

    def of_experts(
        self, weight: Tensor, passes: Iterator[ExpertStatistics]
    ) -> tuple[QuantizedTensor, Errors, list[int]]:
        """A weight [E, N, K], quantised one expert after the other; which of them got no tokens.

        passes: statistics of all experts, some at a time
        """
        errors: list[Errors] = []
        without: list[int] = []

        def each() -> Iterator[QuantizedTensor]:
            for statistics in passes:
                for e in statistics.each:
                    own = statistics.of_expert(e)
                    quantized, error = self.of_matrix(weight[e], own)
                    errors.append(error)
                    if not own.tokens:
                        without.append(e)
                    yield quantized

        whole = collected(each(), len(weight))
        reached = [error for error in errors if error.tokens] or errors
        mean = Errors(
            sum(error.rounding for error in reached) / len(reached),
            sum(error.after for error in reached) / len(reached),
            sum(error.tokens for error in errors),
        )
        return whole, mean, without


def with_factors(
    weight: QuantizedTensor, pre_scale: Tensor | None, k_order: Tensor | None
) -> QuantizedTensor:
    """A weight whose inputs are multiplied by factors, and whose columns lie in another order."""
    fields = dict(weight.named_fields())
    if pre_scale is not None:
        fields["act_pre_scale"] = pre_scale.to(weight.scale.dtype)
    if k_order is not None:
        fields["k_order"] = k_order
    return weight.remade(fields)


def effective(weight: QuantizedTensor) -> Tensor:
    """What inputs are multiplied with, [N, K] or [E, N, K], by the weight and its factors."""
    plain = weight.to(torch.float32).dequantize()
    factors = getattr(weight, "act_pre_scale", None)
    if factors is not None:
        plain = plain * factors.float().unsqueeze(-2)
    return plain.to(weight.dtype)
