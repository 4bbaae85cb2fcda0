"""calibrate."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from aoext.calibration.blocks import Block, Row, row_of
from aoext.calibration.changes import change_block
from aoext.calibration.data import Batch, batches_of, digest, random_tokens
from aoext.calibration.inputs import Target
from aoext.calibration.pipeline import Finished, Passes, Pipeline, TailPasses, place
from aoext.calibration.resume import Checkpoint
from aoext.calibration.settings import ActOrder, Settings
from aoext.calibration.signround import sign_rounded
from aoext.calibration.summary import CalibrationSummary
from aoext.configs import QuantizationConfig
from aoext.configs.per_module import AnyConfig, PerModuleConfig
from aoext.integrations import adopt
from aoext.models import shards
from aoext.models.choice import Owners, choose
from aoext.models.layers import as_rows, as_weight
from aoext.models.quantize import give, with_progress
from aoext.models.summary import model_bytes
from aoext.packing.scales import is_surely_finite
from aoext.qat.layers import refuse_prepared
from aoext.quality.evaluate import evaluating

# Fewer tokens than this share of a layer's inputs are too few to say much of it.
_FEW = 0.5


@torch.inference_mode(False)
@torch.no_grad()
def calibrate(
    model: nn.Module,
    data: Any,
    config: AnyConfig,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
    device: torch.device | str | int | None = None,
    *,
    algorithm: str = "gptq",
    tokenizer: Any = None,
    samples: int = 128,
    length: int = 512,
    batch_size: int = 4,
    seed: int = 0,
    act_order: ActOrder = "static",
    damping: float = 0.01,
    correction: float = 0.25,
    steps: int = 100,
    statistics_bytes: int = 2 << 30,
    resume_dir: str | os.PathLike[str] | None = None,
    quantize_trainable: bool = False,
    quantize_embeddings: bool = False,
) -> CalibrationSummary:
    """Quantise a model in place as quantize_ does, with values that fit what its layers get of `data`.

    data: an iterable of batches (tensors, tuples of them, or dicts of the model's arguments), a dataset of
        Hugging Face with a column "input_ids" or "text", texts, or paths of text files; text needs a
        `tokenizer`, or the name of one. None takes random tokens: they say which inputs of a layer are large,
        which is most of what there is to gain where some are much larger than others.
    config: one of aoext's for all layers, or a PerModuleConfig.
    filter_fn, quantize_trainable, quantize_embeddings: as quantize_ has them.
    device: where blocks are calibrated, one at a time, and where the model ends up; where each is if it is
        not given.
    algorithm: "gptq"; "signround", which learns how values round by the error of each block's output;
        "search", which looks for scales by the mean squares of inputs; "rounding". Before them, with a "+":
        "awq" and "smoothquant", factors for a layer's inputs that are folded into the layer before, or kept
        as act_pre_scale; "rotate", Hadamard rotations of 32 columns where two layers can share them.
    samples, length: how many samples count, and of how many tokens those of text are.
    act_order: "static" rounds columns with large inputs first and leaves them where they are; "permute" makes
        groups of such columns, by k_order, where a scheme has it; None rounds them as they lie.
    damping: what is added to a Hessian's diagonal, as a share of its mean.
    correction: how much of the error of layers before a layer makes up for, from 0 to 1.
    steps: of signround.
    statistics_bytes: how much memory Hessians of one pass may take; what needs more takes more passes.
    resume_dir: a folder in which finished blocks wait for the next call with the same arguments, should this
        one be interrupted; it is removed in the end.

    The model is changed when all is done: after an error or an interruption it is what it was. The same data
    and seed give the same weights. The summary has the error of each layer.

    TypeError and ValueError for arguments and data that do not fit, for activations with NaN, and for what
    quantize_ refuses.

    >>> summary = calibrate(model, "text.txt", Int4WeightOnlyConfig(64), tokenizer=name)  # doctest: +SKIP
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"calibrate: model must be an nn.Module, got a {type(model).__name__}")
    settings = Settings(
        algorithm, samples, length, batch_size, seed, act_order, damping, correction, steps, statistics_bytes
    )
    device = None if device is None else torch.device(device)
    if not isinstance(config, (QuantizationConfig, PerModuleConfig)):
        raise TypeError(
            f"calibrate: config must be one of aoext's, such as Int4WeightOnlyConfig(), got {config!r}"
        )
    refuse_prepared("calibrate", model)
    choice = choose(model, config, filter_fn, quantize_trainable, quantize_embeddings)
    groups = choice.groups
    _check_weights(groups)
    if not groups:
        raise ValueError("calibrate: the model has no layer that the config quantises")
    batches = random_tokens(model, settings) if data is None else batches_of(data, tokenizer, settings)
    _warn_of_little(batches, groups)
    checkpoint = None
    if resume_dir is not None:
        checkpoint = Checkpoint(resume_dir, _claim(batches, groups, settings))
    with evaluating(model):
        finished = _run(model, batches, groups, settings, device, checkpoint)
    before = model_bytes(model)
    summary = CalibrationSummary(config, skipped=choice.skipped, model_bytes_before=before)
    _install(model, groups, finished, summary, device)
    if checkpoint is not None:
        checkpoint.remove()
    return summary


def _check_weights(groups: list[Owners]) -> None:
    for owners in groups:
        name, weight = owners[0].name, owners[0].weight
        if shards.is_distributed(weight) or weight.is_meta:
            kind = "on the meta device" if weight.is_meta else "sharded"
            raise ValueError(f"calibrate: layer {name!r}: its weight is {kind}, which cannot be calibrated")
        if not is_surely_finite(weight):
            raise ValueError(f"calibrate: layer {name!r}: its weight has NaN or Inf")


def _warn_of_little(batches: list[Batch], groups: list[Owners]) -> None:
    tokens = sum(_tokens(batch) for batch in batches)
    firsts = [owners[0] for owners in groups]
    widest = max(as_rows(each.layer, each.weight).shape[-1] for each in firsts)
    if tokens < _FEW * widest:
        warnings.warn(
            f"calibrate: {tokens} tokens are few for layers with {widest} inputs: more data would serve them",
            stacklevel=6,
        )


def _tokens(batch: Batch) -> int:
    tensor = batch.tensors[0] if batch.tensors else None
    if tensor is None:
        return 1
    count = tensor.numel() if not tensor.is_floating_point() else tensor.shape[:-1].numel()
    return count if batch.mask is None else int(batch.mask.sum())


def _claim(batches: list[Batch], groups: list[Owners], settings: Settings) -> dict[str, Any]:
    """What a folder of finished blocks is of."""
    weights = hashlib.sha256()
    for owners in groups:
        weight = owners[0].weight
        some = weight.detach().reshape(-1)[:: max(1, weight.numel() // 1024)].float().cpu()
        weights.update(f"{owners[0].name} {list(weight.shape)} {owners[0].config}".encode())
        weights.update(some.contiguous().numpy().tobytes())
    return {"data": digest(batches), "model": weights.hexdigest(), **asdict(settings)}


def _run(
    model: nn.Module,
    batches: list[Batch],
    groups: list[Owners],
    settings: Settings,
    device: torch.device | None,
    checkpoint: Checkpoint | None,
) -> list[Finished]:
    row = row_of(model, batches, [owners[0].weight for owners in groups])
    of_float = list(row.hidden) if row.hidden is not None and settings.follows_float else None
    pipeline = Pipeline(settings, device)
    all_finished: list[Finished] = []
    known: dict[str, Any] = {}
    masks = [batch.mask for batch in batches]
    for number, block in enumerate(with_progress(row.blocks, "calibrating")):
        passes = Passes(block, masks, row.hidden, of_float)
        inside = _targets(block, groups)
        targets = [target for target in inside if target.name not in known]
        finished = None if checkpoint is None else checkpoint.load(number)
        work, reference = pipeline.copied(block), pipeline.reference(block)
        for target in inside:
            if target.name in known:
                place(work, target, known[target.name])
        if finished is None:
            finished = _calibrated(pipeline, block, work, reference, targets, passes)
            if checkpoint is not None:
                checkpoint.save(number, finished)
        else:
            _restore(block, work, targets, finished)
        known |= finished.quantized
        all_finished.append(finished)
        if number + 1 < len(row.blocks) or _outside(groups, known):
            passes.advance(work, reference)
    if row.hidden is not None and (rest := _outside(groups, known)):
        all_finished.append(_tail(pipeline, model, batches, row, of_float, rest))
    return all_finished


def _targets(block: Block, groups: list[Owners]) -> list[Target]:
    """The weights of a block."""
    names = {id(module): name for name, module in block.module.named_modules(remove_duplicate=False)}
    found = []
    for owners in groups:
        places = [(names[id(o.layer)], o.parameter) for o in owners if id(o.layer) in names]
        if places and (config := owners[0].config) is not None:
            found.append(Target(owners[0].name, config, places))
    return found


def _outside(groups: list[Owners], known: Collection[str]) -> list[Owners]:
    return [owners for owners in groups if owners[0].name not in known]


def _calibrated(
    pipeline: Pipeline,
    block: Block,
    work: nn.Module,
    reference: nn.Module,
    targets: list[Target],
    passes: Passes,
) -> Finished:
    finished = Finished()
    settings = pipeline.settings
    if settings.changes:
        changed = change_block(block, work, targets, passes, settings, finished)
        if changed and settings.follows_float:
            reference = pipeline.twin(work)
    if settings.rounding == "signround":
        learnt = sign_rounded(work, reference, targets, passes, settings, finished)
        targets = [target for target in targets if target.name not in learnt]
    if targets:
        pipeline.rounded(work, reference, targets, passes, finished, sequential=passes.hidden is not None)
    return finished


def _restore(block: Block, work: nn.Module, targets: list[Target], finished: Finished) -> None:
    for target in targets:
        place(work, target, finished.quantized[target.name])
    parameters = {block.name(name): parameter for name, parameter in work.named_parameters()}
    for name, value in finished.plain.items():
        parameters[name].data = value.to(parameters[name].device)


def _tail(
    pipeline: Pipeline,
    model: nn.Module,
    batches: list[Batch],
    row: Row,
    of_float: list[Tensor] | None,
    groups: list[Owners],
) -> Finished:
    """The weights outside the blocks, such as the output layer's."""
    block = Block("", model, batches)
    passes = TailPasses(block, [batch.mask for batch in batches], row.hidden, of_float, row=row)
    finished = Finished()
    targets = _targets(block, groups)
    replace(pipeline, replaces=False).rounded(model, model, targets, passes, finished, sequential=False)
    return finished


def _install(
    model: nn.Module,
    groups: list[Owners],
    all_finished: list[Finished],
    summary: CalibrationSummary,
    device: torch.device | None,
) -> None:
    quantized = {name: weight for finished in all_finished for name, weight in finished.quantized.items()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for finished in all_finished:
        summary.errors |= finished.errors
        summary.notes |= finished.notes
        for name, value in finished.plain.items():
            parameters[name].data = value.to(parameters[name].device)
    for owners in groups:
        first = owners[0]
        rows: Any = quantized.pop(first.name).to(first.weight.device if device is None else device)
        summary.layers.append(give(owners, as_weight(first.layer, rows)))
    if device is not None:
        model.to(device)
    adopt(model)
    summary.count(model)
