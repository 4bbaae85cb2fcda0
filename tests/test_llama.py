"""benchmarks/llama.py: its decoder is one, and a tiny run of it measures all that it names."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from click.testing import CliRunner

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "llama.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the project's sources")

TINY = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 50}


@pytest.fixture(scope="module")
def llama() -> ModuleType:
    spec = importlib.util.spec_from_file_location("llama", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["llama"] = module  # where its dataclasses look up their types
    spec.loader.exec_module(module)
    return module


@torch.inference_mode()
def test_decoding_step_by_step_gives_the_logits_of_the_whole(llama: ModuleType) -> None:
    torch.manual_seed(torch.seed() % 2**31)
    cpu = torch.device("cpu")
    model = llama.Decoder(llama.Config(**TINY), cpu, torch.float32, llama.quantiser("bf16", 32, False))
    tokens = torch.randint(50, (3, 7))
    whole = model(tokens, torch.arange(7), model.new_cache(3, 7))
    cache = model.new_cache(3, 9)  # random, so that a position seen too early shows
    for i in range(7):
        step = model(tokens[:, i : i + 1], torch.tensor([i]), cache)
    torch.testing.assert_close(step, whole, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(whole[0], whole[1])


@pytest.mark.parametrize("head", [False, True])
def test_a_tiny_run_measures_all_formats(llama: ModuleType, head: bool, tmp_path: Path) -> None:
    sizes = [part for name, size in TINY.items() for part in (f"--{name.replace('_', '-')}", str(size))]
    few = ["--batch", "1,3", "--context", "16", "--prompt", "8", "--group-size", "32", "--seconds", "0.01"]
    file = tmp_path / "llama.json"
    arguments = [*sizes, *few, "--json", str(file), *(["--quantise-head"] if head else [])]
    result = CliRunner().invoke(llama.main, arguments)
    assert result.exit_code == 0, result.output
    content = json.loads(file.read_text())
    assert content["schema"] == "aoext.llama/1"
    assert content["config"] == TINY
    bf16, int4, int8, float8 = content["results"]
    linear = 2 * (64 * (64 + 2 * 32) + 64 * 64 + 64 * 2 * 96 + 96 * 64) + head * 50 * 64
    saved = linear * (2 - 0.5 - 2 * 2 / 32)
    assert bf16["weight_bytes"] - int4["weight_bytes"] == saved
    rows = 2 * (64 + 2 * 32 + 64 + 2 * 96 + 64) + head * 50
    for scheme in (int8, float8):
        assert bf16["weight_bytes"] - scheme["weight_bytes"] == linear - 4 * rows
    for scheme in (bf16, int4, int8, float8):
        assert scheme["name"] in result.output
        for batch in ("1", "3"):
            step = scheme["decode"][batch]
            assert step["tokens_per_s"] == pytest.approx(int(batch) / step["seconds"])
            assert step["clock"] == "calls"
        assert scheme["prefill"]["tokens"] == 8


def test_sizes_that_do_not_fit_are_refused(llama: ModuleType) -> None:
    result = CliRunner().invoke(llama.main, ["--hidden", "65"])
    assert result.exit_code == 2
    assert "heads must divide hidden" in result.output
