"""Memory and time of a LoRA training step on one small llama: aoext's schemes, bitsandbytes' NF4, torchao's.

    python benchmarks/lora_step.py --threads 1 --layers 4 --tokens 256

Each scheme runs in a process of its own. On a CPU the time is the process's CPU time, which other programs
do not lengthen: with one thread, what a step takes. Memory is the peak of the process, or of the GPU's
allocator, in the measured steps, less what it had before the model was made. Needs transformers and peft;
the line of a scheme names any other package that it needs and that is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import aoext

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def ours(config: aoext.configs.QuantizationConfig) -> Callable[[nn.Module], Any]:
    return lambda model: aoext.quantize_(model, config, is_target)


def is_target(module: nn.Module, name: str) -> bool:
    return name.endswith(TARGETS)


def nf4(model: nn.Module) -> None:
    import bitsandbytes

    for name, module in list(model.named_modules()):
        if is_target(module, name):
            layer = bitsandbytes.nn.Linear4bit(
                module.in_features,
                module.out_features,
                bias=False,
                compute_dtype=module.weight.dtype,
                quant_type="nf4",
            )
            device = module.weight.device
            layer.weight = bitsandbytes.nn.Params4bit(
                module.weight.data.cpu(), requires_grad=False, quant_type="nf4"
            )
            path, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(path), leaf, layer.to(device))
    model.is_loaded_in_4bit = True


def torchao(name: str) -> Callable[[nn.Module], Any]:
    def quantise(model: nn.Module) -> None:
        from torchao import quantization

        quantization.quantize_(model, getattr(quantization, name)(), is_target)

    return quantise


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "as it is": lambda model: None,
    "aoext int4": ours(aoext.Int4WeightOnlyConfig(group_size=64)),
    "aoext int8": ours(aoext.Int8WeightOnlyConfig()),
    "aoext int8_dynamic": ours(aoext.Int8DynamicActivationInt8WeightConfig()),
    "aoext float8": ours(aoext.Float8WeightOnlyConfig()),
    "bitsandbytes NF4": nf4,
    "torchao int8": torchao("Int8WeightOnlyConfig"),
}


class Memory:
    """The highest memory meanwhile, in bytes."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.peak = device, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def now(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status)[1])

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.peak = max(self.peak, self.now())

    def __enter__(self) -> Memory:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if self.device.type == "cuda":
            self.peak = torch.cuda.max_memory_allocated(self.device)


def measure(way: str, options: argparse.Namespace) -> dict[str, Any]:
    import peft
    import transformers

    torch.set_num_threads(options.threads)
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        vocab_size=2048,
        dtype=options.dtype,
    )
    memory = Memory(device)
    before = memory.now()
    model = transformers.LlamaForCausalLM._from_config(config, dtype=dtype).to(device)
    WAYS[way](model)
    adapters = peft.LoraConfig(r=16, target_modules=list(TARGETS), init_lora_weights="gaussian")
    model = peft.get_peft_model(model, adapters).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    ids = torch.randint(0, config.vocab_size, (1, options.tokens), device=device)

    def step() -> float:
        start = clock()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()  # waits for the device
        assert math.isfinite(value), "the loss is not finite"
        return clock() - start

    step()
    with memory:
        times = [step() for _ in range(options.steps)]
    return {"seconds": statistics.median(times), "bytes": memory.peak - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--way", action="append", choices=WAYS, help="repeatable; all if none is named")
    parser.add_argument("--measure", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options)))
        return
    print("| weights | MB | ms per step |\n|---|---|---|")
    for way in options.way or WAYS:
        child = [sys.executable, __file__, *sys.argv[1:], "--measure", way]
        done = subprocess.run(child, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"| {way} | {(done.stderr.strip().splitlines() or ['it died'])[-1]} | |", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"| {way} | {found['bytes'] / 1e6:.0f} | {found['seconds'] * 1e3:.0f} |", flush=True)


if __name__ == "__main__":
    main()
