"""What training for a scheme gives back of what the scheme costs, on the tiny language model or a real one.

    python benchmarks/qat.py tiny --scheme int4 --steps 200
    python benchmarks/qat.py FOLDER --scheme int4 --group-size 64    # FOLDER as quality_model.py makes it

The original is the teacher: a step lowers KL(original ‖ model) on text to train on. What counts is that KL,
and the perplexity, on text that is held out: of the model rounded at once, and of the one that was trained
and converted. Prints JSON.
"""

from __future__ import annotations

import copy
import json
import math
import time
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

import aoext
from aoext.configs.schemes import as_config
from aoext.quality.text import token_windows
from aoext_bench.tiny_lm import held_out_text, load_tiny_lm, split, standard_library_files, windows_of
from aoext_bench.tiny_lm.data import join_documents


def tiny(length: int) -> tuple[nn.Module, list[Tensor], list[Tensor]]:
    """The model, and windows [1, T] to train on and held out."""
    train, held_out = join_documents(split(standard_library_files())[0]), held_out_text(1 << 30)
    windows = (
        windows_of(text, length, most)[:, None, :length] for text, most in ((train, None), (held_out, 32))
    )
    return load_tiny_lm(torch.float32), *map(list, windows)


def folder(path: Path, length: int) -> tuple[nn.Module, list[Tensor], list[Tensor]]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    train = token_windows([path / "train.txt"], tokenizer, length)
    return model, train, token_windows([path / "heldout.txt"], tokenizer, length)[: 2560 // length]


def logits(model: nn.Module, ids: Tensor) -> Tensor:
    result = model(ids)
    found: Tensor = getattr(result, "logits", result)
    return found.flatten(0, 1).float()


def train(
    model: nn.Module,
    original: nn.Module,
    windows: list[Tensor],
    steps: int,
    batch: int,
    rate: float,
    seed: int,
) -> float:
    """Seconds of a step."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(windows), generator=generator)
    scales = [p for n, p in model.named_parameters() if n.endswith(("_scale", "_offset"))]
    others = [p for n, p in model.named_parameters() if not n.endswith(("_scale", "_offset"))]
    groups = [
        {"params": others, "lr": rate, "weight": 1.0},
        {"params": scales, "lr": rate / 10, "weight": 0.1},
    ]
    optimizer = torch.optim.AdamW(
        [g for g in groups if g["params"]], rate, betas=(0.9, 0.98), weight_decay=0.0
    )
    begin = time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            warm = min(1, (step + 1) / 10) * (1 + math.cos(math.pi * step / steps)) / 2
            group["lr"] = rate * group["weight"] * warm
        ids = torch.cat([windows[order[(step * batch + i) % len(order)]] for i in range(batch)]).to(device)
        with torch.no_grad():
            wanted = logits(original, ids).log_softmax(-1)
        found = logits(model, ids).log_softmax(-1)
        loss = nn.functional.kl_div(found, wanted, log_target=True, reduction="batchmean")
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            click.echo(f"step {step + 1} of {steps}: KL {loss.item():.5f}", err=True)
    return (time.monotonic() - begin) / steps


@click.command()
@click.argument("model")
@click.option("--scheme", default="int4", show_default=True)
@click.option("--group-size", type=int)
@click.option("--learn-scales", is_flag=True)
@click.option("--steps", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=4, show_default=True)
@click.option(
    "--length", type=click.IntRange(min=2), default=256, show_default=True, help="Tokens of a window."
)
@click.option("--rate", type=float, default=2e-4, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--device", default="cpu", show_default=True)
def main(
    model: str,
    scheme: str,
    group_size: int | None,
    learn_scales: bool,
    steps: int,
    batch: int,
    length: int,
    rate: float,
    seed: int,
    device: str,
) -> None:
    options = {} if group_size is None else {"group_size": group_size}
    config = as_config("qat", {"scheme": scheme, **options})
    original, windows, held_out = tiny(length) if model == "tiny" else folder(Path(model), length)
    original.to(device).eval().requires_grad_(False)
    rounded = copy.deepcopy(original)
    bits = aoext.quantize_(rounded, config).bits_per_weight
    before = aoext.evaluate(rounded, held_out, original)
    click.echo(f"rounded: {before}", err=True)
    del rounded
    trained = copy.deepcopy(original).requires_grad_(True)
    aoext.quantize_(trained, aoext.QATConfig(config, step="prepare", learn_scales=learn_scales))
    seconds = train(trained, original, windows, steps, batch, rate, seed)
    prepared = aoext.evaluate(trained, held_out, original)
    aoext.quantize_(trained, aoext.QATConfig(config, step="convert"))
    after = aoext.evaluate(trained, held_out, original)
    assert after == prepared, "converting changed a prediction"
    assert before.divergence is not None
    assert after.divergence is not None
    found = {
        "config": str(config),
        "bits_per_weight": bits,
        "plain": {"perplexity": aoext.evaluate(original, held_out).perplexity},
        "rounded": {"perplexity": before.perplexity, "kl": before.divergence, "same": before.same_token},
        "trained": {"perplexity": after.perplexity, "kl": after.divergence, "same": after.same_token},
        "recovered_of_kl": 1 - after.divergence / before.divergence,
        "steps": steps,
        "seconds_a_step": seconds,
    }
    click.echo(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
