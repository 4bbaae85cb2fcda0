"""A whole model, as transformers runs it: tokens a second by scheme, eager and compiled.

    python benchmarks/whole_model.py --device cuda --size 8b --scheme bf16 --scheme int4 --scheme ao_int4
    python benchmarks/whole_model.py --size small --threads 2
    python benchmarks/whole_model.py --size experts-small --threads 2

It is Llama, or Qwen3-MoE for sizes with experts; weights are random. Every scheme quantises the same
linear layers; "ao_…" are torchao's of the same name, which leave experts as they are, and the peers that
ratios stand against. Eager steps run under inference_mode, no_grad and with gradients enabled, compiled
ones by torch.compile with a static cache (mode="reduce-overhead" on a GPU), under no_grad.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch
import torch._inductor.config
from rich.table import Table

import aoext
from aoext.cli.options import JSON_FILE, CountsType
from aoext.cli.page import console, environment, grid, progress_line, summary_line, write_json
from aoext_bench import bench_view
from aoext_bench.bench import DTYPES
from aoext_bench.busy import Load, Observer
from aoext_bench.devices import Device, cpu_threads
from aoext_bench.options import MeasuredDeviceType
from llama_models import SIZES
from schemes import BASES, MODES, SCHEMES
from whole_model_run import BESIDE, CHUNKS, COMPILED, Budget, Key, Measured, Options, Result, measure

SCHEMA = "aoext.whole_model/1"
# What quantised models with activations of a dtype are held against.
BASE_OF = {torch.bfloat16: "bf16", torch.float16: "bf16", torch.float32: "float32"}


def seconds(measured: Measured, device: Device) -> float:
    """How long one step takes."""
    return device.typical(measured.samples)


def ratios(results: Sequence[Result], result: Result, key: Key, device: Device) -> dict[str, float]:
    """How many times as fast as the models that are not quantised, and as torchao's, a scheme is."""
    by_name = {other.scheme.name: other for other in results}
    against = [
        name for name in (*BASES, result.scheme.peer) if name in by_name and name != result.scheme.name
    ]
    own = result.measured[key]
    return {
        name: seconds(by_name[name].measured[key], device) / seconds(own, device)
        for name in against
        if key in by_name[name].measured
    }


def table(results: Sequence[Result], device: Device, dtype: torch.dtype = torch.bfloat16) -> Table:
    """Speeds: a line for each scheme and batch of decoding, and for each prefill."""
    view = grid()
    named = [r.scheme.name for r in results]
    # That of the activations' dtype, where it was asked for; the JSON has both.
    bases = [name for name in (BASE_OF[dtype], *BASES) if name in named][:1]
    for header in ("scheme", "GB", ""):
        view.add_column(header, justify="right" if header == "GB" else "left", no_wrap=True)
    against = [f"× {base}" for base in bases] + ["× ao"]
    headers = ["inference\ntokens/s", "no_grad\neager", "grad\neager", "compiled\ntokens/s"]
    headers += [f"{way}\n{name}" for way in ("eager", "compiled") for name in against]
    for header in (*headers, "peak\nGB"):
        view.add_column(header, justify="right", no_wrap=True)
    for result, name, kind, batch in _lines(results):
        of = {mode: result.measured.get(Key(kind, batch, mode)) for mode in (*MODES, COMPILED)}
        cells = [_rate(m, device) for m in of.values()]
        for mode in ("no_grad", COMPILED):
            found = ratios(results, result, Key(kind, batch, mode), device) if of[mode] else {}
            cells += [_number(found.get(other or ""), "×") for other in (*bases, result.scheme.peer)]
        peaks = [m.peak_bytes for m in of.values() if m and m.peak_bytes]
        view.add_row(*name, f"{kind} {batch}", *cells, f"{max(peaks) / 1e9:.2f}" if peaks else "–")
    return view


def details(results: Sequence[Result], device: Device) -> Table:
    """Where the time of a step goes on a GPU, in ms: all of it, the GPU's busy time, the host's; kernels."""
    view = grid("ms of a step: in all, GPU busy, host; kernels and the share of the busy time in ours")
    for header in ("scheme", ""):
        view.add_column(header, no_wrap=True)
    for way in ("eager", "compiled"):
        for header in (way, "busy", "host", "kernels", "ours"):
            view.add_column(header, justify="right", no_wrap=True)
    for result, name, kind, batch in _lines(results):
        cells = []
        for mode in ("no_grad", COMPILED):
            m = result.measured.get(Key(kind, batch, mode))
            cells += [
                _number(seconds(m, device) * 1e3 if m else None),
                *(
                    _milliseconds(value)
                    for value in ((m.busy_seconds, m.host_seconds) if m else (None, None))
                ),
                "–" if m is None or m.kernels is None else f"{m.kernels:.0f}",
                "–" if m is None or m.ours is None else f"{m.ours:.0%}",
            ]
        view.add_row(name[0], f"{kind} {batch}", *cells)
    return view


def _lines(results: Sequence[Result]) -> Iterator[tuple[Result, tuple[str, str], str, int]]:
    """What has a line in a table: the result, its name and gigabytes where they are new, kind and batch."""
    for result in results:
        name = (result.scheme.name, f"{result.weight_bytes / 1e9:.2f}")
        for kind, batch in dict.fromkeys((key.kind, key.batch) for key in sorted(result.measured)):
            yield result, name, kind, batch
            name = ("", "")


def _rate(m: Measured | None, device: Device) -> str:
    if m is None:
        return "–"
    rate = m.tokens / seconds(m, device)
    return f"{rate:,.{1 if rate < 1000 else 0}f}"


def _milliseconds(value: float | None) -> str:
    return _number(None if value is None else value * 1e3)


def _number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:.2f}{unit}"


def as_json(
    results: Sequence[Result], device: Device, settings: dict[str, Any], where: dict[str, Any], load: Load
) -> dict[str, Any]:
    """The content of the JSON file.

    schema       "aoext.whole_model/1"
    environment  versions, machine and device (report.environment), transformers, torchao
    busy         whether other work took the cores, so that no figure is valid; load has what was seen
    settings     the options, the model's sizes
    results      a list: name, peer, weight_bytes, quantise_seconds, skipped ({what: why}), and measured, a
                 list: kind ("decode" or "prefill"), batch, mode, tokens of a step, samples (seconds of a
                 step), seconds (the one that counts), tokens_per_s, speedup ({scheme: times as fast}),
                 compile_seconds, peak_bytes, and on a GPU host_seconds, busy_seconds, kernels, ours (share
                 of the busy time in our kernels), longest ({kernel: share})
    """

    def entry(result: Result, key: Key, m: Measured) -> dict[str, Any]:
        own = seconds(m, device)
        more = {
            "seconds": own,
            "tokens_per_s": m.tokens / own,
            "speedup": ratios(results, result, key, device),
        }
        return key._asdict() | asdict(m) | more

    return {
        "schema": SCHEMA,
        "environment": where,
        "busy": load.busy,
        "load": load.as_json(),
        "settings": settings,
        "results": [
            {
                "name": result.scheme.name,
                "peer": result.scheme.peer,
                "weight_bytes": result.weight_bytes,
                "quantise_seconds": result.quantise_seconds,
                "skipped": result.skipped,
                "measured": [entry(result, key, m) for key, m in result.measured.items()],
            }
            for result in results
        ],
    }


def _versions(where: dict[str, Any]) -> dict[str, Any]:
    """With those of the packages that are measured here."""
    from importlib import metadata

    for package in ("transformers", "torchao"):
        try:
            where[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            where[package] = None
    return where


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--device", type=MeasuredDeviceType(), default="cpu", show_default=True)
@click.option("--size", type=click.Choice(list(SIZES)), help="Default: small, on cuda 8b-16-layers.")
@click.option(
    "--scheme",
    "schemes",
    type=click.Choice(list(SCHEMES)),
    multiple=True,
    help="Can be repeated. Default: all that the device runs, on cuda without float32.",
)
@click.option("--batch", "batches", type=CountsType(), default="1,8,32", show_default=True)
@click.option(
    "--dtype",
    type=click.Choice(list(DTYPES)),
    default="bfloat16",
    show_default=True,
    help="Activations of the quantised models.",
)
@click.option("--compile/--no-compile", default=True, show_default=True)
@click.option("--passes/--no-passes", default=True, show_default=True, help="aoext's own, of Inductor.")
@click.option("--merge", is_flag=True, help="Merge int4 linears of one input, their weights frozen.")
@click.option("--prompt", type=click.IntRange(min=1), default=64, show_default=True, help="Before decoding.")
@click.option(
    "--context",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="Tokens that the cache holds.",
)
@click.option("--prefill", type=click.IntRange(min=0), default=512, show_default=True, help="0: none.")
@click.option("--prefill-batch", "prefill_batches", type=CountsType(), default="1,8", show_default=True)
@click.option(
    "--steps", type=click.IntRange(min=1), default=16, show_default=True, help="Steps a chunk, at most."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="For the steps of one measurement.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="How often all schemes come in turn. Default: 1; on cpu 2, as other work comes and goes.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=9.0,
    show_default=True,
    help="What there is no time for is left out, and named.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the CPU. Default: torch's choice.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "json_path", type=JSON_FILE, default="out/whole_model.json", show_default=True)
def main(
    device: Device,
    size: str | None,
    schemes: tuple[str, ...],
    dtype: str,
    passes: bool,
    merge: bool,
    rounds: int | None,
    minutes: float,
    threads: int | None,
    json_path: Path,
    **others: Any,
) -> None:
    cuda = device.device.type == "cuda"
    options = Options(size=size or ("8b-16-layers" if cuda else "small"), dtype=DTYPES[dtype], **others)
    if options.prompt + BESIDE + CHUNKS * options.steps > options.context:
        raise click.UsageError("--context must hold the prompt and all steps behind it")
    rounds = rounds or (1 if cuda else 2)
    schemes = schemes or tuple(
        scheme.name
        for scheme in SCHEMES.values()
        if not scheme.what_prevents(device.device) and not (cuda and scheme.name == "float32")
    )
    results = [Result(SCHEMES[name]) for name in schemes]
    for result in results:
        if why := result.scheme.what_prevents(device.device):
            result.skipped["everything"] = why
    settings = {
        **{name: value for name, value in asdict(options).items() if name != "dtype"},
        "dtype": dtype,
        "passes": passes,
        "merge": merge,
        "rounds": rounds,
        "minutes": minutes,
        "model": SIZES[options.size],
        "statistic": device.STATISTIC,
    }
    with (
        cpu_threads(threads or torch.get_num_threads()),
        aoext.inductor.patch(enabled=passes, merge_linears=merge),
        torch._inductor.config.patch(freezing=merge),
    ):
        out, where = console(), _versions(environment(device.device))
        out.print(summary_line(where))
        out.print(f"transformers {where['transformers']}, torchao {where['torchao']}; model {options.size}")
        observer = Observer([torch.get_num_threads()], device.watch)
        if (early := observer.before()).busy:
            out.print(bench_view.busy(early))
        budget = Budget(60 * minutes)
        for _ in range(rounds):
            for result in results:
                if "everything" not in result.skipped:
                    measure(result, device, options, budget, progress_line)
                # Compilers work in processes of their own: on a CPU those are no others.
                load = observer.verdict(by_cores=cuda)
                write_json(json_path, as_json(results, device, settings, where, load))
    for result in results:
        for what, why in result.skipped.items():
            out.print(f"left out: {result.scheme.name}, {what}: {why}")
    out.print(f"JSON   {json_path}")
    if cuda:
        out.print(details(results, device))
    if load.busy:
        out.print(bench_view.busy(load))
    out.print(table(results, device, options.dtype))


if __name__ == "__main__":
    main()
