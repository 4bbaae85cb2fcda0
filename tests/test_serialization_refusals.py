"""save_model and load_model refuse what does not fit, and change nothing then."""

from __future__ import annotations

import copy
import json
import os

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from aoext.configs import Float8WeightOnlyConfig, Int8WeightOnlyConfig
from aoext.models.quantize import quantize_
from aoext.serialization import load_model, placing, save_model
from aoext.tensors import Int4Tensor
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
    (
        lambda t, w, m: [t.pop(f"0.weight.{part}") for part in ("qdata", "scale", "zero_point")],
        r"0\.weight: the file lacks 0\.weight\.qdata",
    ),
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
    (say("type", "Int9Tensor"), r"0\.weight: type must be one of Int8Tensor, .* got 'Int9Tensor'"),
    (say("type", ["Int4Tensor"]), r"0\.weight: type must be one of .* got \['Int4Tensor'\]"),
    (say("type", "Int8Tensor"), r"0\.weight: fields must be of \['qdata', 'scale', 'input_.*\], .* got"),
    (say("dtype", "int8"), r"0\.weight: dtype must be one of bfloat16, float16, float32, float64"),
    (say("dtype", "float16"), r"0\.weight: Int4Tensor: scale must have the tensor's dtype float16"),
    (say("fields", ["qdata", "scale"]), r"0\.weight: Int4Tensor: zero_point must be"),
    (say("fields", "qdata"), r"0\.weight: fields must be of"),
    (say("fields", [["qdata"]]), r"0\.weight: fields must be of"),
    (say("fields", ["qdata", "qdata", "scale"]), r"0\.weight: fields must be of"),
    (say("qdata_dtype", "uint8"), r"0\.weight: qdata_dtype must be 'int8', got 'uint8'"),
    (say("qdata_dtype", None), r"0\.weight: qdata_dtype must be 'int8', got None"),
    (meta("aoext_format_version", "3"), "aoext_format_version must be '1' or '2', .* got '3'"),
    (
        lambda t, w, m: m.pop("aoext_format_version"),
        "aoext_format_version must be '1' or '2', .* got None",
    ),
    (meta("aoext_tied", "{"), "aoext_tied is no JSON"),
    (meta("aoext_tied", "[]"), "aoext_tied must be a JSON object"),
    (meta("aoext_tied", '{"x": "0.bias", "x": "3.bias"}'), "aoext_tied is no JSON: a key is there twice"),
    (meta("aoext_tied", "[" * 100_000), "aoext_tied is no JSON: it is nested too deeply"),
    (lambda t, w, m: m.pop("aoext_tied"), "aoext_tied is missing"),
    (meta("aoext_not_persistent", '{"x": true}'), "aoext_not_persistent names x, which is not there"),
    (meta("aoext_crc32", "1"), "aoext_crc32 must be a JSON object, got 1"),
    (
        meta("aoext_dtypes", '{"3.bias": {"dtype": "complex32", "shape": []}}'),
        r"is no whole safetensors file: 3\.bias must have a dtype of",
    ),
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


def empty_of(*sizes):
    return {"dtype": "I8", "shape": [0, *sizes], "data_offsets": [0, 0]}


HEADERS = [
    (lambda header: header["3.bias"].update(dtype="F4"), r"3\.bias must have a dtype of F64,"),
    (
        lambda header: header["3.bias"].update(shape=[4]),
        "a shape and a place that fit each other",
    ),
    (lambda header: header["3.bias"].update(shape=[True, 3]), r"3\.bias must have a dtype of"),
    (lambda header: header["3.bias"].update(shape=3), r"3\.bias must have a dtype of"),
    (lambda header: header["3.bias"].update(data_offsets=[0, 6, 6]), r"3\.bias must have a dtype of"),
    (lambda header: header["3.bias"].update(data_offsets=[-6, 0]), r"3\.bias must have a dtype of"),
    (lambda header: header["3.bias"].update(data_offsets=[0, 6]), "belongs to no tensor, or to two"),
    (lambda header: header.pop("3.bias"), "belongs to no tensor, or to two"),
    (lambda header: header.update({"3.bias": None}), r"3\.bias must have a dtype of"),
    (lambda header: header.update(x=empty_of(2**62, 2**62)), "Error: .*overflow"),
    (lambda header: header.update(x=empty_of(2**70)), "x must have a dtype of"),
    (lambda header: header.update(x=empty_of(*[1] * 64)), "x must have a dtype of"),
    (lambda header: header["__metadata__"].update(x=1), "__metadata__ must be a JSON object of texts"),
    (lambda header: header.update(__metadata__=[]), "__metadata__ must be a JSON object of texts"),
]


@pytest.mark.parametrize(("spoil", "message"), HEADERS)
def test_headers_that_cannot_be_are_refused(spoil, message, generator, path):
    save_model(quantized_model("cpu", generator), path)
    with_header(path, spoil)
    with pytest.raises(ValueError, match=f"^load_model: {path}.*{message}"):
        load_model(build(), path)


def with_header(path, change):
    """Change what the header of a file says, and leave the bytes of its tensors."""
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:start])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[start:])


def test_one_float8_is_not_taken_for_the_other(generator, path):
    model = fill(build(), generator)
    quantize_(model, Float8WeightOnlyConfig(), lambda _, name: name == "0")
    save_model(model, path)
    with_header(path, lambda header: header["0.weight.qdata"].update(dtype="F8_E5M2"))
    with pytest.raises(
        ValueError, match=r"0\.weight: qdata_dtype must be 'float8_e5m2', got 'float8_e4m3fn'"
    ):
        load_model(build(), path)


def test_values_that_cannot_be_are_found_before_the_model_changes(generator, path):
    model = fill(build(), generator)
    made = Int4Tensor.from_hp(model[0].weight.detach(), [1, 16])
    fields = (made.qdata, made.scale, made.zero_point, [1, 16], made.shape)
    ordered = Int4Tensor(*fields, k_order=torch.randperm(64, generator=generator))
    model[0].weight = nn.Parameter(ordered, requires_grad=False)
    save_model(model, path)
    tensors, metadata = contents(path)
    tensors["0.weight.k_order"][3] = 64
    save_file(tensors, path, metadata)
    target = fill(build(), generator)
    unchanged_by_a_load(target, path, ValueError, rf"{path}: .*k_order must be a permutation of 0\.\.63")


def test_damage_of_any_kind_names_the_file_and_changes_nothing(generator, path):
    """Files with a few random bytes; and what loads with its checksums verified is what was saved."""
    model = quantized_model("cpu", generator)
    save_model(model, path)
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")

    def draw(end: int) -> int:
        return int(torch.randint(end, (), generator=generator))

    target = fill(build(), generator)
    before = copy.deepcopy(target)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(1 + draw(3)):
            data[draw(start) if draw(4) else draw(len(data))] = draw(256)
        if not draw(10):
            del data[draw(len(data)) :]
        path.write_bytes(data)
        try:
            load_model(target, path, verify=True)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
            assert_same_state(target, before)
            refused += 1
        else:
            assert_same_state(target, model)
            target = copy.deepcopy(before)
    assert refused > 200


def test_models_that_do_not_fit_are_refused(model, device, path):
    save_model(model, path)
    other = build(device)
    other[0] = nn.Linear(64, 32, device=device)  # float32
    with pytest.raises(ValueError, match=r"0\.\w+ must be float32 .*, got bfloat16"):
        load_model(other, path)
    other = build(device)
    for layer, reason in (
        (
            nn.PReLU(1024),
            r"only nn\.Linear, nn\.Embedding, Conv1D and experts of transformers can be quantised, not PReLU",
        ),
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


# All or nothing: what is found before the model changes, and what is taken back.


def unchanged_by_a_load(target: nn.Module, path, error: type[Exception], message: str) -> None:
    """A load fails and leaves all tensors, their values, the layers' classes and their ties."""
    held = dict(target.state_dict(keep_vars=True))
    values = {name: copy.deepcopy(tensor.detach()) for name, tensor in held.items()}
    classes = [type(module) for module in target.modules()]
    with pytest.raises(error, match=message):
        load_model(target, path)
    after = target.state_dict(keep_vars=True)
    assert list(after) == list(held)
    for name, tensor in after.items():
        assert tensor is held[name]
        assert torch.equal(tensor, values[name])
    assert [type(module) for module in target.modules()] == classes


class Stubborn(nn.Linear):
    """A layer that takes no new tensor once it is made."""

    closed = False

    def __setattr__(self, name, value):
        if name == "weight" and self.closed:
            raise PermissionError("closed")
        super().__setattr__(name, value)


def test_a_module_that_refuses_a_tensor_leaves_all_others_as_they_were(model, device, generator, path):
    save_model(model, path)
    target = fill(build(device), generator)
    target[2] = Stubborn(32, 32, bias=False, device=device, dtype=BF16)
    target[2].closed = True
    unchanged_by_a_load(target, path, PermissionError, "closed")


def test_ties_survive_a_module_that_refuses_a_tensor(device, generator, path):
    def tied(last: type[nn.Linear]) -> nn.ModuleDict:
        layers = {
            name: cls(64, 64, device=device)
            for name, cls in (("a", nn.Linear), ("b", nn.Linear), ("c", last))
        }
        for layer in (layers["b"], layers["c"]):
            layer.weight = layers["a"].weight
        return fill(nn.ModuleDict(layers), generator)

    model = tied(nn.Linear)
    quantize_(model, Int8WeightOnlyConfig())
    save_model(model, path)
    target = tied(Stubborn)
    target["c"].closed = True
    unchanged_by_a_load(target, path, PermissionError, "closed")
    assert target["a"].weight is target["b"].weight
    assert target["a"].weight is target["c"].weight


def test_a_module_that_keeps_its_tensor_in_silence_is_an_error(model, device, generator, path):
    class Deaf(nn.Linear):
        def __setattr__(self, name, value):
            if name != "weight" or "weight" not in self._parameters:
                super().__setattr__(name, value)

    save_model(model, path)
    target = fill(build(device), generator)
    target[2] = Deaf(32, 32, bias=False, device=device, dtype=BF16)
    unchanged_by_a_load(target, path, RuntimeError, "load_model: Deaf does not take a new weight")


@pytest.mark.parametrize("spoil", ["expanded", "freed"])
def test_tensors_that_cannot_be_filled_are_found_before_the_model_changes(
    spoil, model, device, generator, path
):
    save_model(model, path)
    target = fill(build(device), generator)
    if spoil == "expanded":
        target[3].bias = nn.Parameter(torch.ones(1, dtype=BF16, device=device).expand(3))
        unchanged_by_a_load(target, path, ValueError, r"3\.bias cannot be filled: elements .* share memory")
        return
    target[3].bias.untyped_storage().resize_(0)
    weight, values = target[0].weight, target[0].weight.detach().clone()
    with pytest.raises(ValueError, match=r"3\.bias has no memory in the model: its storage was freed"):
        load_model(target, path)
    assert target[0].weight is weight
    assert torch.equal(weight, values)
    with pytest.raises(ValueError, match=r"save_model: 3\.bias has no data: its storage was freed"):
        save_model(target, path)


@pytest.fixture
def mesh():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["0.weight", "3.weight", "3.bias"])
def test_sharded_tensors_are_neither_filled_nor_replaced(name, mesh, generator, path):
    save_model(quantized_model("cpu", generator), path)
    target = fill(build(), generator)
    index, leaf = name.split(".")
    sharded = distribute_tensor(getattr(target[int(index)], leaf).detach(), mesh, [Shard(0)])
    setattr(target[int(index)], leaf, nn.Parameter(sharded))
    message = rf"{name} must be a plain tensor .* got a \S*DTensor: save and load before sharding"
    unchanged_by_a_load(target, path, ValueError, f"load_model: {message}")
    with pytest.raises(ValueError, match=f"save_model: {message}"):
        save_model(target, path)


def test_an_interrupt_between_two_copies_waits_for_the_others(model, device, generator, path, monkeypatch):
    save_model(model, path)
    target = fill(build(device), generator)
    copy_one, calls = placing.Slot.copy, []

    def interrupted(self, tensor):
        calls.append(self.name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        copy_one(self, tensor)

    monkeypatch.setattr(placing.Slot, "copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_model(target, path)
    assert_same_state(target, model)


@pytest.mark.parametrize("dtype", [torch.quint8, torch.uint4])
def test_dtypes_without_plain_values_are_not_saved(dtype, path):
    model = nn.Module()
    if dtype is torch.quint8:
        model.register_buffer("x", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, dtype))
    else:
        model.register_buffer("x", torch.empty(3, dtype=dtype))
    with pytest.raises(ValueError, match=r"save_model: x has the dtype \w+, which no file holds"):
        save_model(model, path)
    assert os.listdir(path.parent) == []
