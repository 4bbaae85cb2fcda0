"""Results of `aoext demo` as tables and as JSON."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from aoext.cli.demo_run import BASELINE, DECODE_PROMPT, DemoResult, SchemeResult


def figures(result: DemoResult) -> Table:
    """Size, quality and speed, a line for each scheme."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("scheme", no_wrap=True)
    headers = ("weights\nMB", "bits per\nweight", "model\nMB", "bits per\nbyte", "\nchange")
    for header in (*headers, "prefill\ntokens/s", "vs\nbf16", "decode\ntokens/s", "vs\nbf16"):
        table.add_column(header, justify="right", no_wrap=True)
    for scheme in result.schemes:
        numbers = relative(scheme, result)
        plain = scheme.name == BASELINE
        table.add_row(
            Text(scheme.name, style="bold"),
            f"{scheme.weight_bytes / 1e6:.2f}",
            f"{scheme.bits_per_weight:.2f}",
            f"{scheme.model_bytes / 1e6:.2f}",
            f"{scheme.bits_per_byte:.4f}",
            "" if plain else f"{numbers['bits_per_byte_change']:+.2%}",
            f"{scheme.prefill_tokens_per_s:,.0f}",
            "" if plain else f"{numbers['prefill_speedup']:.2f}×",
            f"{scheme.decode_tokens_per_s:,.0f}",
            "" if plain else f"{numbers['decode_speedup']:.2f}×",
        )
    return table


def continuations(result: DemoResult) -> Table:
    """What each scheme writes behind the prompt; text that bf16 writes too is dim on a terminal."""
    table = Table(box=box.SIMPLE_HEAD, show_lines=True, padding=(0, 1), pad_edge=False)
    table.add_column("scheme", no_wrap=True)
    table.add_column("like bf16 for", justify="right")
    table.add_column("continuation")
    for scheme in result.schemes:
        same = common_bytes(scheme.continuation, result.baseline.continuation)
        text = Text(readable(scheme.continuation[:same]), style="dim")
        text.append(readable(scheme.continuation[same:]), style="not dim")
        if scheme.name == BASELINE:
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
    """A scheme's figures against those of bf16."""
    base = result.baseline
    return {
        "bits_per_byte_change": scheme.bits_per_byte / base.bits_per_byte - 1,
        "prefill_speedup": scheme.prefill_tokens_per_s / base.prefill_tokens_per_s,
        "decode_speedup": scheme.decode_tokens_per_s / base.decode_tokens_per_s,
    }


def as_json(result: DemoResult, environment: dict[str, Any]) -> dict[str, Any]:
    """The content of the JSON file.

    schema       "aoext.demo/1"
    environment  versions, machine, device with instruction_set and threads (report.environment)
    settings     windows and window (their length in bytes), prompt, new_tokens, temperature, seed,
                 prefill_tokens, decode_prompt (tokens before the first step), decode_steps,
                 rounds (how often each speed was measured)
    model        parameters
    schemes      a list; each entry has
        name, config            config as Python writes it, null for bf16
        weight_bytes            of the weights of all linear layers, with scales and zero points
        model_bytes             of all parameters and buffers
        bits_per_weight         8 · weight_bytes / elements of these weights
        bits_per_byte           of held-out text; bits_per_byte_change: relative to bf16
        prefill_seconds, decode_seconds                of prefill_tokens and of decode_steps
        prefill_tokens_per_s, decode_tokens_per_s      prefill_speedup, decode_speedup: over bf16
        continuation            what the model writes behind the prompt, as text
        same_as_bf16            bytes at its beginning that bf16 writes too
    """
    settings, base = result.settings, result.baseline
    return {
        "schema": "aoext.demo/1",
        "environment": environment,
        "settings": {
            "windows": result.windows,
            "window": result.window,
            "prompt": readable(settings.prompt_bytes),
            "new_tokens": settings.new_tokens,
            "temperature": settings.temperature,
            "seed": settings.seed,
            "prefill_tokens": base.prefill_tokens,
            "decode_prompt": DECODE_PROMPT,
            "decode_steps": len(base.step_seconds),
            "rounds": result.rounds,
        },
        "model": {"parameters": result.parameters},
        "schemes": [
            {
                "name": scheme.name,
                "config": scheme.config,
                "weight_bytes": scheme.weight_bytes,
                "model_bytes": scheme.model_bytes,
                "bits_per_weight": scheme.bits_per_weight,
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
