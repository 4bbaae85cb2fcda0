"""The same model on a CPU by llama.cpp and by transformers with aoext, in turn: tokens a second.

    python benchmarks/llama_cpp.py BIN     # the folder with llama-bench and llama-quantize
    python benchmarks/llama_cpp.py BIN --size experts-small --scheme int4g32

aoext has the model by its own schemes, and by the files that llama.cpp runs: with activations as they are,
and in int8, as llama.cpp has them. llama.cpp has no Python program around it, which is a good part of
transformers' eager steps: the last column is of compiled ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import aoext
import llama_models
from aoext_bench.bench import DTYPES
from schemes import SCHEMES


def write_gguf(path: Path, size: str, seed: int) -> None:
    """A model of random weights in float16, without a tokenizer: Llama, or Qwen3-MoE where it has experts."""
    import gguf

    sizes = llama_models.SIZES[size]
    experts = sizes.get("num_experts", 0)
    hidden, wide = sizes["hidden_size"], sizes["moe_intermediate_size" if experts else "intermediate_size"]
    heads, key_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    of_head = sizes.get("head_dim", hidden // heads)
    writer = gguf.GGUFWriter(path, "qwen3moe" if experts else "llama")
    writer.add_context_length(llama_models.POSITIONS)
    writer.add_embedding_length(hidden)
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_feed_forward_length(wide)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_key_length(of_head)
    writer.add_value_length(of_head)
    writer.add_rope_dimension_count(of_head)
    writer.add_layer_norm_rms_eps(1e-5)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(sizes["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(wide)
    writer.add_file_type(1)
    writer.add_vocab_size(sizes["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    feed_forward: dict[str, tuple[int, ...]] = {
        "ffn_gate": (wide, hidden),
        "ffn_up": (wide, hidden),
        "ffn_down": (hidden, wide),
    }
    if experts:
        feed_forward = {f"{name}_exps": (experts, *shape) for name, shape in feed_forward.items()}
        feed_forward["ffn_gate_inp"] = (experts, hidden)
        feed_forward |= {"attn_q_norm": (of_head,), "attn_k_norm": (of_head,)}
    block: dict[str, tuple[int, ...]] = {
        "attn_q": (heads * of_head, hidden),
        "attn_k": (key_heads * of_head, hidden),
        "attn_v": (key_heads * of_head, hidden),
        "attn_output": (hidden, heads * of_head),
        "attn_norm": (hidden,),
        "ffn_norm": (hidden,),
        **feed_forward,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (sizes["vocab_size"], hidden),
        "output": (sizes["vocab_size"], hidden),
        "output_norm": (hidden,),
    }
    for layer in range(sizes["num_hidden_layers"]):
        shapes.update({f"blk.{layer}.{name}": shape for name, shape in block.items()})
    random = np.random.default_rng(seed)
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
        else:
            drawn = random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
            # As converters do, what chooses experts stays in float32.
            writer.add_tensor(
                f"{name}.weight", drawn if name.endswith("gate_inp") else drawn.astype(np.float16)
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def by_llama_cpp(folder: Path, model: Path, prompt: int, steps: int, threads: int) -> dict[str, float]:
    command = [folder / "llama-bench", "-m", model, "-t", str(threads), "-p", str(prompt), "-n", str(steps)]
    done = subprocess.run([*command, "-r", "3", "-o", "json"], check=True, capture_output=True, text=True)
    results = {("prefill" if r["n_prompt"] else "decode"): r for r in json.loads(done.stdout)}
    return {name: max(result["samples_ts"]) for name, result in results.items()}


def best(of: Callable[[], Any], tokens: int) -> float:
    """Tokens a second of the fastest of three."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        of()
        seconds.append(time.perf_counter() - start)
    return tokens / min(seconds)


def by_transformers(model: Any, prompt: int, steps: int) -> dict[str, float]:
    with torch.inference_mode():
        fill = llama_models.prefill(model, 1, prompt)
        begin = 8
        # Room for these steps alone: attention reads all of a static cache, llama.cpp's what is filled.
        decoding = llama_models.Decoding(model, 1, begin, begin + steps)
        compiled = torch.compile(decoding.step, options={"cpp_wrapper": True})

        def decode(step: Callable[..., Any]) -> Callable[[], None]:
            def run() -> None:
                decoding.cache.reset()
                decoding.position = torch.tensor([begin])
                for _ in range(steps):
                    decoding.advance(step)

            return run

        decode(compiled)()
        return {
            "prefill": best(fill, prompt),
            "decode": best(decode(decoding.step), steps),
            "compiled decode": best(decode(compiled), steps),
        }


def quantised(folder: Path, plain: Path, kind: str) -> Path:
    """The file in a type of llama.cpp: all matrices alike, or the mixture that a type's M or S stands for."""
    file = plain.with_name(f"{kind}.gguf")
    alike = [] if kind.endswith(("_M", "_S")) else ["--pure"]
    subprocess.run([folder / "llama-quantize", *alike, plain, file, kind], check=True, capture_output=True)
    return file


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--type",
    "types",
    multiple=True,
    default=["Q4_0", "Q4_K_M", "Q8_0"],
    help="A type of llama.cpp. Can be repeated.",
)
@click.option("--scheme", "schemes", multiple=True, default=["int4g32_int8", "int8dyn"])
@click.option(
    "--file",
    "given",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A GGUF file, measured by both instead of the random model. Can be repeated.",
)
@click.option("--size", default="small", type=click.Choice(list(llama_models.SIZES)))
@click.option(
    "--dtype",
    default="bfloat16",
    type=click.Choice(list(DTYPES)),
    help="What activations are in transformers: float32 for CPUs without instructions for bfloat16.",
)
@click.option("--prompt", default=512)
@click.option("--steps", default=32)
@click.option("--rounds", default=2, help="How often all come in turn.")
@click.option("--threads", default=os.cpu_count() or 1)
def main(
    folder: Path,
    types: tuple[str, ...],
    schemes: tuple[str, ...],
    given: tuple[Path, ...],
    size: str,
    dtype: str,
    prompt: int,
    steps: int,
    rounds: int,
    threads: int,
) -> None:
    """Tokens a second, the best of all rounds."""
    torch.set_num_threads(threads)
    floats = DTYPES[dtype]
    results: dict[str, dict[str, float]] = {}

    def keep(name: str, measured: dict[str, float]) -> None:
        known = results.setdefault(name, {})
        known.update({what: max(value, known.get(what, 0.0)) for what, value in measured.items()})

    with tempfile.TemporaryDirectory() as scratch:
        files, models = {file.stem: file for file in given}, {}
        if not given:
            plain = Path(scratch) / "f16.gguf"
            write_gguf(plain, size, 0)
            files = {kind: quantised(folder, plain, kind) for kind in types}
            models = {
                name: llama_models.make(size, SCHEMES[name], torch.device("cpu"), floats, 0)
                for name in schemes
            }
        for name, file in files.items():
            models[name] = aoext.load_gguf(file, dtype=floats)
            models[f"{name} by int8"] = aoext.load_gguf(file, dtype=floats, activation=torch.int8)
        for _ in range(rounds):
            for name, file in files.items():
                keep(f"llama.cpp {name}", by_llama_cpp(folder, file, prompt, steps, threads))
            for name, model in models.items():
                keep(f"aoext {name}", by_transformers(model, prompt, steps))
    columns = ("prefill", "decode", "compiled decode")
    table = Table("tokens/s", *columns)
    for name, measured in results.items():
        table.add_row(name, *(f"{measured[c]:.1f}" if c in measured else "–" for c in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
