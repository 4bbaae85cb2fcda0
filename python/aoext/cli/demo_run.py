"""The measurements of `aoext demo`: one trained model, quantised in every way that aoext knows."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from aoext.cli.devices import Device
from aoext.configs import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    QuantizationConfig,
)
from aoext.quantize import quantize_
from aoext.tiny_lm import TinyLM, bits_per_byte, held_out_text, load_tiny_lm

BASELINE = "bf16"

# In the order of tables and charts. None: as the model was trained.
SCHEMES: dict[str, QuantizationConfig | None] = {
    BASELINE: None,
    "int8 weight-only": Int8WeightOnlyConfig(),
    "int8 dynamic": Int8DynamicActivationInt8WeightConfig(),
    "float8 weight-only": Float8WeightOnlyConfig(),
    "float8 dynamic": Float8DynamicActivationFloat8WeightConfig(),
    "int4 group 128": Int4WeightOnlyConfig(group_size=128),
    "int4 group 32": Int4WeightOnlyConfig(group_size=32),
}

# Windows are evenly spread over so many times their own length, to meet many files.
SPREAD = 8

# Speed is measured on held-out text: a prefill of all positions, and steps behind a short prompt.
DECODE_PROMPT, DECODE_STEPS = 128, 48
MIN_ROUNDS = 5


@dataclass(frozen=True)
class Settings:
    """What to measure and how."""

    device: Device
    windows: int  # of held-out text, each as long as the model's context; fewer if there are fewer
    prompt: str
    new_tokens: int
    temperature: float
    seed: int  # of the draws at a temperature above 0
    seconds: float  # for the speed of all schemes together

    @property
    def prompt_bytes(self) -> bytes:
        """The prompt as the model reads it; bytes of a command line that are no text stay as they are."""
        return self.prompt.encode(errors="surrogateescape")


@dataclass
class SchemeResult:
    """What was measured for one scheme."""

    name: str
    config: str | None
    weight_bytes: int = 0  # of the linear layers' weights with their scales
    model_bytes: int = 0  # of all parameters and buffers
    bits_per_weight: float = 0.0
    bits_per_byte: float = 0.0  # on held-out text
    continuation: bytes = b""
    prefill_tokens: int = 0
    prefill_seconds: float = math.inf
    # The fastest run of every step; their sum is the time of the decode.
    step_seconds: list[float] = field(default_factory=list)

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.prefill_tokens / self.prefill_seconds

    @property
    def decode_tokens_per_s(self) -> float:
        return len(self.step_seconds) / sum(self.step_seconds)


@dataclass
class DemoResult:
    """What was measured, and on which model."""

    settings: Settings
    parameters: int
    windows: int  # that were evaluated
    window: int  # bytes of one
    schemes: list[SchemeResult]
    rounds: int = 0  # of the speed measurement

    @property
    def baseline(self) -> SchemeResult:
        return next(scheme for scheme in self.schemes if scheme.name == BASELINE)


# Gives back the items of some work, one by one, and shows how far it is: (what, items) -> items.
Progress = Callable[[str, Iterable[str]], Iterable[str]]


@torch.inference_mode()
def run(settings: Settings, progress: Progress) -> DemoResult:
    """Quantise copies of the model, and measure size, quality, text and speed of each."""
    original = load_tiny_lm(device=settings.device.device)
    window = original.config.context
    text = held_out_text(SPREAD * settings.windows * window + 1)
    windows = min(settings.windows, (len(text) - 1) // window)
    parameters = sum(parameter.numel() for parameter in original.parameters())
    result = DemoResult(settings, parameters, windows, window, [])
    models: dict[str, TinyLM] = {}
    for name in progress("quantise and evaluate", SCHEMES):
        models[name], scheme = _quantized(original, name)
        scheme.bits_per_byte = bits_per_byte(models[name], text, window, windows)
        scheme.continuation = _continue(models[name], settings)
        result.schemes.append(scheme)
    _measure_speed(result, models, text, progress)
    return result


def _quantized(original: TinyLM, name: str) -> tuple[TinyLM, SchemeResult]:
    """A copy of the model in this scheme, and its sizes."""
    model, config = copy.deepcopy(original), SCHEMES[name]
    if config is not None:
        summary = quantize_(model, config)
        sizes = summary.bytes_after, summary.model_bytes_after, summary.bits_per_weight
        return model, SchemeResult(name, str(config), *sizes)
    linears = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    weight_bytes = sum(weight.nbytes for weight in linears)
    model_bytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    bits = 8 * weight_bytes / sum(weight.numel() for weight in linears)
    return model, SchemeResult(name, None, weight_bytes, model_bytes, bits)


def _continue(model: TinyLM, settings: Settings) -> bytes:
    generator = torch.Generator(settings.device.device).manual_seed(settings.seed)
    return model.generate(settings.prompt_bytes, settings.new_tokens, settings.temperature, generator)


def _measure_speed(result: DemoResult, models: dict[str, TinyLM], text: bytes, progress: Progress) -> None:
    """Fill in the times: schemes take turns until the time is up, and the fastest of each counts."""
    device = result.settings.device
    tokens = torch.tensor([list(text[: result.window])], device=device.device)
    for scheme in result.schemes:  # the first round warms up and is dropped
        _time_round(scheme, models[scheme.name], tokens, device)
        scheme.prefill_seconds, scheme.step_seconds = math.inf, []
    end = time.monotonic() + result.settings.seconds
    for _ in progress(f"speed of all schemes in turn, {result.settings.seconds:g} s", _rounds(end)):
        for scheme in result.schemes:
            _time_round(scheme, models[scheme.name], tokens, device)
        result.rounds += 1


def _rounds(end: float) -> Iterable[str]:
    """Rounds, all without a name, until `end` on the monotonic clock; at least MIN_ROUNDS."""
    count = 0
    while count < MIN_ROUNDS or time.monotonic() < end:
        count += 1
        yield ""


def _time_round(scheme: SchemeResult, model: TinyLM, tokens: Tensor, device: Device) -> None:
    """One prefill of `tokens` [1, T] and one decode behind its beginning, kept where faster."""
    prefill = device.seconds(partial(model.prefill, tokens))
    scheme.prefill_tokens = tokens.shape[1]
    scheme.prefill_seconds = min(scheme.prefill_seconds, prefill)

    _, cache = model.prefill(tokens[:, :DECODE_PROMPT])
    steps = tokens[0, DECODE_PROMPT : DECODE_PROMPT + DECODE_STEPS].split(1)
    times = [device.seconds(partial(model.decode_step, token, cache)) for token in steps]
    before = scheme.step_seconds or times
    scheme.step_seconds = [min(pair) for pair in zip(before, times, strict=True)]
