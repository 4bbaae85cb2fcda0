"""Weights that are overwritten: what was saved for a backward pass, and what fits into a weight."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import aoext
from aoext.reference import assert_close, randn
from conftest import compiler_for
from formats import CLASSES, HIGH_PRECISION, meaning, quantized, same

FP32 = HIGH_PRECISION[2]
N, K = 24, 64

WRITES = {
    "copy_": lambda w, other: w.copy_(other),
    "load_state_dict": lambda w, other: _holding(w).load_state_dict({"weight": other}),
    "rows": lambda w, other: w[:16].copy_(other[:16]),
    "setitem": lambda w, other: w.__setitem__(slice(0, 16), other[:16]),
    "chunk": lambda w, other: w.chunk(2)[0].copy_(other[:12]),
    "transposed": lambda w, other: w.t().copy_(other.t()),
    "view": lambda w, other: w.view(N, K).copy_(other),
    "detach": lambda w, other: w.detach().copy_(other),
    "data": lambda w, other: w.data[:16].copy_(other[:16]),
    "parameter": lambda w, other: nn.Parameter(w, requires_grad=False).copy_(other),
    "inference mode": lambda w, other: torch.inference_mode()(w.copy_)(other),
    "fields": lambda w, other: [t.copy_(getattr(other, name)) for name, t in w.named_fields()],
    "compiled": lambda w, other: torch.compile(_copy, backend="aot_eager")(w, other),
}
READS = {
    "linear": linear,
    "matmul": lambda x, w: x @ w.t(),
    "rows": lambda x, w: linear(x, w[4:20]),
    "columns": lambda x, w: linear(x[:, :32], w[:, :32]),
    "chunk": lambda x, w: linear(x, w.chunk(2)[0]),
    "detach": lambda x, w: linear(x, w.detach()),
    "compiled": lambda x, w: torch.compile(linear, backend="aot_eager")(x, w),
}


def _two(format, device, generator):
    """Weights of which one's rows can be written into the other's, whose global scale serves all its rows."""
    weight, other = (quantized(format, N, K, FP32, device, generator) for _ in range(2))
    if other.global_scale is not None:
        other.global_scale.copy_(weight.global_scale)
    return weight, other


def _holding(weight) -> nn.Linear:
    layer = nn.Linear(K, N, bias=False, device=weight.device)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def _copy(w, other):
    w.copy_(other)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("format", CLASSES)
def test_a_backward_pass_with_an_overwritten_weight_raises(format, read, write, device, generator):
    torch._dynamo.reset()
    weight, other = _two(format, device, generator)
    x = randn(generator, 3, K).to(device).requires_grad_()
    y = READS[read](x, weight)
    if (format, read) == ("block_float8_dynamic", "columns"):  # all that is kept of it are copies
        expected = torch.nn.functional.pad(meaning(weight)[:, :32].sum(0).expand(3, -1), (0, 32))
        with torch.no_grad():
            WRITES[write](weight, other)
        y.sum().backward()
        assert_close(x.grad, expected)
        return
    with torch.no_grad():
        WRITES[write](weight, other)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


COMPILED = {
    "copy_": lambda w, other: w.copy_(other),
    "rows": lambda w, other: w[:16].copy_(other[:16]),
    "sum": lambda w, other: w.add_(other.dequantize()),
}


@pytest.mark.parametrize("write", COMPILED)
@pytest.mark.parametrize("format", CLASSES)
def test_a_write_that_inductor_compiled_is_noticed(format, write, device, generator):
    torch._dynamo.reset()
    weight, other = _two(format, device, generator)
    written = weight.clone()
    with torch.no_grad():
        COMPILED[write](written, other)

    def overwrite(w, other):
        COMPILED[write](w, other)

    x = randn(generator, 3, K).to(device).requires_grad_()
    y = linear(x, weight)
    with torch.no_grad():
        torch.compile(overwrite, fullgraph=True, backend=compiler_for(device))(weight, other)
    # Inductor may round a sum next to the middle of two steps to the other one.
    step = torch.zeros(())
    if write == "sum" and format in ("int4", "nvfp4"):  # e2m1's last steps are of 2
        step = written.scale.float().abs().max() * (1 if format == "int4" else 2 * written.global_scale)
    difference = (weight.dequantize() - written.dequantize()).abs()
    near = torch.isclose(weight.dequantize(), written.dequantize(), rtol=0.1, atol=0.1)
    assert (near | (difference <= 1.01 * step.to(device))).all()
    assert (~near).float().mean() < 0.01
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.inference_mode():  # whose tensors have no version
        streamed = weight.clone()
        torch.compile(overwrite, fullgraph=True, backend=compiler_for(device))(streamed, other)


def test_writes_into_plain_tensors_are_left_to_pytorch(generator):
    from aoext.inductor import passes

    torch._dynamo.reset()
    before = passes.rewrites.get("count_writes", 0)
    plain, rows = torch.zeros(N, K), torch.zeros(N, dtype=torch.int8)
    step = torch.compile(lambda p, r: (p.add_(1), r.add_(1))[1], fullgraph=True)
    step(plain, rows)
    assert plain.sum() == N * K
    assert passes.rewrites.get("count_writes", 0) == before


@pytest.mark.parametrize("format", CLASSES)
def test_a_backward_pass_goes_on_where_a_weight_was_read_or_replaced(format, device, generator):
    weight, other = _two(format, device, generator)
    layer = _holding(weight)
    expected = meaning(weight).sum(0).expand(3, -1)
    x = randn(generator, 3, K).to(device).requires_grad_()
    y = layer(x)
    layer(x.detach())
    other.copy_(weight[:])
    layer.weight.t().clone().copy_(weight.t())
    layer.weight = nn.Parameter(quantized(format, N, K, FP32, device, generator), requires_grad=False)
    y.sum().backward()
    assert_close(x.grad, expected)


@pytest.mark.parametrize("format", CLASSES)
def test_layers_streamed_through_one_buffer(format, device, generator):
    weights = [quantized(format, K, K, FP32, device, generator) for _ in range(2)]
    buffer = weights[0].clone()
    x = randn(generator, 3, K).to(device).requires_grad_()
    y = x
    for weight in weights:
        with torch.no_grad():
            buffer.copy_(weight)
        y = linear(y, buffer)
    assert same(buffer, weights[1])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


PLAIN_WRITES = {
    "copy_": lambda w, plain: w.copy_(plain),
    "foreach": lambda w, plain: torch._foreach_copy_([w], [plain]),
    "setitem": lambda w, plain: w.__setitem__(slice(None), plain),
    "load_state_dict": lambda w, plain: _holding(w).load_state_dict({"weight": plain}),
    "transposed": lambda w, plain: w.t().copy_(plain.t()),
    "requantize_": lambda w, plain: aoext.requantize_(_holding(w), {"weight": plain}),
    "compiled": lambda w, plain: torch.compile(_copy, backend="aot_eager")(w, plain),
}


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("write", PLAIN_WRITES)
@pytest.mark.parametrize("format", CLASSES)
def test_plain_weights_are_quantised_in_place(format, write, dtype, device, generator):
    torch._dynamo.reset()
    weight = quantized(format, N, K, FP32, device, generator)
    places = [field.data_ptr() for _, field in weight.named_fields()]
    plain = (3 * randn(generator, N, K)).to(device, dtype)
    expected = weight.requantized(plain.float())
    with torch.no_grad():
        PLAIN_WRITES[write](weight, plain)
    assert same(weight, expected)
    assert [field.data_ptr() for _, field in weight.named_fields()] == places


def test_what_cannot_be_quantised_in_place_is_refused(device, generator):
    weight = quantized("int4", N, K, FP32, device, generator)
    before, plain = weight.clone(), randn(generator, N, K).to(device)
    for wrong in (plain[:, :1], plain[:3]):
        with pytest.raises(ValueError, match=r"copy_ needs a source \[24, 64\], got float32"):
            weight.copy_(wrong)
    with pytest.raises(ValueError, match="finite"):
        weight.copy_(torch.where(plain > 1, torch.inf, plain))
    with pytest.raises(RuntimeError, match="needs a matrix that requires no gradient"):
        weight.copy_(plain.requires_grad_())
    rows = quantized("int8", N, K, FP32, device, generator)
    with pytest.raises(ValueError, match="a slice along K cannot change its scale"):
        rows[:, :32].copy_(plain.detach()[:, :32])
    assert same(weight, before)


def test_requantize_tells_what_it_has_left(generator):
    model = nn.Sequential(nn.Linear(K, N), nn.LayerNorm(N), nn.Linear(N, N, bias=False))
    model.append(model[2])
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig())
    given = {
        "0.weight": randn(generator, N, K),
        "0.bias": randn(generator, N),
        "3.weight": randn(generator, N, N),
    }
    summary = aoext.requantize_(model, iter({**given, "lm_head.weight": torch.zeros(1)}.items()))
    assert (summary.requantized, summary.copied) == (["0.weight", "3.weight"], ["0.bias"])
    assert (summary.left, summary.unknown) == (["1.weight", "1.bias"], ["lm_head.weight"])
    assert "2 weights quantised anew, 1 tensors copied" in str(summary)
    assert torch.equal(model[0].bias, given["0.bias"])
    assert same(model[2].weight.detach(), model[2].weight.detach().requantized(given["3.weight"]))
    with pytest.raises(ValueError, match=r"requantize_: 0.weight: it must be \[24, 64\]"):
        aoext.requantize_(model, {"0.weight": torch.zeros(3, 3)})
    with pytest.raises(ValueError, match=r"requantize_: 0.weight: .* must be finite"):
        aoext.requantize_(model, {"0.weight": torch.full((N, K), torch.nan)})


def test_compiled_code_goes_on_with_new_weights(device, generator):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(K, N)).to(device)
    aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=32))
    compiled = torch.compile(model, fullgraph=True, backend=compiler_for(device))
    x = randn(generator, 3, K).to(device)
    with torch.no_grad():
        compiled(x)
        aoext.requantize_(model, {"0.weight": randn(generator, N, K)})
        torch.testing.assert_close(compiled(x), model(x))
