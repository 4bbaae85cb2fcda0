"""Quantised weights in graphs: export of what reads and cuts them, fused layers, derivatives."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils._pytree import tree_leaves

import aoext
from aoext.reference import assert_close, randn
from formats import CLASSES, HIGH_PRECISION, meaning, quantized

BF16, FP16, FP32 = HIGH_PRECISION
N, K = 24, 64

CONFIGS = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=16),
    "int8_dynamic": aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": aoext.Float8WeightOnlyConfig(),
    "block_float8_dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(
        granularity=(aoext.PerBlock([1, 32]), aoext.PerBlock([8, 32]))
    ),
    "nvfp4": aoext.NVFP4WeightOnlyConfig(),
}

VIEWS = {
    "slices": lambda w, x: (linear(x, w[:16]), linear(x[:, :32], w[4:].narrow(1, 0, 32))),
    "transposed": lambda w, x: (x @ w.t(), x @ w.T, x @ w.transpose(0, 1), linear(x, w.t().t())),
    "detached": lambda w, x: (linear(x, w.detach()), linear(x, w.data)),
    "parts": lambda w, x: [linear(x, part) for part in (*w.chunk(2), *w.split(16), *w.split([4, 20]))],
    "copies": lambda w, x: (linear(x, w.clone()), linear(x[:, 16:48], w[:, 16:48].contiguous())),
    "joined": lambda w, x: (linear(x, torch.cat([w, w[:8]])), linear(x, torch.cat([w.clone(), w]))),
    "converted": lambda w, x: (linear(x.half(), w.half()), linear(x, w.to(FP16).to(BF16))),
    "own shape": lambda w, x: (linear(x, w.view(N, K)), linear(x, w.reshape(N, K))),
    "plain": lambda w, x: (w.dequantize(), w[:3].dequantize(), w[0], w.sum(1), w == w.abs(), w.norm()),
    "products": lambda w, x: (
        w @ x.t(),
        x[:, :N] @ w,
        linear(x[:, :N], w.t()),
        torch.einsum("bk,nk->bn", x, w),
    ),
    "sums": lambda w, x: (linear(x, w + 0.5 * w.dequantize()), w.dequantize() - w),
}


class Reads(nn.Module):
    """A weight that is read in every way."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor):
        return {name: view(self.weight, x) for name, view in VIEWS.items()}


def assert_equal(results, expected) -> None:
    assert results.keys() == expected.keys()
    for name in VIEWS:
        for ours, theirs in zip(tree_leaves(results[name]), tree_leaves(expected[name]), strict=True):
            assert type(ours) is Tensor, name
            assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("format", CLASSES)
def test_what_reads_a_weight_is_exported(format, strict, generator):
    torch._dynamo.reset()
    model = Reads(quantized(format, N, K, BF16, torch.device("cpu"), generator))
    x = randn(generator, 5, K, dtype=BF16)
    with torch.no_grad():
        expected = model(x)
        program = torch.export.export(model, (x,), strict=strict)
        assert_equal(program.module()(x), expected)
        lowered = program.run_decompositions()
        assert_equal(lowered.module()(x), expected)
        file = io.BytesIO()
        torch.export.save(lowered, file)
        file.seek(0)
        assert_equal(torch.export.load(file).module()(x), expected)
    nodes = {str(node.target) for node in lowered.graph.nodes}
    assert not any("access_subclass_inner_tensor" in node for node in nodes)
    assert all(type(value) is not torch._subclasses.FakeTensor for value in lowered.constants.values())


@pytest.mark.parametrize("format", CLASSES)
def test_an_exported_model_is_unflattened(format, device, generator):
    model = nn.Sequential(nn.Linear(K, N), nn.Sequential(nn.ReLU(), nn.Linear(N, 2 * N))).to(device)
    aoext.quantize_(model, CONFIGS[format], lambda module, name: name == "0")
    x = randn(generator, 3, K).to(device)
    program = torch.export.export(model, (x,))
    for exported in (program, program.run_decompositions()):
        assert torch.equal(torch.export.unflatten(exported)(x), model(x))


@pytest.mark.parametrize("mask", [None, "causal", "padding"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_layer_compiles_where_pytorch_would_fuse_it(
    activation, norm_first, mask, device, generator
):
    torch._dynamo.reset()
    options = {"activation": activation, "norm_first": norm_first, "batch_first": True}
    model = nn.TransformerEncoderLayer(64, 4, 128, **options).to(device).eval()
    aoext.quantize_(model, CONFIGS["int4"])
    x = randn(generator, 2, 5, 64).to(device)
    masks = {}
    if mask == "causal":
        masks["src_mask"] = torch.ones(5, 5, dtype=torch.bool, device=device).triu(1)
    if mask == "padding":
        masks["src_key_padding_mask"] = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)
    with torch.no_grad():
        expected = model(x, **masks)
        result = torch.compile(model, fullgraph=True, backend="aot_eager")(x, **masks)
    assert_close(result, expected.cpu().double())


@pytest.mark.parametrize("format", CLASSES)
def test_a_weight_is_quantised_in_a_graph(format, device, generator):
    torch._dynamo.reset()
    weight = quantized(format, N, K, FP32, device, generator)
    x, change = randn(generator, 3, K).to(device), randn(generator, N, K).to(device)

    def merged(weight, x):
        return linear(x, weight + change)

    compiled = torch.compile(merged, fullgraph=True, backend="aot_eager")
    assert_close(compiled(weight, x), merged(weight, x).cpu().double())


@pytest.mark.parametrize("format", CLASSES)
def test_forward_mode_compiles(format, device, generator):
    layer = nn.Linear(K, N, device=device)
    layer.weight = nn.Parameter(quantized(format, N, K, FP32, device, generator), requires_grad=False)
    x, tangent = randn(generator, K).to(device), randn(generator, K).to(device)
    functions = {
        "jvp": lambda x: torch.func.jvp(layer, (x,), (tangent,))[1],
        "jacfwd": lambda x: torch.func.jacfwd(layer)(x),
        "hessian": lambda x: torch.func.hessian(lambda x: layer(x).sin().sum())(x),
    }
    plain = meaning(layer.weight)
    y = layer(x).detach().cpu().double()
    expected = {
        "jvp": plain @ tangent.cpu().double(),
        "jacfwd": plain,
        "hessian": -(plain.t() * y.sin()) @ plain,
    }
    for name, function in functions.items():
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        assert_close(compiled(x).detach(), expected[name])


@pytest.mark.parametrize("format", CLASSES)
def test_models_quantised_in_inference_mode_train_adapters(format, device, generator):
    model = nn.Sequential(nn.Linear(K, K), nn.Linear(K, N)).to(device)
    with torch.inference_mode():
        aoext.quantize_(model, CONFIGS[format])
    scale = torch.ones(K, device=device, requires_grad=True)
    x = randn(generator, 3, K).to(device)
    model[1](x * scale).sum().backward()
    assert_close(scale.grad[None], (x.cpu().double() * meaning(model[1].weight).sum(0)).sum(0)[None])


@pytest.mark.parametrize("module", ["passes", "hook", "weight_only"])
def test_every_module_of_the_passes_can_be_imported_first(module):
    read = "import torch._inductor.config as config; print(config.joint_custom_post_pass)"
    script = f"from aoext.inductor import {module}; {read}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "AoextPass" in done.stdout, done.stderr
