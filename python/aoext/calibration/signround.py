"""SignRound: how values round, and where scales lie, learnt by the error of a block's output.

Cheng et al., arXiv 2309.05516: in value = level(w / scale + v)·scale, v in −½..½ of the step between levels
moves by the sign of its gradient, which passes rounding as if that were not there; so do factors of the scale
and shifts of the offset. Inputs are those of the quantised model, and the goal is the float model's output.
They begin where a search leaves them that weighs each column by its second moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from aoext.calibration.inputs import Target, discover
from aoext.calibration.pipeline import Finished, Passes, named, place
from aoext.calibration.rounding import Errors, with_factors
from aoext.calibration.settings import Settings
from aoext.formats.dtypes import EXPONENT_DTYPES
from aoext.models.layers import as_rows, has_transposed_weight
from aoext.quality.grid import Grid
from aoext.quality.scales import grid_for
from aoext.tensors import QuantizedTensor

# How far a factor of a scale may be from 1, and an offset in steps from where it was.
_STRETCH, _SHIFT = 0.2, 0.5

# The fewest tokens whose gradients make a step: signs of fewer are more of a sample's than of the text's.
_TOKENS = 2048


@dataclass
class _Learnt:
    """A weight [N, K] on a grid, and what is learnt: v, factors of scales less 1, offsets in steps."""

    target: Target
    w: Tensor
    grid: Grid
    step: Tensor
    v: Tensor
    stretch: Tensor
    shift: Tensor

    @classmethod
    def of(cls, target: Target, weight: Tensor, moments: Tensor) -> _Learnt | None:
        """None for levels that lie so close that rounding is no question.

        moments: float32 [K], second moments of the inputs
        """
        w = weight.float() if target.pre_scale is None else weight.float() / target.pre_scale
        if target.pre_scale is not None:
            moments = moments * target.pre_scale.square()
        grid = grid_for(target.config, w.to(weight.dtype), moments)
        scale, offset = grid.columns(slice(None))
        step = grid.levels.step((w if offset is None else w - offset) / scale.masked_fill(scale == 0, 1))
        if step is None:
            return None
        zeros = torch.zeros_like(grid.scale)
        return cls(target, w, grid, step, torch.zeros_like(w), zeros, zeros.clone())

    @property
    def learns(self) -> list[tuple[Tensor, float]]:
        """What is learnt, and how far each may be from 0."""
        found = [(self.v, 0.5)]
        if self.grid.template.scale.dtype not in EXPONENT_DTYPES:
            found.append((self.stretch, _STRETCH))
            if self.grid.offset is not None:
                found.append((self.shift, _SHIFT))
        return found

    def _moved(self) -> tuple[Tensor, Tensor | None]:
        scale = self.grid.scale * (1 + self.stretch)
        offset = self.grid.offset
        return scale, None if offset is None else offset + self.shift * self.grid.scale

    def values(self) -> Tensor:
        """The values, whose gradients pass rounding."""
        scale, offset = self._moved()
        held = self.grid.at(scale.detach(), None if offset is None else offset.detach())
        passed = held.with_gradients(scale, offset)
        by_column, offsets = passed.columns(slice(None))
        x = (self.w if offsets is None else self.w - offsets) / by_column.masked_fill(by_column == 0, 1)
        x = x + self.v * self.step
        level = x + (self.grid.levels.nearest(x.detach()) - x).detach()
        return level * by_column if offsets is None else level * by_column + offsets

    def parameter(self) -> Tensor:
        """The weight as the layer keeps it, in its dtype."""
        values = self.values()
        if self.target.pre_scale is not None:
            values = values * self.target.pre_scale
        return values.to(self.grid.template.dtype)

    def quantized(self) -> QuantizedTensor:
        scale, offset = self._moved()
        grid = self.grid.at(scale, offset)
        quantized = self.target.config.stored(grid.tensor(self.values()))
        return with_factors(quantized, self.target.pre_scale, None)


def sign_rounded(
    work: nn.Module,
    reference: nn.Module,
    targets: list[Target],
    passes: Passes,
    settings: Settings,
    finished: Finished,
) -> set[str]:
    """Quantise the dense weights of a block; the names of those that are. Others wait for GPTQ."""
    if passes.hidden is None:
        return set()
    reached = [t for group in discover(work, targets, passes.each(work)) for t in group.targets]
    dense = [target for target in reached if not target.is_of_experts(work)]
    learnt = _begun(work, dense, passes)
    if not learnt:
        return set()
    goals = [passes.once(reference, j, of_float=True).detach() for j in range(len(passes))]
    whole = sum(float(goal.float().square().sum()) for goal in goals) or 1.0
    before = _loss(work, learnt, passes, goals) / whole
    _learn(work, learnt, passes, goals, settings)
    after = _loss(work, learnt, passes, goals) / whole
    if not after <= before:
        for one in learnt:
            for tensor, _ in one.learns:
                tensor.zero_()
        after = before
    for one in learnt:
        quantized = one.quantized()
        finished.quantized[one.target.name] = quantized
        finished.errors[one.target.name] = Errors(before**0.5, after**0.5, 0)
        place(work, one.target, quantized)
    return {one.target.name for one in learnt}


def _begun(work: nn.Module, targets: list[Target], passes: Passes) -> list[_Learnt]:
    """What is to be learnt, of weights whose rounding is a question. ValueError where inputs have NaN."""
    moments: dict[str, Tensor] = {}
    tokens: dict[str, int] = {}

    def note(target: Target, rows: Tensor, offsets: Tensor | None) -> None:
        squares = rows.float().square().sum(0)
        moments[target.name] = moments[target.name] + squares if target.name in moments else squares
        tokens[target.name] = tokens.get(target.name, 0) + len(rows)

    for j in range(len(passes)):
        passes.note(work, targets, j, note)
    found = []
    for target in targets:
        with named(target.name):
            if not bool(moments[target.name].isfinite().all()):
                raise ValueError("activations have NaN or Inf")
            weight = as_rows(target.layer(work), target.weight(work).detach())
            one = _Learnt.of(target, weight, moments[target.name] / max(1, tokens[target.name]))
        if one is not None:
            found.append(one)
    return found


def _parameters(work: nn.Module, learnt: list[_Learnt]) -> dict[str, Tensor]:
    """The learnt weights by their names in the block."""
    found: dict[str, Tensor] = {}
    for one in learnt:
        weight = one.parameter()
        for (path, name), (layer, _) in zip(one.target.places, one.target.layers(work), strict=True):
            found[f"{path}.{name}".lstrip(".")] = weight.mT if has_transposed_weight(layer) else weight
    return found


def _output(work: nn.Module, parameters: dict[str, Tensor], passes: Passes, j: int) -> Tensor:
    class Called(nn.Module):
        def forward(self, *args: object, **kwargs: object) -> object:
            return torch.func.functional_call(work, parameters, args, kwargs, tie_weights=False)

        def parameters(self, recurse: bool = True):  # type: ignore[no-untyped-def]
            return work.parameters(recurse)

    output: Tensor = passes.once(Called(), j)
    return output


def _loss(work: nn.Module, learnt: list[_Learnt], passes: Passes, goals: list[Tensor]) -> float:
    parameters = _parameters(work, learnt)
    outputs = (_output(work, parameters, passes, j) for j in range(len(passes)))
    return sum(float((y.float() - g.float()).square().sum()) for y, g in zip(outputs, goals, strict=True))


def _learn(
    work: nn.Module, learnt: list[_Learnt], passes: Passes, goals: list[Tensor], settings: Settings
) -> None:
    generator = torch.Generator().manual_seed(settings.seed)
    learns = [each for one in learnt for each in one.learns]
    order: list[int] = []
    for number in range(settings.steps):
        batches: list[int] = []
        while len(batches) < len(passes) and sum(goals[j][..., 0].numel() for j in batches) < _TOKENS:
            order = order or torch.randperm(len(passes), generator=generator).tolist()
            batches.append(order.pop())
        gradients = _gradients(work, learnt, passes, goals, batches)
        rate = (1 - number / settings.steps) / settings.steps
        for (tensor, most), gradient in zip(learns, gradients, strict=True):
            if gradient is not None:
                tensor.sub_(gradient.sign(), alpha=2 * most * rate).clamp_(-most, most)


def _gradients(
    work: nn.Module, learnt: list[_Learnt], passes: Passes, goals: list[Tensor], batches: list[int]
) -> list[Tensor | None]:
    """Gradients of the loss over these batches to all that is learnt; None where no batch reached it.

    They add up in the weights, from where they pass rounding at once.
    """
    learns = [tensor for one in learnt for tensor, _ in one.learns]
    with torch.enable_grad():
        for tensor in learns:
            tensor.requires_grad_(True)
        made = _parameters(work, learnt)
        leaves = {name: weight.detach().requires_grad_() for name, weight in made.items()}
        for j in batches:
            output = _output(work, leaves, passes, j)
            (output.float() - goals[j].float()).square().mean().backward(inputs=list(leaves.values()))
    reached = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    gradients = torch.autograd.grad(
        [made[name] for name in reached], learns, list(reached.values()), allow_unused=True
    )
    for tensor in learns:
        tensor.requires_grad_(False)
    return list(gradients)
