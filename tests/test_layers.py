"""The class of a quantised linear layer: what it gives to compiled code, and that it remains an nn.Linear."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

import aoext
from aoext.models.layers import QuantizedLinear

CONFIGS = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=32),
    "int8": aoext.Int8WeightOnlyConfig(),
    "int8 dynamic": aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": aoext.Float8WeightOnlyConfig(),
    "float8 dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(),
    "int4 under int8": aoext.Int8DynamicActivationInt4WeightConfig(),
    "float8 by blocks": aoext.Float8DynamicActivationFloat8WeightConfig(
        granularity=(aoext.PerBlock([1, 128]), aoext.PerBlock([128, 128]))
    ),
    "nvfp4": aoext.NVFP4WeightOnlyConfig(),
}
MODES = {"inference": torch.inference_mode, "no_grad": torch.no_grad, "grad": torch.enable_grad}


@pytest.fixture(params=CONFIGS)
def layer(request, device) -> QuantizedLinear:
    made = nn.Linear(64, 48, dtype=torch.bfloat16, device=device)
    aoext.quantize_(made, CONFIGS[request.param])
    return made


def inputs(device) -> torch.Tensor:
    return torch.randn(3, 64, dtype=torch.bfloat16, device=device)


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_gives_what_the_function_gives(layer, device, mode):
    x = inputs(device)
    expected = x.double() @ layer.weight.dequantize().double().t() + layer.bias.double()
    with MODES[mode]():
        y = layer(x)
        assert torch.equal(y, linear(x, layer.weight, layer.bias))
    error = torch.linalg.vector_norm(y.double() - expected) / torch.linalg.vector_norm(expected)
    dynamic = layer.weight.quantizes_input_to is not None
    assert error < (0.05 if dynamic else 5e-3)  # 8-bit activations of 64 elements lose this much
    assert y.requires_grad == (mode == "grad")  # for the bias


def test_gradients_reach_the_input_and_the_bias(layer, device):
    x = inputs(device).requires_grad_()
    layer(x).float().sum().backward()
    expected = layer.weight.dequantize().float().sum(0).expand(3, -1)
    assert torch.allclose(x.grad.float(), expected, rtol=2e-2, atol=2e-2)
    assert torch.equal(layer.bias.grad, torch.full_like(layer.bias, 3))


def test_forward_mode_and_transforms_see_the_layer(layer, device):
    x, tangent = inputs(device), inputs(device)
    with torch.no_grad():
        _, moved = torch.func.jvp(layer, (x,), (tangent,))
        expected = linear(tangent, layer.weight.dequantize())
        each = torch.func.vmap(layer)(x)
    assert torch.allclose(moved.float(), expected.float(), rtol=2e-2, atol=6e-2)
    assert torch.allclose(each.float(), layer(x).float(), rtol=2e-2, atol=6e-2)


def test_autocast_casts_the_activation(layer, device):
    x = inputs(device).float()
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    with pytest.raises(RuntimeError, match="input must have the weight's dtype"):
        layer(x)


def test_a_dispatch_mode_sees_the_operator(layer, device):
    seen = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Record():
        layer(inputs(device))
    assert any(name.startswith("ao.") for name in seen), seen


def test_it_is_a_linear_layer_with_its_state(layer, device):
    assert isinstance(layer, nn.Linear)
    assert type(layer) is QuantizedLinear
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    assert type(layer.weight).__name__ in repr(layer)
    x = inputs(device)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for same in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert type(same) is QuantizedLinear
        assert torch.equal(same(x), layer(x))


def test_the_weight_may_be_replaced_at_any_time(layer, device):
    x = inputs(device)
    with torch.no_grad():
        layer(x)
        plain = nn.Parameter(torch.randn(48, 64, dtype=torch.bfloat16, device=device))
        layer._parameters["weight"] = plain  # as accelerate and functional_call do
        assert torch.equal(layer(x), linear(x, plain, layer.bias))
        other = aoext.Int8Tensor.from_hp(torch.randn(48, 64, dtype=torch.bfloat16, device=device))
        layer.weight = nn.Parameter(other, requires_grad=False)
        assert torch.equal(layer(x), linear(x, other, layer.bias))
        called = torch.func.functional_call(layer, {"weight": plain}, (x,))
        assert torch.equal(called, linear(x, plain, layer.bias))


def test_a_loaded_layer_is_of_the_class_too(layer, device, tmp_path):
    pytest.importorskip("safetensors")
    aoext.save_model(layer, tmp_path / "layer.safetensors")
    loaded = nn.Linear(64, 48, dtype=torch.bfloat16, device=device)
    aoext.load_model(loaded, tmp_path / "layer.safetensors")
    assert type(loaded) is QuantizedLinear
    x = inputs(device)
    assert torch.equal(loaded(x), layer(x))


def test_subclasses_of_linear_keep_their_class():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(Own(64, 64), nn.Linear(64, 64))
    aoext.quantize_(model, CONFIGS["int8"])
    assert [type(m) for m in model] == [Own, QuantizedLinear]
    assert model(torch.randn(2, 64)).shape == (2, 64)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_compiled_region_is_given_plain_tensors(name):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 48)).bfloat16().requires_grad_(False)
    aoext.quantize_(model, CONFIGS[name])
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    x = inputs("cpu")
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        assert torch.equal(compiled(x), model(x))
        model[0].weight = nn.Parameter(  # a new weight is seen, not the one that was compiled for
            CONFIGS[name].quantize(torch.randn(64, 64, dtype=torch.bfloat16)), requires_grad=False
        )
        assert torch.equal(compiled(x), model(x))
    for graph in graphs:
        given = [n.meta["example_value"] for n in graph.graph.nodes if n.op == "placeholder"]
        assert len(given) >= 7  # x, and the fields and biases of two layers
        assert not any(isinstance(value, aoext.tensors.QuantizedTensor) for value in given)


class Adapted(nn.Linear):
    """A layer of another package, which keeps its class."""


class Named(nn.Embedding):
    """The same of an embedding."""


def test_printing_a_model_shows_the_scheme_of_layers_that_keep_their_class(device):
    model = nn.ModuleDict(
        {
            "attention": nn.MultiheadAttention(64, 4, device=device),
            "adapted": Adapted(64, 48, device=device),
            "embedding": Named(10, 64, device=device),
        }
    )
    before = repr(model)
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig(), lambda *_: True, quantize_embeddings=True)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for same in (model, copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert type(same["adapted"]) is Adapted
        lines = repr(same).splitlines()
        for layer in ("out_proj", "adapted", "embedding"):
            (line,) = (line for line in lines if f"({layer})" in line)
            assert "weight=Int8Tensor(shape=" in line
            assert (
                same is model
                or same.get_submodule("adapted").extra_repr.parameters is not model["adapted"]._parameters
            )
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig(), lambda *_: True, quantize_embeddings=True)
    assert repr(model).count("weight=") == 3
    for name in ("adapted", "embedding"):
        model[name].weight = nn.Parameter(model[name].weight.dequantize())
    attention = model["attention"].out_proj
    attention.weight = nn.Parameter(attention.weight.dequantize())
    assert repr(model) == before
