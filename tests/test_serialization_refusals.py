"""save_model and load_model refuse what does not fit, and change nothing then."""

from __future__ import annotations

import copy
import json
import os

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from aoext.configs import Int8WeightOnlyConfig
from aoext.quantize import quantize_
from aoext.serialization import load_model, save_model
from models import BF16, assert_same_state, build, contents, fill, quantized_model


@pytest.fixture
def model(device, generator):
    return quantized_model(device, generator)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_states_without_a_place_in_a_file_are_refused(model, path):
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"calls": 1}

    for bad, message in (
        (build("meta"), r"0\.weight is on the meta device"),
        (nn.Sequential(Extra(2, 2)), r"0\._extra_state must be a dense tensor, got a dict"),
        (nn.LazyLinear(3), "weight must be a dense tensor"),
    ):
        with pytest.raises(ValueError, match=f"save_model: {message}"):
            save_model(bad, path)
    model[2].weight = nn.Parameter(model[2].weight.t(), requires_grad=False)
    with pytest.raises(ValueError, match=r"save_model: 2\.weight is a transposed view"):
        save_model(model, path)
    with pytest.raises(TypeError, match=r"save_model: model must be an nn\.Module, got a dict"):
        save_model({}, path)
    assert os.listdir(path.parent) == []


# What can be wrong with a file: changes to its tensors, to what it says of 0.weight, to its
# metadata, and what the error says.


def drop(key):
    return lambda tensors, weight, metadata: tensors.pop(key)


def put(key, change):
    return lambda tensors, weight, metadata: tensors.update({key: change(tensors[key])})


def say(key, value):
    return lambda tensors, weight, metadata: weight.update({key: value})


def meta(key, value):
    return lambda tensors, weight, metadata: metadata.update({key: value})


BAD_FILES = [
    (drop("3.weight"), r"the file lacks 3\.weight"),
    (drop("0.weight.scale"), r"0\.weight: the file lacks 0\.weight\.scale"),
    (lambda t, w, m: t.update(other=torch.ones(2)), "the model has no other"),
    (
        lambda t, w, m: t.update({"0.weight.more": torch.ones(2)}),
        r"the model has no 0\.weight\.more",
    ),
    (put("3.bias", lambda t: t[:2].clone()), r"3\.bias must be bfloat16 \[3\], got bfloat16 \[2\]"),
    (put("3.bias", lambda t: t.float()), r"3\.bias must be bfloat16 \[3\], got float32 \[3\]"),
    (
        put("0.weight.scale", lambda t: t[1:].clone()),
        r"0\.weight: Int4Tensor: scale must be \[4, 32\]",
    ),
    (
        put("0.weight.scale", lambda t: t.double()),
        r"0\.weight: Int4Tensor: scale must be bfloat16,",
    ),
    (
        put("0.weight.scale", lambda t: t.float()),
        r"0\.weight: .* zero_point must have the dtype of scale, float32, got bfloat16",
    ),
    (put("0.weight.qdata", lambda t: t.view(torch.uint8)), r"0\.weight: .* qdata must be int8"),
    (put("0.weight.qdata", lambda t: t[:, :8].clone()), r"0\.weight: .* must be \[1, 32\]"),
    (say("block_size", [1, 32]), r"0\.weight: Int4Tensor: scale must be \[2, 32\]"),
    (say("block_size", [1, 3]), r"0\.weight: Int4Tensor: block_size must be \[1, group_size\]"),
    (
        say("block_size", None),
        r"0\.weight: Int4Tensor: block_size must be .*two positive ints, got None",
    ),
    (say("group_size", 32), r"0\.weight: group_size must be 16, got 32"),
    (say("shape", [64, 32]), r"0\.weight: shape must be \[32, 64\], got \[64, 32\]"),
    (
        say("packing", "even k in the high nibble"),
        r"0\.weight: packing must be 'two values per byte",
    ),
    (say("sign", "unsigned"), r"0\.weight: sign must be \"two's complement, -8\.\.7\", got 'unsi"),
    (say("zero_point", "integer, subtracted"), r"0\.weight: zero_point must be 'float, added"),
    (say("type", "Int3Tensor"), r"0\.weight: type must be one of Int4Tensor, Int8Tensor, Float8"),
    (say("type", ["Int4Tensor"]), r"0\.weight: type must be one of .* got \['Int4Tensor'\]"),
    (say("type", "Int8Tensor"), r"0\.weight: fields must be of \['qdata', 'scale'\], got"),
    (say("dtype", "float64"), r"0\.weight: dtype must be one of bfloat16, float16, float32"),
    (say("dtype", "float16"), r"0\.weight: Int4Tensor: scale must have the tensor's dtype float16"),
    (say("fields", ["qdata", "scale"]), r"0\.weight: Int4Tensor: zero_point must be"),
    (say("fields", "qdata"), r"0\.weight: fields must be of"),
    (meta("aoext_format_version", "2"), "aoext_format_version must be '1', .* got '2'"),
    (
        lambda t, w, m: m.pop("aoext_format_version"),
        "aoext_format_version must be '1', .* got None",
    ),
    (meta("aoext_tied", "{"), "aoext_tied is no JSON"),
    (meta("aoext_tied", "[]"), "aoext_tied must be a JSON object"),
    (meta("aoext_tied", '{"3.bias": "0.bias"}'), r"3\.bias cannot be tied to '0\.bias'"),
    (meta("aoext_tied", '{"x": "nowhere"}'), "x cannot be tied to 'nowhere'"),
    (meta("aoext_tied", '{"x": ["0.bias"]}'), r"x cannot be tied to \['0\.bias'\]"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD_FILES)
def test_files_that_do_not_fit_are_refused_before_the_model_changes(spoil, message, generator, path):
    save_model(quantized_model("cpu", generator), path)
    tensors, metadata = contents(path)
    path.unlink()
    weights = json.loads(metadata["aoext_weights"])
    metadata["aoext_weights"] = ""
    spoil(tensors, weights["0.weight"], metadata)
    metadata["aoext_weights"] = json.dumps(weights)
    save_file(tensors, path, metadata)

    target = fill(build(), generator)
    before, untouched = copy.deepcopy(target), dict(target.named_parameters())
    with pytest.raises(ValueError, match=f"^load_model: .*{message}"):
        load_model(target, path)
    assert_same_state(target, before)
    assert all(parameter is untouched[name] for name, parameter in target.named_parameters())


def test_broken_files_are_refused(model, path):
    save_model(model, path)
    whole = path.read_bytes()
    for part in (b"", b"\x00" * 8, whole[:7], whole[:100], whole[:-1], whole + b"x", whole[50:]):
        path.write_bytes(part)
        with pytest.raises(ValueError, match="is no whole safetensors file"):
            load_model(model, path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        load_model(model, path)
    with pytest.raises(TypeError, match=r"load_model: model must be an nn\.Module"):
        load_model({}, path)


def test_models_that_do_not_fit_are_refused(model, device, path):
    save_model(model, path)
    other = build(device)
    other[0] = nn.Linear(64, 32, device=device)  # float32
    with pytest.raises(ValueError, match=r"0\.\w+ must be float32 .*, got bfloat16"):
        load_model(other, path)
    other = build(device)
    for layer, reason in (
        (nn.PReLU(1024), r"only nn\.Linear and nn\.Embedding can be quantised, not PReLU"),
        (nn.Embedding(32, 32, max_norm=1.0), "its max_norm changes its weight"),
    ):
        layer.weight = nn.Parameter(torch.zeros(32, 32, device=device, dtype=BF16))
        other[2] = layer
        with pytest.raises(ValueError, match=rf"2\.weight is quantised in the file, but {reason}"):
            load_model(other, path)
    quantize_(other, Int8WeightOnlyConfig(), lambda _, name: name == "3")
    other[2] = build(device)[2]
    with pytest.raises(ValueError, match=r"3\.weight is quantised in the model, but not in the file"):
        load_model(other, path)
    assert type(other[0].weight) is nn.Parameter
