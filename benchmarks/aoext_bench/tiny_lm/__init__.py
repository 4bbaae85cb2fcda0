"""A byte-level language model of four million parameters that comes with its weights.

It makes the cost of quantisation measurable on any machine, without a download:

>>> from aoext_bench.tiny_lm import bits_per_byte, held_out_text, load_tiny_lm  # doctest: +SKIP
>>> bits_per_byte(load_tiny_lm(), held_out_text(1 << 20))  # doctest: +SKIP

CARD.md beside this file says what it was trained on, how, and how good it is.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import math
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from .data import held_out_text, split, standard_library_files
from .model import KVCache, TinyLM, TinyLMConfig

__all__ = [
    "KVCache",
    "TinyLM",
    "TinyLMConfig",
    "bits_per_byte",
    "held_out_text",
    "load_tiny_lm",
    "predictions",
    "save_tiny_lm",
    "split",
    "standard_library_files",
    "window_bits",
    "windows_of",
]

WEIGHTS = "weights.safetensors"


def save_tiny_lm(model: TinyLM, path: Path) -> None:
    """Write the model's weights as bf16, with its config as metadata: what load_tiny_lm reads.

    An older file at path is replaced in one move, so that a concurrent reader gets one of the two.
    """
    state = {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in model.state_dict().items()}
    unfinished = path.with_name(path.name + ".part")
    metadata = {"config": json.dumps(dataclasses.asdict(model.config))}
    safetensors.torch.save_file(state, unfinished, metadata)
    unfinished.replace(path)


def load_tiny_lm(dtype: torch.dtype = torch.bfloat16, device: torch.device | str = "cpu") -> TinyLM:
    """The trained model, in eval mode, its weights (stored as bf16) converted to dtype.

    >>> load_tiny_lm().generate(b"def main(", 32)  # doctest: +SKIP
    """
    with importlib.resources.as_file(importlib.resources.files(__name__) / WEIGHTS) as path:
        state = safetensors.torch.load_file(path)
        with safetensors.safe_open(path, framework="pt") as file:
            config = TinyLMConfig(**json.loads(file.metadata()["config"]))
    # The initial weights are drawn and dropped; the caller's random numbers must not notice.
    with torch.random.fork_rng(devices=[]):
        model = TinyLM(config)
    model.load_state_dict(state)
    return model.to(dtype=dtype, device=device).eval()


def windows_of(text: bytes, window: int = 512, max_windows: int | None = None) -> torch.Tensor:
    """The text in windows, [N, window + 1] bytes: the first is given, the others are to be predicted.

    Where there are more than max_windows, so many are taken, evenly spread.
    """
    starts = range(0, len(text) - window, window)
    if not starts:
        raise ValueError(f"windows_of: text must be longer than window = {window} bytes, got {len(text)}")
    count = min(len(starts), max_windows or len(starts))
    chosen = (starts[i * len(starts) // count] for i in range(count))
    return torch.tensor([list(text[start : start + window + 1]) for start in chosen])


@torch.no_grad()
def predictions(model: TinyLM, windows: torch.Tensor) -> tuple[list[float], torch.Tensor]:
    """Bits that the model needs for a byte of each window [N, T + 1], and its likeliest bytes [N, T].

    A byte is predicted from what precedes it in its window alone. The loss is computed in float32 whatever
    the model's dtype.
    """
    windows = windows.to(model.embedding.weight.device)
    logits = model(windows[:, :-1]).float()
    nats = nn.functional.cross_entropy(logits.transpose(1, 2), windows[:, 1:], reduction="none")
    return (nats.mean(dim=1) / math.log(2)).tolist(), logits.argmax(dim=2)


def window_bits(
    model: TinyLM, text: bytes, window: int = 512, max_windows: int | None = None, batch: int = 16
) -> list[float]:
    """Bits that the model needs for a byte of text, of each window of it; lower is better, 8 is chance.

    Windows are `windows_of`'s, the same for every model, and computed `batch` at a time.

    >>> window_bits(model, held_out_text(1 << 20), max_windows=32)  # doctest: +SKIP
    """
    parts = windows_of(text, window, max_windows).split(batch)
    return [bits for part in parts for bits in predictions(model, part)[0]]


def bits_per_byte(
    model: TinyLM, text: bytes, window: int = 512, max_windows: int | None = None, batch: int = 16
) -> float:
    """The mean of `window_bits`, whose arguments it takes.

    >>> bits_per_byte(model, held_out_text(1 << 20), max_windows=32)  # doctest: +SKIP
    """
    bits = window_bits(model, text, window, max_windows, batch)
    return math.fsum(bits) / len(bits)
