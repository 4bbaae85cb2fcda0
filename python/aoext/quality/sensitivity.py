"""What each scheme costs each layer, measured one layer at a time; for mixed_precision.py."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from aoext.configs import QuantizationConfig
from aoext.models.choice import Owner, Owners
from aoext.models.layers import as_rows, as_weight, set_plain_weight
from aoext.models.quantize import give, with_progress
from aoext.packing.scales import row_blocks
from aoext.quality.evaluate import IGNORED, Batch, evaluate, evaluating, logits_of, parts_of

if TYPE_CHECKING:
    from aoext.quality.mixed_precision import Item

# Columns whose squared gradients are kept as one sum.
_BLOCK = 16


def same_inputs(model: nn.Module, batch: Batch, groups: Sequence[Owners]) -> list[list[Owners]]:
    """Weights of layers of one module that get the same tensor as input, together; others alone.

    ValueError for layers that the batch never reaches.
    """
    parents: dict[nn.Module, str] = {m: path.rpartition(".")[0] for path, m in model.named_modules()}
    inputs: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        given = [each for each in (*arguments, *options.values()) if isinstance(each, Tensor)]
        inputs.setdefault(layer, given[0] if given else torch.empty(0))

    layers = {owner.layer for owners in groups for owner in owners}
    hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers]
    try:
        ids, mask, _ = parts_of(batch)
        with evaluating(model), torch.no_grad():
            logits_of("the model", model, ids[:1], None if mask is None else mask[:1])
    finally:
        for hook in hooks:
            hook.remove()
    missed = [owners[0].name for owners in groups if not any(o.layer in inputs for o in owners)]
    if missed:
        raise ValueError(
            f"search: data never reaches {', '.join(missed[:5])}{' ...' if len(missed) > 5 else ''}: leave "
            "such layers out by filter_fn"
        )
    together: dict[Any, list[Owners]] = {}
    for owners in groups:
        layer = owners[0].layer
        alone = len(owners) > 1 or owners[0].weight.dim() != 2 or layer not in inputs
        key = id(owners) if alone else (parents[layer], id(inputs[layer]))
        together.setdefault(key, []).append(owners)
    return list(together.values())


def fisher_errors(
    model: nn.Module, batches: Sequence[Batch], items: Sequence[Item], seed: int
) -> list[list[float]]:
    """½ Σ F·(ŵ − w)² of each item with each of its configs, which is an estimate of KL for a token.

    F is the diagonal of Fisher's information, the mean square of gradients of −log p with labels drawn from
    p; within _BLOCK columns it is taken for constant.
    """
    owners = [owners[0] for item in items for owners in item.groups]
    squares, tokens = _squared_gradients(model, batches, owners, seed)
    result = []
    for item in with_progress(items, "measuring"):
        errors = []
        for config in item.configs:
            error = 0.0
            for owner, *_ in item.groups if config is not None else ():
                assert config is not None
                error += _weighted_error(owner, config, squares[owner.name])
            errors.append(error / (2 * tokens))
        if not all(map(math.isfinite, errors)):
            raise ValueError(f"search: gradients of {item.groups[0][0].name} have NaN or Inf")
        result.append(errors)
    return result


def _squared_gradients(
    model: nn.Module, batches: Sequence[Batch], owners: Sequence[Owner], seed: int
) -> tuple[dict[str, Tensor], int]:
    """Sums over sequences of squared gradients, by _BLOCK columns, and the number of tokens."""
    squares: dict[str, Tensor] = {}
    tokens = 0

    def keep(owner: Owner) -> Any:
        def add(parameter: Tensor) -> None:
            assert parameter.grad is not None
            own = _block_sums(as_rows(owner.layer, parameter.grad).float().square())
            squares[owner.name] = squares[owner.name] + own if owner.name in squares else own
            parameter.grad = None

        return add

    kept = {id(owner.weight) for owner in owners}
    with _training(model, kept), evaluating(model), torch.enable_grad():
        hooks = [owner.weight.register_post_accumulate_grad_hook(keep(owner)) for owner in owners]
        try:
            for batch in with_progress(batches, "gradients"):
                ids, mask, wanted = parts_of(batch)
                for row in range(len(ids)):
                    own = slice(row, row + 1)
                    logits = logits_of("the model", model, ids[own], None if mask is None else mask[own])
                    known = (wanted[own, 1:] != IGNORED).to(logits.device)
                    if not known.any():
                        continue
                    log_p = logits[:, :-1][known].float().log_softmax(-1)
                    if not log_p.isfinite().all():
                        raise ValueError("search: the model's logits have NaN or Inf")
                    generator = torch.Generator(log_p.device).manual_seed(seed + tokens)
                    labels = torch.multinomial(log_p.detach().exp(), 1, generator=generator)
                    (-log_p.gather(1, labels).sum()).backward()
                    tokens += len(labels)
        finally:
            for hook in hooks:
                hook.remove()
    if not tokens:
        raise ValueError("search: data has no token to predict: a batch needs two tokens at least")
    missed = [owner.name for owner in owners if owner.name not in squares]
    if missed:
        raise ValueError(f"search: no gradient reaches {', '.join(missed[:5])}: leave it out by filter_fn")
    return squares, tokens


@contextmanager
def _training(model: nn.Module, kept: set[int]) -> Iterator[None]:
    """Only the parameters of these ids require gradients, and afterwards each as it did."""
    before = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    try:
        for parameter, _, _ in before:
            parameter.requires_grad_(id(parameter) in kept)
            parameter.grad = None
        yield
    finally:
        for parameter, required, grad in before:
            parameter.requires_grad_(required)
            parameter.grad = grad


def _block_sums(squares: Tensor) -> Tensor:
    """Sums over _BLOCK columns of [..., K]."""
    whole = nn.functional.pad(squares, (0, -squares.shape[-1] % _BLOCK))
    return whole.unflatten(-1, (-1, _BLOCK)).sum(-1)


@torch.no_grad()
def _weighted_error(owner: Owner, config: QuantizationConfig, squares: Tensor) -> float:
    """Σ F·(ŵ − w)² of a weight."""
    rows = as_rows(owner.layer, owner.weight).detach()
    total = 0.0
    for w, f in zip(rows, squares, strict=True) if rows.dim() == 3 else ((rows, squares),):
        plain = config.quantize(w).to(torch.float32).dequantize()
        for part in row_blocks(w):
            error = _block_sums((plain[part] - w[part].float()).square_())
            total += float((error * f[part]).double().sum()) / _BLOCK
    return total


def divergences(
    model: nn.Module, batches: Sequence[Batch], items: Sequence[Item], seed: int
) -> list[list[float]]:
    """KL from the model's predictions with the weights of one item in each of its configs."""
    tensors = [*model.parameters(), *model.buffers()]
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    result = []
    for item in with_progress(items, "measuring"):
        groups = [
            [Owner(o.name, twin.get_submodule(_module_of(o)), o.parameter) for o in owners]
            for owners in item.groups
        ]
        errors = []
        for config in item.configs:
            errors.append(0.0 if config is None else _divergence(model, twin, batches, groups, config))
        result.append(errors)
    return result


def _module_of(owner: Owner) -> str:
    return owner.name if owner.parameter == "weight" else owner.name.rpartition(".")[0]


def _divergence(
    model: nn.Module,
    twin: nn.Module,
    batches: Sequence[Batch],
    groups: Sequence[Owners],
    config: QuantizationConfig,
) -> float:
    plain = [owners[0].weight for owners in groups]
    try:
        with torch.no_grad():
            for owners in groups:
                first = owners[0]
                quantized = config.quantize(as_rows(first.layer, first.weight).detach())
                give(owners, as_weight(first.layer, quantized))
        divergence = evaluate(twin, batches, model).divergence
    finally:
        for owners, weight in zip(groups, plain, strict=True):
            for owner in owners:
                set_plain_weight(owner.layer, weight, owner.parameter)
    assert divergence is not None
    return divergence
