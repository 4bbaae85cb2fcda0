"""save_model and load_model: what goes into a file, and that it all comes back."""

from __future__ import annotations

import copy
import json
import os
import sys
import zlib

import pytest
import torch
from torch import nn

from aoext.configs import Int4WeightOnlyConfig, Int8WeightOnlyConfig
from aoext.models.quantize import quantize_
from aoext.reference import randn
from aoext.serialization import FORMAT_VERSION, load_model, save_model
from aoext.tensors import Int4Tensor
from formats import FORMATS, quantized
from models import BF16, as_version_1, assert_same_state, build, contents, fill, quantized_model


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
    assert metadata["aoext_format_version"] == FORMAT_VERSION == "2"
    assert json.loads(metadata["aoext_weights"])["0.weight"] == {
        "type": "Int4Tensor",
        "dtype": "bfloat16",
        "shape": [32, 64],
        "group_size": 16,
        "fields": ["qdata", "scale", "zero_point"],
        "qdata_dtype": "int8",
        "block_size": [1, 16],
        "format": "int4",
        "packing": "two values per byte along K, even k in the low nibble",
        "sign": "two's complement, -8..7",
        "zero_point": "float, added: w = q * scale + zero_point",
    }
    assert {"0.weight.qdata", "0.weight.scale", "0.weight.zero_point", "3.weight"} <= tensors.keys()
    assert "0.weight" not in tensors
    checksums = json.loads(metadata["aoext_crc32"])
    assert checksums.keys() == tensors.keys()
    for name, tensor in tensors.items():
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        assert checksums[name] == f"{zlib.crc32(data):08x}"


def test_files_of_version_1_come_back(model, device, path):
    save_model(model, path)
    as_version_1(path)
    target = build(device)
    load_model(target, path)
    assert_same_state(target, model)
    with pytest.raises(ValueError, match=rf"{path}: \S+ has no checksum that could be verified"):
        load_model(target, path, verify=True)


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


def test_torch_alone_saves_and_loads(model, device, path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    save_model(model, path)
    target = build(device)
    load_model(target, path)
    assert_same_state(target, model)


def test_files_without_quantised_weights_work_too(device, generator, path):
    model = fill(build(device), generator)
    save_model(model, path)
    target = build(device)
    load_model(target, path)
    assert_same_state(target, model)
    assert not isinstance(target[0].weight, Int4Tensor)


def of_buffers(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


def test_lazy_conjugates_and_negatives_come_back(device, generator, path):
    z = torch.complex(randn(generator, 4, 6), randn(generator, 4, 6)).to(device)
    model = of_buffers(conjugate=z.conj(), negative=z.conj().imag, turned=z[1:, ::2].t().conj())
    save_model(model, path)
    target = of_buffers(**{name: torch.zeros_like(t).resolve_conj() for name, t in model.named_buffers()})
    load_model(target, path)
    assert torch.equal(target.conjugate, torch.complex(z.real, -z.imag))
    assert torch.equal(target.negative, -z.imag)
    assert torch.equal(target.turned, torch.complex(z.real, -z.imag)[1:, ::2].t())


DTYPES = [
    *(torch.complex128, torch.complex64, torch.complex32, torch.float64, torch.bool),
    *(torch.uint16, torch.uint32, torch.uint64, torch.int16, torch.float4_e2m1fn_x2),
    *(
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    ),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4)])
def test_every_dtype_comes_back(dtype, shape, generator, path):
    size = torch.empty(shape, dtype=dtype).nbytes
    limit = 2 if dtype is torch.bool else 256
    data = torch.randint(0, limit, (size,), dtype=torch.uint8, generator=generator)
    model = of_buffers(x=data.view(dtype).reshape(shape))
    save_model(model, path)
    for target in (of_buffers(x=torch.empty(shape, dtype=dtype)), of_buffers(x=model.x.to("meta"))):
        load_model(target, path, verify=True)
        assert target.x.dtype is dtype
        assert target.x.shape == shape
        assert torch.equal(target.x.reshape(-1).view(torch.uint8), data)


class Rotary(nn.Module):
    """Buffers that are not persistent: a small one, and one too large to keep in a file."""

    def __init__(self, device: torch.device | str, frequencies: int = 32) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, device=device)
        self.register_buffer("inv_freq", torch.rand(frequencies, device=device), persistent=False)
        self.register_buffer("mask", torch.rand(200, 200, device=device), persistent=False)


def test_buffers_that_are_not_persistent_are_filled_or_named_on_the_meta_device(device, path):
    model = Rotary(device)
    save_model(model, path)
    target = Rotary("meta")
    message = rf"{path}: buffers on the meta device .* does not have them in this shape and dtype: "
    with pytest.raises(ValueError, match=f"{message}mask$"):
        load_model(target, path)
    assert target.linear.weight.is_meta
    target.mask = torch.ones(200, 200)
    load_model(target, path)
    assert torch.equal(target.inv_freq, model.inv_freq.cpu())
    assert target.inv_freq.device.type == "cpu"
    assert torch.equal(target.mask, torch.ones(200, 200))

    names = load_model(Rotary("meta"), path, strict=False)
    assert names == (["mask"], [])
    assert load_model(Rotary("meta").half(), path, strict=False, cast=True) == (["mask"], [])
    with pytest.raises(ValueError, match=f"{message}inv_freq, mask$"):
        load_model(Rotary("meta", frequencies=8), path)
    there = Rotary(device)
    inv_freq = there.inv_freq.clone()
    load_model(there, path)
    assert torch.equal(there.inv_freq, inv_freq)  # of no state, so that it stays
    assert torch.equal(there.linear.weight, model.linear.weight)


def test_names_that_are_left_over_stay_where_strict_is_off(model, device, generator, path):
    save_model(model, path)
    target = fill(build(device), generator)
    target.append(nn.Linear(3, 2, device=device, dtype=BF16))
    del target[3]  # the new layer takes its name
    target[3] = nn.Module()
    target[3].extra = nn.Parameter(torch.ones(2, device=device))
    names = load_model(target, path, strict=False)
    assert names.missing == ["3.extra"]
    assert names.unexpected == ["3.bias", "3.weight"]
    assert torch.equal(target[3].extra, torch.ones(2, device=device))
    for part in (0, 1, 2):
        assert_same_state(target[part], model[part])


def test_a_part_of_a_model_loads_by_its_prefix(model, device, generator, path):
    whole = nn.ModuleDict({"model": model, "head": nn.Linear(3, 5, device=device)})
    save_model(whole, path)
    base = fill(build(device), generator)
    assert load_model(base, path, prefix="model") == ([], [])
    assert_same_state(base, model)
    with pytest.raises(ValueError, match=r"no name in the file begins with 'trunk\.'"):
        load_model(base, path, prefix="trunk", strict=False)


@pytest.mark.parametrize("start", ["cpu", "meta"])
def test_other_float_dtypes_are_converted_where_asked_for(start, model, device, path):
    save_model(model, path)
    target = build(device if start == "cpu" else "meta").float()
    load_model(target, path, cast=True)
    assert {p.dtype for p in target.parameters()} == {torch.float32}
    assert_same_state(target, copy.deepcopy(model).to(target[0].weight.device).float())


def test_ties_hold_where_the_file_has_one_of_the_names(device, generator, path):
    def tied(device: torch.device | str) -> nn.ModuleDict:
        layers = {name: nn.Linear(64, 64, bias=False, device=device) for name in ("a", "b")}
        layers["b"].weight = layers["a"].weight
        return nn.ModuleDict(layers)

    model = fill(tied(device), generator)
    quantize_(model, Int8WeightOnlyConfig())
    save_model(nn.ModuleDict({"a": model["a"]}), path)
    target = tied(device)
    assert load_model(target, path, strict=False) == ([], [])
    assert target["b"].weight is target["a"].weight
    assert_same_state(target, model)


def test_inference_mode_on_either_side_is_left_at_the_door(model, device, generator, path):
    save_model(model, path)
    with torch.inference_mode():
        target = fill(build(device), generator)
    load_model(target, path)
    assert_same_state(target, model)
    assert target[3].weight.is_inference()

    target = build("meta")
    with torch.inference_mode():
        load_model(target, path)
    assert not any(tensor.is_inference() for tensor in target.state_dict(keep_vars=True).values())
    assert target[0].bias.requires_grad
    assert_same_state(target, model)
