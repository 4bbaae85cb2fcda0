"""What merging an adapter into quantised weights keeps: the demo's model learns C++, in each scheme.

    python benchmarks/merging.py

LoRA trains on torch's own C++ headers, which the model, of Python source, has never seen. The table has bits
per byte of headers that were held out: before training; after it, with the adapter apart; with the adapter
merged into the quantised weights; with the model dequantised, then merged; and with that quantised again by
aoext.calibrate, on text of training. "Survives" is the part of the adapter's change that the weights have
which were merged as they are; aoext measures it as it merges. "By groups" is PEFT's use_qalora. Three minutes
on a core. Needs peft.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

from aoext import calibrate, quantize_
from aoext.cli.options import JSON_FILE
from aoext.cli.page import environment, grid, present
from aoext.configs.schemes import as_config
from aoext.models.layers import set_plain_weight
from aoext.tensors import QuantizedTensor
from aoext_bench.tiny_lm import bits_per_byte, load_tiny_lm

SCHEMA = "aoext.merging/1"
SCHEMES = ("int8", "float8", "int4", "nf4", "nvfp4", "mxfp4", "int4 by groups")
GROUP = 32  # of int4 and of the adapter, where that is by groups
COLUMNS = ("before", "adapter apart", "merged", "dequantised, merged", "calibrated")
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WINDOW, WINDOWS, BATCH = 128, 48, 4
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


def train(model: nn.Module, text: bytes, steps: int) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 2e-3)
    generator = torch.Generator().manual_seed(1)  # the same windows for every scheme
    for _ in range(steps):
        starts = torch.randint(len(text) - WINDOW - 1, (BATCH,), generator=generator).tolist()
        tokens = torch.tensor([list(text[start : start + WINDOW + 1]) for start in starts])
        logits = model(tokens[:, :-1]).transpose(1, 2)
        nn.functional.cross_entropy(logits, tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()


def windows(text: bytes, count: int) -> list[torch.Tensor]:
    """Bytes [1, WINDOW] from all over a text."""
    step = (len(text) - WINDOW) // count
    return [torch.tensor([list(text[start : start + WINDOW])]) for start in range(0, count * step, step)]


def measure(scheme: str, steps: int, texts: tuple[bytes, bytes]) -> dict[str, Any]:
    """Bits per byte in each state of a model, and how much of the change survives."""
    import peft

    from aoext.integrations.peft_merging import measuring

    def bits() -> float:
        return bits_per_byte(model, held_out, WINDOW, WINDOWS)

    text, held_out = texts
    torch.manual_seed(0)
    model = load_tiny_lm(torch.float32)
    base, _, by_groups = scheme.partition(" ")
    options = {"use_qalora": True, "qalora_group_size": GROUP} if by_groups else {}
    config = as_config("--scheme", {"scheme": base, "group_size": GROUP} if by_groups else base)
    quantize_(model, config)
    found = [bits()]
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=TARGETS, **options))
    train(adapted, text, steps)
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
    calibrate(model, windows(text, SAMPLES), config)
    found.append(bits())
    return {
        "scheme": scheme,
        "bits_per_byte": dict(zip(COLUMNS, found, strict=True)),
        "survives": survival.total,
    }


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option(
    "--scheme", "schemes", multiple=True, default=SCHEMES, show_default=True, help="Can be repeated."
)
@click.option("--steps", type=click.IntRange(min=1), default=40, show_default=True, help="Steps of training.")
@click.option("--json", "json_path", type=JSON_FILE, default="out/merging.json", show_default=True)
def main(schemes: tuple[str, ...], steps: int, json_path: Path) -> None:
    view = grid("Bits per byte of held-out C++, by a model of Python that LoRA has trained on C++")
    for column in ("scheme", *COLUMNS, "survives"):
        view.add_column(column, justify="left" if column == "scheme" else "right", no_wrap=True)
    texts, results = headers(), []
    for scheme in schemes:
        result = measure(scheme, steps, texts)
        results.append(result)
        cells = (f"{bits:.2f}" for bits in result["bits_per_byte"].values())
        view.add_row(scheme, *cells, f"{result['survives']:.0%}")
    where = environment(torch.device("cpu"))
    present({"schema": SCHEMA, "environment": where, "steps": steps, "results": results}, view, json_path)


if __name__ == "__main__":
    main()
