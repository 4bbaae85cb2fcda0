"""What `aoext quality` measures: a model in each scheme, quantised by each algorithm."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

import aoext
from aoext.cli.page import progress_line
from aoext.configs import QuantizationConfig
from aoext.configs.schemes import as_config
from aoext.models.summary import QuantizationSummary
from aoext.quality.evaluate import Evaluation
from aoext_bench.quality_models import Subject

# In the order of tables: what is meant by a name of `aoext convert --scheme`, with groups.
SCHEMES: dict[str, QuantizationConfig] = {
    "int8": as_config("quality", "int8"),
    "int8 dynamic": as_config("quality", "int8_dynamic"),
    "float8": as_config("quality", "float8"),
    "mxfp8": as_config("quality", "mxfp8"),
    "int6, groups of 64": as_config("quality", {"scheme": "int6", "group_size": 64}),
    "int5, groups of 64": as_config("quality", {"scheme": "int5", "group_size": 64}),
    "int4, groups of 32": as_config("quality", {"scheme": "int4", "group_size": 32}),
    "int4, groups of 64": as_config("quality", {"scheme": "int4", "group_size": 64}),
    "int4, auto": as_config("quality", "int4"),
    "int4 under int8": as_config("quality", {"scheme": "int4_int8", "group_size": 32}),
    "nvfp4": as_config("quality", "nvfp4"),
    "mxfp4": as_config("quality", "mxfp4"),
    "nf4": as_config("quality", "nf4"),
    "int3, groups of 64": as_config("quality", {"scheme": "int3", "group_size": 64}),
    "int2, groups of 32": as_config("quality", {"scheme": "int2", "group_size": 32}),
}

Algorithm = Callable[[nn.Module, QuantizationConfig, Subject], QuantizationSummary]


def _without_data(
    model: nn.Module, config: QuantizationConfig, subject: Subject, *, algorithm: str
) -> QuantizationSummary:
    return aoext.quantize_(model, config, algorithm=algorithm)


def _with_data(
    model: nn.Module, config: QuantizationConfig, subject: Subject, *, algorithm: str
) -> QuantizationSummary:
    data = subject.data()
    return aoext.calibrate(model, data, config, algorithm=algorithm, samples=len(data), batch_size=1)


def _with_random_tokens(
    model: nn.Module, config: QuantizationConfig, subject: Subject, *, algorithm: str
) -> QuantizationSummary:
    """As much as there is of data, of another kind."""
    data = subject.data()
    return aoext.calibrate(
        model, None, config, algorithm=algorithm, samples=len(data), length=data[0].shape[-1], batch_size=1
    )


# What each does to a model; ValueError where it does not serve a scheme.
ALGORITHMS: dict[str, Algorithm] = {
    **{name: partial(_without_data, algorithm=name) for name in ("rounding", "search", "hqq")},
    "search, random tokens": partial(_with_random_tokens, algorithm="search"),
    "search with data": partial(_with_data, algorithm="search"),
    **{
        name: partial(_with_data, algorithm=name) for name in ("gptq", "awq+gptq", "rotate+gptq", "signround")
    },
}


@dataclass
class Result:
    """One model in one scheme by one algorithm."""

    model: str
    scheme: str
    algorithm: str
    bits_per_weight: float
    cpu_seconds: float  # of all threads, for quantising
    evaluation: Evaluation


def run(subject: Subject, schemes: Sequence[str], algorithms: Sequence[str]) -> Iterator[Result]:
    """Every scheme by every algorithm that serves it."""
    for scheme in schemes:
        for algorithm in algorithms:
            model = copy.deepcopy(subject.model)
            begin = time.process_time()
            try:
                summary = ALGORITHMS[algorithm](model, SCHEMES[scheme], subject)
            except ValueError as error:
                progress_line(f"{scheme}, {algorithm}: {error}")
                continue
            spent = time.process_time() - begin
            if summary.layers:
                found = subject.evaluation(model)
                yield Result(subject.name, scheme, algorithm, summary.bits_per_weight, spent, found)
