"""Batches for a calibration: of tokens, from text, or as the caller has them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aoext.calibration.settings import Settings
from aoext.quality.text import ids_of

_COLUMNS = ("input_ids", "text")


@dataclass(frozen=True)
class Batch:
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]

    @property
    def rows(self) -> int:
        """How many samples it has."""
        tensors = self.tensors
        return len(tensors[0]) if tensors and tensors[0].dim() else 1

    @property
    def mask(self) -> Tensor | None:
        """Which tokens are none of padding, bool [B, L]; None where all are."""
        mask = self.kwargs.get("attention_mask")
        return mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.all()) else None

    def to(self, device: torch.device) -> Batch:
        def moved(value: Any) -> Any:
            return value.to(device) if isinstance(value, Tensor) else value

        return Batch(
            tuple(map(moved, self.args)), {name: moved(value) for name, value in self.kwargs.items()}
        )


def batches_of(data: Any, tokenizer: Any, settings: Settings) -> list[Batch]:
    """The samples of `data`, no more than the settings have. TypeError and ValueError say what is wrong."""
    texts = _texts(data)
    if texts is not None:
        return _of_tokens(_tokens(texts, tokenizer), settings)
    if not isinstance(data, Iterable) or isinstance(data, Mapping):
        raise TypeError(
            "calibrate: data must be batches, a dataset, texts or paths of text files, "
            f"got a {type(data).__name__}"
        )
    if (column := _column(data)) is not None:
        rows = (row[column] for row in data)
        return _of_tokens(_tokens(rows, tokenizer) if column == "text" else map(_ids, rows), settings)
    batches: list[Batch] = []
    count = 0
    for batch in data:
        if count >= settings.samples:
            break
        batches.append(_batch(batch))
        count += batches[-1].rows
    if not batches:
        raise ValueError("calibrate: data has no batch")
    return batches


def random_tokens(model: nn.Module, settings: Settings) -> list[Batch]:
    """Tokens of a language model's vocabulary, each as likely as the other."""
    find = getattr(model, "get_input_embeddings", None)
    table = (
        find()
        if find is not None
        else next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
    )
    count = getattr(table, "num_embeddings", None)
    if count is None:
        raise ValueError("calibrate: a model without an embedding of tokens needs data, got None")
    generator = torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(count, (settings.samples, settings.length), generator=generator)
    named = find is not None  # a model of transformers
    return [
        Batch((), {"input_ids": part}) if named else Batch((part,), {})
        for part in ids.split(settings.batch_size)
    ]


def digest(batches: Iterable[Batch]) -> str:
    """What tells other data apart."""
    found = hashlib.sha256()
    for batch in batches:
        for tensor in batch.tensors:
            found.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _texts(data: Any) -> Iterator[str] | None:
    """The texts of files or strings; None of other data."""
    if isinstance(data, (str, os.PathLike)):
        data = [Path(data)]
    if not isinstance(data, (list, tuple)) or not data:
        return None
    if all(isinstance(each, os.PathLike) for each in data):
        return (Path(each).read_text(encoding="utf-8", errors="replace") for each in data)
    return iter(data) if all(isinstance(each, str) for each in data) else None


def _column(data: Any) -> str | None:
    """The column of a dataset that has tokens or texts; None of what is none, such as a DataLoader."""
    names = getattr(data, "column_names", None)
    if names is None:
        return None
    found = next((name for name in _COLUMNS if name in names), None)
    if found is None:
        raise ValueError(f"calibrate: a dataset must have a column {' or '.join(_COLUMNS)}, got {names}")
    return found


def _tokens(texts: Iterable[str], tokenizer: Any) -> Iterator[Tensor]:
    if tokenizer is None:
        raise ValueError("calibrate: texts need a tokenizer: tokenizer=AutoTokenizer.from_pretrained(...)")
    if isinstance(tokenizer, (str, os.PathLike)):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    for text in texts:
        yield _ids(ids_of(tokenizer, text))


def _ids(row: Any) -> Tensor:
    ids = torch.as_tensor(row)
    if ids.dim() != 1 or ids.is_floating_point():
        raise ValueError(f"calibrate: tokens must be integers [L], got {list(ids.shape)} of {ids.dtype}")
    return ids.long()


def _of_tokens(rows: Iterable[Tensor], settings: Settings) -> list[Batch]:
    """Windows of `length` tokens of all texts in a row, a random choice of them, in batches."""
    ids = torch.cat([*rows, torch.empty(0, dtype=torch.int64)])
    length = settings.length
    if len(ids) < length:
        raise ValueError(f"calibrate: data has {len(ids)} tokens, which is too little for length = {length}")
    windows = ids[: len(ids) // length * length].view(-1, length)
    generator = torch.Generator().manual_seed(settings.seed)
    chosen = windows[torch.randperm(len(windows), generator=generator)[: settings.samples]]
    return [Batch((), {"input_ids": part}) for part in chosen.split(settings.batch_size)]


def _batch(batch: Any) -> Batch:
    if isinstance(batch, Tensor):
        return Batch((_with_rows(batch),), {})
    if isinstance(batch, Mapping) or hasattr(batch, "keys"):
        kwargs = {str(name): batch[name] for name in list(batch.keys())}
        kwargs.pop("labels", None)
        return Batch((), {name: _with_rows(value) for name, value in kwargs.items()})
    if isinstance(batch, (list, tuple)) and batch and all(isinstance(each, Tensor) for each in batch):
        return Batch(tuple(batch), {})
    raise TypeError(
        "calibrate: batches must be tensors, tuples of tensors or dicts of arguments, "
        f"got a {type(batch).__name__}"
    )


def _with_rows(value: Any) -> Any:
    """Tokens of one sample, as datasets have them, as a batch of it."""
    if isinstance(value, list) and value and isinstance(value[0], (int, list)):
        value = torch.tensor(value)
    is_row = isinstance(value, Tensor) and value.dim() == 1 and not value.is_floating_point()
    return value.unsqueeze(0) if is_row else value
