"""Quantised weights under torch.compile, torch.export, deepcopy, state dicts, pickling and save."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from aoext.reference import assert_close, randn
from conftest import PRELUDE, compiler_for
from formats import CLASSES, FORMATS, HIGH_PRECISION, SLICED, meaning, product, quantized, same

BF16, FP16, FP32 = HIGH_PRECISION


def layer_of(format, device, generator, dtype=BF16, N=24, K=64) -> nn.Linear:
    layer = nn.Linear(K, N, device=device, dtype=dtype)
    weight = quantized(format, N, K, dtype, device, generator)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


@pytest.fixture(params=FORMATS)
def layer(request, device, generator):
    return layer_of(request.param, device, generator)


@pytest.mark.parametrize("format", FORMATS)
def test_compile_takes_the_whole_graph_for_any_batch(format, device, generator):
    torch._dynamo.reset()
    layer = layer_of(format, device, generator)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for batch in (2, 5, 9):
        x = randn(generator, batch, 64, dtype=BF16).to(device)
        assert torch.equal(compiled(x), layer(x))
    assert len(graphs) == 1


@pytest.mark.parametrize("format", CLASSES)
def test_inductor_compiles_forward_and_backward(format, device, generator):
    torch._dynamo.reset()
    layer = layer_of(format, device, generator, FP32)
    model = nn.Sequential(nn.Linear(64, 64, device=device), nn.SiLU(), layer)
    backend = compiler_for(device)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, dynamic=True, backend=backend)
    for batch in (3, 6):
        x = randn(generator, batch, 64).to(device)
        y = compiled(x)
        torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-4)
        y.square().sum().backward()
        model(x).square().sum().backward()
    compiled_grads, grads = (
        {name: parameter.grad for name, parameter in m.named_parameters()}
        for m in (compiled._orig_mod, model)
    )
    assert grads["2.weight"] is None
    assert grads["2.bias"] is not None
    for name, grad in grads.items():
        if grad is not None:
            torch.testing.assert_close(compiled_grads[name], grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("format", CLASSES)
def test_compile_follows_views_products_and_autocast(format, device, generator):
    torch._dynamo.reset()
    weight = quantized(format, 32, 64, FP32, device, generator)
    x = randn(generator, 3, 64).to(device)

    def function(x, weight):
        with torch.autocast(device.type, BF16):
            cast = linear(x, weight)
        part = linear(x[:, :32], weight[8:16].narrow(1, 0, 32))
        return x @ weight.t(), cast, part, weight.dequantize()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for result, expected in zip(compiled(x, weight), function(x, weight), strict=True):
        assert result.dtype is expected.dtype
        if device.type == "cpu":
            assert torch.equal(result, expected)
        else:  # a GPU's library chooses its product by strides and alignment, which compiling may change
            assert_close(result, expected.cpu().double())


def test_the_key_of_compiled_code_tells_weights_of_another_form_apart(device, generator):
    def key(format, N=24, K=64, dtype=BF16):
        return quantized(format, N, K, dtype, device, generator)._stable_hash_for_caching()

    assert key("int4") == key("int4")
    weight = quantized("int4", 24, 64, BF16, device, generator)
    keys = [key(format) for format in FORMATS if format != "int4_symmetric"]
    keys += [key("int4", N=32), key("int4", K=32), key("int4", dtype=FP16), key("int8", dtype=FP16)]
    keys += [t._stable_hash_for_caching() for t in (weight.t(), weight[:8], weight[8:16])]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("format", FORMATS)
def test_functional_calls_under_torch_func(format, device, generator):
    """Gradients of a bias for each sample, and a tangent of the activations."""
    layer = layer_of(format, device, generator, FP32)
    x = randn(generator, 3, 64).to(device)
    parameters = dict(layer.named_parameters())

    def loss(bias, sample):
        return torch.func.functional_call(layer, {**parameters, "bias": bias}, (sample,)).square().sum()

    y = layer(x).detach()
    assert_close(torch.vmap(torch.func.grad(loss), (None, 0))(layer.bias, x), 2 * y.cpu().double())
    tangent = torch.func.jvp(layer, (x,), (x,))[1].detach()
    weight = layer.weight.detach()
    factors = getattr(weight, "act_pre_scale", None)
    scaled = x if factors is None else x * factors
    assert_close(tangent, scaled.cpu().double() @ meaning(weight).t())


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("format", CLASSES)
def test_export_keeps_the_operator_and_a_dynamic_batch(format, strict, device, generator):
    layer = layer_of(format, device, generator)
    x = randn(generator, 4, 64, dtype=BF16).to(device)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    program = torch.export.export(layer, (x,), dynamic_shapes=(batch,), strict=strict)
    program = program.run_decompositions()
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert any(operator.startswith("ao.") for operator in operators), operators
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for size in (1, 7):
        x = randn(generator, size, 64, dtype=BF16).to(device)
        assert torch.equal(loaded(x), layer(x))


@pytest.mark.parametrize("layer", SLICED, indirect=True)
def test_deepcopy_stands_alone(layer, generator):
    x = randn(generator, 3, 64, dtype=BF16).to(layer.bias.device)
    twin = copy.deepcopy(layer)
    assert isinstance(twin.weight, nn.Parameter)
    assert not twin.weight.requires_grad
    assert same(twin.weight, layer.weight)
    before = layer(x)
    assert torch.equal(twin(x), before)
    twin.weight.data[:12].copy_(twin.weight.data[12:].clone())
    assert not torch.equal(twin(x), before)
    assert torch.equal(layer(x), before)


def test_module_to_converts_weight_and_bias_together(layer, generator):
    weight = layer.weight.detach()
    layer.to(FP32)
    assert (layer.weight.dtype, layer.bias.dtype) == (FP32, FP32)
    assert isinstance(layer.weight, nn.Parameter)
    x = randn(generator, 3, 64).to(layer.bias.device)
    assert_close(layer(x), product(x, weight.to(FP32), layer.bias))
    layer.half().bfloat16()
    assert same(layer.weight.detach(), weight.to(FP16).to(BF16))
    layer.to("meta")
    assert layer.weight.qdata.is_meta
    with pytest.raises(RuntimeError):
        layer.to(weight.device)


@pytest.mark.parametrize("format", FORMATS)
def test_meta_models_are_made_empty_and_loaded(format, device, generator):
    layer = layer_of(format, device, generator)
    target = copy.deepcopy(layer).to("meta").to_empty(device=device)
    assert target.weight.device == layer.weight.device
    assert not target.weight.requires_grad
    target.load_state_dict(layer.state_dict())
    assert same(target.weight, layer.weight)
    x = randn(generator, 3, 64, dtype=BF16).to(device)
    assert torch.equal(target(x), layer(x))


def test_module_to_keeps_ties(device, generator):
    first = layer_of("int4", device, generator)
    second = nn.Linear(64, 24, device=device, dtype=BF16)
    second.weight = first.weight
    model = nn.Sequential(first, second).to(FP16)
    assert model[0].weight is model[1].weight
    assert model[0].weight.scale.dtype is FP16


@pytest.mark.parametrize("layer", SLICED, indirect=True)
@pytest.mark.parametrize("assign", [False, True])
def test_state_dicts_load_into_quantised_models(layer, assign, generator):
    target = copy.deepcopy(layer)
    target.weight.data[:12].copy_(target.weight.data[12:].clone())
    assert not same(target.weight, layer.weight)
    target.load_state_dict(layer.state_dict(), assign=assign)
    assert same(target.weight, layer.weight)
    assert isinstance(target.weight, nn.Parameter)
    assert not target.weight.requires_grad


def test_state_dicts_load_into_plain_models_by_assignment(layer, generator):
    target = nn.Linear(64, 24, device=layer.bias.device, dtype=BF16)
    with pytest.raises(RuntimeError, match=r"load_state_dict\(\.\.\., assign=True\)"):
        target.load_state_dict(layer.state_dict())
    target.load_state_dict(layer.state_dict(), assign=True)
    x = randn(generator, 3, 64, dtype=BF16).to(layer.bias.device)
    assert torch.equal(target(x), layer(x))


def test_save_and_load_weights_only(layer):
    file = io.BytesIO()
    views = {"rows": layer.weight.data[3:9], "columns": layer.weight.data[:, 32:].t()}
    torch.save({**layer.state_dict(), **views}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert same(loaded["weight"], layer.weight)
    for name, view in views.items():
        assert same(loaded[name], view)
    file.seek(0)
    mapped = torch.load(file, weights_only=True, map_location="meta")["weight"]
    assert mapped.is_meta
    assert mapped.qdata.is_meta


@pytest.mark.parametrize(
    "name", ["qdata", "fields", "named_fields", "dequantize", "_linear", "_flat", "shape"]
)
def test_a_file_hides_nothing_of_a_weight_by_what_was_set_on_it(layer, name):
    weight = layer.weight.data
    weight.remark = "kept"
    (remade, arguments) = weight.__reduce_ex__(2)
    assert remade(*arguments).remark == "kept"
    with pytest.raises(ValueError, match=rf"must not hide what it has of its own, got \['{name}'\]"):
        remade(*arguments[:-1], {**arguments[-1], name: {}})


def test_another_process_loads_weights_after_importing_aoext_alone(tmp_path, device, generator):
    layer = layer_of("int8_dynamic", device, generator)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    script = (
        f"{PRELUDE}import sys, torch, aoext\n"
        "weight = torch.load(sys.argv[1], weights_only=True)['weight']\n"
        "print(weight.dequantize().double().sum().item())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "layer.pt")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    total = layer.weight.dequantize().double().sum().item()
    assert float(run.stdout) == pytest.approx(total)


def test_whole_modules_can_be_pickled(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(meaning(loaded.weight), meaning(layer.weight))


@pytest.mark.parametrize("format", SLICED)
def test_modules_share_their_memory_with_other_processes(format, generator):
    layer = layer_of(format, torch.device("cpu"), generator)
    before = layer.weight.clone()
    layer.share_memory()
    assert all(field.is_shared() for _, field in layer.weight.named_fields())
    loaded = pickle.loads(ForkingPickler.dumps(layer.weight))
    loaded.data[:12].copy_(before[12:])
    assert same(layer.weight[:12], before[12:])


def test_quantised_weights_serve_attention_and_checkpointing(device, generator):
    """Modules that reach past nn.Linear.forward, to its weight."""
    attention = nn.MultiheadAttention(64, 4, batch_first=True, device=device).eval()
    x = randn(generator, 2, 5, 64).to(device)
    weight = quantized("int8", 64, 64, FP32, device, generator)
    attention.out_proj.weight = nn.Parameter(weight.dequantize(), requires_grad=False)
    expected = attention(x, x, x)[0]
    attention.out_proj.weight = nn.Parameter(weight, requires_grad=False)
    with torch.no_grad():
        assert_close(attention(x, x, x)[0], expected.double().cpu())

    layer = layer_of("int4", device, generator, FP32)
    x = x.requires_grad_()
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    y.sum().backward()
    assert_close(x.grad, torch.ones(2, 5, 24).double() @ meaning(layer.weight))
