"""Tokens/s and memory of a LoRA training step by scheme, beside bitsandbytes' NF4, torchao's int8 and bf16.

    python benchmarks/lora_step.py --shape 135m --tokens 256 --threads 1
    python benchmarks/lora_step.py --device cuda --shape 8b --batch 4 --tokens 512 --checkpointing --together
    python benchmarks/lora_step.py --device cuda --shape qwen3-30b-a3b --tokens 2048 --together

Models have the layers of the named one, random weights and a small vocabulary. Adapters are on all linear
layers, but in a mixture of experts on the experts alone, which PEFT's ParamWrapper has in bf16 ("as it is").
Each scheme runs in a process of its own, with --together all run in one, in several --rounds. The time is
that of the fastest step. On a CPU it is the process's CPU time, which other programs do not lengthen: with
one thread, what a step takes. Memory is the peak of the process, or of the GPU's allocator, in the measured
steps, less what it had before the model was made. Needs transformers and peft; the line of a scheme names
any other package that it needs and that is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import math
import operator
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import aoext
from aoext.models.experts import expert_weights

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a model; `layers` is how many there are if the command line says nothing."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    layers: int
    experts: int = 0
    chosen: int = 0  # experts for each token

    def build(self, layers: int | None, dtype: str) -> Any:
        import transformers

        sizes = {
            "hidden_size": self.hidden,
            "num_hidden_layers": layers or self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": 128 if self.hidden >= 2048 else 64,
            "vocab_size": 2048,
            "dtype": dtype,
        }
        if not self.experts:
            config = transformers.LlamaConfig(intermediate_size=self.intermediate, **sizes)
            return transformers.LlamaForCausalLM._from_config(config, dtype=getattr(torch, dtype))
        routing = {"num_experts": self.experts, "num_experts_per_tok": self.chosen}
        config = transformers.Qwen3MoeConfig(moe_intermediate_size=self.intermediate, **routing, **sizes)
        model = transformers.Qwen3MoeForCausalLM._from_config(config, dtype=getattr(torch, dtype))
        with torch.no_grad():
            for module in model.modules():
                for name in expert_weights(module):
                    module._parameters[name].normal_(std=0.02)
        return model


SHAPES = {
    "small": Shape(1024, 3072, 16, 16, 4),
    "135m": Shape(576, 1536, 9, 3, 30),
    "8b": Shape(4096, 14336, 32, 8, 8),
    "qwen3-30b-a3b": Shape(2048, 768, 32, 4, 1, 128, 8),
    "small experts": Shape(512, 256, 8, 4, 2, 32, 4),
}


def ours(config: aoext.configs.QuantizationConfig) -> Callable[[nn.Module], Any]:
    return lambda model: aoext.quantize_(model, config, is_target)


def is_target(module: nn.Module, name: str) -> bool:
    return bool(expert_weights(module)) or name.endswith(TARGETS)


def nf4(model: nn.Module) -> None:
    import bitsandbytes

    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.endswith(TARGETS):
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
    "aoext nf4": ours(aoext.NF4WeightOnlyConfig()),
    "aoext int4": ours(aoext.Int4WeightOnlyConfig(group_size=64)),
    "aoext int8": ours(aoext.Int8WeightOnlyConfig()),
    "aoext float8": ours(aoext.Float8WeightOnlyConfig()),
    "aoext mxfp4": ours(aoext.MXFP4WeightOnlyConfig()),
    "aoext nvfp4": ours(aoext.NVFP4WeightOnlyConfig()),
    "aoext int8_dynamic": ours(aoext.Int8DynamicActivationInt8WeightConfig()),
    "bitsandbytes NF4": nf4,
    "torchao int8": torchao("Int8WeightOnlyConfig"),
}


class Memory:
    """The highest memory meanwhile, in bytes: of a GPU by its allocator, of a process by a thread."""

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
        else:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.peak = torch.cuda.max_memory_allocated(self.device)
        else:
            self._done.set()
            self._thread.join()


def adapted(model: Any, shape: Shape, options: argparse.Namespace) -> Any:
    import peft

    if options.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    targets = {"target_modules": list(TARGETS)}
    if shape.experts:
        targets = {"target_modules": [], "target_parameters": EXPERTS}
    config = peft.LoraConfig(r=16, init_lora_weights="gaussian", **targets)
    return peft.get_peft_model(model, config).train()


def measure(way: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    device, shape = torch.device(options.device), SHAPES[options.shape]
    torch.manual_seed(0)
    memory = Memory(device)
    before = memory.now()
    with device:
        model = shape.build(options.layers, options.dtype)
    WAYS[way](model)
    gc.collect()
    stored = memory.now() - before
    model = adapted(model, shape, options)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    ids = torch.randint(0, 2048, (options.batch, options.tokens), device=device)

    def step() -> float:
        start = clock()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()  # waits for the device
        assert math.isfinite(value), "the loss is not finite"
        return clock() - start

    for _ in range(2):
        step()
    with memory:
        times = [step() for _ in range(options.steps)]
    return {"seconds": min(times), "bytes": memory.peak - before, "weights": stored}


def measured(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """What `measure` gives, or why it gives nothing."""
    if options.together:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return measure(way, options)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        finally:
            gc.collect()
            if options.device == "cuda":
                torch.cuda.empty_cache()
    child = [sys.executable, __file__, *sys.argv[1:], "--measure", way]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it died"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--shape", default="small", choices=SHAPES)
    parser.add_argument("--layers", type=int, help="instead of the shape's own")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1, help="of all schemes, one after the other")
    parser.add_argument("--checkpointing", action="store_true", help="of activations")
    parser.add_argument("--together", action="store_true", help="in one process")
    parser.add_argument("--way", action="append", choices=WAYS, help="repeatable; all if none is named")
    parser.add_argument("--measure", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options)))
        return
    seconds = operator.itemgetter("seconds")
    found: dict[str, dict[str, Any]] = {}
    for _ in range(options.rounds):
        for way in options.way or WAYS:
            result = measured(way, options)
            best = found.get(way, result)
            found[way] = result if "error" in result or "error" in best else min(result, best, key=seconds)
    print("| weights | tokens/s | ms per step | MB, peak | MB, weights |\n|---|---|---|---|---|")
    for way, result in found.items():
        if "error" in result:
            print(f"| {way} | {result['error']} | | | |")
            continue
        rate = options.batch * options.tokens / result["seconds"]
        figures = (result["seconds"] * 1e3, result["bytes"] / 1e6, result["weights"] / 1e6)
        print(f"| {way} | {rate:.0f} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")


if __name__ == "__main__":
    main()
