"""The measurements of `aoext demo`: models quantised in every way that aoext knows.

Quality is that of the trained model that the package ships. It is so small that its calls are mostly
overhead, so speed is measured on a wider one of random weights, which computes as a trained one would.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from aoext.configs import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt4WeightConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    MXDynamicActivationMXWeightConfig,
    MXFP4WeightOnlyConfig,
    NF4WeightOnlyConfig,
    NVFP4WeightOnlyConfig,
    PerBlock,
    QuantizationConfig,
)
from aoext.quantize import quantize_
from aoext_bench.busy import Load, Observer
from aoext_bench.devices import CPU, Device
from aoext_bench.tiny_lm import TinyLM, TinyLMConfig, held_out_text, load_tiny_lm, window_bits

# What is not quantised. float32 is measured where a device multiplies it faster than bf16.
PLAIN = {"float32": torch.float32, "bf16": torch.bfloat16}
TRAINED = "bf16"  # what quality is held against: the weights as they were trained

# In the order of tables and charts.
SCHEMES: dict[str, QuantizationConfig] = {
    "int8 weight-only": Int8WeightOnlyConfig(),
    "int8 dynamic": Int8DynamicActivationInt8WeightConfig(),
    "float8 weight-only": Float8WeightOnlyConfig(),
    "float8 dynamic": Float8DynamicActivationFloat8WeightConfig(),
    "int4 group 128": Int4WeightOnlyConfig(group_size=128),
    "int4 group 32": Int4WeightOnlyConfig(group_size=32),
    "int4 under int8": Int8DynamicActivationInt4WeightConfig(group_size=32),
    "float8 block": Float8DynamicActivationFloat8WeightConfig(
        granularity=(PerBlock([1, 128]), PerBlock([128, 128]))
    ),
    "mxfp8": MXDynamicActivationMXWeightConfig(),
    "mxfp4": MXFP4WeightOnlyConfig(),
    "nvfp4": NVFP4WeightOnlyConfig(),
    "nf4": NF4WeightOnlyConfig(),
}

HELD_OUT = 1 << 30  # more bytes than there are

# Three layers of a model of a billion parameters (TinyLlama has 22 of these): together too large for most
# caches, as a whole model is, and a step computes far longer than its calls take.
WIDE = TinyLMConfig(dim=2048, hidden=5632, layers=3, heads=16)

# Speed is measured on a prefill of so many tokens, and on steps behind a short prompt.
PREFILL, DECODE_PROMPT, DECODE_STEPS = 512, 32, 24
MIN_ROUNDS = 3


@dataclass(frozen=True)
class Settings:
    """What to measure and how."""

    device: Device
    windows: int  # of held-out text, each as long as the model's context; fewer if there are fewer
    prompt: str
    new_tokens: int
    temperature: float
    seed: int  # of the draws at a temperature above 0, and of the wide model's weights
    seconds: float  # for the speed of all schemes together

    @property
    def prompt_bytes(self) -> bytes:
        """The prompt as the model reads it; bytes of a command line that are no text stay as they are."""
        return self.prompt.encode(errors="surrogateescape")


@dataclass
class Size:
    """Bytes of one model in one scheme."""

    weight_bytes: int  # of the linear layers' weights with their scales
    model_bytes: int  # of all parameters and buffers
    bits_per_weight: float


@dataclass
class SchemeResult:
    """What was measured for one scheme."""

    name: str
    config: str | None
    size: Size  # of the trained model
    window_bits: list[float]  # bits for a byte of each window of held-out text
    continuation: bytes
    wide: Size = field(default_factory=lambda: Size(0, 0, 0.0))  # of the wide model; set with its speed
    prefill_seconds: float = math.inf
    # The fastest run of every step; their sum is the time of the decode.
    step_seconds: list[float] = field(default_factory=list)

    @property
    def bits_per_byte(self) -> float:
        return statistics.fmean(self.window_bits)

    @property
    def prefill_tokens_per_s(self) -> float:
        return PREFILL / self.prefill_seconds

    @property
    def decode_tokens_per_s(self) -> float:
        return len(self.step_seconds) / sum(self.step_seconds)

    def change_from(self, base: SchemeResult) -> tuple[float, float]:
        """By how much its bits differ from those of `base`, as a part of them, and the standard error.

        That is the error of the mean of differences, window by window: hard windows are hard for both.
        """
        pairs = zip(self.window_bits, base.window_bits, strict=True)
        differences = [(own - other) / base.bits_per_byte for own, other in pairs]
        count = len(differences)
        error = statistics.stdev(differences) / math.sqrt(count) if count > 1 else 0.0
        return statistics.fmean(differences), error


@dataclass
class DemoResult:
    """What was measured, and on which models."""

    settings: Settings
    parameters: int  # of the trained model
    windows: int  # that were evaluated
    window: int  # bytes of one
    schemes: list[SchemeResult]
    wide_parameters: int = 0
    rounds: int = 0  # of the speed measurement
    load: Load = field(default_factory=lambda: Load(0))  # what it saw of other work on this machine

    @property
    def trained(self) -> SchemeResult:
        """The weights as they were trained."""
        return next(scheme for scheme in self.schemes if scheme.name == TRAINED)

    def plain(self) -> list[SchemeResult]:
        return [scheme for scheme in self.schemes if scheme.name in PLAIN]

    @property
    def prefill_base(self) -> SchemeResult:
        """What quantised schemes are held against: the fastest that is not quantised."""
        return min(self.plain(), key=lambda scheme: scheme.prefill_seconds)

    @property
    def decode_base(self) -> SchemeResult:
        return min(self.plain(), key=lambda scheme: sum(scheme.step_seconds))


# Gives back the items of some work, one by one, and shows how far it is: (what, items) -> items.
Progress = Callable[[str, Iterable[str]], Iterable[str]]


@torch.inference_mode()
def run(settings: Settings, progress: Progress) -> DemoResult:
    """Quantise copies of both models in every scheme, and measure size, quality, text and speed."""
    original = load_tiny_lm(device=settings.device.device)
    window = original.config.context
    text = held_out_text(HELD_OUT)
    names = [name for name in PLAIN if name == TRAINED or float32_is_faster(settings.device)]
    result = DemoResult(settings, _parameters(original), 0, window, [])
    for name in progress("quality of the trained model", [*names, *SCHEMES]):
        model, size = _in_scheme(original, name)
        bits = window_bits(model, text, window, settings.windows)
        config = str(SCHEMES[name]) if name in SCHEMES else None
        result.schemes.append(SchemeResult(name, config, size, bits, _continue(model, settings)))
    result.windows = len(result.trained.window_bits)
    _measure_speed(result, progress)
    return result


def float32_is_faster(device: Device) -> bool:
    """Whether this is a CPU that multiplies float32 faster than bf16: one without instructions for bf16."""
    if not isinstance(device, CPU):
        return False
    generator = torch.Generator().manual_seed(0)
    seconds = {}
    for dtype in PLAIN.values():
        input, weight = (torch.randn(n, 1024, generator=generator).to(dtype) for n in (256, 1024))
        call = partial(torch.nn.functional.linear, input, weight)
        seconds[dtype] = min(device.seconds(call) for _ in range(5))
    return seconds[torch.float32] < seconds[torch.bfloat16]


def wide_model(settings: Settings) -> TinyLM:
    """A model of the sizes WIDE, of random weights."""
    device = settings.device.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = TinyLM(WIDE)
    return model.to(device, torch.bfloat16).eval()


def _parameters(model: TinyLM) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _in_scheme(original: TinyLM, name: str) -> tuple[TinyLM, Size]:
    """A copy of the model in this scheme, and its sizes."""
    model = copy.deepcopy(original)
    if name in SCHEMES:
        summary = quantize_(model, SCHEMES[name])
        return model, Size(summary.bytes_after, summary.model_bytes_after, summary.bits_per_weight)
    model.to(PLAIN[name])
    linears = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    weight_bytes = sum(weight.nbytes for weight in linears)
    model_bytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    return model, Size(
        weight_bytes, model_bytes, 8 * weight_bytes / sum(weight.numel() for weight in linears)
    )


def _continue(model: TinyLM, settings: Settings) -> bytes:
    generator = torch.Generator(settings.device.device).manual_seed(settings.seed)
    return model.generate(settings.prompt_bytes, settings.new_tokens, settings.temperature, generator)


def _measure_speed(result: DemoResult, progress: Progress) -> None:
    """Fill in the times: schemes take turns until the time is up, and the fastest of each counts."""
    settings, models = result.settings, {}
    original = wide_model(settings)
    result.wide_parameters = _parameters(original)
    generator = torch.Generator().manual_seed(settings.seed)
    tokens = torch.randint(256, (1, PREFILL), generator=generator).to(settings.device.device)
    by_name = {scheme.name: scheme for scheme in result.schemes}
    for name in progress("quantise the wide model", by_name):
        scheme = by_name[name]
        models[name], scheme.wide = _in_scheme(original, name)
        _time_round(scheme, models[name], tokens, settings.device, steps=1)  # it warms up and is dropped
        scheme.prefill_seconds, scheme.step_seconds = math.inf, []
    del original
    observer = Observer([torch.get_num_threads()], settings.device.watch)
    end = time.monotonic() + settings.seconds
    for _ in progress(f"speed of all schemes in turn, {settings.seconds:g} s", _rounds(end)):
        for scheme in result.schemes:
            _time_round(scheme, models[scheme.name], tokens, settings.device)
        result.rounds += 1
    result.load = observer.verdict()


def _rounds(end: float) -> Iterable[str]:
    """Rounds, all without a name, until `end` on the monotonic clock; at least MIN_ROUNDS."""
    count = 0
    while count < MIN_ROUNDS or time.monotonic() < end:
        count += 1
        yield ""


def _time_round(
    scheme: SchemeResult, model: TinyLM, tokens: Tensor, device: Device, steps: int = DECODE_STEPS
) -> None:
    """One prefill of `tokens` [1, T] and one decode behind its beginning, kept where faster."""
    prefill = device.seconds(partial(model.prefill, tokens))
    scheme.prefill_seconds = min(scheme.prefill_seconds, prefill)

    _, cache = model.prefill(tokens[:, :DECODE_PROMPT])
    following = tokens[0, DECODE_PROMPT : DECODE_PROMPT + steps].split(1)
    times = [device.seconds(partial(model.decode_step, token, cache)) for token in following]
    before = scheme.step_seconds or times
    scheme.step_seconds = [min(pair) for pair in zip(before, times, strict=True)]
