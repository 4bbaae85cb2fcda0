"""Products of rows that are sorted by expert, made from those of one weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from . import values
from .stored import Stored
from .subject import ALL, Index, Problem, Subject, Tensors, Weight


def experts(dense: Subject, w: Stored) -> Subject:
    """A product with a weight in this format for each expert."""

    def random(p: Problem, g: Generator) -> Tensors:
        every = zip(*(dense.rotated(p, g) for _ in range(p.experts)), strict=True)
        parts = (part[0] if i in w.shared else torch.stack(part) for i, part in enumerate(every))
        ends = values.expert_offsets(p.M, p.experts, g) if p.offsets is None else torch.tensor(p.offsets)
        return *parts, ends.to(torch.int32)

    def of_expert(t: Tensors, expert: int) -> Tensors:
        return tuple(part if i in w.shared else part[expert] for i, part in enumerate(t[:-1]))

    def weights(p: Problem, t: Tensors, rows: Index) -> Tensor:
        return torch.stack([w.rows(p, of_expert(t, e)[: w.tensors], rows) for e in range(len(t[0]))])

    def call(kernel: Callable[..., Any], p: Problem, x: Tensors, t: Tensors) -> Any:
        return dense.call(lambda *args, **kwargs: kernel(*args, t[-1], **kwargs), p, x, t[:-1])

    def expected(
        p: Problem, x: Tensors, t: Tensors, rows: Index, columns: Index
    ) -> tuple[Tensor, Tensor | None]:
        result = torch.zeros(p.M, p.N, dtype=torch.float64, device=x[0].device)
        terms, begin = result.clone(), 0
        for expert, end in enumerate(t[-1].tolist()):
            own = slice(begin, end)
            products, magnitudes = dense.expected(
                p, tuple(part[own] for part in x), of_expert(t, expert), ALL, ALL
            )
            assert magnitudes is not None
            result[own], terms[own], begin = products, magnitudes, end
        return result[rows][:, columns], terms[rows][:, columns]

    return Subject(
        dense.operator,
        f"{dense.format} experts",
        dense.inputs,
        random,
        call,
        expected,
        ("T", "N"),
        grouped=dense.grouped,
        serves=dense.serves,
        adds_bias=dense.adds_bias,
        weight=Weight(random, weights),
        typical=False,
        kind=f"{dense.kind} experts",
    )
