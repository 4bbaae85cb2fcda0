"""The measurements of `aoext demo`: models quantised in every way that aoext knows, in a given time.

Quality is that of the trained model that the package ships. It is so small that its calls are mostly
overhead, so speed is measured on a wider one of random weights, which computes as a trained one would.
A slow machine evaluates fewer windows, gets a smaller wide model and measures what is slow less often.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable
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
from aoext.models.quantize import quantize_
from aoext_bench.budget import Budget, Clock
from aoext_bench.busy import Load, Observer
from aoext_bench.devices import CPU, Device
from aoext_bench.tiny_lm import TinyLM, TinyLMConfig, held_out_text, load_tiny_lm, predictions, windows_of

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

# Models for speed, the best first. Three layers of a model of a billion parameters (TinyLlama has 22)
# are together too large for most caches, as a whole model is, and a step computes
# far longer than its calls take.
WIDE = (
    TinyLMConfig(dim=2048, hidden=5632, layers=3, heads=16),
    TinyLMConfig(dim=2048, hidden=5632, layers=1, heads=16),
    TinyLMConfig(dim=1024, hidden=2816, layers=2, heads=8),
    TinyLMConfig(dim=512, hidden=1408, layers=2, heads=4),
)
# Speed is measured on a prefill of so many tokens, the first that fits into the time, and on steps behind a
# short prompt.
PREFILL = (512, 256, 128)
DECODE_PROMPT, DECODE_STEPS = 32, 16

# Parts of the time: of all for quality; of what then is left, for what a wide model takes at least.
QUALITY, PREPARATION = 0.35, 0.4
ROUND_OF_WINDOWS = 4


@dataclass(frozen=True)
class Settings:
    """What to measure and how."""

    device: Device
    windows: int  # of held-out text at most, each as long as the model's context
    seed: int  # of the wide model's weights
    seconds: float  # for everything


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
    window_bits: list[float] = field(default_factory=list)  # for a byte of each window of held-out text
    same_byte: list[float] = field(
        default_factory=list
    )  # of each window, where its likeliest byte is TRAINED's
    wide: Size = field(default_factory=lambda: Size(0, 0, 0.0))  # of the wide model; set with its speed
    rounds: int = 0  # of the speed measurement
    prefill_tokens: int = PREFILL[0]
    prefill_seconds: float = math.inf
    # The fastest run of every step; their sum is the time of the decode.
    step_seconds: list[float] = field(default_factory=list)

    @property
    def bits_per_byte(self) -> float:
        return statistics.fmean(self.window_bits)

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.prefill_tokens / self.prefill_seconds

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
    windows: int  # that were evaluated, of all_windows
    all_windows: int
    window: int  # bytes of one
    schemes: list[SchemeResult]
    wide: TinyLMConfig = WIDE[0]
    wide_parameters: int = 0
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


# Says what is being done.
Progress = Callable[[str], None]


@torch.inference_mode()
def run(settings: Settings, progress: Progress, clock: Clock = time.monotonic) -> DemoResult:
    """Quantise copies of both models in every scheme, and measure size, quality and speed."""
    budget = Budget(settings.seconds, clock)
    progress("which numbers this device multiplies fastest")
    original = load_tiny_lm(device=settings.device.device)
    window = original.config.context
    windows = windows_of(held_out_text(HELD_OUT), window, settings.windows)
    rates = multiply_add_rates(settings.device)
    names = measured_plain(settings.device, rates)
    result = DemoResult(settings, _parameters(original), 0, len(windows), window, [])
    models = {}
    for name in [*names, *SCHEMES]:
        progress(f"quantise the trained model: {name}")
        models[name], size = _in_scheme(original, name)
        config = str(SCHEMES[name]) if name in SCHEMES else None
        result.schemes.append(SchemeResult(name, config, size))
    _measure_quality(result, models, windows, budget.part(QUALITY), progress)
    models.clear()
    plain = [rates[PLAIN[name]] for name in names]
    result.wide, tokens = choose_wide(PREPARATION * budget.left, quantisation_seconds(budget), plain)
    _measure_speed(result, tokens, budget, progress)
    return result


def multiply_add_rates(device: Device) -> dict[torch.dtype, float]:
    """Multiply-adds a second of a linear layer that is not quantised."""
    generator = torch.Generator().manual_seed(0)
    rows, features = 128, 1024
    rates = {}
    for dtype in PLAIN.values():
        input, weight = (
            torch.randn(n, features, generator=generator).to(device.device, dtype) for n in (rows, features)
        )
        call = partial(torch.nn.functional.linear, input, weight)
        rates[dtype] = rows * features**2 / min(device.seconds(call) for _ in range(5))
    return rates


def quantisation_seconds(budget: Budget) -> float:
    """For a parameter of a model in bf16, in all schemes, on the CPU, which is the slowest that there is."""
    layer = torch.nn.Linear(1024, 1024, bias=False, dtype=torch.bfloat16)
    begin = budget.spent
    for config in SCHEMES.values():
        quantize_(torch.nn.Sequential(copy.deepcopy(layer)), config)
    return (budget.spent - begin) / layer.weight.numel()


def measured_plain(device: Device, rates: dict[torch.dtype, float]) -> list[str]:
    """TRAINED, and what a CPU multiplies faster: float32 where it has no instructions for bf16."""
    best = rates[PLAIN[TRAINED]]
    return [n for n in PLAIN if n == TRAINED or (isinstance(device, CPU) and rates[PLAIN[n]] > best)]


def choose_wide(seconds: float, quantised: float, rates: list[float]) -> tuple[TinyLMConfig, int]:
    """The model for speed, and the tokens of its prefill: the first of which preparation fits into the time.

    Preparation quantises it in every scheme (`quantised`: seconds a parameter) and computes one prefill in
    each, the plain ones at `rates` multiply-adds a second, the others at the best of these. The least, where
    nothing fits.
    """
    passes = sum(1 / rate for rate in rates) + len(SCHEMES) / max(rates)
    for wide in WIDE:
        parameters = wide.layers * (4 * wide.dim**2 + 3 * wide.dim * wide.hidden)
        for tokens in PREFILL:
            if parameters * (quantised + tokens * passes) <= seconds:
                return wide, tokens
    return WIDE[-1], PREFILL[-1]


def wide_model(settings: Settings, wide: TinyLMConfig) -> TinyLM:
    """A model of these sizes, of random weights."""
    device = settings.device.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = TinyLM(wide)
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


def _measure_quality(
    result: DemoResult, models: dict[str, TinyLM], windows: Tensor, budget: Budget, progress: Progress
) -> None:
    """Fill in the quality: all schemes evaluate some windows, spread over the text, then others."""
    count = math.ceil(len(windows) / ROUND_OF_WINDOWS)
    schemes = sorted(result.schemes, key=lambda scheme: scheme.name != TRAINED)  # it comes first
    for round in budget.rounds(count):
        part = windows[round::count]
        result.windows += len(part)
        for scheme in schemes:
            progress(f"quality, {result.windows} of {len(windows)} windows: {scheme.name}")
            bits, likeliest = predictions(models[scheme.name], part)
            if scheme.name == TRAINED:
                expected = likeliest
            scheme.window_bits += bits
            scheme.same_byte += (likeliest == expected).float().mean(dim=1).tolist()


def _measure_speed(result: DemoResult, prefill: int, budget: Budget, progress: Progress) -> None:
    """Fill in the times: schemes take turns until the time is up, and the fastest of each counts."""
    settings, models = result.settings, {}
    original = wide_model(settings, result.wide)
    result.wide_parameters = _parameters(original)
    generator = torch.Generator().manual_seed(settings.seed)
    tokens = torch.randint(256, (1, prefill), generator=generator).to(settings.device.device)
    by_name = {scheme.name: scheme for scheme in result.schemes}
    for name, scheme in by_name.items():
        progress(f"quantise the wide model: {name}")
        models[name], scheme.wide = _in_scheme(original, name)
        scheme.prefill_tokens = prefill
        _warm_up(models[name], tokens, settings.device)
    del original
    observer = Observer([torch.get_num_threads()], settings.device.watch)
    for name in budget.turns(list(by_name)):
        progress(f"speed, round {by_name[name].rounds + 1}: {name}")
        _time_round(by_name[name], models[name], tokens, settings.device)
    result.load = observer.verdict()


def _warm_up(model: TinyLM, tokens: Tensor, device: Device) -> None:
    """A prefill as short as the prompt's, and a step: what a first call does beside computing."""
    _, cache = model.prefill(tokens[:, :DECODE_PROMPT])
    device.seconds(partial(model.decode_step, tokens[0, DECODE_PROMPT : DECODE_PROMPT + 1], cache))


def _time_round(scheme: SchemeResult, model: TinyLM, tokens: Tensor, device: Device) -> None:
    """One prefill of `tokens` [1, T] and one decode behind its beginning, kept where faster."""
    scheme.rounds += 1
    scheme.prefill_seconds = min(scheme.prefill_seconds, device.seconds(partial(model.prefill, tokens)))

    _, cache = model.prefill(tokens[:, :DECODE_PROMPT])
    following = tokens[0, DECODE_PROMPT : DECODE_PROMPT + DECODE_STEPS].split(1)
    times = [device.seconds(partial(model.decode_step, token, cache)) for token in following]
    before = scheme.step_seconds or times
    scheme.step_seconds = [min(pair) for pair in zip(before, times, strict=True)]
