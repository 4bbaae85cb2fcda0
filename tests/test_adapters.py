"""PEFT's adapters of every kind on quantised weights: training, merging, what is lost, what PEFT copies."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aoext
from aoext.integrations.peft_merging import measuring
from aoext.layers import set_plain_weight
from aoext.tensors import QuantizedTensor
from test_peft import CONFIGS, HIDDEN, OUT, Model, bits, relative, stir

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

R = {"r": 4}
# Each kind of adapter that PEFT puts around a linear layer, with what it needs here beside its targets.
TUNERS: dict[str, dict[str, Any]] = {
    "Lora": {},
    "AdaLora": {"total_step": 20, "tinit": 2, "tfinal": 5, "init_r": 4, "target_r": 2},
    "Adamss": {},
    "Beft": {},
    "BOFT": {"boft_block_size": 8},
    "C3A": {"block_size": 32},
    "Deft": {},
    "Delora": {},
    "FourierFT": {"n_frequency": 20},
    "Frod": {},
    "Gralora": {},
    "Hira": {},
    "HRA": R,
    "IA3": {"feedforward_modules": ["down"]},
    "Lily": {},
    "LoHa": R,
    "LoKr": R,
    "Miss": R,
    "OFT": {"r": 0, "oft_block_size": 16},
    "OSF": {},
    "Peanut": {},
    "Psoft": {},
    "Pvera": {},
    "RandLora": R,
    "Road": {"group_size": 16},
    "Shira": R,
    "Supertuning": {},
    "TinyLora": {},
    "UniLora": {},
    "VBLoRA": {"r": 4, "num_vectors": 16, "vector_length": 16},
    "Vera": {"r": 8},
    "WaveFT": {},
}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def adapted(kind: str, scheme: str = "int8") -> Any:
    model = Model()
    aoext.quantize_(model, CONFIGS[scheme])
    config = getattr(peft, f"{kind}Config", None)
    if config is None:
        pytest.skip(f"this PEFT has no {kind}")
    return peft.get_peft_model(model, config(target_modules=["up", "down"], **TUNERS[kind]))


def train(model: Any, x: Tensor) -> None:
    target = torch.randn(len(x), OUT)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-3)

    def loss() -> Tensor:
        return nn.functional.mse_loss(model(x), target)

    model.eval()
    before = loss().item()
    model.train()
    for _ in range(4):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    assert loss().item() < before


def weights(model: nn.Module) -> dict[str, nn.Module]:
    """The layers under the adapters."""
    layers = ((name, getattr(model.base_model.model, name)) for name in ("up", "down"))
    return {name: layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer for name, layer in layers}


def dequantized(model: Any) -> Any:
    """A copy whose layers have plain weights, of which PEFT's own code takes care."""
    twin = copy.deepcopy(model)
    for layer in weights(twin).values():
        set_plain_weight(layer, nn.Parameter(layer.weight.dequantize(), requires_grad=False))
    return twin


@pytest.mark.parametrize("kind", TUNERS)
def test_adapters_of_every_kind_train_merge_and_come_off(kind, tmp_path):
    """A merged weight is what PEFT makes of the dequantised one, quantised again."""
    model = adapted(kind)
    x, before = torch.randn(16, HIDDEN), bits(model)
    train(model, x)
    assert all(map(torch.equal, bits(model), before))
    plain, apart = dequantized(model), model(x)
    assert relative(plain(x), apart) < 1e-4

    model.save_pretrained(tmp_path)
    base = copy.deepcopy(model).unload()
    again = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    assert torch.equal(again(x), apart)
    try:
        plain.merge_adapter()
    except (NotImplementedError, ValueError) as error:  # PEFT itself cannot
        with pytest.raises(type(error)):
            model.merge_adapter()
        assert all(map(torch.equal, bits(model), before))
        return
    model.merge_adapter()
    for name, layer in weights(model).items():
        theirs = weights(plain)[name]
        expected = layer.weight.requantized(theirs.weight).dequantize()
        torch.testing.assert_close(layer.weight.dequantize(), expected, rtol=0, atol=1e-6)
        if layer.bias is not None:
            torch.testing.assert_close(layer.bias, theirs.bias)
    if kind != "OSF":  # whose adapters PEFT does not take off
        model.unmerge_adapter()
        assert all(map(torch.equal, bits(model), before))
        assert torch.equal(model(x), apart)
    merged = model.merge_and_unload(safe_merge=True)
    assert isinstance(merged.up.weight, QuantizedTensor)
    assert relative(merged(x), plain(x)) < 0.05
