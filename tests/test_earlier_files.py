"""Files that earlier revisions wrote (tests/data/earlier/write.py) load, with the same values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import aoext
from aoext.tensors import QuantizedTensor

FOLDER = Path(__file__).parent / "data/earlier"
EXPECTED = load_file(FOLDER / "expected.safetensors")


def compare(weights: dict[str, torch.Tensor], file: str) -> None:
    """All quantised weights that the file had, with their values."""
    found = {f"{file}.{name}": w for name, w in weights.items() if isinstance(w, QuantizedTensor)}
    assert found.keys() == {name for name in EXPECTED if name.startswith(f"{file}.")}
    for name, weight in found.items():
        assert torch.equal(weight.dequantize(), EXPECTED[name]), name


def test_models_of_save_model():
    shapes = {name.split(".")[1]: EXPECTED[name].shape for name in EXPECTED if name.startswith("formats.")}
    model = nn.ModuleDict({name: nn.Linear(k, n, bias=False) for name, (n, k) in shapes.items()})
    aoext.load_model(model, FOLDER / "model.safetensors")
    compare(dict(model.named_parameters()), "formats")


def test_states_of_torch_save():
    compare(torch.load(FOLDER / "state.pt", weights_only=True), "formats")


def test_pickles_of_whole_models():
    model = torch.load(FOLDER / "whole.pt", weights_only=False)
    compare(dict(model.named_parameters()), "whole")
    assert model.config == aoext.Float8DynamicActivationFloat8WeightConfig()
    assert model(torch.tensor([1, 2])).shape == (2, 8)


def test_folders_of_save_pretrained():
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER / "llama", dtype=torch.bfloat16)
    compare(dict(model.named_parameters()), "llama")
    assert model.config.quantization_config.config_for("layers.0.mlp.down_proj") == (
        aoext.Int8DynamicActivationInt4WeightConfig("auto")
    )
