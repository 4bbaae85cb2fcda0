"""Results of `aoext demo` as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from aoext_bench import demo_run
from aoext_bench.demo_run import PREFILL, SCHEMES, TRAINED, WIDE, DemoResult, SchemeResult


def figures(result: DemoResult) -> Table:
    """Size, quality and speed, a line for each scheme."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("scheme", no_wrap=True)
    prefill, decode = result.prefill_base.name, result.decode_base.name
    headers = (
        "bits per\nweight",
        "bits per\nbyte",
        f"change from\n{TRAINED}",
        "same\nbyte",
        "weights\nMB",
    )
    for header in (*headers, "prefill\ntokens/s", f"vs\n{prefill}", "decode\ntokens/s", f"vs\n{decode}"):
        table.add_column(header, justify="right", no_wrap=True)
    for scheme in result.schemes:
        numbers = relative(scheme, result)
        change, error = numbers["bits_per_byte_change"], numbers["bits_per_byte_change_error"]
        table.add_row(
            Text(scheme.name, style="bold"),
            f"{scheme.size.bits_per_weight:.2f}",
            f"{scheme.bits_per_byte:.4f}",
            "" if scheme.name == TRAINED else f"{percent(change)} ± {error:.2%}",
            "" if scheme.name == TRAINED else f"{numbers['same_byte']:.1%}",
            f"{scheme.wide.weight_bytes / 1e6:.1f}",
            f"{scheme.prefill_tokens_per_s:,.0f}",
            "" if scheme.name == prefill else f"{numbers['prefill_speedup']:.2f}×",
            f"{scheme.decode_tokens_per_s:,.0f}",
            "" if scheme.name == decode else f"{numbers['decode_speedup']:.2f}×",
        )
    return table


def models(result: DemoResult) -> tuple[str, str]:
    """Which model gave the quality, and which the speed."""
    trained, wide, sizes = result.parameters / 1e6, result.wide_parameters / 1e6, result.wide
    return (
        f"Quality: the trained byte-level model of {trained:.1f} million parameters that aoext ships, "
        f"{result.windows} windows of held-out text.",
        f"Speed: a decoder of {wide:.0f} million random weights ({sizes.layers} layers, dim {sizes.dim}, "
        f"hidden {sizes.hidden}): prefill of {result.trained.prefill_tokens} tokens, then decode.",
    )


def percent(part: float) -> str:
    """A change as +0.41%, and one that rounds to nothing without a minus."""
    return f"{round(part, 4) + 0.0:+.2%}"


def headline(result: DemoResult) -> str:
    """What the scheme that decodes fastest gains and costs, in its own figures."""
    if result.load.busy:
        return "Other work kept this machine busy: its speeds are not valid"
    quantised = (scheme for scheme in result.schemes if scheme.name in SCHEMES)
    best = max(quantised, key=lambda scheme: scheme.decode_tokens_per_s)
    numbers = relative(best, result)
    return (
        f"{best.name} decodes {numbers['decode_speedup']:.1f}× as fast as {result.decode_base.name}: "
        f"{best.size.bits_per_weight:.2f} bits per weight, "
        f"bits per byte {percent(numbers['bits_per_byte_change'])}"
    )


def left_out(result: DemoResult) -> list[str]:
    """What there was no time for."""
    lines = []
    if result.windows < result.all_windows:
        lines.append(f"{result.all_windows - result.windows} of {result.all_windows} windows of text")
    if result.wide != WIDE[0]:
        lines.append(f"a model for speed of {WIDE[0].layers} layers, dim {WIDE[0].dim}: this one is smaller")
    if result.trained.prefill_tokens < PREFILL[0]:
        lines.append(f"a prefill of {PREFILL[0]} tokens")
    once = [scheme.name for scheme in result.schemes if scheme.rounds == 1]
    if once:
        which = ", ".join(once) if len(once) < len(result.schemes) else "everything"
        lines.append(f"a second measurement of the speed of {which}")
    return lines


def relative(scheme: SchemeResult, result: DemoResult) -> dict[str, float]:
    """A scheme's figures against those of what is not quantised."""
    change, error = scheme.change_from(result.trained)
    return {
        "bits_per_byte_change": change,
        "bits_per_byte_change_error": error,
        "same_byte": sum(scheme.same_byte) / len(scheme.same_byte),
        "prefill_speedup": scheme.prefill_tokens_per_s / result.prefill_base.prefill_tokens_per_s,
        "decode_speedup": scheme.decode_tokens_per_s / result.decode_base.decode_tokens_per_s,
    }


def as_json(result: DemoResult, environment: dict[str, Any]) -> dict[str, Any]:
    """The content of the JSON file.

    schema       "aoext.demo/3"
    environment  versions, machine, device with instruction_set and threads (report.environment)
    settings     windows and window (their length in bytes), seed, seconds (for everything),
                 prefill_tokens, decode_prompt (tokens before the first step), decode_steps
    left_out     what there was no time for, a text each
    models       quality: parameters; speed: parameters and the sizes dim, hidden, layers and heads
    baselines    names of schemes: quality's is bf16; of prefill and decode, the fastest that is not quantised
    busy, load   whether other work took the cores, so that no speed is valid; how that was seen (busy.Load)
    headline     what stands above the chart
    schemes      a list; each entry has
        name, config            config as Python writes it, null where nothing is quantised
        quality_model, speed_model, each with
            weight_bytes        of the weights of all linear layers, with scales and zero points
            model_bytes         of all parameters and buffers
            bits_per_weight     8 · weight_bytes / elements of these weights
        window_bits             bits for a byte of each window of held-out text
        bits_per_byte           their mean; bits_per_byte_change: relative to bf16, and
                                bits_per_byte_change_error: the standard error of that, from pairs of windows
        same_byte               part of the text's places where the likeliest byte is bf16's
        rounds                  how often its speed was measured
        prefill_seconds, decode_seconds                of prefill_tokens and of decode_steps
        prefill_tokens_per_s, decode_tokens_per_s      prefill_speedup, decode_speedup: over the baseline
    """
    settings, base = result.settings, result.trained
    return {
        "schema": "aoext.demo/3",
        "environment": environment,
        "settings": {
            "windows": result.windows,
            "window": result.window,
            "seed": settings.seed,
            "seconds": settings.seconds,
            "prefill_tokens": base.prefill_tokens,
            "decode_prompt": demo_run.DECODE_PROMPT,
            "decode_steps": len(base.step_seconds),
        },
        "left_out": left_out(result),
        "models": {
            "quality": {"parameters": result.parameters},
            "speed": {
                "parameters": result.wide_parameters,
                **{name: getattr(result.wide, name) for name in ("dim", "hidden", "layers", "heads")},
            },
        },
        "baselines": {
            "quality": TRAINED,
            "prefill": result.prefill_base.name,
            "decode": result.decode_base.name,
        },
        "busy": result.load.busy,
        "load": result.load.as_json(),
        "headline": headline(result),
        "schemes": [
            {
                "name": scheme.name,
                "config": scheme.config,
                "quality_model": asdict(scheme.size),
                "speed_model": asdict(scheme.wide),
                "window_bits": scheme.window_bits,
                "bits_per_byte": scheme.bits_per_byte,
                "rounds": scheme.rounds,
                "prefill_seconds": scheme.prefill_seconds,
                "decode_seconds": sum(scheme.step_seconds),
                "prefill_tokens_per_s": scheme.prefill_tokens_per_s,
                "decode_tokens_per_s": scheme.decode_tokens_per_s,
                **relative(scheme, result),
            }
            for scheme in result.schemes
        ],
    }
