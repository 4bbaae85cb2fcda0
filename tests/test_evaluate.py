"""aoext.quality.evaluate: perplexity and divergence, beside float64's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aoext.quality import evaluate as module
from aoext.quality.evaluate import evaluate
from aoext.quality.text import token_windows

V = 50


class LanguageModel(nn.Module):
    def __init__(self, generator: torch.Generator, named: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(torch.randn(V, V, generator=generator))
        self.dropout = nn.Dropout(0.5)
        self.named = named

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        logits = self.dropout(self.embedding(ids))
        return type("Output", (), {"logits": logits}) if self.named else logits


def test_sums_are_those_of_float64_whatever_the_chunks(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, reference = LanguageModel(generator), LanguageModel(generator, named=True)
    data = [torch.randint(V, (rows, 9), generator=generator) for rows in (1, 5, 2)]
    ids = torch.cat(data)
    log_p, log_q = (
        each.embedding.weight.double().log_softmax(-1)[ids[:, :-1]] for each in (model, reference)
    )
    monkeypatch.setattr(module, "_CHUNK", 3 * V)
    monkeypatch.setattr(module, "_LOGITS", 2 * 9 * V)
    result = evaluate(model, data, reference)
    assert result.tokens == 8 * 8
    loss = -log_p.gather(-1, ids[:, 1:].unsqueeze(-1)).mean()
    assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    assert result.divergence == pytest.approx((log_q.exp() * (log_q - log_p)).sum(-1).mean().item(), rel=1e-4)
    assert result.same_token == (log_p.argmax(-1) == log_q.argmax(-1)).float().mean().item()
    assert model.training
    assert evaluate(reference, data, reference).divergence == 0


def test_what_masks_and_labels_leave_out_is_not_counted(generator: torch.Generator) -> None:
    model = LanguageModel(generator)
    ids = torch.randint(V, (2, 6), generator=generator)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    masked = evaluate(model, [{"input_ids": ids, "attention_mask": mask}])
    assert masked.tokens == 3 + 5
    labels = ids.masked_fill(mask == 0, -100)
    assert evaluate(model, [{"input_ids": ids, "labels": labels}]) == masked
    alone = [evaluate(model, [ids[0, :4]]), evaluate(model, [ids[1]])]
    assert masked.loss == pytest.approx(sum(e.loss * e.tokens for e in alone) / masked.tokens)


@pytest.mark.parametrize("what", ["nothing", "one token", "NaN", "other vocabulary", "no ids"])
def test_what_cannot_be_measured_is_told(generator: torch.Generator, what: str) -> None:
    model, other = LanguageModel(generator), nn.Embedding(V + 1, V + 1)
    data: list[Any] = [torch.randint(V, (2, 6), generator=generator)]
    wanted = {
        "nothing": "no token",
        "one token": "no token",
        "NaN": "NaN",
        "other vocabulary": "knows 51 tokens, the model 50",
        "no ids": "input_ids",
    }[what]
    if what == "nothing":
        data = []
    elif what == "one token":
        data = [data[0][:, :1]]
    elif what == "no ids":
        data = [{"ids": data[0]}]
    elif what == "NaN":
        model.embedding.weight[3, 4] = math.nan
        data[0][0, 0] = 3
    with pytest.raises(ValueError, match=wanted):
        evaluate(model, data, other if what == "other vocabulary" else None)


def test_windows_of_texts(tmp_path: Any) -> None:
    for name, text in (("a", "abcdefg"), ("b", "hijk")):
        (tmp_path / name).write_text(text)
    paths = [tmp_path / "a", tmp_path / "b"]

    def tokenizer(text: str) -> Any:
        return {"input_ids": [ord(character) for character in text]}

    windows = token_windows(paths, tokenizer, 3)
    assert ["".join(map(chr, window[0])) for window in windows] == ["abc", "def", "ghi"]
    assert len(token_windows(paths, tokenizer, 3, count=2)) == 2
    with pytest.raises(ValueError, match="has 11 tokens, and one window has 12"):
        token_windows(paths, tokenizer, 12)
