"""GPTQ: what rounding a column loses, the columns that are not yet rounded make up for.

For Q on a grid, X [T, K] the inputs and H = XᵀX, it lowers ‖(Q − W) Xᵀ‖² = tr((Q − W) H (Q − W)ᵀ) (Frantar et
al., arXiv 2210.17323). GPTAQ's asymmetric calibration (Li et al., ICML 2025) has the float model's inputs X~
beside W: the goal ‖Q Xᵀ − W X~ᵀ‖² has its unrounded minimum at W* = W (I + Xδᵀ X H⁻¹), Xδ = X~ − X, so that
rounding W* in place of W is the same task again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from aoext.quality.grid import Grid

Result = TypeVar("Result")

# Columns between two updates of all that follow.
BLOCK_COLUMNS = 128

# Damping is raised by this factor until a Hessian has a Cholesky factor, which it has long before the last.
_RAISE, _TRIES = 10.0, 8


def on_cpu_if_missing(compute: Callable[..., Result], *tensors: Tensor) -> Result:
    """What `compute` gives; of tensors on the CPU where a device lacks an operation of linear algebra."""
    try:
        return compute(*tensors)
    except (NotImplementedError, RuntimeError) as error:
        missing = isinstance(error, NotImplementedError) or "not implemented" in str(error)
        if tensors[0].device.type == "cpu" or not missing:
            raise
    return compute(*(tensor.cpu() for tensor in tensors))


def cholesky(hessian: Tensor, damping: float) -> tuple[Tensor, float]:
    """The lower factor of a symmetric matrix [K, K] with `damping` times its mean diagonal added to that.

    The damping is raised where it has no such factor; what it was is the second result. Columns without
    inputs, whose diagonal is 0, have 1 there: nothing depends on them. ValueError for NaN and Inf.
    """
    diagonal = hessian.diagonal()
    if not bool(diagonal.isfinite().all()):
        raise ValueError("activations have NaN or Inf")
    dead = diagonal == 0
    mean = float(diagonal.double().mean()) or 1.0
    for _ in range(_TRIES):
        damped = hessian.clone()
        damped.diagonal().add_(dead * mean).add_(damping * mean)
        factor, info = on_cpu_if_missing(torch.linalg.cholesky_ex, damped)
        if int(info) == 0 and bool(factor.diagonal().isfinite().all()):
            return factor.to(hessian.device), damping
        damping = max(damping, 1e-4) * _RAISE
    raise ValueError("the Hessian of its activations has no Cholesky factor at any damping")


def corrected(w: Tensor, hessian: Tensor, cross: Tensor, damping: float, share: float) -> Tensor:
    """W*, of which a `share` is taken: all of it fits the noise of few samples.

    cross: Xδᵀ X [K, K]
    """
    factor, _ = cholesky(hessian, damping)
    change = on_cpu_if_missing(torch.cholesky_solve, (w @ cross).t().contiguous(), factor)
    return w + share * change.to(w.device).t()


def _inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """The upper U of H⁻¹ = Uᵀ U: the inverse of the upper R of H = R Rᵀ, whose mirror image is Cholesky's."""
    lower, _ = cholesky(hessian.flip(0, 1), damping)
    upper = lower.flip(0, 1)

    def inverse(upper: Tensor) -> Tensor:
        eye = torch.eye(len(upper), dtype=upper.dtype, device=upper.device)
        return torch.linalg.solve_triangular(upper, eye, upper=True)

    return on_cpu_if_missing(inverse, upper).to(hessian.device)


def gptq(w: Tensor, hessian: Tensor, grid: Grid, damping: float, order: Tensor | None = None) -> Tensor:
    """Values of the grid [N, K], float32, for a weight w of that shape.

    hessian: XᵀX, float32 or float64 [K, K]
    damping: what is added to its diagonal, as a share of the mean there
    order: in which columns are rounded, int64 [K]; from the first to the last if it is None
    """
    columns = w.shape[1]
    order = torch.arange(columns, device=w.device) if order is None else order
    inverse = _inverse_factor(hessian[order][:, order], damping)
    # Transposed: a column's values lie side by side.
    rest = w.to(inverse.dtype).t()[order].contiguous()
    values = torch.empty_like(rest)
    for begin in range(0, columns, BLOCK_COLUMNS):
        end = min(begin + BLOCK_COLUMNS, columns)
        scale, offset = grid.columns(order[begin:end])
        scale, offset = scale.t().contiguous(), None if offset is None else offset.t().contiguous()
        factor = inverse[begin:end, begin:end]
        diagonal = factor.diagonal().tolist()
        block, errors = rest[begin:end], torch.empty_like(rest[begin:end])
        for i, pivot in enumerate(diagonal):
            near = grid.nearest(block[i], scale[i], None if offset is None else offset[i])
            values[begin + i] = near
            errors[i] = (block[i] - values[begin + i]) / pivot
            block[i + 1 :].addr_(factor[i, i + 1 :], errors[i], alpha=-1)
        rest[end:].addmm_(inverse[begin:end, end:].t(), errors, alpha=-1)
    result = torch.empty_like(values)
    result[order] = values
    return result.t().float()


def by_activity(hessian: Tensor) -> Tensor:
    """Act-order: columns from the largest inputs to the smallest."""
    return hessian.diagonal().argsort(descending=True, stable=True)


def relative_error(change: Tensor, w: Tensor, hessian: Tensor) -> float:
    """‖change Xᵀ‖ / ‖W Xᵀ‖."""
    lost = float(((change @ hessian) * change).sum().clamp(min=0))
    whole = float(((w @ hessian) * w).sum())
    return (lost / whole) ** 0.5 if whole > 0 else 0.0
