"""Results of `aoext quality` as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from aoext.cli.page import part_grid
from aoext.quality.evaluate import Evaluation
from aoext_bench.quality_models import Subject
from aoext_bench.quality_run import Result

SCHEMA = "aoext.quality/1"


def closed(result: Result, results: Sequence[Result]) -> float | None:
    """Which part of rounding's KL is gone; None for rounding itself, or without it."""
    base = next(
        (r for r in results if (r.model, r.scheme, r.algorithm) == (result.model, result.scheme, "rounding")),
        None,
    )
    if base is None or base is result:
        return None
    return 1 - measured(result.evaluation)["kl"] / measured(base.evaluation)["kl"]


def measured(evaluation: Evaluation) -> dict[str, float]:
    """Its numbers, by the names that they have in JSON."""
    assert evaluation.divergence is not None
    assert evaluation.same_token is not None
    return {
        "nats": evaluation.loss,
        "kl": evaluation.divergence,
        "same": evaluation.same_token,
        "perplexity": evaluation.perplexity,
        "bits": evaluation.loss / math.log(2),
    }


def table(subject: Subject, results: Sequence[Result]) -> Table:
    """A line for each scheme and algorithm."""
    headers = ("bits a weight", "perplexity", "KL", "closed", "same", "CPU seconds")
    grid = part_grid(f"{subject.name}, {subject.base.perplexity:.3f} in bfloat16", "algorithm", *headers)
    last = ""
    for result in results:
        part, numbers = closed(result, results), measured(result.evaluation)
        grid.add_row(
            Text(result.scheme if result.scheme != last else "", style="bold"),
            result.algorithm,
            f"{result.bits_per_weight:.2f}",
            f"{numbers['perplexity']:.3f}",
            f"{numbers['kl']:.4f}",
            "" if part is None else f"{part:+.0%}",
            f"{numbers['same']:.1%}",
            f"{result.cpu_seconds:.2f}",
        )
        last = result.scheme
    return grid


def as_json(
    results: Sequence[Result], subjects: Sequence[Subject], where: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "environment": dict(where),
        "models": [
            {"name": s.name, "tokens": s.windows[:, 1:].numel(), **measured(s.base)} for s in subjects
        ],
        "results": [
            {
                "model": result.model,
                "scheme": result.scheme,
                "algorithm": result.algorithm,
                "bits_per_weight": result.bits_per_weight,
                "cpu_seconds": result.cpu_seconds,
                **measured(result.evaluation),
                "closed": closed(result, results),
            }
            for result in results
        ],
    }
