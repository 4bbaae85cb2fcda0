"""How much memory loading takes: that of the quantised model, and of two layers as they were.

A child loads, and a thread of it looks at what the process has allocated; pages of files do not count, for
the kernel can drop them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import aoext
from aoext.models.summary import model_bytes

transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")

HIDDEN, INNER, LAYERS = 1024, 3072, 6
LAYER = 2 * HIDDEN * (4 * HIDDEN + 3 * INNER)  # bytes of a layer in bfloat16

CHILD = """
import json, re, sys, threading, time
from pathlib import Path
import torch, transformers, aoext
from aoext.convert import convert_checkpoint
from aoext.configs import Int4WeightOnlyConfig

torch.set_num_threads(2)
folder, way = Path(sys.argv[1]), sys.argv[2]

def allocated():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

load = transformers.AutoModelForCausalLM.from_pretrained
config = aoext.AoextConfig({"scheme": "int4", "group_size": 64})
def on_meta(folder):
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(folder / "ours"))
    model.bfloat16().model.rotary_emb = None  # whose buffers save_pretrained leaves out
    return aoext.load_model(model, folder / "ours"), model
ways = {
    "quantise": lambda folder: load(folder / "plain", quantization_config=config, dtype=torch.bfloat16),
    "load again": lambda folder: load(folder / "ours"),
    "load_model": on_meta,
    "convert": lambda folder: convert_checkpoint(folder / "plain", folder / "converted", config.scheme),
    "keep experts": lambda folder: load(folder / "experts", quantization_config=aoext.AoextConfig.keep()),
    "quantise experts": lambda folder: convert_checkpoint(
        folder / "plain", folder / "quantised", config.scheme
    ),
}
ways[way](folder / "small")  # imports, and makes what is made once
before = peak = allocated()
done = False
def watch():
    global peak
    while not done:
        peak = max(peak, allocated())
        time.sleep(0.001)
watcher = threading.Thread(target=watch)
watcher.start()
kept = ways[way](folder)
done = True
watcher.join()
print(json.dumps({"peak": peak - before, "after": allocated() - before}))
"""


def save(folder: Path, hidden: int, inner: int, layers: int) -> None:
    """A model as it is, in files of 30 MB, and quantised; the bytes of the latter."""
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=8,
        vocab_size=512,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    model = transformers.LlamaForCausalLM._from_config(config)
    model.save_pretrained(folder / "plain", max_shard_size="30MB")
    aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=64), lambda _, name: "proj" in name)
    model.save_pretrained(folder / "ours", max_shard_size="30MB")
    (folder / "bytes").write_text(str(model_bytes(model)))


def save_experts(folder: Path, size: int, experts: int, layers: int) -> None:
    """A mixture of experts, [size, size] each, in float8, and one plain; the bytes of the first."""
    config = transformers.Qwen3MoeConfig(
        hidden_size=size,
        moe_intermediate_size=size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=experts,
        num_experts_per_tok=2,
        vocab_size=512,
        dtype="bfloat16",
    )
    model = transformers.Qwen3MoeForCausalLM._from_config(config)
    model.config.architectures = ["Qwen3MoeForCausalLM"]
    model.save_pretrained(folder / "plain", max_shard_size="30MB")
    (folder / "experts").mkdir()
    model.config.quantization_config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    model.config.save_pretrained(folder / "experts")
    state = {}
    for file in (folder / "plain").glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            state[name] = tensor
            if "experts" in name:
                state[name] = tensor.to(torch.float8_e4m3fn)
                state[f"{name}_scale_inv"] = torch.ones(size // 128, size // 128)
    save_file(state, folder / "experts" / "model.safetensors")
    (folder / "bytes").write_text(str(sum(tensor.nbytes for tensor in state.values())))


EXPERT, EXPERTS = 512, 32
WEIGHT = 2 * EXPERTS * 2 * EXPERT * EXPERT  # bytes of gate and up in bfloat16


@pytest.fixture(scope="module")
def folder_of_experts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    save_experts(folder, EXPERT, EXPERTS, LAYERS)
    save_experts(folder / "small", 128, 4, 2)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model of 160 MB, and a small one."""
    folder = tmp_path_factory.mktemp("models")
    save(folder, HIDDEN, INNER, LAYERS)
    save(folder / "small", 128, 256, 2)
    return folder


def measured(folder: Path, way: str) -> dict[str, int]:
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, folder, way],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    print(f"{way}: {result}")
    return result


@pytest.mark.parametrize("way", ["quantise", "load again", "load_model", "convert"])
def test_loading_takes_the_quantised_model_and_two_layers(folder, way):
    size = int((folder / "bytes").read_text())
    assert measured(folder, way)["peak"] <= size + 2 * LAYER


@pytest.mark.parametrize("way", ["keep experts", "quantise experts"])
def test_experts_take_the_quantised_model_and_one_weight(folder_of_experts, way):
    """Where a file is converted, less: that of one weight in which all experts are plain."""
    files = (folder_of_experts / "plain").glob("*.safetensors")
    size = int((folder_of_experts / "bytes").read_text()) if way == "keep experts" else 0
    assert size or max(file.stat().st_size for file in files) <= WEIGHT
    assert measured(folder_of_experts, way)["peak"] <= size + WEIGHT
