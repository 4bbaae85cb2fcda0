"""Tokens a second of a whole training step of a llama: bfloat16, and aoext's ways to train in 8 bits.

    python benchmarks/training_step.py --device cuda --compile --hidden 2048 --layers 16 \\
        --batch 4 --tokens 2048

All linear layers but the head train so, by fused AdamW; with --compile the layers of the model are compiled.
Memory is the allocator's peak on a GPU. On a CPU the time is the process's CPU time. Needs transformers.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

import aoext
from aoext.cli.options import JSON_FILE
from aoext.cli.page import environment, grid, present

SCHEMA = "aoext.training_step/1"


def ours(config: Any) -> Callable[[nn.Module], Any]:
    return lambda model: aoext.quantize_(
        model, config, lambda layer, name: isinstance(layer, nn.Linear) and name != "lm_head"
    )


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "bfloat16": lambda model: None,
    "int8 mixed precision": ours(aoext.Int8MixedPrecisionTrainingConfig()),
    "float8 by rows": ours(aoext.Float8LinearConfig("rowwise")),
    "float8, weights' gradients apart": ours(aoext.Float8LinearConfig("rowwise_with_gw_hp")),
    "float8 by blocks": ours(aoext.Float8LinearConfig("blockwise")),
    "int8 weights": ours(aoext.Int8WeightOnlyQuantizedTrainingConfig()),
}


def measure(way: str, options: dict[str, Any]) -> dict[str, Any]:
    import transformers

    device = torch.device(options["device"])
    torch.manual_seed(0)
    torch._dynamo.reset()
    config = transformers.LlamaConfig(
        hidden_size=options["hidden"],
        intermediate_size=4 * options["hidden"],
        num_hidden_layers=options["layers"],
        num_attention_heads=options["hidden"] // 64,
        num_key_value_heads=max(1, options["hidden"] // 256),
        vocab_size=options["vocabulary"],
        tie_word_embeddings=True,
        use_cache=False,
    )
    with torch.device(device):
        model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).train()
    WAYS[way](model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    if options["compile"]:
        for layer in model.model.layers:  # one by one, as torchtitan does: they share what is compiled
            layer.compile()
    ids = torch.randint(0, options["vocabulary"], (options["batch"], options["tokens"]), device=device)
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def step() -> float:
        begin = clock()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        return clock() - begin

    for _ in range(3):
        step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = statistics.median(step() for _ in range(options["steps"]))
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"way": way, "tokens_per_second": ids.numel() / seconds, "seconds": seconds, "bytes": peak}


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), default=list(WAYS)[1:])
@click.option("--device", default="cpu", show_default=True)
@click.option("--hidden", type=click.IntRange(min=64), default=256, show_default=True)
@click.option("--layers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--vocabulary", type=click.IntRange(min=2), default=2048, show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--tokens", type=click.IntRange(min=2), default=256, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--compile/--no-compile", default=False, show_default=True)
@click.option("--json", "json_path", type=JSON_FILE, default="out/training_step.json", show_default=True)
def main(ways: tuple[str, ...], json_path: Path, **options: Any) -> None:
    view = grid("A training step")
    for column in ("way", "tokens/s", "of bfloat16", "peak, GB"):
        view.add_column(column, justify="left" if column == "way" else "right", no_wrap=True)
    results: list[dict[str, Any]] = []
    for way in dict.fromkeys(("bfloat16", *ways)):
        result = measure(way, options)
        results.append(result)
        gc.collect()
        part = result["tokens_per_second"] / results[0]["tokens_per_second"]
        peak = "" if result["bytes"] is None else f"{result['bytes'] / 1e9:.2f}"
        view.add_row(way, f"{result['tokens_per_second']:,.0f}", f"{part:.2f}", peak)
        click.echo(f"{way}: {part:.2f} of bfloat16", err=True)  # compiling takes minutes
    where = environment(torch.device(options["device"]))
    present({"schema": SCHEMA, "environment": where, **options, "results": results}, view, json_path)


if __name__ == "__main__":
    main()
