"""What benchmarks/whole_model.py measures of one model, and how.

Decoding is timed in chunks of steps from one synchronisation to the next, as a program that generates runs
them; of the chunks the device's typical one counts (the median on a GPU, the fastest on a CPU). On a GPU a
few more steps run under the profiler, which tells how long the GPU was busy and with what, and a few alone,
each sent to an idle GPU: what sending takes is the host's time of a step.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from aoext_bench.devices import Device
from llama_models import Decoding, make, prefill
from schemes import MODES, Scheme

COMPILED = "compiled"  # under no_grad
CHUNKS = 4  # of steps, or calls of a prefill
WARM_UP = 4  # steps; CUDA graphs are captured in the second and third
PROFILED, ALONE = 5, 10  # steps
# All steps of one measurement follow each other in the cache: besides the chunks' there are at most these.
BESIDE = 2 + 2 * WARM_UP + PROFILED + ALONE
LISTED = 12  # kernels in the JSON
OURS = "aoext::cuda"  # the namespace of our kernels, as the profiler names them


class Key(NamedTuple):
    """What is measured of a model."""

    kind: str  # "decode" or "prefill"
    batch: int
    mode: str  # one of MODES, or COMPILED

    def __str__(self) -> str:
        return f"{self.kind} of {self.batch}, {self.mode}"


@dataclass
class Measured:
    """A step of decoding, or a prefill; times in seconds."""

    tokens: int  # of one step
    samples: list[float] = field(default_factory=list)
    compile_seconds: float | None = None
    peak_bytes: int | None = None
    # One step's on a GPU; None on a CPU and where it was not looked at.
    host_seconds: float | None = None
    busy_seconds: float | None = None  # the sum of its kernels' times
    kernels: float | None = None
    ours: float | None = None  # the share of the busy time in our kernels
    longest: dict[str, float] = field(default_factory=dict)  # kernels with their shares


@dataclass
class Result:
    """All that was measured of one scheme."""

    scheme: Scheme
    weight_bytes: int = 0  # what a step reads: all parameters but the embedding
    quantise_seconds: float = 0.0  # with the making of the model
    measured: dict[Key, Measured] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # what was not measured, and why


class Budget:
    """The time that a run may take. What comes again is expected to take as long as it did before."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.end = clock, clock() + seconds
        self.known: dict[Any, float] = {}

    def left(self) -> float:
        return self.end - self.clock()

    def allows(self, what: Any, at_least: float = 0.0) -> bool:
        """Whether there is time for it, and for so many seconds."""
        return self.left() > max(self.known.get(what, 0.0), at_least)

    @contextlib.contextmanager
    def spending(self, what: Any) -> Iterator[None]:
        begin = self.clock()
        yield
        self.known[what] = self.clock() - begin


@dataclass(frozen=True)
class Options:
    """How to measure."""

    size: str
    dtype: torch.dtype
    batches: tuple[int, ...]
    prompt: int  # tokens before the first step
    context: int  # positions of the static cache
    steps: int  # of a chunk, at most
    seconds: float  # for the chunks of one measurement
    prefill: int  # tokens; 0: none
    prefill_batches: tuple[int, ...]
    compile: bool
    seed: int

    def wanted(self) -> list[Key]:
        """In the order in which they are measured: what matters most comes first."""
        keys = []
        for i in range(max(len(self.batches), len(self.prefill_batches))):
            for batch in self.batches[i : i + 1]:
                keys += [Key("decode", batch, mode) for mode in MODES]
                keys += [Key("decode", batch, COMPILED)] * self.compile
            if self.prefill:
                keys += [Key("prefill", batch, "no_grad") for batch in self.prefill_batches[i : i + 1]]
        return keys


def measure(
    result: Result, device: Device, options: Options, budget: Budget, say: Callable[[str], None]
) -> None:
    """One round: make the model and take samples of everything that there is time for."""
    name = result.scheme.name
    if not budget.allows("making"):
        result.skipped.setdefault("everything", "the time is up")
        return
    say(f"{name}: {budget.left():.0f} s left")
    begin = time.perf_counter()
    try:
        with budget.spending("making"):
            model = make(options.size, result.scheme, device.device, options.dtype, options.seed)
            _synchronise(device)
    except Exception as error:  # torchao and PyTorch raise all kinds
        result.skipped["everything"] = _brief(error)
        return
    result.quantise_seconds = time.perf_counter() - begin
    result.weight_bytes = sum(
        getattr(parameter, "stored_bytes", None) or _bytes(parameter)
        for parameter_name, parameter in model.named_parameters()
        if "embed_tokens" not in parameter_name or model.config.tie_word_embeddings  # it is the head, too
    )
    for key in options.wanted():
        # A prefill of more sequences takes so many times as long.
        first = budget.known.get(("first call", "prefill", name), 0.0) * key.batch * (CHUNKS + 1)
        if not budget.allows(key, first if key.kind == "prefill" else 0.0):
            result.skipped.setdefault(str(key), "the time is up")
            continue
        _release(device)
        try:
            with budget.spending(key):
                _measure_one(model, key, result, device, options, budget)
        except Exception as error:
            result.skipped[str(key)] = _brief(error)
        else:
            result.skipped.pop(str(key), None)
    del model
    _release(device)


def _measure_one(
    model: nn.Module, key: Key, result: Result, device: Device, options: Options, budget: Budget
) -> None:
    tokens = key.batch * (options.prefill if key.kind == "prefill" else 1)
    measured = result.measured.get(key) or Measured(tokens)
    context = MODES["no_grad" if key.mode == COMPILED else key.mode]
    peak = Peak(device)
    with context():
        if key.kind == "prefill":
            call, limit = prefill(model, key.batch, options.prefill), 1
        else:
            decoding = Decoding(model, key.batch, options.prompt, options.context)
            step = decoding.step
            limit = options.steps
            if key.mode == COMPILED:
                cuda = device.device.type == "cuda"
                step = torch.compile(decoding.step, mode="reduce-overhead" if cuda else None)
                begin = time.perf_counter()
                for _ in range(WARM_UP):
                    decoding.advance(step)
                _synchronise(device)
                measured.compile_seconds = time.perf_counter() - begin

            def call() -> None:
                decoding.advance(step)

        timed = _Steps(call, device)
        first = timed.seconds(1)
        if key.kind == "prefill":
            budget.known["first call", "prefill", result.scheme.name] = first / key.batch
        else:
            timed.seconds(WARM_UP)
        one = timed.seconds(1)
        count = max(1, min(limit, int(options.seconds / CHUNKS / one)))
        samples: list[float] = []
        while len(samples) < CHUNKS and (not samples or budget.left() > count * one):
            samples.append(timed.seconds(count) / count)
        if device.device.type == "cuda":
            measured.host_seconds = timed.host_seconds()
            if key.mode in (COMPILED, "no_grad"):
                _profile(measured, timed)
    measured.samples += samples
    measured.peak_bytes = peak.bytes()
    result.measured[key] = measured


class _Steps:
    """Runs steps of one kind."""

    def __init__(self, call: Callable[[], Any], device: Device) -> None:
        self.call, self.device = call, device

    def seconds(self, count: int) -> float:
        """From an idle device to the end of so many steps."""
        _synchronise(self.device)
        if self.device.watch:
            return self.device.watch.seconds(lambda: self.run(count))
        begin = time.perf_counter()
        self.run(count)
        _synchronise(self.device)
        return time.perf_counter() - begin

    def run(self, count: int) -> None:
        for _ in range(count):
            self.call()

    def host_seconds(self) -> float:
        """What sending one step to an idle GPU takes the host; longer only where a step waits for it."""
        times = []
        for _ in range(ALONE):
            _synchronise(self.device)
            begin = time.perf_counter()
            self.call()
            times.append(time.perf_counter() - begin)
        _synchronise(self.device)
        return statistics.median(times)


def _profile(measured: Measured, timed: _Steps) -> None:
    """How long the GPU is busy in a step, and with what."""
    from torch.profiler import ProfilerActivity, profile

    _synchronise(timed.device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        timed.run(PROFILED)
        _synchronise(timed.device)
    times: dict[str, float] = {}
    count = 0
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] = times.get(event.name, 0.0) + event.time_range.elapsed_us() / 1e6
            count += 1
    total = sum(times.values())
    if total:
        measured.busy_seconds, measured.kernels = total / PROFILED, count / PROFILED
        measured.ours = sum(seconds for name, seconds in times.items() if OURS in name) / total
        most = sorted(times, key=times.__getitem__, reverse=True)[:LISTED]
        measured.longest = {name: times[name] / total for name in most}


class Peak:
    """The most memory in use since its making: PyTorch's on a GPU, the process's on Linux."""

    def __init__(self, device: Device) -> None:
        self.cuda = device.device if device.device.type == "cuda" else None
        self.known = True
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.cuda)
        else:
            try:
                Path("/proc/self/clear_refs").write_text("5")
            except OSError:
                self.known = False  # what the process took before would count

    def bytes(self) -> int | None:
        if self.cuda:
            return torch.cuda.max_memory_allocated(self.cuda)
        if not self.known:
            return None
        lines = Path("/proc/self/status").read_text().splitlines()
        values = [line.split() for line in lines if line.startswith("VmHWM:")]
        return int(values[0][1]) * 1024 if values else None


def _bytes(parameter: torch.Tensor) -> int:
    """The bytes of a weight as it is stored: a tensor subclass of torchao's holds several tensors."""
    names = parameter.__tensor_flatten__()[0] if hasattr(parameter, "__tensor_flatten__") else []
    return sum(_bytes(getattr(parameter, name)) for name in names) or parameter.nbytes


def _synchronise(device: Device) -> None:
    if device.device.type != "cpu":
        torch.accelerator.synchronize(device.device)


def _release(device: Device) -> None:
    """Memory and compiled code of what was measured before."""
    torch._dynamo.reset()
    gc.collect()
    device.release_memory()


def _brief(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
