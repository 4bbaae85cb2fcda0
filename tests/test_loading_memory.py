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

import aoext
from aoext.models.summary import model_bytes

transformers = pytest.importorskip("transformers")

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model of 160 MB, and a small one."""
    folder = tmp_path_factory.mktemp("models")
    save(folder, HIDDEN, INNER, LAYERS)
    save(folder / "small", 128, 256, 2)
    return folder


@pytest.mark.parametrize("way", ["quantise", "load again", "load_model", "convert"])
def test_loading_takes_the_quantised_model_and_two_layers(folder, way):
    size = int((folder / "bytes").read_text())
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, folder, way],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    print(f"{way}: {measured}, the model {size}")
    assert measured["peak"] <= size + 2 * LAYER
