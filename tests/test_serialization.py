"""save_model and load_model: what goes into a file, and that it all comes back."""

from __future__ import annotations

import copy
import json
import os
import sys

import pytest
import torch
from torch import nn

from aoext.configs import Int4WeightOnlyConfig, Int8WeightOnlyConfig
from aoext.quantize import quantize_
from aoext.serialization import FORMAT_VERSION, load_model, save_model
from aoext.tensors import Int4Tensor
from formats import FORMATS, quantized
from models import BF16, assert_same_state, build, contents, fill, quantized_model
from reference import randn


@pytest.fixture
def model(device, generator):
    return quantized_model(device, generator)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_comes_back_bit_for_bit(format, device, generator, path):
    model = build(device)
    weight = quantized(format, 32, 64, BF16, device, generator)
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    save_model(model, path)
    target = fill(build(device), generator)
    load_model(target, path)
    assert_same_state(target, model)
    assert isinstance(target[0].weight, nn.Parameter)
    assert not target[0].weight.requires_grad
    assert target[0].bias.requires_grad
    x = randn(generator, 5, 64, dtype=BF16).to(device)
    assert torch.equal(target(x), model(x))


@pytest.mark.parametrize("start", ["plain", "alike", "other format", "meta", "quantised meta"])
def test_load_takes_models_of_every_state(start, model, device, generator, path):
    save_model(model, str(path))
    target = fill(build(device), generator)
    if start == "alike":
        quantize_(target, Int4WeightOnlyConfig(group_size=16))
        target[3] = build(device)[3]
    elif start == "other format":
        quantize_(target, Int8WeightOnlyConfig(), lambda _, name: name == "0")
    elif "meta" in start:
        target = build("meta")
        if "quantised" in start:
            quantize_(target, Int4WeightOnlyConfig(group_size=32), lambda _, name: name == "0")
    load_model(target, path)
    assert_same_state(target, model)
    expected = "cpu" if "meta" in start else device.type
    assert {tensor.device.type for tensor in target.state_dict().values()} == {expected}
    x = randn(generator, 5, 64, dtype=BF16)
    assert torch.equal(target.to(device)(x.to(device)), model(x.to(device)))


def test_plain_tensors_are_filled_in_place(model, device, generator, path):
    save_model(model, path)
    target = fill(build(device), generator)
    bias, mean, plain = target[0].bias, target[1].running_mean, target[3].weight
    load_model(target, path)
    assert target[0].bias is bias
    assert target[1].running_mean is mean
    assert target[3].weight is plain


def test_loaded_weights_do_not_depend_on_the_file(model, device, generator, path):
    save_model(model, path)
    target = build("meta")
    load_model(target, path)
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.write(b"\xff" * size)
    assert_same_state(target, model)
    target[0].bias.data.zero_()


def test_the_file_explains_itself(model, path):
    save_model(model, path)
    tensors, metadata = contents(path)
    assert metadata["aoext_format_version"] == FORMAT_VERSION == "1"
    assert json.loads(metadata["aoext_weights"])["0.weight"] == {
        "type": "Int4Tensor",
        "dtype": "bfloat16",
        "shape": [32, 64],
        "group_size": 16,
        "fields": ["qdata", "scale", "zero_point"],
        "block_size": [1, 16],
        "format": "int4",
        "packing": "two values per byte along K, even k in the low nibble",
        "sign": "two's complement, -8..7",
        "zero_point": "float, added: w = q * scale + zero_point",
    }
    assert {"0.weight.qdata", "0.weight.scale", "0.weight.zero_point", "3.weight"} <= tensors.keys()
    assert "0.weight" not in tensors


def test_ties_are_stored_once_and_restored(device, generator, path):
    def tied(device: torch.device | str) -> nn.ModuleDict:
        layers = {name: nn.Linear(64, 32, device=device) for name in ("a", "b", "c", "d")}
        layers["c"].weight = layers["a"].weight
        layers["d"].bias = layers["b"].bias
        return nn.ModuleDict(layers)

    model = fill(tied(device), generator)
    quantize_(model, Int8WeightOnlyConfig(), lambda _, name: name in ("a", "c"))
    save_model(model, path)
    tensors, metadata = contents(path)
    assert "c.weight.qdata" not in tensors
    assert json.loads(metadata["aoext_tied"]) == {
        "c.weight": "a.weight",
        "d.bias": "b.bias",
    }
    for target in (tied(device), tied("meta")):
        load_model(target, path)
        assert target["c"].weight is target["a"].weight
        assert target["d"].bias is target["b"].bias
        assert target["d"].weight is not target["b"].weight
        assert_same_state(target, model)

    untied = copy.deepcopy(model)
    untied["c"].weight = nn.Parameter(model["a"].weight.clone(), requires_grad=False)
    save_model(untied, path)
    with pytest.raises(ValueError, match=r"c\.weight and a\.weight share a tensor in the model"):
        load_model(model, path)


def test_slices_and_shared_memory_are_saved_as_they_look(device, generator, path):
    model = build(device)
    parent = quantized("int4", 40, 64, BF16, device, generator)
    model[0].weight = nn.Parameter(parent[8:], requires_grad=False)
    model[3].bias = nn.Parameter(model[1].running_mean[:3], requires_grad=False)
    save_model(model, path)
    target = build(device)
    load_model(target, path)
    assert_same_state(target, model)


def test_save_replaces_a_file_whole_or_not_at_all(model, path, monkeypatch):
    save_model(model, path)
    before = path.read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    model[0].bias.data.zero_()
    with pytest.raises(KeyboardInterrupt):
        save_model(model, path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_without_safetensors_the_error_says_what_to_install(model, path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (save_model, load_model):
        with pytest.raises(ImportError, match=r"pip install 'aoext\[safetensors\]'"):
            call(model, path)


def test_files_without_quantised_weights_work_too(device, generator, path):
    model = fill(build(device), generator)
    save_model(model, path)
    target = build(device)
    load_model(target, path)
    assert_same_state(target, model)
    assert not isinstance(target[0].weight, Int4Tensor)
