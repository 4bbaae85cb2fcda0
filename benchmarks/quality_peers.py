"""The same model in the same format by aoext and by other quantisers: KL, seconds and peak memory.

    python benchmarks/quality_peers.py FOLDER --by gptq --by gptqmodel  # FOLDER as quality_model.py makes it
    python benchmarks/quality_peers.py FOLDER --by signround --by auto-round --steps 50

All get the same tokens, for weights in symmetric groups. Others' checkpoints are loaded by aoext
(`AoextConfig.keep()`), so that all are judged by the same kernels. Each runs in a process of its own; memory
is the peak of that while it quantises, less what the loaded model took before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

import aoext
from aoext.quality.text import token_windows

WINDOW = 512


@contextmanager
def counted(found: dict[str, float]) -> Any:
    """Seconds, and MB of memory at most beyond what there was (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, begin = _memory("VmRSS"), time.monotonic()
    yield
    # Linux counts a thread's pages in lots: where nothing came, the difference may be just below 0.
    found |= {"seconds": time.monotonic() - begin, "peak_mb": max(0.0, _memory("VmHWM") - before)}


def _memory(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def plain(folder: Path) -> nn.Module:
    from transformers import AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model.eval()


def kept(folder: Path) -> nn.Module:
    from transformers import AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=aoext.AoextConfig.keep()
    )
    return model.eval()


Found = dict[str, float]
By = Callable[[Path, list[Tensor], int, int, int, Path, Found], nn.Module]


def ours(algorithm: str) -> By:
    def run(
        folder: Path, data: list[Tensor], bits: int, group_size: int, steps: int, out: Path, found: Found
    ) -> nn.Module:
        model = plain(folder)
        config = aoext.IntxWeightOnlyConfig(bits=bits, group_size=group_size, symmetric=True)
        with counted(found):
            if algorithm == "rounding":
                aoext.quantize_(model, config)
            else:
                aoext.calibrate(model, data, config, algorithm=algorithm, samples=len(data), steps=steps)
        return model

    return run


def gptqmodel(
    folder: Path, data: list[Tensor], bits: int, group_size: int, steps: int, out: Path, found: Found
) -> nn.Module:
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # fewer raise an error where there are 2 cores
    from gptqmodel import GPTQModel, QuantizeConfig

    settings = QuantizeConfig(bits=bits, group_size=group_size, sym=True, desc_act=False)
    model = GPTQModel.load(str(folder), settings, device="cpu")
    samples = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in data]
    with counted(found):
        model.quantize(samples, batch_size=4)
    model.save(str(out))
    return kept(out)


def auto_round(
    folder: Path, data: list[Tensor], bits: int, group_size: int, steps: int, out: Path, found: Found
) -> nn.Module:
    from auto_round import AutoRound
    from transformers import AutoTokenizer

    model, tokenizer = plain(folder), AutoTokenizer.from_pretrained(folder)
    with counted(found):
        rounder = AutoRound(
            model,
            tokenizer,
            scheme=f"W{bits}A16",
            group_size=group_size,
            sym=True,
            dataset=data,
            nsamples=len(data),
            seqlen=WINDOW,
            iters=steps,
            batch_size=4,
            device_map="cpu",
            enable_torch_compile=False,
        )
        rounder.quantize()
    rounder.save_quantized(str(out), format="auto_round")
    return kept(out)


QUANTISERS: dict[str, By] = {
    **{name: ours(name) for name in ("rounding", "search", "gptq", "awq+gptq", "signround")},
    "gptqmodel": gptqmodel,
    "auto-round": auto_round,
}


def one(
    name: str, folder: Path, bits: int, group_size: int, samples: int, steps: int, windows: int
) -> dict[str, Any]:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    data = token_windows([folder / "train.txt"], tokenizer, WINDOW, samples)
    held_out = token_windows([folder / "heldout.txt"], tokenizer, WINDOW, windows)
    found: Found = {}
    with tempfile.TemporaryDirectory() as out:
        model = QUANTISERS[name](folder, data, bits, group_size, steps, Path(out), found)
        evaluation = aoext.evaluate(model, held_out, plain(folder))
    return {"by": name, "kl": evaluation.divergence, "perplexity": evaluation.perplexity, **found}


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--by", "names", multiple=True, type=click.Choice(list(QUANTISERS)), required=True)
@click.option("--bits", type=click.IntRange(2, 8), default=4, show_default=True)
@click.option("--group-size", type=int, default=64, show_default=True)
@click.option("--samples", type=click.IntRange(min=1), default=32, show_default=True)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="How many, where rounding is learnt.",
)
@click.option("--windows", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--here", is_flag=True, hidden=True)
def main(folder: Path, names: tuple[str, ...], here: bool, **options: int) -> None:
    """Print a line of JSON for each quantiser."""
    for name in names:
        if here:
            print(json.dumps(one(name, folder, **options)), flush=True)
            continue
        arguments = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        command = [sys.executable, __file__, str(folder), "--by", name, "--here", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(done.stdout.splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
