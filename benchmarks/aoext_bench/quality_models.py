"""The language models of `aoext quality`, and how their predictions are held against the original's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aoext.quality.evaluate import Evaluation, evaluate, logits_of
from aoext_bench.tiny_lm import (
    held_out_text,
    load_tiny_lm,
    split,
    standard_library_files,
    windows_of,
)
from aoext_bench.tiny_lm.data import join_documents

WINDOW = 512
TINY_WINDOWS = 6  # for each window of a model with a vocabulary: its tokens are bytes


class Subject(ABC):
    """A model in bfloat16 with windows of tokens [n, T] that it is judged by."""

    name: str

    def __init__(self, model: nn.Module, windows: Tensor, device: torch.device, samples: int) -> None:
        self.model, self.windows, self.samples = model.eval().to(device), windows.to(device), samples
        # What the original says, as it says it: bfloat16.
        with torch.no_grad():
            self.expected = [logits_of("the original", self.model, ids, None).cpu() for ids in self._batches]
        self.base = self.evaluation(self.model)

    @property
    def _batches(self) -> tuple[Tensor, ...]:
        return self.windows.split(1)

    @abstractmethod
    def data(self) -> list[Tensor]:
        """So many batches [1, T] as there are samples, of text that is not held out, for what calibrates."""

    def evaluation(self, model: nn.Module) -> Evaluation:
        """How well a model predicts the windows, beside the original."""
        expected = iter(self.expected)
        return evaluate(model, self._batches, lambda ids: next(expected))


class Tiny(Subject):
    """The byte-level model that aoext-bench ships."""

    name = "tiny"

    def __init__(self, device: torch.device, count: int, samples: int) -> None:
        text = held_out_text(1 << 30)
        windows = windows_of(text, WINDOW - 1, TINY_WINDOWS * count)
        super().__init__(load_tiny_lm(), windows, device, samples)

    def data(self) -> list[Tensor]:
        text = join_documents(split(standard_library_files())[0])
        windows = windows_of(text, WINDOW, self.samples)
        return [window[None, :-1].to(self.windows.device) for window in windows]


class Folder(Subject):
    """A causal language model of transformers with its tokenizer, heldout.txt and train.txt."""

    def __init__(self, folder: Path, device: torch.device, windows: int, samples: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.folder, self.name = folder, folder.resolve().name
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        super().__init__(model, self._windows("heldout.txt", WINDOW + 1, windows), device, samples)

    def data(self) -> list[Tensor]:
        windows = self._windows("train.txt", WINDOW, self.samples)
        return [window[None].to(self.windows.device) for window in windows]

    def _windows(self, file: str, size: int, most: int) -> Tensor:
        """[n, size] tokens from the beginning of a file."""
        text = (self.folder / file).read_text(encoding="utf-8")
        tokens = torch.tensor(self.tokenizer(text)["input_ids"])
        count = min(most, len(tokens) // size)
        if not count:
            raise ValueError(f"{self.folder / file} must have {size} tokens at least, got {len(tokens)}")
        return tokens[: count * size].view(count, size)
