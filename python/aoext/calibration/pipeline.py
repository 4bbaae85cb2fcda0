"""Block after block: statistics of its inputs, rounding, and its output for the next one.

A block is copied, and the copy's weights are rounded one group after the other, so that each sees the inputs
that the rounded ones before it give. The model itself stays as it is. Beside the copy and the model there are
the hidden states of one block for all samples (twice with GPTAQ's correction: those of the float model too),
and the statistics of one group.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from aoext.calibration.blocks import Block, Row, Stop, run
from aoext.calibration.inputs import (
    Group,
    Note,
    Target,
    discover,
    let_experts_be_watched,
    until_seen,
    watched,
)
from aoext.calibration.rounding import Errors, Rounding, effective
from aoext.calibration.settings import Settings
from aoext.calibration.statistics import ExpertStatistics, Statistics
from aoext.models.layers import as_rows, as_weight, has_transposed_weight, set_weight
from aoext.tensors import QuantizedTensor


@dataclass
class Finished:
    """What a block has become, by names in the model.

    quantized: weights [N, K] or [E, N, K]
    plain: parameters that a change of the block gave other values
    notes: what to know of a layer
    """

    quantized: dict[str, QuantizedTensor] = field(default_factory=dict)
    plain: dict[str, Tensor] = field(default_factory=dict)
    errors: dict[str, Errors] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass
class Passes:
    """Forward passes of a block over all samples.

    hidden: of each batch, what reaches the block, and `of_float` what would in the float model; None where
        the block is the model
    float_is_done: whether `of_float` has the block's outputs already
    """

    block: Block
    masks: list[Tensor | None]
    hidden: list[Tensor] | None
    of_float: list[Tensor] | None
    float_is_done: bool = False

    def __len__(self) -> int:
        return len(self.block.calls)

    def once(self, module: nn.Module, j: int, of_float: bool = False) -> Any:
        states = self.of_float if of_float else self.hidden
        return run(module, self.block.calls[j], None if states is None else states[j])

    def each(self, module: nn.Module) -> Iterator[Callable[[], Any]]:
        for j in range(len(self)):
            yield partial(self.once, module, j)

    def note(
        self,
        module: nn.Module,
        targets: list[Target],
        j: int,
        note: Note,
        of_float: bool = False,
        to_end: bool = False,
    ) -> None:
        """One batch as far as these targets, or to its end for the float model's output too."""
        noted = note if to_end else until_seen(targets, note)
        with watched(module, targets, noted, self.masks[j]), contextlib.suppress(Stop):
            output = self.once(module, j, of_float)
            if to_end:
                assert self.of_float is not None
                self.of_float[j] = output.to(self.of_float[j].device)

    def advance(self, work: nn.Module, reference: nn.Module) -> None:
        """Hidden states become what the block gives, in their place."""
        if self.hidden is not None:
            for j, states in enumerate(self.hidden):
                self.hidden[j] = self.once(work, j).to(states.device)
        if self.of_float is not None and not self.float_is_done:
            for j, states in enumerate(self.of_float):
                self.of_float[j] = self.once(reference, j, of_float=True).to(states.device)


@dataclass
class TailPasses(Passes):
    """Forward passes of what a model has outside its blocks, which give the last hidden states."""

    row: Row = field(kw_only=True)

    def once(self, module: nn.Module, j: int, of_float: bool = False) -> Any:
        states = self.of_float if of_float else self.hidden
        assert states is not None
        with self.row.given(states[j]):
            return run(module, self.block.calls[j], None)


@dataclass(frozen=True)
class Pipeline:
    """How blocks are calibrated.

    device: where; None where they are
    replaces: whether a layer gets its quantised weight as soon as that is known
    """

    settings: Settings
    device: torch.device | None
    replaces: bool = True

    def copied(self, block: Block) -> nn.Module:
        work = copy.deepcopy(block.module)
        if self.device is not None:
            work.to(self.device)
        let_experts_be_watched(work)
        return work

    def reference(self, block: Block) -> nn.Module:
        """The block as it was, where the copy is."""
        return block.module if self.device is None else copy.deepcopy(block.module).to(self.device)

    def twin(self, work: nn.Module) -> nn.Module:
        return copy.deepcopy(work)

    def _place(self, work: nn.Module, target: Target, quantized: QuantizedTensor) -> None:
        if self.replaces:
            place(work, target, quantized)

    def rounded(
        self,
        work: nn.Module,
        reference: nn.Module,
        targets: list[Target],
        passes: Passes,
        finished: Finished,
        sequential: bool = True,
    ) -> None:
        """Round the targets of a block in `work`."""
        groups = discover(work, targets, passes.each(work))
        stages = list(self._stages(work, groups, sequential))
        for stage in stages:
            only = stage[0].targets[0]
            if only.is_of_experts(work):
                self._round_experts(work, only, passes, finished)
            else:
                is_last = stage is stages[-1] and self.replaces and not self.settings.changes
                self._round_stage(work, reference, stage, passes, finished, is_last)
        for target in targets:
            if not target.calls:
                finished.notes[target.name] = "no sample reached it, so it is rounded without data"
                self._round_blindly(work, target, finished)

    def _stages(self, work: nn.Module, groups: list[Group], sequential: bool) -> Iterator[list[Group]]:
        """Groups that are noted in one pass: one, or as many as may have statistics at once."""
        stage: list[Group] = []
        size = 0
        for group in groups:
            weight = group.targets[0].weight(work)
            alone = sequential or group.targets[0].is_of_experts(work)
            columns = as_rows(group.targets[0].layer(work), weight).shape[-1]
            needs = Statistics.bytes_for(columns, self.settings.correction > 0)
            if stage and (alone or size + needs > self.settings.statistics_bytes):
                yield stage
                stage, size = [], 0
            stage.append(group)
            size += needs
            if alone:
                yield stage
                stage, size = [], 0
        if stage:
            yield stage

    def _round_stage(
        self,
        work: nn.Module,
        reference: nn.Module,
        stage: list[Group],
        passes: Passes,
        finished: Finished,
        is_last: bool,
    ) -> None:
        """Round groups by statistics of one pass; the last one gives the float model's outputs."""
        firsts = [group.targets[0] for group in stage]
        with_cross = passes.of_float is not None and self.settings.rounding == "gptq"
        statistics: dict[str, Statistics] = {}
        for j in range(len(passes)):
            of_float: dict[str, list[Tensor]] = {target.name: [] for target in firsts}
            if with_cross:

                def note_float(target: Target, rows: Tensor, offsets: Tensor | None) -> None:
                    of_float[target.name].append(rows)  # noqa: B023

                passes.note(reference, firsts, j, note_float, of_float=True, to_end=is_last)

            def note(target: Target, rows: Tensor, offsets: Tensor | None) -> None:
                known = statistics.get(target.name)
                if known is None:
                    known = Statistics.of(rows.shape[1], self.device or rows.device, with_cross)
                    statistics[target.name] = known
                waiting = of_float[target.name]  # noqa: B023
                pair = waiting.pop(0) if waiting else None
                known.add(rows, pair if pair is not None and pair.shape == rows.shape else None)

            passes.note(work, firsts, j, note)
        passes.float_is_done |= with_cross and is_last
        for known in statistics.values():
            known.complete()
        for group in stage:
            for target in group.targets:
                layer = target.layer(work)
                weight = as_rows(layer, target.weight(work).detach()).to(self.device)
                rounding = Rounding(target.config, self.settings, target.pre_scale)
                with named(target.name):
                    quantized, errors = rounding.of_matrix(weight, statistics[group.targets[0].name])
                finished.quantized[target.name], finished.errors[target.name] = quantized, errors
                self._place(work, target, quantized)

    def _round_experts(self, work: nn.Module, target: Target, passes: Passes, finished: Finished) -> None:
        layer = target.layer(work)
        weight = as_rows(layer, target.weight(work).detach())
        experts, columns = weight.shape[0], weight.shape[-1]
        at_once = max(1, self.settings.statistics_bytes // Statistics.bytes_for(columns) - 1)

        def chunks() -> Iterator[ExpertStatistics]:
            whole = Statistics.of(columns, weight.device)
            for begin in range(0, experts, at_once):
                chosen = range(begin, min(begin + at_once, experts))
                each = {e: Statistics.of(columns, weight.device) for e in chosen}
                gathered = ExpertStatistics(each, whole, columns)

                def note(target: Target, rows: Tensor, offsets: Tensor | None) -> None:
                    assert offsets is not None
                    gathered.add(rows, offsets, begin == 0)  # noqa: B023

                for j in range(len(passes)):
                    passes.note(work, [target], j, note)
                for statistics in each.values():
                    statistics.complete()
                if begin == 0:
                    whole.complete()
                yield gathered

        with named(target.name):
            found = Rounding(target.config, self.settings).of_experts(weight, chunks())
        quantized, finished.errors[target.name], without = found
        if without:
            finished.notes[target.name] = (
                f"{len(without)} of {experts} experts got no token and are rounded without data"
            )
        finished.quantized[target.name] = quantized
        self._place(work, target, quantized)

    def _round_blindly(self, work: nn.Module, target: Target, finished: Finished) -> None:
        weight = as_rows(target.layer(work), target.weight(work).detach())
        quantized = target.config.quantize(weight.to(self.device))
        finished.quantized[target.name] = quantized
        self._place(work, target, quantized)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Errors say of which layer they are."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"calibrate: layer {name!r}: {error}") from error


def place(work: nn.Module, target: Target, quantized: QuantizedTensor) -> None:
    """Have the layers of a block compute as they will with a quantised weight.

    Plain numbers do that at the speed of plain products; only what quantises its inputs is needed itself.
    """
    for layer, parameter in target.layers(work):
        if quantized.quantizes_input_to is not None:
            weight: Tensor = as_weight(layer, quantized)
            set_weight(layer, nn.Parameter(weight, requires_grad=False), parameter)
            let_experts_be_watched(layer)
        else:
            plain = effective(quantized).to(target.weight(work).device)
            turned = plain.mT if has_transposed_weight(layer) else plain
            layer._parameters[parameter] = nn.Parameter(turned, requires_grad=False)
