"""Quantised weights as parameters of modules, and what reaches for their memory."""

from __future__ import annotations

import copy
import gc
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import aoext
from aoext.reference import assert_close, randn
from formats import CLASSES, FORMATS, HIGH_PRECISION, product, quantized, same

BF16, FP16, FP32 = HIGH_PRECISION
N, K = 24, 64


@pytest.fixture(params=CLASSES)
def parameter(request, device, generator) -> nn.Parameter:
    return nn.Parameter(quantized(request.param, N, K, BF16, device, generator), requires_grad=False)


def another(parameter, generator, N=N, dtype=BF16):
    format = next(f for f in CLASSES if type(quantized_like(f)) is type(parameter))
    return quantized(format, N, K, dtype, parameter.device, generator)


def quantized_like(format):
    return FORMATS[format](torch.randn(4, 32))


@pytest.mark.parametrize("change", ["values", "dtype", "rows", "transposed"])
def test_assigned_data_brings_its_fields(parameter, change, generator):
    other = another(parameter, generator, N + 8 * (change == "rows"), FP32 if change == "dtype" else BF16)
    data = other.t() if change == "transposed" else other
    x = randn(generator, 3, K, dtype=other.dtype).to(other.device)
    parameter.__tensor_flatten__()  # compiled code has asked before
    parameter.data = data
    assert isinstance(parameter, nn.Parameter)
    assert not parameter.requires_grad
    assert (parameter.shape, parameter.dtype, parameter.stride()) == (data.shape, data.dtype, data.stride())
    assert parameter.__tensor_flatten__() == data.__tensor_flatten__()
    assert same(parameter, data)
    weight = parameter.t() if change == "transposed" else parameter
    assert_close(linear(x, weight), product(x, other))
    weight[:8].copy_(weight[8:16].clone())
    assert same(data, parameter)  # they share their memory, as plain tensors do


def test_assigned_data_of_another_device_is_taken_whole(parameter, generator):
    other = another(parameter, generator).to("cpu")
    parameter.data = other
    assert parameter.device == parameter.qdata.device == parameter.scale.device == other.device
    assert same(parameter, other)


def test_other_data_is_refused_and_nothing_changes(parameter, generator):
    before = copy.deepcopy(parameter)
    for data in (
        parameter.dequantize(),
        quantized_like("int8" if type(parameter).__name__ != "Int8Tensor" else "int4"),
    ):
        with pytest.raises(
            TypeError, match=f"data must be of the same class {type(parameter).__name__}, got"
        ):
            parameter.data = data
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        parameter.data = parameter.to("meta")
    with pytest.raises(TypeError, match="data must be of the same class"):
        torch.nn.utils.vector_to_parameters(torch.zeros(N * K, device=parameter.device), [parameter])
    assert same(parameter, before)
    assert parameter.device == before.device


@pytest.mark.parametrize("future", ["neither", "overwrite_module_params", "swap_module_params"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_model_goes_to_every_dtype_and_back_as_a_whole(format, future, device, generator, monkeypatch):
    monkeypatch.setattr(torch.__future__, f"_{future}_on_conversion", True, raising=False)
    torch._dynamo.reset()
    weight = quantized(format, N, K, BF16, device, generator)
    plain, layer = nn.Linear(K, K, device=device, dtype=BF16), nn.Linear(K, N, device=device, dtype=BF16)
    layer.weight = nn.Parameter(weight.clone(), requires_grad=False)
    model = nn.Sequential(plain, layer)
    bias = layer.bias.detach().clone()
    for dtype in (torch.float64, FP16, torch.float64, FP32, BF16):
        model.to(dtype)
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert layer.weight.dequantize().dtype is dtype
        x = randn(generator, 3, K).to(device, dtype).requires_grad_()
        y = layer(x)
        assert y.dtype is dtype
        if dtype is torch.float64:
            assert_close(y.float(), product(x.float(), layer.weight) + bias.cpu().double())
            y.sum().backward()
            assert x.grad.dtype is dtype
            torch.testing.assert_close(y, x @ layer.weight.t() + layer.bias)
            compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(compiled(x), y, rtol=1e-5, atol=1e-5)
            with pytest.raises(RuntimeError, match="weight's dtype float64, got float32"):
                layer(x.float())
            assert same(torch.load(saved(layer.weight)), layer.weight)
    torch.testing.assert_close(layer.weight.dequantize(), weight.dequantize(), rtol=1e-2, atol=1e-2)


def test_a_float64_model_is_saved_and_loaded(device, generator, tmp_path):
    model = nn.Sequential(nn.Linear(K, K, device=device), nn.Linear(K, N, device=device))
    other = copy.deepcopy(model).double()
    aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=32))
    aoext.save_model(model.double(), tmp_path / "model.safetensors")
    aoext.load_model(other, tmp_path / "model.safetensors")
    x = randn(generator, 3, K).double().to(device)
    assert other(x).dtype is torch.float64
    assert torch.equal(other(x), model(x))


def test_a_weight_never_claims_to_train(parameter, generator):
    weight = parameter.detach()
    layer = nn.Linear(K, N, device=weight.device, dtype=BF16)
    layer.load_state_dict({"weight": weight, "bias": layer.bias.detach()}, assign=True)
    layer.requires_grad_(True)
    layer.weight.requires_grad_()
    layer.weight.requires_grad = True
    assert isinstance(layer.weight, nn.Parameter)
    assert not layer.weight.requires_grad
    assert not nn.Parameter(weight).requires_grad
    assert layer.bias.requires_grad
    x = randn(generator, 3, K, dtype=BF16).to(weight.device)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    torch.optim.AdamW(layer.parameters()).step()
    assert same(layer.weight, weight)


def test_the_type_of_a_parameter_makes_a_parameter(parameter):
    made = type(parameter)(parameter.detach(), requires_grad=parameter.requires_grad)
    assert isinstance(made, nn.Parameter)
    assert same(made, parameter)
    with pytest.raises(TypeError, match=f"can be made of a {type(parameter).__name__} alone, got Tensor"):
        type(parameter)(parameter.dequantize(), requires_grad=False)


def test_deepcopy_keeps_what_was_set_on_a_weight(parameter):
    parameter.of_expert = [3]
    first, second = copy.deepcopy([parameter, parameter])
    assert first is second
    assert isinstance(first, nn.Parameter)
    assert first.of_expert == [3]
    assert first.of_expert is not parameter.of_expert
    view = copy.deepcopy(parameter[:4])
    assert view.qdata.untyped_storage().nbytes() == view.qdata.nbytes


def test_memory_is_that_of_the_fields(parameter):
    assert parameter.data_ptr() == parameter.qdata.data_ptr() != 0
    assert parameter[8:].data_ptr() == parameter[8:].qdata.data_ptr()
    plain = parameter.dequantize()
    assert parameter.is_pinned() == plain.is_pinned()
    try:
        expected = plain.pin_memory().is_pinned()
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)):
            parameter.pin_memory()
    else:
        pinned = parameter.pin_memory()
        assert pinned.is_pinned() == expected
        assert same(pinned, parameter)
    on_cpu = parameter.cpu().clone()
    assert not on_cpu.is_shared()
    assert on_cpu.share_memory_().is_shared()
    assert all(tensor.is_shared() for _, tensor in on_cpu.named_fields())


def test_nobody_reads_the_memory_that_the_outer_tensor_has_not(parameter):
    for name, read in {
        "__dlpack__": torch.from_dlpack,
        "numpy": lambda w: w.numpy(),
        "__array__": np.asarray,
        "tolist": lambda w: w.tolist(),
    }.items():
        with pytest.raises(NotImplementedError, match=f"{name} of a quantised weight is not implemented"):
            read(parameter)
    with pytest.raises(NotImplementedError, match="__dlpack__ of a quantised weight"):
        np.from_dlpack(parameter.cpu())
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        torch.utils.dlpack.to_dlpack(parameter)
    with pytest.raises(NotImplementedError, match=r"aten\.view\.dtype is not implemented.*accelerate"):
        parameter.view(torch.int16)
    assert not hasattr(parameter, "__cuda_array_interface__")


TAKEN = {
    "data": lambda plain, weight: setattr(plain, "data", weight),
    "set_data": lambda plain, weight: torch.ops.aten.set_data(plain, weight),
}
READ = {
    "a sum": lambda t: t.sum(),
    "a copy": lambda t: t.clone(),
    "another dtype": lambda t: t.half(),
    "text": repr,
    "a product": lambda t: linear(torch.ones(3, K, dtype=BF16, device=t.device), t),
    "a write": lambda t: t.zero_(),
    "a copy elsewhere": lambda t: torch.empty_like(t).copy_(t),
    "an element": lambda t: t[0, 0].item(),
    "a list of tensors": lambda t: torch._foreach_mul([t, t], 2.0),
    "a comparison": lambda t: torch.equal(t, t),
    "gradients": lambda t: (t.detach().requires_grad_() * 2).sum().backward(),
    "another device": lambda t: t.to("meta"),
    "a deep copy": copy.deepcopy,
    "a file": lambda t: torch.save(t, io.BytesIO()),
    "numpy": lambda t: t.numpy(),
    "a list": lambda t: t.tolist(),
}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("take", TAKEN)
def test_a_plain_tensor_with_the_data_of_a_weight_is_read_by_nobody(parameter, take, read):
    plain = nn.Parameter(torch.ones(N, K, dtype=BF16, device=parameter.device), requires_grad=False)
    TAKEN[take](plain, parameter)
    with pytest.raises((RuntimeError, TypeError)) as raised:
        READ[read](plain)
    message = str(raised.value)
    if read not in ("numpy", "a list", "a file", "a deep copy"):  # these ask PyTorch for the memory itself
        assert "plain.data = weight" in message
    if read == "text":
        # A frame of repr holds a guard against torch.func as long as its traceback lives: that is in a cycle.
        del raised
        gc.collect()
    plain.data = torch.ones(N, K, dtype=BF16, device=parameter.device)
    assert plain.sum() == N * K


def test_other_ways_into_a_plain_tensor(parameter, generator):
    plain = randn(generator, N, K, dtype=BF16).to(parameter.device)
    values, weight = plain.clone(), copy.deepcopy(parameter)
    for take in (lambda: plain.set_(weight), lambda: plain.resize_as_(weight)):
        with pytest.raises(NotImplementedError):
            take()
    torch.utils.swap_tensors(plain, weight)
    assert same(plain, parameter)
    assert torch.equal(weight, values)


def test_new_plain_tensors_are_made_after_a_weight(parameter):
    made = parameter.new_tensor([1, 2]), parameter.new(3, 4), parameter.new_tensor(5.0, dtype=FP32)
    assert [type(tensor) for tensor in made] == [torch.Tensor] * 3
    assert [tensor.dtype for tensor in made] == [BF16, BF16, FP32]
    assert [list(tensor.shape) for tensor in made] == [[2], [3, 4], []]
    assert {tensor.device for tensor in made} == {parameter.device}
    assert made[0].tolist() == [1, 2]


ADVICE = "save_model saves a model with such weights as safetensors.*take safe_serialization=False"


def test_what_writes_storages_is_told_what_saves_a_model(parameter, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    for write in (safetensors.save, lambda state: safetensors.save_file(state, tmp_path / "state")):
        with pytest.raises(RuntimeError, match=ADVICE):
            write({"weight": parameter})
    flat = aoext.flatten_state_dict({"weight": parameter})
    loaded = safetensors.load(safetensors.save(flat))
    for name, expected in flat.items():
        assert torch.equal(loaded[name].view(torch.uint8), expected.cpu().view(torch.uint8))


class Own(nn.Linear):
    """A layer that keeps its class and calls F.linear."""


@pytest.mark.parametrize("layer_type", [nn.Linear, Own])
@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_torchscript_keeps_fields_and_no_weight(layer_type, device, generator):
    model = nn.Sequential(layer_type(K, N, device=device, dtype=BF16)).requires_grad_(False)
    aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=32))
    x = randn(generator, 3, K, dtype=BF16).to(device)
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace of a module with quantised weights"):
        torch.jit.trace(model, x)
    if layer_type is nn.Linear:
        with pytest.raises(NotImplementedError, match=r"torch\.jit\.script of a module with quantised"):
            torch.jit.script(model)
    traced = torch.jit.trace(lambda *inputs: model(*inputs), x)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(x), model(x))


def saved(weight) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_saved_weight_lies_where_map_location_says(parameter, weights_only):
    target = parameter.device
    other = "cpu" if target.type != "cpu" else "meta"
    locations = {
        "None": (None, target),
        "device": (torch.device(other), other),
        "function": (lambda storage, location: storage if other == "cpu" else None, target),
        "dict": ({str(parameter.qdata.untyped_storage().device): other, str(target): other}, other),
    }
    if other == "cpu":
        locations["function"] = (lambda storage, location: storage, "cpu")
    for location, device in locations.values():
        loaded = torch.load(saved(parameter), map_location=location, weights_only=weights_only)
        assert isinstance(loaded, nn.Parameter)
        assert not loaded.requires_grad
        for tensor in (loaded, *(field for _, field in loaded.named_fields())):
            assert tensor.device.type == torch.device(device).type
        if not loaded.is_meta:
            assert same(loaded.to(target), parameter)


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_damaged_weight_is_not_loaded(device, weights_only, generator):
    def load(weight):
        return torch.load(saved(weight), weights_only=weights_only)

    int4 = quantized("int4", N, K, BF16, device, generator)
    int8 = quantized("int8", N, K, BF16, device, generator)
    for weight, error, message in (
        (int8.remade({"qdata": int8.qdata, "scale": int8.scale[:1]}), ValueError, r"scale must be \[24, 1\]"),
        (int8.remade(dict(int8.named_fields()), dtype=torch.int8), TypeError, "dtype must be bfloat16"),
        (int8.remade({"qdata": int8.qdata.float(), "scale": int8.scale}), TypeError, "qdata must be int8"),
        (int8.remade(dict(int8.named_fields()), block_size=[1, 8]), ValueError, "with block_size"),
        (int8.remade({"qdata": int8.qdata}), ValueError, "fields must be"),
        (int4.remade(dict(int4.named_fields()), dtype=FP16), TypeError, "scale must have the tensor's dtype"),
    ):
        with pytest.raises(error, match=message):
            load(weight)
    assert same(load(int4), int4)


@pytest.mark.parametrize("weights_only", [False, True])
def test_files_in_the_form_of_pytorch_are_checked_too(parameter, weights_only, monkeypatch):
    """Earlier versions wrote them."""

    def load(weight):
        with monkeypatch.context() as patch:
            patch.delitem(type(weight).operations, torch.Tensor.__reduce_ex__)
            patch.setattr(type(weight), "data_ptr", lambda self: 0, raising=False)
            file = saved(weight)
        return torch.load(file, weights_only=weights_only)

    for weight in (parameter, parameter.t(), parameter[:8]):
        loaded = load(weight)
        assert same(loaded, weight)
        assert isinstance(loaded, nn.Parameter) == isinstance(weight, nn.Parameter)
        assert torch.equal(loaded.dequantize(), weight.dequantize())
        assert not loaded.requires_grad
    fields = dict(parameter.named_fields())
    with pytest.raises(ValueError, match="scale must be"):
        load(parameter.remade({**fields, "scale": parameter.scale[:1, :1]}))
    with pytest.raises(ValueError, match=r"make up a weight \[24, 64\], not \[25, 64\]"):
        load(parameter.remade(fields, shape=[25, 64]))


@pytest.mark.parametrize("load", [False, True])
def test_copies_do_not_broadcast_fields(parameter, load, generator):
    other = another(parameter, generator)
    layer = nn.Linear(K, N, bias=False)
    layer.weight = parameter

    def copy_from(source):
        if load:
            layer.load_state_dict({"weight": source})
        else:
            parameter.copy_(source)

    before = copy.deepcopy(parameter)
    for source in (
        other.remade({**dict(other.named_fields()), "scale": other.scale[:1, :1]}),
        other.remade({**dict(other.named_fields()), "qdata": other.qdata[:1]}),
        other[:1],
    ):
        message = "copy_ needs a source with the same shape|size mismatch for weight"
        with pytest.raises((ValueError, RuntimeError), match=message):
            copy_from(source)
        assert same(parameter, before)
