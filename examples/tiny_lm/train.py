"""Train the small language model that aoext ships, from the standard library of the running Python.

    python examples/tiny_lm/train.py --output weights.safetensors

One step reads `batch` windows of random places in the training text. The loss is the mean
cross-entropy of the next byte. AdamW; the learning rate rises linearly and falls along half a
cosine to zero at the last step, so `--steps` belongs to the schedule: a run that is to end well
must reach it. A run that was stopped goes on from its checkpoint when the same command is given
again.
"""

from __future__ import annotations

import math
from pathlib import Path

import click
import torch
from torch import Tensor, nn
from tqdm import tqdm

from aoext_bench.tiny_lm import (
    TinyLM,
    TinyLMConfig,
    bits_per_byte,
    held_out_text,
    save_tiny_lm,
    split,
    standard_library_files,
)
from aoext_bench.tiny_lm.data import join_documents

ALL_HELD_OUT = 1 << 30  # more bytes than there are
QUICK_WINDOWS = 128  # for the figure beside each checkpoint; the last figure reads everything


def learning_rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """Linear up to `peak` over `warmup` steps, then half a cosine down to 0 at `steps`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def make_optimizer(model: TinyLM) -> torch.optim.AdamW:
    """AdamW that decays matrices only: a norm's scale has no reason to shrink."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    scales = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": scales, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)


def draw_batch(text: Tensor, batch: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and targets, int64 [batch, context], from random places of text (uint8 [bytes])."""
    starts = torch.randint(len(text) - context, (batch, 1), generator=generator)
    windows = text[starts + torch.arange(context + 1)].long()
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default="weights.safetensors",
    help="The bf16 weights.",
)
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), default="checkpoint.pt", help="To resume from."
)
@click.option("--checkpoint-every", default=500, help="Steps between checkpoints; each writes --output too.")
@click.option("--steps", default=7000, help="Length of the run and of its schedule.")
@click.option("--batch", default=8, help="Windows a step.")
@click.option("--peak-learning-rate", default=2e-3)
@click.option("--warmup", default=300, help="Steps.")
@click.option("--seed", default=0)
@click.option("--threads", default=0, help="CPU threads; 0 leaves it to torch.")
@click.option(
    "--compile/--no-compile", "compiled", default=True, help="torch.compile: a third faster on CPU."
)
def main(
    output: Path,
    checkpoint: Path,
    checkpoint_every: int,
    steps: int,
    batch: int,
    peak_learning_rate: float,
    warmup: int,
    seed: int,
    threads: int,
    compiled: bool,
) -> None:
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = TinyLM(TinyLMConfig())
    optimizer = make_optimizer(model)
    first_step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        generator.set_state(saved["generator"])
        first_step = saved["step"]

    train, _ = split(standard_library_files())
    text = torch.frombuffer(bytearray(join_documents(train)), dtype=torch.uint8)
    held_out = held_out_text(ALL_HELD_OUT)
    click.echo(
        f"{sum(p.numel() for p in model.parameters())} parameters, {len(text)} bytes to train on, "
        f"{len(held_out)} held out, from step {first_step}"
    )

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        # The weights stay float32: at the end of the schedule, updates are below bf16's resolution.
        with torch.autocast("cpu", torch.bfloat16):
            return nn.functional.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())

    step_loss = torch.compile(loss_of) if compiled else loss_of

    def save(step: int) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        unfinished = checkpoint.with_name(checkpoint.name + ".part")
        torch.save({**state, "generator": generator.get_state(), "step": step}, unfinished)
        unfinished.replace(checkpoint)
        save_tiny_lm(model, output)

    progress = tqdm(range(first_step, steps), initial=first_step, total=steps, mininterval=5)
    for step in progress:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, warmup, peak_learning_rate)
        loss = step_loss(*draw_batch(text, batch, model.config.context, generator))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            progress.set_postfix(train_bpb=f"{loss.item() / math.log(2):.3f}", refresh=False)
        if (step + 1) % checkpoint_every == 0 or step + 1 == steps:
            save(step + 1)
            quick = bits_per_byte(model, held_out, model.config.context, QUICK_WINDOWS)
            progress.write(f"step {step + 1}: {quick:.4f} bits per byte on {QUICK_WINDOWS} held-out windows")

    final = bits_per_byte(model.to(torch.bfloat16), held_out)
    click.echo(f"held out, all of it, in bf16: {final:.4f} bits per byte")


if __name__ == "__main__":
    main()
