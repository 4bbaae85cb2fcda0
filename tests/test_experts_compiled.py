"""Whole models of quantised experts under torch.compile: decoding in graphs, prompts of any length."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

pytest.importorskip("transformers")

import transformers

import aoext
from conftest import compiler_for
from moe_models import IDS, build

CONFIGS = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=32),
    "int8": aoext.Int8WeightOnlyConfig(),
    "float8_dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(),
    "nvfp4": aoext.NVFP4WeightOnlyConfig(),
}
BATCH, PROMPT, STEPS = 2, 5, 5  # the third step in a graph and later ones replay it


class Decoding:
    """Greedy decoding with a static cache, a token a step."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model = model
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        parameters = inspect.signature(type(model).forward).parameters
        self.cache_name = "past_key_values" if "past_key_values" in parameters else "cache"
        self.prompt = IDS[:BATCH, :PROMPT].to(device)

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """The logits behind tokens [B, T], which lie at `position` [T]."""
        output = self.model(
            input_ids=tokens,
            position_ids=position[None].expand(BATCH, -1),
            cache_position=position,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_name: self.cache},
        )
        return output.logits[:, -1]

    def run(self, step: Any) -> list[Tensor]:
        """The logits of each step, the prompt's first."""
        position = torch.arange(PROMPT, device=self.prompt.device)
        logits = [self.step(self.prompt, position).clone()]
        for i in range(STEPS):
            torch.compiler.cudagraph_mark_step_begin()
            tokens = logits[-1].argmax(-1, keepdim=True)
            logits.append(step(tokens, torch.full_like(position[:1], PROMPT + i)).clone())
        return logits


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_decoding_runs_by_replays_of_a_graph(name, config, device, generator):
    """A CUDA graph on a GPU; on other devices the same program in Inductor's code alone."""
    if compiler_for(device) != "inductor":
        pytest.skip("Inductor has no compiler for a simulated device")
    if device.type != "cuda" and (name, config) != ("qwen3", "int4"):
        pytest.skip("one of them is enough where there are no CUDA graphs")
    model = build(name, generator).to(device)
    aoext.quantize_(model, CONFIGS[config])
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad():
        decoding = Decoding(model, device)
        expected = decoding.run(decoding.step)
        decoding = Decoding(model, device)
        step = torch.compile(decoding.step, mode="reduce-overhead", fullgraph=True)
        result = decoding.run(step)
        for ours, theirs in zip(result, expected, strict=True):
            assert (ours - theirs).norm() / theirs.norm() < (0.1 if "dynamic" in config else 1e-3)
        assert counters["stats"]["unique_graphs"] == 1
        if device.type == "cuda":
            assert counters["inductor"]["cudagraph_skips"] == 0
            activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities) as profile:
                decoding.run(step)
            assert any("cudaGraphLaunch" in event.key for event in profile.key_averages())
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss"])
def test_prompts_of_other_lengths_need_no_other_graph(name, generator):
    """As torch.compile does by itself: a graph for the first length, and one for all others."""
    model = build(name, generator)
    aoext.quantize_(model, CONFIGS["int4"])
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    counts = []
    with torch.no_grad():
        for length in (7, 12, 5, 9, 11):
            ids = IDS[:, :length].contiguous()
            logits, expected = compiled(ids, use_cache=False).logits, model(ids, use_cache=False).logits
            assert (logits - expected).norm() / expected.norm() < 1e-4
            counts.append(graphs.frame_count)
    assert counts[1:] == counts[1:2] * 4
    assert counts[1] <= 2
    torch._dynamo.reset()
