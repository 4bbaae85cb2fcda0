"""Results of `aoext demo` as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from itertools import takewhile
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from aoext_bench import demo_run
from aoext_bench.demo_run import (
    SCHEMES,
    TRAINED,
    DemoResult,
    SchemeResult,
)


def figures(result: DemoResult) -> Table:
    """Size, quality and speed, a line for each scheme."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("scheme", no_wrap=True)
    prefill, decode = result.prefill_base.name, result.decode_base.name
    headers = ("bits per\nweight", "bits per\nbyte", f"change from\n{TRAINED}", "weights\nMB")
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
            f"{scheme.wide.weight_bytes / 1e6:.1f}",
            f"{scheme.prefill_tokens_per_s:,.0f}",
            "" if scheme.name == prefill else f"{numbers['prefill_speedup']:.2f}×",
            f"{scheme.decode_tokens_per_s:,.0f}",
            "" if scheme.name == decode else f"{numbers['decode_speedup']:.2f}×",
        )
    return table


def models(result: DemoResult) -> tuple[str, str]:
    """Which model gave the quality, and which the speed."""
    trained, wide, sizes = result.parameters / 1e6, result.wide_parameters / 1e6, demo_run.WIDE
    return (
        f"Quality: the trained byte-level model of {trained:.1f} million parameters that aoext ships, "
        f"{result.windows} windows of held-out text.",
        f"Speed: a decoder of {wide:.0f} million random weights ({sizes.layers} layers, dim {sizes.dim}, "
        f"hidden {sizes.hidden}): prefill of {demo_run.PREFILL} tokens, then decode.",
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


def continuations(result: DemoResult) -> Table:
    """What each scheme writes behind the prompt; text that bf16 writes too is dim on a terminal."""
    table = Table(box=box.SIMPLE_HEAD, show_lines=True, padding=(0, 1), pad_edge=False)
    table.add_column("scheme", no_wrap=True)
    table.add_column("like bf16 for", justify="right")
    table.add_column("continuation")
    for scheme in result.schemes:
        same = common_bytes(scheme.continuation, result.trained.continuation)
        text = Text(readable(scheme.continuation[:same]), style="dim")
        text.append(readable(scheme.continuation[same:]), style="not dim")
        if scheme.name == TRAINED:
            length, text = "", Text(readable(scheme.continuation))
        else:
            length = "all" if same == len(scheme.continuation) else f"{same} bytes"
        table.add_row(Text(scheme.name, style="bold"), length, text)
    return table


def readable(text: bytes) -> str:
    """Bytes of the model as text for a terminal: nothing in it moves the cursor."""
    decoded = text.decode("utf-8", errors="replace").expandtabs(4)
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in decoded)


def common_bytes(one: bytes, other: bytes) -> int:
    """How many bytes two texts have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def relative(scheme: SchemeResult, result: DemoResult) -> dict[str, float]:
    """A scheme's figures against those of what is not quantised."""
    change, error = scheme.change_from(result.trained)
    return {
        "bits_per_byte_change": change,
        "bits_per_byte_change_error": error,
        "prefill_speedup": scheme.prefill_tokens_per_s / result.prefill_base.prefill_tokens_per_s,
        "decode_speedup": scheme.decode_tokens_per_s / result.decode_base.decode_tokens_per_s,
    }


def as_json(result: DemoResult, environment: dict[str, Any]) -> dict[str, Any]:
    """The content of the JSON file.

    schema       "aoext.demo/2"
    environment  versions, machine, device with instruction_set and threads (report.environment)
    settings     windows and window (their length in bytes), prompt, new_tokens, temperature, seed,
                 prefill_tokens, decode_prompt (tokens before the first step), decode_steps,
                 rounds (how often each speed was measured)
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
        prefill_seconds, decode_seconds                of prefill_tokens and of decode_steps
        prefill_tokens_per_s, decode_tokens_per_s      prefill_speedup, decode_speedup: over the baseline
        continuation            what the trained model writes behind the prompt, as text
        same_as_bf16            bytes at its beginning that bf16 writes too
    """
    settings, base = result.settings, result.trained
    return {
        "schema": "aoext.demo/2",
        "environment": environment,
        "settings": {
            "windows": result.windows,
            "window": result.window,
            "prompt": readable(settings.prompt_bytes),
            "new_tokens": settings.new_tokens,
            "temperature": settings.temperature,
            "seed": settings.seed,
            "prefill_tokens": demo_run.PREFILL,
            "decode_prompt": demo_run.DECODE_PROMPT,
            "decode_steps": len(base.step_seconds),
            "rounds": result.rounds,
        },
        "models": {
            "quality": {"parameters": result.parameters},
            "speed": {
                "parameters": result.wide_parameters,
                **{name: getattr(demo_run.WIDE, name) for name in ("dim", "hidden", "layers", "heads")},
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
                "prefill_seconds": scheme.prefill_seconds,
                "decode_seconds": sum(scheme.step_seconds),
                "prefill_tokens_per_s": scheme.prefill_tokens_per_s,
                "decode_tokens_per_s": scheme.decode_tokens_per_s,
                **relative(scheme, result),
                "continuation": readable(scheme.continuation),
                "same_as_bf16": common_bytes(scheme.continuation, base.continuation),
            }
            for scheme in result.schemes
        ],
    }
