"""Texts as batches of token ids, for what reads a model's data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Tokenizer = Callable[[str], Any]


def ids_of(tokenizer: Tokenizer, text: str) -> Any:
    """The token ids of a text, of a tokenizer that gives these or a mapping that has them as `input_ids`."""
    encoded = tokenizer(text)
    return encoded["input_ids"] if hasattr(encoded, "keys") else encoded


def token_windows(
    texts: Iterable[str | os.PathLike[str]], tokenizer: Tokenizer, length: int = 512, count: int | None = None
) -> list[Tensor]:
    """The tokens of text files in windows, int64 [1, length] each, as many as are full.

    texts: paths of files in UTF-8; one begins where the one before ends
    tokenizer: as ids_of takes it
    count: the most windows, evenly spread over the text; all where it is None

    ValueError for a text that is shorter than a window.
    """
    ids: list[int] = []
    for path in texts:
        ids += ids_of(tokenizer, Path(path).read_text(encoding="utf-8"))
    whole = len(ids) // length
    if not whole:
        raise ValueError(f"the text has {len(ids)} tokens, and one window has {length}")
    windows = torch.tensor(ids[: whole * length]).view(whole, 1, length)
    kept = whole if count is None else min(count, whole)
    return [windows[i * whole // kept] for i in range(kept)]
