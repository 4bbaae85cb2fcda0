"""What merging an adapter into quantised weights keeps: a model learns C++ by LoRA, in each scheme.

    python benchmarks/merging.py
    python benchmarks/merging.py --model FOLDER --steps 30    # FOLDER as quality_model.py makes it

LoRA trains on torch's own C++ headers, which the demo's model, of Python source, has never seen. The table
has bits per token of headers that were held out (a token of that model is a byte): before training; after it,
with the adapter apart; with the adapter merged into the quantised weights; with the model dequantised, then
merged; and with that quantised again by aoext.calibrate, on text of training. "Survives" is the part of the
adapter's change that the weights have which were merged as they are; aoext measures it as it merges. "By
groups" is PEFT's use_qalora. Three minutes on a core, for SmolLM2 ten a scheme. Needs peft.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from aoext import calibrate, evaluate, quantize_
from aoext.cli.options import JSON_FILE
from aoext.cli.page import environment, grid, present
from aoext.configs.schemes import as_config
from aoext.models.layers import set_plain_weight
from aoext.quality.evaluate import logits_of
from aoext.quality.text import ids_of
from aoext.tensors import QuantizedTensor
from aoext_bench.tiny_lm import load_tiny_lm

SCHEMA = "aoext.merging/2"
SCHEMES = ("int8", "float8", "int4", "nf4", "nvfp4", "mxfp4", "int4 by groups")
GROUP = 32  # of int4 and of the adapter, where that is by groups
COLUMNS = ("before", "adapter apart", "merged", "dequantised, merged", "calibrated")
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BATCH = 4
SAMPLES = 64  # windows that calibrate


def headers() -> tuple[bytes, bytes]:
    """Text to train on and text that is held out, one file of ten."""
    files = sorted((Path(torch.__file__).parent / "include" / "ATen" / "core").rglob("*.h"))
    if not files:
        raise click.ClickException("this torch has no C++ headers")
    texts = [file.read_bytes() for file in files]
    held_out = b"".join(texts[::10])
    del texts[::10]
    return b"".join(texts), held_out


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model and what it learns: windows of token ids [1, T] to train on and held out.

    load: makes the model, in float32
    rate: of learning
    """

    load: Callable[[], nn.Module]
    train: list[Tensor]
    held_out: list[Tensor]
    rate: float


def tiny_model() -> Subject:
    train, held_out = (torch.tensor(list(text)) for text in headers())
    windows = windows_of(train, 128, None), windows_of(held_out, 128, 48)
    return Subject(lambda: load_tiny_lm(torch.float32), *windows, rate=2e-3)


def model_of(folder: Path) -> Subject:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    train, held_out = (torch.tensor(ids_of(tokenizer, text.decode())) for text in headers())
    windows = windows_of(train, 256, None), windows_of(held_out, 256, 12)
    return Subject(
        lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), *windows, rate=1e-3
    )


def windows_of(ids: Tensor, length: int, count: int | None) -> list[Tensor]:
    """Tokens in windows [1, length] from all over a text; all that are full if `count` is None."""
    whole = len(ids) // length
    kept = whole if count is None else min(count, whole)
    return [ids[i * whole // kept * length :][:length][None] for i in range(kept)]


def train(model: nn.Module, windows: list[Tensor], steps: int, rate: float) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], rate)
    generator = torch.Generator().manual_seed(1)  # the same windows for every scheme
    for _ in range(steps):
        chosen = torch.randint(len(windows), (BATCH,), generator=generator).tolist()
        ids = torch.cat([windows[i] for i in chosen])
        logits = logits_of("the model", model, ids, None)[:, :-1]
        nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()


def measure(scheme: str, steps: int, subject: Subject) -> dict[str, Any]:
    """Bits per token in each state of a model, and how much of the change survives."""
    import peft

    from aoext.integrations.peft_merging import measuring

    def bits() -> float:
        return math.log2(evaluate(model, subject.held_out).perplexity)

    torch.manual_seed(0)
    model: Any = subject.load()
    base, _, by_groups = scheme.partition(" ")
    options = {"use_qalora": True, "qalora_group_size": GROUP} if by_groups else {}
    config = as_config("--scheme", {"scheme": base, "group_size": GROUP} if by_groups else base)
    quantize_(model, config)
    found = [bits()]
    adapted: Any = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=TARGETS, **options))
    train(adapted, subject.train, steps, subject.rate)
    adapted.eval()
    found.append(bits())
    trained = copy.deepcopy(adapted)
    with measuring(adapted) as survival:
        adapted.merge_adapter()
    found.append(bits())
    for module in trained.modules():
        if isinstance(module._parameters.get("weight"), QuantizedTensor):
            set_plain_weight(module, nn.Parameter(module.weight.dequantize(), requires_grad=False))
    model = trained.merge_and_unload()
    found.append(bits())
    kept = min(SAMPLES, len(subject.train))
    calibrate(model, [subject.train[i * len(subject.train) // kept] for i in range(kept)], config)
    found.append(bits())
    return {
        "scheme": scheme,
        "bits_per_token": dict(zip(COLUMNS, found, strict=True)),
        "survives": survival.total,
    }


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option(
    "--scheme", "schemes", multiple=True, default=SCHEMES, show_default=True, help="Can be repeated."
)
@click.option("--model", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--steps", type=click.IntRange(min=1), default=40, show_default=True, help="Steps of training.")
@click.option("--json", "json_path", type=JSON_FILE, default="out/merging.json", show_default=True)
def main(schemes: tuple[str, ...], folder: Path | None, steps: int, json_path: Path) -> None:
    view = grid("Bits per token of held-out C++, by a model that LoRA has trained on C++")
    for column in ("scheme", *COLUMNS, "survives"):
        view.add_column(column, justify="left" if column == "scheme" else "right", no_wrap=True)
    subject, results = tiny_model() if folder is None else model_of(folder), []
    for scheme in schemes:
        result = measure(scheme, steps, subject)
        results.append(result)
        click.echo(f"{scheme}: {result['bits_per_token']}", err=True)  # a model takes minutes
        cells = (f"{bits:.2f}" for bits in result["bits_per_token"].values())
        view.add_row(scheme, *cells, f"{result['survives']:.0%}")
    where = environment(torch.device("cpu"))
    content = {"schema": SCHEMA, "environment": where, "model": "tiny" if folder is None else folder.name}
    present({**content, "steps": steps, "results": results}, view, json_path)


if __name__ == "__main__":
    main()
