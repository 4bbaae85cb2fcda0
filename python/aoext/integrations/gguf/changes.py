"""What writers of GGUF files do to tensors, by architecture, and the way back.

A change that `keeps_rows` moves whole rows of a tensor, plain or of blocks, and leaves their bytes as they
are. Others change values, and are for plain tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class Change(Protocol):
    """From a file's tensor to transformers', and back."""

    keeps_rows: bool

    def read(self, tensor: Tensor) -> Tensor: ...

    def written(self, tensor: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class RowOrder:
    """Row i is the file's row `rows[i]`, int64."""

    rows: Tensor
    keeps_rows = True

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.index_select(0, self.rows)

    def written(self, tensor: Tensor) -> Tensor:
        return tensor.index_select(0, self.rows.argsort())


@dataclass(frozen=True)
class Plus:
    """The file has values that are greater by a number: norms whose weight transformers adds to one."""

    number: float
    keeps_rows = False

    def read(self, tensor: Tensor) -> Tensor:
        return tensor - self.number

    def written(self, tensor: Tensor) -> Tensor:
        return tensor + self.number


@dataclass(frozen=True)
class NegatedExponential:
    """The file has -exp(w): Mamba's A."""

    keeps_rows = False

    def read(self, tensor: Tensor) -> Tensor:
        return (-tensor).log()

    def written(self, tensor: Tensor) -> Tensor:
        return -tensor.exp()


@dataclass(frozen=True)
class Turned:
    """The file has columns as rows."""

    keeps_rows = False

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.mT

    def written(self, tensor: Tensor) -> Tensor:
        return tensor.mT


def halves(heads: int, rows: int) -> RowOrder:
    """Rows of each head from pairs, for rotations of neighbours, to halves, of distant ones."""
    return RowOrder(torch.arange(rows, device="cpu").view(heads, -1, 2).transpose(1, 2).flatten())


def heads_together(groups: int, rows: int, parts: Sequence[int]) -> RowOrder:
    """From all queries, all keys, all values to those of each group of heads behind each other.

    parts: the shares of queries, keys and values of a group
    """
    share = rows // (groups * sum(parts))
    numbers = torch.arange(rows, device="cpu").split([groups * part * share for part in parts])
    grouped = [part.view(groups, -1) for part in numbers]
    return RowOrder(torch.cat(grouped, 1).flatten())


Maker = Callable[[Any, int], Change]  # of a config and a tensor's number of rows


def _llama_q(config: Any, rows: int) -> Change:
    return halves(config.num_attention_heads, rows)


def _llama_k(config: Any, rows: int) -> Change:
    return halves(config.num_key_value_heads, rows)


def _bloom(config: Any, rows: int) -> Change:
    return heads_together(config.n_head, rows, (1, 1, 1))


def _falcon(config: Any, rows: int) -> Change:
    has_groups = config.new_decoder_architecture or not config.multi_query
    groups = config.num_kv_heads if has_groups else 1
    return heads_together(groups, rows, (config.num_attention_heads // groups, 1, 1))


_ONE_MORE: tuple[str, Maker] = (r"norm\.weight$", lambda config, rows: Plus(1))
_LLAMA: list[tuple[str, Maker]] = [(r"\.attn_q\.", _llama_q), (r"\.attn_k\.", _llama_k)]

# By the architecture: names of a file's tensors, and how what they were is made.
_CHANGES: dict[str, list[tuple[str, Maker]]] = {
    "llama": _LLAMA,
    "bloom": [(r"\.attn_qkv\.", _bloom)],
    "deepseek2": [(r"\.attn_k_b\.", lambda config, rows: Turned())],
    "falcon": [(r"\.attn_qkv\.", _falcon)],
    "gemma2": [_ONE_MORE],
    "gemma3": [_ONE_MORE],
    "nemotron": [_ONE_MORE],
    "mamba": [(r"\.ssm_a$", lambda config, rows: NegatedExponential())],
}


def changes_of(architecture: str, config: Any, key: str, rows: int) -> list[Change]:
    """What is to be done to a tensor of a file, in this order."""
    table = _CHANGES.get(architecture, [])
    return [make(config, rows) for pattern, make in table if re.search(pattern, key)]
