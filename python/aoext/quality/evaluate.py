"""How good a model's predictions are: perplexity on a text, and how far they are from a reference's.

All sums are of float32 logarithms of probabilities, a few positions at a time, so that the memory beside the
models stays bounded whatever the vocabulary and the batches are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aoext.formats.checks import describe

# Logits that a model is asked for at once, where more than one row of a batch would be, and those of them
# that are float32 at once.
_LOGITS = 1 << 26
_CHUNK = 1 << 22

# A token that is not to be predicted, in labels of transformers.
IGNORED = -100

Batch = Tensor | Mapping[str, Any]
Model = nn.Module | Callable[..., Any]


@dataclass(frozen=True)
class Evaluation:
    """What was measured of one model.

    tokens: how many were predicted
    loss: −log of their probability, in nats for a token
    divergence: KL(reference ‖ model), in nats for a token; None without a reference, as same_token is
    same_token: the share of positions whose most likely token is the reference's
    """

    tokens: int
    loss: float
    divergence: float | None = None
    same_token: float | None = None

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    def __str__(self) -> str:
        parts = [f"perplexity {self.perplexity:.3f}"]
        if self.divergence is not None and self.same_token is not None:
            parts += [
                f"KL {self.divergence:.4f}",
                f"{self.same_token:.1%} of the most likely tokens the same",
            ]
        return f"{', '.join(parts)}, over {self.tokens} tokens"


def evaluate(model: Model, data: Iterable[Batch], reference: Model | None = None) -> Evaluation:
    """How well `model` predicts each token of `data` from those before it, beside a reference where given.

    model, reference: called with token ids [B, T] they give logits [B, T, V], or an object that has them as
        `logits`; modules are in eval mode meanwhile, and the ids are where their parameters are
    data: batches of token ids, int64 [B, T] or [T], or mappings that have them as `input_ids`; what their
        `attention_mask` or `labels` leave out is not counted

    ValueError for data without a token to predict, for logits that are NaN or Inf, and where the vocabularies
    differ.

    >>> evaluate(quantized, [torch.randint(256, (2, 64))], reference=model)  # doctest: +SKIP
    """
    totals = torch.zeros(4, dtype=torch.float64)  # tokens, loss, divergence, equal tokens
    rows = 1  # of a batch at once; the first tells how large the vocabulary is
    with evaluating(model), evaluating(reference), torch.no_grad():
        for all_ids, all_mask, all_wanted in map(parts_of, data):
            done = 0
            while done < len(all_ids):
                at = slice(done, done + rows)
                ids, mask, wanted = all_ids[at], None if all_mask is None else all_mask[at], all_wanted[at]
                own = logits_of("the model", model, ids, mask)
                other = None if reference is None else logits_of("the reference", reference, ids, mask)
                totals += _sums(own, other, wanted)
                done += rows
                rows = max(1, _LOGITS // (own.shape[1] * own.shape[2]))
    count, loss, divergence, same = totals.tolist()
    if not count:
        raise ValueError("evaluate: data has no token to predict: a batch needs two tokens at least")
    if not math.isfinite(loss + divergence):
        raise ValueError("evaluate: the model's logits have NaN or Inf")
    if reference is None:
        return Evaluation(int(count), loss / count)
    return Evaluation(int(count), loss / count, max(0.0, divergence / count), same / count)


def logits_of(who: str, model: Model, ids: Tensor, mask: Tensor | None) -> Tensor:
    """What a model makes of `ids`: [B, T, V], in its dtype."""
    place = next(iter(model.parameters()), ids).device if isinstance(model, nn.Module) else ids.device
    options = {} if mask is None else {"attention_mask": mask.to(place)}
    result = model(ids.to(place), **options)
    logits = getattr(result, "logits", result)
    if not isinstance(logits, Tensor) or logits.shape[:-1] != ids.shape:
        form = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"evaluate: {who} must give logits {[*ids.shape, 'V']} for its tokens, got {form}")
    return logits


def parts_of(batch: Batch) -> tuple[Tensor, Tensor | None, Tensor]:
    """Token ids [B, T] of a batch, its attention mask, and what is to be predicted, or IGNORED."""
    named: Mapping[str, Any] = batch if isinstance(batch, Mapping) else {"input_ids": batch}
    if "input_ids" not in named:
        raise ValueError(f"evaluate: a batch must have input_ids, got {', '.join(map(str, named))}")
    ids, mask, labels = (
        value if value is None else torch.atleast_2d(torch.as_tensor(value))
        for value in (named["input_ids"], named.get("attention_mask"), named.get("labels"))
    )
    if ids is None or ids.dim() != 2 or ids.is_floating_point():
        raise ValueError(f"evaluate: a batch must have token ids [B, T], got {describe(ids)}")
    wanted = (ids if labels is None else labels).long()
    if mask is not None:
        wanted = wanted.masked_fill(mask == 0, IGNORED)
    return ids.long(), mask, wanted


def _sums(own: Tensor, other: Tensor | None, wanted: Tensor) -> Tensor:
    """How many tokens [B, T] count, and sums over them of −log p, of KL and of equal most likely tokens."""
    if other is not None and other.shape != own.shape:
        raise ValueError(
            f"evaluate: the reference knows {other.shape[2]} tokens, the model {own.shape[2]}: they must be "
            "the same"
        )
    sums = torch.zeros(4, dtype=torch.float64)
    for places in (wanted[:, 1:] != IGNORED).nonzero().split(max(1, _CHUNK // own.shape[2])):
        row, position = places.to(own.device).unbind(1)
        log_p = own[row, position].float().log_softmax(-1)
        targets = wanted.to(own.device)[row, position + 1]
        loss = -log_p.gather(1, targets.unsqueeze(1)).double().sum()
        divergence = same = torch.zeros((), dtype=torch.float64)
        if other is not None:
            row, position = places.to(other.device).unbind(1)
            log_q = other[row, position].to(own.device).float().log_softmax(-1)
            divergence = (log_q.exp() * (log_q - log_p)).sum(-1).double().sum()
            same = (log_q.argmax(-1) == log_p.argmax(-1)).sum()
        sums += torch.tensor([len(places), loss.item(), divergence.item(), same.item()], dtype=torch.float64)
    return sums


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """A module's parts in eval mode, and afterwards each as it was."""
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    training = [part.training for part in parts]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part, was in zip(parts, training, strict=True):
            part.training = was
