"""Changes of a block that leave its output: AWQ's and SmoothQuant's factors, and rotations.

AWQ (Lin et al., MLSys 2024) lifts columns with large inputs: s = mean|x|^α. SmoothQuant (Xiao et al., ICML
2023) divides outliers of inputs that are quantised too between them and the weights: s = max|x|^α /
max|w|^(1 − α). Both take the α by which the layers' outputs are nearest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from aoext.calibration.blocks import Block
from aoext.calibration.folding import Link, Links, links_of
from aoext.calibration.inputs import Group, Target, discover
from aoext.calibration.pipeline import Finished, Passes
from aoext.calibration.settings import Settings
from aoext.configs import QuantizationConfig
from aoext.models.layers import as_rows

# Rows of inputs by which outputs are compared.
_ROWS = 512

_AWQ = [step / 10 for step in range(1, 11)]
_SMOOTHQUANT = [step / 10 for step in range(3, 9)]


@dataclass
class _Inputs:
    """Some rows of a group's inputs, and the sum and the largest of magnitudes in each column."""

    rows: list[Tensor] = field(default_factory=list)
    total: Tensor | None = None
    largest: Tensor | None = None
    tokens: int = 0

    def add(self, x: Tensor, share: int) -> None:
        magnitude = x.float().abs()
        total, largest = magnitude.sum(0), magnitude.amax(0)
        self.total = total if self.total is None else self.total + total
        self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)
        self.tokens += len(x)
        self.rows.append(x[:: max(1, len(x) // share)][:share].float())


def change_block(
    block: Block,
    work: nn.Module,
    targets: list[Target],
    passes: Passes,
    settings: Settings,
    finished: Finished,
) -> bool:
    """Change `work`, a copy of the block, as the settings say; whether anything changed.

    finished: gets the parameters that are not quantised and have other values now, and notes
    """
    groups = discover(work, targets, passes.each(work))
    dense = [group for group in groups if not group.targets[0].is_of_experts(work)]
    links: Links = {}
    if passes.hidden is not None:
        links = links_of(work, dense, lambda: passes.once(work, 0), passes.hidden[0])
    changed = False
    for step in settings.changes:
        if step == "rotate":
            changed |= _rotate(dense, links, finished)
        else:
            changed |= _scale(work, dense, links, passes, step, finished)
    if changed:
        quantised = {(id(layer), name) for target in targets for layer, name in target.layers(work)}
        before = dict(block.module.named_parameters())
        for path, module in work.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                full = f"{path}.{name}".lstrip(".")
                if (id(module), name) in quantised or full not in before:
                    continue
                if not torch.equal(before[full].to(parameter.device), parameter):
                    finished.plain[block.name(full)] = parameter.data
    return changed


def _rotate(groups: list[Group], links: Links, finished: Finished) -> bool:
    changed = False
    for group in groups:
        _, link = links.get(group.targets[0].name, (None, None))
        if link is not None:
            link.rotate()
            changed = True
        else:
            for target in group.targets:
                finished.notes[target.name] = "not rotated: no layer before it can take the rotation over"
    return changed


def _scale(
    work: nn.Module,
    groups: list[Group],
    links: Links,
    passes: Passes,
    step: str,
    finished: Finished,
) -> bool:
    inputs = _inputs(work, groups, passes)
    changed = False
    for group in groups:
        link, _ = links.get(group.targets[0].name, (None, None))
        kept = all(_keeps_factors(target, work) for target in group.targets)
        seen = inputs.get(group.targets[0].name)
        if seen is None or (link is None and not kept):
            for target in group.targets:
                finished.notes[target.name] = f"without {step}: no layer before it can take its factors over"
            continue
        factors = _best(work, group, seen, step, link)
        if factors is None:
            continue
        if link is not None:
            link.scale(factors)
        else:
            for target in group.targets:
                target.pre_scale = 1 / factors
        changed = True
    return changed


def _inputs(work: nn.Module, groups: list[Group], passes: Passes) -> dict[str, _Inputs]:
    firsts = [group.targets[0] for group in groups]
    found: dict[str, _Inputs] = {}
    share = max(1, _ROWS // len(passes))

    def note(target: Target, rows: Tensor, offsets: Tensor | None) -> None:
        if len(rows):
            found.setdefault(target.name, _Inputs()).add(rows, share)

    for j in range(len(passes)):
        passes.note(work, firsts, j, note)
    return found


def _keeps_factors(target: Target, work: nn.Module) -> bool:
    weight = as_rows(target.layer(work), target.weight(work))
    return "act_pre_scale" in target.config.form(weight).fields


def _best(work: nn.Module, group: Group, inputs: _Inputs, step: str, link: Link | None) -> Tensor | None:
    """The factors with the least error of outputs; None where none are better."""
    weights = [as_rows(t.layer(work), t.weight(work).data) for t in group.targets]
    rows = torch.cat(inputs.rows)
    assert inputs.total is not None
    assert inputs.largest is not None
    least, best = _error(group, weights, rows, None), None
    largest = torch.stack([w.float().abs().amax(0) for w in weights]).amax(0)
    for factors in _proposed(step, inputs.total / inputs.tokens, inputs.largest, largest):
        shared = factors if link is None else link.shared(factors)
        error = _error(group, weights, rows, shared)
        if error < least:
            least, best = error, shared
    return best


def _proposed(step: str, mean: Tensor, largest: Tensor, of_weights: Tensor) -> Iterator[Tensor]:
    for power in _AWQ if step == "awq" else _SMOOTHQUANT:
        if step == "awq":
            factors = mean.clamp(min=1e-6) ** power
        else:
            factors = largest.clamp(min=1e-6) ** power / of_weights.clamp(min=1e-6) ** (1 - power)
        factors = factors / (factors.amax() * factors.amin()).sqrt()
        if bool(factors.isfinite().all()):
            yield factors.clamp(1e-3, 1e3)


def _error(group: Group, weights: list[Tensor], rows: Tensor, factors: Tensor | None) -> float:
    """How far outputs are from those of plain weights and inputs."""
    error = 0.0
    for target, weight in zip(group.targets, weights, strict=True):
        scaled = weight if factors is None else (weight.float() * factors).to(weight.dtype)
        x = rows if factors is None else rows / factors
        quantized, x = _quantized(target.config, scaled, x)
        error += float((x @ quantized.t() - rows @ weight.float().t()).square().sum())
    return error


def _quantized(config: QuantizationConfig, weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A weight's values, and what a product makes of its inputs where it quantises them by row."""
    quantized = config.rounded(weight)
    dtype = quantized.quantizes_input_to
    if dtype is not None:
        most = 127.0 if dtype is torch.int8 else torch.finfo(dtype).max
        scale = x.abs().amax(1, keepdim=True).clamp(min=1e-12) / most
        x = (x / scale).round() * scale if dtype is torch.int8 else (x / scale).to(dtype).float() * scale
    return quantized.to(torch.float32).dequantize(), x
