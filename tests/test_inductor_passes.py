"""What aoext.inductor does to Inductor's graphs, operator by operator, and where it keeps its hands off."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

import aoext
from aoext.formats.table import code_of
from aoext.packing import int4_row_quantize_zp, pack_int4
from aoext.reference import assert_close, int4_float64, randn, rowwise_values
from aoext.tensors import BlockwiseTensor, Int8Tensor, Lut4Tensor
from aoext_bench.tiny_lm import TinyLM, TinyLMConfig
from formats import meaning
from inductor_graphs import Holds, bias_of, both_ways, compiled, only

ao, aten, prims = torch.ops.ao, torch.ops.aten, torch.ops.prims
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
N, K, GROUP = 24, 64, 32
INT8 = aoext.Int8DynamicActivationInt8WeightConfig()
INT4 = aoext.Int4WeightOnlyConfig(group_size=GROUP)
BLOCKS = aoext.Float8DynamicActivationFloat8WeightConfig(
    granularity=(aoext.PerBlock([1, 128]), aoext.PerBlock([128, 128]))
)


def int4_fields(g, dtype=BF16, rows=N):
    weight = torch.randint(-128, 128, (rows, K // 2), generator=g, dtype=torch.int8)
    scale = (torch.rand(K // GROUP, rows, generator=g) + 0.1).to(dtype)
    return {"w": weight, "s": scale, "z": randn(g, K // GROUP, rows, dtype=dtype)}


def eight_bit_fields(g, kind=torch.int8):
    w, s = rowwise_values((N,), K, kind, g)
    return {"w": w, "s": s}


def residual(x):
    return x.reshape(-1, K)[:, :N].float().to(x.dtype)


# Products with a dequantised int4 weight, in all forms.
INT4_FORMS = {
    "linear": lambda x, d, b: F.linear(x, d),
    "linear with bias": lambda x, d, b: F.linear(x, d, b),
    "matmul": lambda x, d, b: x @ d.t(),
    "permuted": lambda x, d, b: x @ d.permute(1, 0).contiguous(),
    "expanded bmm": lambda x, d, b: torch.bmm(x, d.t().expand(x.shape[0], -1, -1)),
    "addmm with a bias": lambda x, d, b: torch.addmm(b, x.reshape(-1, K), d.t()),
    "addmm with a matrix": lambda x, d, b: torch.addmm(residual(x), x.reshape(-1, K), d.t()),
    "bias added later": lambda x, d, b: F.linear(x, d) + b,
    "bias added first": lambda x, d, b: b + F.linear(x, d),
    "and an activation": lambda x, d, b: F.silu(F.linear(x, d, b)),
}


@pytest.mark.parametrize(
    ("form", "dynamic"), [(form, form in ("linear", "addmm with a matrix")) for form in INT4_FORMS]
)
def test_a_product_with_a_dequantised_int4_weight_becomes_one_operator(form, dynamic, generator):
    function = INT4_FORMS[form]
    fields, b = int4_fields(generator), randn(generator, N, dtype=BF16)
    model = Holds(lambda x, w, s, z, b: function(x, ao.dequantize(w, s, 0, None, z), b), **fields, b=b)
    x = randn(generator, 2, 5, K, dtype=BF16)
    result, graphs, _, plain = both_ways(model, x, dynamic=dynamic)
    assert plain.of_ours() == {"dequantize": 1}
    assert graphs.of_ours() == {"weight_only_linear": 1}
    assert not {"aten.mm", "aten.addmm", "aten.bmm"} & graphs.calls.keys()
    exact = function(x.double(), int4_float64(*fields.values()), b.double())
    torch.testing.assert_close(result.double(), exact, rtol=2e-2, atol=2e-2 * exact.abs().max().item())


# Weights with a scale a block.
BLOCKWISE = {
    "int8": lambda w: BlockwiseTensor.from_hp(w, [1, 32], torch.int8),
    "float8": lambda w: BlockwiseTensor.from_hp(w, [16, 40]),
    "nvfp4": lambda w: Lut4Tensor.from_hp(w, "nvfp4"),
    "nf4": lambda w: Lut4Tensor.from_hp(w, "nf4"),
}


@pytest.mark.parametrize("form", INT4_FORMS)
@pytest.mark.parametrize("kind", BLOCKWISE)
def test_a_product_with_dequantised_blocks_becomes_one_operator(kind, form, generator):
    function, make = INT4_FORMS[form], BLOCKWISE[kind]
    weight, b = make(randn(generator, N, K, dtype=BF16)), randn(generator, N, dtype=BF16)
    names = [name for name, _ in weight.named_fields()]

    def product(x, b, **fields):
        return function(x, weight.remade(fields)._dequantize(), b)

    model = Holds(product, b=b, **{name: getattr(weight, name) for name in names})
    x = randn(generator, 2, 5, K, dtype=BF16)
    result, graphs, _, plain = both_ways(model, x)
    assert list(plain.of_ours()) == ["dequantize"]
    assert graphs.of_ours() == {"weight_only_linear": 1}
    assert not {"aten.mm", "aten.addmm", "aten.bmm"} & graphs.calls.keys()
    (node,) = graphs.nodes(ao.weight_only_linear.default)
    bias = bias_of(node)
    has_bias = bias is not None and bias.meta["val"].shape == (N,)
    assert has_bias == ("bias" in form or "activation" in form)
    exact = function(x.double(), meaning(weight), b.double())
    torch.testing.assert_close(result.double(), exact, rtol=2e-2, atol=2e-2 * exact.abs().max().item())


def test_a_float32_weight_that_is_rounded_on_the_way_is_fused_too(generator):
    model = Holds(
        lambda x, w, s, z: F.linear(x, ao.dequantize(w, s, 0, None, z, dtype=FP32).to(BF16)),
        **int4_fields(generator),
    )
    call, graphs = compiled(model)
    call(randn(generator, 3, K, dtype=BF16))
    assert graphs.of_ours() == {"weight_only_linear": 1}


def dequantized(x, w, s):
    return F.linear(x, ao.dequantize(w, s, code=int(code_of(w.dtype)), dtype=x.dtype))


# As torchao's weight-only tensors compute: scales before the product, or after it.
def scaled_before(x, w, s):
    return F.linear(x, (w.to(FP32) * s).to(x.dtype))


def scaled_before_in_x_dtype(x, w, s):
    return F.linear(x, w.to(x.dtype) * s.to(x.dtype))


def scaled_after(x, w, s):
    return torch.mm(x.reshape(-1, K), w.to(x.dtype).t()) * s.to(x.dtype).reshape(-1)


@pytest.mark.parametrize("form", [dequantized, scaled_before, scaled_before_in_x_dtype, scaled_after])
@pytest.mark.parametrize(
    ("kind", "dtype", "with_bias"),
    [
        (torch.int8, BF16, True),
        (torch.int8, FP32, False),
        (torch.float8_e4m3fn, BF16, False),
        (torch.float8_e5m2, FP16, True),
    ],
    ids=str,
)
def test_8_bit_weights_with_scales_become_one_operator(kind, form, dtype, with_bias, generator):
    fields, b = eight_bit_fields(generator, kind), randn(generator, N, dtype=dtype)
    model = Holds(lambda x, w, s, b: form(x, w, s) + b if with_bias else form(x, w, s), **fields, b=b)
    x = randn(generator, 7, K, dtype=dtype)
    call, graphs = compiled(model)
    result = call(x)
    assert graphs.of_ours() == {"weight_only_linear": 1}
    (product,) = graphs.nodes(ao.weight_only_linear.default)
    assert (bias_of(product) is not None) == with_bias
    exact = x.double() @ (fields["w"].double() * fields["s"].double()).t()
    exact = exact + b.double() if with_bias else exact
    if form in (dequantized, scaled_before):
        assert_close(result, exact)
    else:  # scales may be rounded to x's dtype first, as the function says
        torch.testing.assert_close(result.double(), exact, rtol=2e-2, atol=2e-2 * exact.abs().max().item())


@pytest.mark.parametrize("freezing", [False, True])
def test_a_scale_for_the_whole_weight_serves_every_row(freezing, generator):
    w = eight_bit_fields(generator)["w"]
    scale = torch.rand(1, 1, generator=generator) + 0.5
    model = Holds(lambda x, w, s: F.linear(x, (w.to(FP32) * s).to(BF16)), w=w, s=scale)
    x = randn(generator, 3, K, dtype=BF16)
    call, graphs = compiled(model, freezing=freezing)
    result = call(x)
    assert graphs.of_ours() == {"weight_only_linear": 1}
    assert_close(result, x.double() @ (w.double() * scale.double()).t())


# Scales of rows, made of a tensor [2, N / 2] with their elements in another order.
REORDERED = {
    "before the product": lambda x, w, t: F.linear(x, w.to(x.dtype) * t.t().reshape(-1, 1).to(x.dtype)),
    "after the product": lambda x, w, t: F.linear(x, w.to(x.dtype)) * t.t().reshape(-1).to(x.dtype),
    "copied in between": lambda x, w, t: F.linear(x, w.to(x.dtype) * t.t().contiguous().view(-1, 1)),
}


@pytest.mark.parametrize("case", REORDERED)
def test_scales_keep_the_order_in_which_the_weight_meets_them(case, generator):
    w, scales = eight_bit_fields(generator)["w"], torch.rand(2, N // 2, generator=generator) + 0.1
    x = randn(generator, 5, K)
    call, graphs = compiled(Holds(REORDERED[case], w=w, t=scales))
    assert_close(call(x), x.double() @ (w.double() * scales.double().t().reshape(-1, 1)).t())
    assert graphs.of_ours() == {"weight_only_linear": 1}


# PyTorch's operators of a weight that its own quantisation, PT2E, leaves in a graph.
def per_channel(x, w, s, z):
    q = torch.ops.quantized_decomposed
    return F.linear(x, q.dequantize_per_channel(w, s.reshape(-1), z, 0, -128, 127, torch.int8))


@pytest.mark.parametrize("zero", [0, 1])
def test_frozen_zero_points_are_looked_at(zero, generator):
    from torch.ao.quantization.fx import _decomposed  # noqa: F401  (defines the operators)

    fields = {**eight_bit_fields(generator), "z": torch.full((N,), zero, dtype=torch.int64)}
    x = randn(generator, 3, K)
    call, graphs = compiled(Holds(per_channel, **fields), freezing=True)
    exact = x.double() @ ((fields["w"].double() - zero) * fields["s"].double()).t()
    torch.testing.assert_close(call(x).double(), exact, rtol=1e-4, atol=1e-4)
    assert graphs.of_ours() == ({} if zero else {"weight_only_linear": 1})


def test_dequantize_per_channel_and_per_tensor_become_one_operator(generator):
    from torch.ao.quantization.fx import _decomposed  # noqa: F401  (defines the operators)

    q = torch.ops.quantized_decomposed
    fields = {**eight_bit_fields(generator), "z": torch.zeros(N, dtype=torch.int64)}
    b = randn(generator, N)
    x = randn(generator, 3, K)

    def per_channel(x, w, s, z, b):
        scale = s.reshape(-1)
        return F.linear(x, q.dequantize_per_channel(w, scale, z, 0, -128, 127, torch.int8), b)

    def without_zeros(x, w, s, z, b):
        scale = s.reshape(-1)
        return F.linear(x, q.dequantize_per_channel(w, scale, torch.zeros_like(z), 0, -128, 127, torch.int8))

    def per_tensor(x, w, s, z, b):
        return F.linear(x, q.dequantize_per_tensor(w, 0.25, 0, -128, 127, torch.int8))

    exact = x.double() @ (fields["w"].double() * fields["s"].double()).t()
    call, graphs = compiled(Holds(without_zeros, **fields, b=b))
    assert_close(call(x), exact)
    assert graphs.of_ours() == {"weight_only_linear": 1}
    call, graphs = compiled(Holds(per_tensor, **fields, b=b))
    assert_close(call(x), x.double() @ fields["w"].double().t() * 0.25)
    assert graphs.of_ours() == {"weight_only_linear": 1}
    # Zero points that come as inputs may change from call to call.
    call, graphs = compiled(Holds(per_channel, **fields, b=b))
    torch.testing.assert_close(call(x).double(), exact + b.double(), rtol=1e-4, atol=1e-4)
    assert graphs.of_ours() == {}


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_int8_products_with_their_scales_become_scaled_mm(with_bias, dynamic, generator):
    """The order and the conversions of torchao's dynamic int8 tensors, for an input [2, T, K]."""
    fields, b = eight_bit_fields(generator), randn(generator, N, dtype=BF16)

    def function(x, x_scale, w, s, b):
        y = torch._int_mm(x.reshape(-1, K), w.t()).to(FP32) * x_scale.reshape(-1, 1)
        y = (y.to(BF16) * s.reshape(-1)).reshape(2, -1, N)
        return (y + b if with_bias else y).to(BF16)

    x, x_scale = rowwise_values((2, 11), K, torch.int8, generator)
    call, graphs = compiled(Holds(function, **fields, b=b), dynamic=dynamic)
    result = call(x, x_scale)
    assert graphs.of_ours() == {"scaled_mm": 1}
    assert not {"aten._int_mm", "aten.mul.Tensor", "aten.add.Tensor"} & graphs.calls.keys()
    exact = (x.double() * x_scale.double()) @ (fields["w"].double() * fields["s"].double()).t()
    assert_close(result, exact + b.double() if with_bias else exact)
    if dynamic:
        call(*rowwise_values((2, 5), K, torch.int8, generator))
        assert len(graphs) == 1


def test_scales_of_one_output_channel_are_told_from_those_of_rows(generator):
    """With N = 1 a scale for each row of the input has the product's own shape."""

    def function(x, x_scale, w, s):
        return x_scale * torch._int_mm(x.reshape(-1, K), w.t()).to(FP32).reshape(2, 11, 1) * s.reshape(-1)

    w, s = rowwise_values((1,), K, torch.int8, generator)
    x, x_scale = rowwise_values((2, 11), K, torch.int8, generator)
    call, graphs = compiled(Holds(function, w=w, s=s))
    assert_close(call(x, x_scale), (x.double() * x_scale.double()) @ (w.double() * s.double()).t())
    assert graphs.of_ours() == {"scaled_mm": 1}


# Products that PyTorch computes and scaled_mm, or the weight-only operators, would refuse.
def int_mm(x, w):
    return torch._int_mm(x, w.t()).to(FP32) * x[:, :1].float() * w[:, 0].float()


REFUSED = {
    "more columns than an int32 holds": (int_mm, 131072, torch.int8),
    "unsigned activations": (int_mm, K, torch.uint8),
    "no columns": (lambda x, w: F.linear(x.to(BF16), w.to(BF16) * 2), 0, torch.int8),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_our_operators_refuse_stays(case, generator):
    function, columns, kind = REFUSED[case]
    x = torch.randint(0, 3, (18, columns), generator=generator).to(kind)
    w = torch.randint(-1, 2, (8, columns), generator=generator, dtype=torch.int8)
    result, graphs, expected, _ = both_ways(Holds(function, w=w), x)
    assert graphs.of_ours() == {}
    assert torch.equal(result, expected)


def test_float8_products_with_row_scales_become_scaled_mm(generator):
    kind = torch.float8_e4m3fn
    (w, s), (x, x_scale) = (rowwise_values((rows,), K, kind, generator) for rows in (32, 7))

    def function(x, x_scale, w, s):
        return torch._scaled_mm(x, w.t(), x_scale, s.t(), out_dtype=BF16, use_fast_accum=True)

    call, graphs = compiled(Holds(function, w=w, s=s))
    result = call(x, x_scale)
    assert graphs.of_ours() == {"scaled_mm": 1}
    assert_close(result, (x.double() * x_scale.double()) @ (w.double() * s.double()).t())


# Functions of an input and a plain weight that have to keep it.
KEPT = {
    "the weight is returned": lambda x, d: (F.linear(x, d), d),
    "the weight is read elsewhere": lambda x, d: F.linear(x, d) * d.amax(),
    "two products": lambda x, d: F.linear(x, d) + F.linear(-x, d),
    "not transposed": lambda x, d: x[:, :N] @ d,
    "a rounded weight in float32": lambda x, d: F.linear(x.float(), d.float()),
    "a weight that is changed": lambda x, d: F.linear(x, d * 2),
    "a part of the weight": lambda x, d: F.linear(x, d[:8]),
    "alpha": lambda x, d: torch.addmm(x[:, :N], x, d.t(), alpha=0.5),
    "the weight is the input": lambda x, d: d @ x.t(),
    "a vector": lambda x, d: torch.mv(d, x[0]),
}


@pytest.mark.parametrize("case", KEPT)
def test_the_weight_stays_plain_where_something_else_needs_it(case, generator):
    model = Holds(lambda x, w, s, z: KEPT[case](x, ao.dequantize(w, s, 0, None, z)), **int4_fields(generator))
    result, graphs, expected, plain = both_ways(model, randn(generator, 6, K, dtype=BF16))
    assert graphs.of_ours() == plain.of_ours() == {"dequantize": 1}
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (result, expected)), strict=True):
        assert torch.equal(a, b)


def read_before_it_is_scaled(x, w, s):
    y = F.linear(x, w.to(BF16))
    return y * s.to(BF16).reshape(-1) + y


KEPT_8_BIT = {
    "no scale": lambda x, w, s: F.linear(x, w.to(BF16)),
    "a scale along K": lambda x, w, s: F.linear(x, w.to(BF16) * s.new_ones(1, K).to(BF16)),
    "a scale for each element": lambda x, w, s: F.linear(x, w.to(BF16) * s.expand(N, K).to(BF16)),
    "stored [K, N]": lambda x, w, s: x[:, :N] @ (w.to(BF16) * s.to(BF16)),
    "zero points": lambda x, w, s: F.linear(x, (w.to(BF16) - 3) * s.to(BF16)),
    "a slice": lambda x, w, s: F.linear(x[:, :32], (w[:, :32].to(BF16) * s.to(BF16))),
    "unsigned": lambda x, w, s: F.linear(x, w.view(torch.uint8).to(BF16) * s.to(BF16)),
    "scaled by rows of the input": lambda x, w, s: F.linear(x, w.to(BF16)) * x[:, :1],
    "read before it is scaled": read_before_it_is_scaled,
    "one output channel, repeated": lambda x, w, s: torch.bmm(
        x.reshape(2, 9, K), (w[:1].to(BF16) * s[:1].to(BF16)).t().expand(2, K, 5)
    ),
    "int8 product alone": lambda x, w, s: torch._int_mm(x.to(torch.int8), w.t()),
    "int8 product with one scale": lambda x, w, s: torch._int_mm(x.to(torch.int8), w.t()).to(FP32) * s.t(),
}


@pytest.mark.parametrize("case", KEPT_8_BIT)
def test_8_bit_chains_that_mean_something_else_stay(case, generator):
    model = Holds(KEPT_8_BIT[case], **eight_bit_fields(generator))
    result, graphs, expected, _ = both_ways(model, randn(generator, 18, K, dtype=BF16))
    assert graphs.of_ours() == {}
    assert torch.equal(result, expected)


def test_a_weight_on_another_device_stays(generator):
    fields = eight_bit_fields(generator)
    model = Holds(lambda x, w, s: F.linear(x, (w.to(FP32) * s).to(BF16).to("meta")), **fields)
    call, graphs = compiled(model)
    call(torch.empty(3, K, dtype=BF16, device="meta"))
    assert graphs.of_ours() == {}


def test_weights_that_are_written_give_what_eager_gives(generator):
    def function(x, w, s, z):
        before = F.linear(x, ao.dequantize(w, s, 0, None, z))
        w.copy_(w + 1)
        return before, F.linear(x, ao.dequantize(w, s, 0, None, z))

    fields = int4_fields(generator, FP32)
    x = randn(generator, 3, K)
    ours, theirs = (Holds(function, **{k: v.clone() for k, v in fields.items()}) for _ in range(2))
    call, graphs = compiled(ours)
    for result, expected in zip(call(x), theirs(x), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    assert graphs.of_ours() == {"weight_only_linear": 2, "_count_write": 1}
    assert torch.equal(ours.w, theirs.w)


def test_gradients_stay_where_scales_and_inputs_want_them(generator):
    fields = eight_bit_fields(generator)
    x = randn(generator, 3, K).requires_grad_()
    scale = nn.Parameter(fields["s"])

    def function(x, scale):
        return F.linear(x, fields["w"].to(FP32) * scale).square().sum()

    function(x, scale).backward()
    expected = x.grad.clone(), scale.grad.clone()
    x.grad = scale.grad = None
    call, _ = compiled(function, grad=True)
    call(x, scale).backward()
    for result, gradient in zip((x.grad, scale.grad), expected, strict=True):
        torch.testing.assert_close(result, gradient, rtol=1e-4, atol=1e-4)


# Sums that are no bias of the product.
NO_BIAS = {
    "a matrix": lambda y, b: y + b.expand(6, N),
    "a wider bias": lambda y, b: y + b.float(),
    "one number for each row": lambda y, b: y + b[:6, None],
    "a scaled bias": lambda y, b: torch.add(y, b, alpha=2),
    "the product is read elsewhere": lambda y, b: (y + b) * y,
    "a difference": lambda y, b: y - b,
}


@pytest.mark.parametrize("case", NO_BIAS)
def test_what_is_no_bias_stays_outside(case, generator):
    fields, b = eight_bit_fields(generator), randn(generator, N, dtype=BF16)
    model = Holds(lambda x, w, s, b: NO_BIAS[case](ao.scaled_linear(x, w, s, code=1), b), **fields, b=b)
    result, graphs, expected, _ = both_ways(model, randn(generator, 6, K, dtype=BF16))
    (node,) = graphs.nodes(ao.scaled_linear.default)
    assert bias_of(node) is None
    assert torch.equal(result, expected)


def tiny_lm(generator, dtype=BF16):
    model = TinyLM(TinyLMConfig(dim=128, hidden=256, layers=1, heads=2, context=32))
    return model.to(dtype).eval(), torch.randint(256, (2, 9), generator=generator)


def llama(generator, dtype=BF16, biases=False):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        use_cache=False,
        tie_word_embeddings=False,
        attention_bias=biases,
        mlp_bias=biases,
    )
    model = transformers.LlamaForCausalLM(config).to(dtype).eval()
    with torch.no_grad():
        for name, bias in model.named_parameters():
            if name.endswith("bias"):  # they start as zeros
                bias.copy_(randn(generator, *bias.shape))
    return model, torch.randint(96, (2, 9), generator=generator)


MODELS = {"tiny_lm": (tiny_lm, 0), "llama": (llama, 1)}  # and how many heads are nn.Linear


def logits(output):
    return output if isinstance(output, torch.Tensor) else output.logits


@pytest.fixture(params=MODELS)
def model(request, generator):
    make, heads = MODELS[request.param]
    return *make(generator), heads


# Schemes that quantise activations.
DYNAMIC = {
    "int8": INT8,
    "int4 under int8": aoext.Int8DynamicActivationInt4WeightConfig(),
    "int4 under float8": aoext.Float8DynamicActivationInt4WeightConfig(32),
    "float8 by blocks": BLOCKS,
    "mxfp8": aoext.MXDynamicActivationMXWeightConfig(),
}


@pytest.mark.parametrize("scheme", DYNAMIC)
def test_linears_of_one_activation_share_its_quantisation(scheme, model, generator):
    model, tokens, heads = model
    aoext.quantize_(model, DYNAMIC[scheme])
    result, graphs, expected, plain = both_ways(model, tokens)
    assert plain.of_ours() == {"scaled_linear": 7 + heads}
    assert graphs.of_ours() == {
        "quantize": 2,  # q, k, v; gate, up
        "scaled_mm": 5,
        "scaled_linear": 2 + heads,  # out, down; the head
    }
    assert torch.equal(logits(result), logits(expected))


def test_linears_share_a_quantisation_whatever_their_weights_are(generator):
    a, b, c, d = (nn.Linear(K, N, dtype=BF16) for _ in range(4))
    aoext.quantize_(a, INT8)
    aoext.quantize_(b, aoext.Int8DynamicActivationInt4WeightConfig())
    aoext.quantize_(c, BLOCKS)
    aoext.quantize_(d, aoext.MXDynamicActivationMXWeightConfig())  # whose scales are powers of two
    call, graphs = compiled(lambda x: (a(x), b(x), c(x), d(x)))
    x = randn(generator, 3, K, dtype=BF16)
    for result, layer in zip(call(x), (a, b, c, d), strict=True):
        assert torch.equal(result, layer(x))
    assert graphs.of_ours() == {
        "quantize": 1,
        "scaled_mm": 2,
        "scaled_linear": 2,
    }


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA alone quantises x within a product")
def test_linears_that_quantise_in_their_own_kernel_share_nothing_on_cuda(generator):
    model = nn.ModuleList(nn.Linear(4096, N, dtype=BF16, bias=False) for _ in range(3)).cuda()
    aoext.quantize_(model, INT8)
    for rows, ours in (
        (1, {"scaled_linear": 3}),
        (64, {"quantize": 1, "scaled_mm": 3}),
    ):
        x = randn(generator, rows, 4096, dtype=BF16).cuda()
        call, graphs = compiled(lambda x: [linear(x) for linear in model])
        results = call(x)
        assert graphs.of_ours() == ours
        for result, linear in zip(results, model, strict=True):
            assert torch.equal(result, linear(x))


# Schemes whose linears can be merged.
MERGED = {
    "int4": INT4,
    "float8 by blocks": aoext.Float8WeightOnlyConfig(granularity=aoext.PerBlock([32, 128])),
    "nf4": aoext.NF4WeightOnlyConfig(),
    "int8 with zeros": aoext.Int8WeightOnlyConfig(),
}


@pytest.mark.parametrize("scheme", MERGED)
def test_linears_of_one_activation_are_merged_on_request(scheme, model, generator):
    model, tokens, heads = model
    operator = "weight_only_linear"
    aoext.quantize_(model, MERGED[scheme])
    if scheme == "int8 with zeros":  # of which no config is, but checkpoints are
        for layer in model.modules():
            if isinstance(weight := getattr(layer, "weight", None), Int8Tensor):
                zeros = BlockwiseTensor.from_hp(weight.dequantize(), [1, 32], torch.int8, symmetric=False)
                layer.weight = nn.Parameter(zeros, requires_grad=False)
    _, graphs, expected, plain = both_ways(model, tokens, freezing=True)
    assert graphs.of_ours() == plain.of_ours() == {operator: 7 + heads}
    with aoext.inductor.patch(merge_linears=True):
        call, graphs = compiled(model, freezing=True)
        result = call(tokens)
        assert graphs.of_ours() == {operator: 4 + heads}
        torch.testing.assert_close(logits(result), logits(expected), rtol=2e-2, atol=2e-2)
        call, graphs = compiled(model)  # weights that may change are not merged
        call(tokens)
        assert graphs.of_ours() == {operator: 7 + heads}


def test_merged_linears_that_quantise_their_input_do_it_once(generator):
    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(K, N, dtype=BF16) for _ in range(3))

        def forward(self, x):
            return [layer(x) for layer in self.layers]

    blocks = (aoext.PerBlock([1, 32]), aoext.PerBlock([8, 32]))
    for config in (
        aoext.Int8DynamicActivationInt4WeightConfig(),
        aoext.Float8DynamicActivationFloat8WeightConfig(granularity=blocks),
    ):
        model, x = Three(), randn(generator, 6, K, dtype=BF16)
        aoext.quantize_(model, config)
        with aoext.inductor.patch(merge_linears=True):
            call, graphs = compiled(model, freezing=True)
            results = call(x)
        assert graphs.of_ours() == {"scaled_linear": 1}
        for result, expected in zip(results, model(x), strict=True):
            torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)


def test_linears_of_partial_blocks_or_other_global_scales_are_not_merged(generator):
    class Two(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.a, self.b = (nn.Linear(K, N, dtype=BF16) for _ in range(2))
            with torch.no_grad():
                self.b.weight.mul_(3)  # so that their largest values differ
            aoext.quantize_(self, config)

        def forward(self, x):
            return self.a(x), self.b(x)

    blocks = aoext.Float8WeightOnlyConfig(granularity=aoext.PerBlock([16, 32]))
    for config in (blocks, aoext.NVFP4WeightOnlyConfig()):
        with aoext.inductor.patch(merge_linears=True):
            call, graphs = compiled(Two(config), freezing=True)
            call(randn(generator, 3, K, dtype=BF16))
        assert sum(graphs.of_ours().values()) == 2


def test_results_of_merged_linears_that_are_returned_lie_as_those_of_eager(generator):
    class Returned(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(K, N, dtype=BF16, bias=False) for _ in range(3))

        def forward(self, x):
            a, b, c = (layer(x) for layer in self.layers)
            return a, b.view(2, -1, N).transpose(0, 1), c.chunk(2)[1]

    model = Returned()
    aoext.quantize_(model, INT4)
    x = randn(generator, 6, K, dtype=BF16)
    torch._dynamo.reset()
    with aoext.inductor.patch(merge_linears=True), torch.no_grad():
        with inductor_config.patch(freezing=True, force_disable_caches=True):
            results, code = run_and_get_code(torch.compile(model, fullgraph=True), x)
        assert len(re.findall(r"= torch\.ops\.ao\.\w+\.default\(", code[-1])) == 1
        for result, expected in zip(results, model(x), strict=True):
            assert result.stride() == expected.stride()
            assert result.untyped_storage().nbytes() <= 2 * 6 * N
            torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)


def test_linears_that_differ_are_neither_shared_nor_merged(generator):
    def function(x, y):
        return a(x), b(y), c(x)

    a, b, c = (nn.Linear(K, N, dtype=BF16) for _ in range(3))
    aoext.quantize_(a, INT8)
    aoext.quantize_(b, INT8)
    aoext.quantize_(c, aoext.Float8DynamicActivationFloat8WeightConfig())
    call, graphs = compiled(function)
    call(randn(generator, 3, K, dtype=BF16), randn(generator, 3, K, dtype=BF16))
    assert graphs.of_ours() == {"scaled_linear": 3}

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(K, N, dtype=BF16, bias=i < 2) for i in range(3))
            for layer, group in ((self.a, 32), (self.b, 64), (self.c, 32)):
                aoext.quantize_(layer, aoext.Int4WeightOnlyConfig(group_size=group))

        def forward(self, x):
            return self.a(x), self.b(x), self.c(x)

    with aoext.inductor.patch(merge_linears=True):
        call, graphs = compiled(Two(), freezing=True)
        call(randn(generator, 3, K, dtype=BF16))
    assert sum(graphs.of_ours().values()) == 3


def test_every_pass_has_its_switch(generator):
    def function(x, w, s, z, b):
        return F.linear(x, ao.dequantize(w, s, 0, None, z)) + b

    model = Holds(function, **int4_fields(generator), b=randn(generator, N, dtype=BF16))
    x = randn(generator, 3, K, dtype=BF16)
    for options, expected in (
        ({}, {"dequantize": 1}),
        ({"weight_only": True}, {"weight_only_linear": 1}),
        ({"weight_only": True, "bias": True}, {"weight_only_linear": 1}),
    ):
        with only(**options):
            call, graphs = compiled(model)
            call(x)
        assert graphs.of_ours() == expected


def with_dequantised_int4(model):
    """The model with each linear's weight dequantised at every call."""

    def product(x, w, s, z, b=None):
        return F.linear(x, ao.dequantize(w, s, 0, None, z), b)

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                q, scale, zero_point = int4_row_quantize_zp(child.weight.detach(), GROUP)
                biases = {} if child.bias is None else {"b": child.bias.detach()}
                setattr(module, name, Holds(product, w=pack_int4(q), s=scale, z=zero_point, **biases))
    return model


def by_torchao(name):
    def quantised(model):
        quantization = pytest.importorskip("torchao.quantization")
        quantization.quantize_(model, getattr(quantization, name)())
        return model

    return quantised


# How models come to have such chains, what a linear is before, and what after.
CHAINS = {
    "dequantize": (with_dequantised_int4, "aten.mm", "weight_only_linear"),
    "torchao int8": (by_torchao("Int8WeightOnlyConfig"), "aten.mm", "weight_only_linear"),
    "torchao float8": (by_torchao("Float8WeightOnlyConfig"), "aten.mm", "weight_only_linear"),
    "torchao dynamic int8": (
        by_torchao("Int8DynamicActivationInt8WeightConfig"),
        "aten._int_mm",
        "scaled_mm",
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("biases", [False, True], ids=["tiny_lm", "llama with biases"])
def test_every_linear_of_a_model_becomes_one_operator_with_its_bias(chain, biases, generator):
    quantised, product, operator = CHAINS[chain]
    model, tokens = llama(generator, biases=True) if biases else tiny_lm(generator)
    # Without Inductor's own patterns, some of which leave what only its code generator can run.
    result, graphs, expected, plain = both_ways(quantised(model), tokens, pattern_matcher=False)

    def products(graphs):
        return sum(graphs.calls[name] for name in ("aten.mm", "aten.addmm", "aten._int_mm"))

    def sums(graphs):
        return sum(graphs.calls[name] for name in ("aten.add.Tensor", "aten.addmm"))

    # On CPUs with VNNI alone torchao adds 128 to int8, and takes 128 times the sums of the weight away.
    shifts = plain.calls["aten.sum.dim_IntList"] - graphs.calls["aten.sum.dim_IntList"]
    assert products(plain) == 8
    assert plain.calls[product] or plain.calls["aten.addmm"]
    assert set(plain.of_ours()) <= {"dequantize"}
    if not biases:  # its head has the plain weight of the embedding
        assert graphs.of_ours() == {operator: 7}
        assert products(graphs) == 1
        assert sums(graphs) == sums(plain) - shifts
    else:  # but for the head, which has none
        assert products(graphs) == 0
        assert sum(graphs.of_ours().values()) == 8
        nodes = graphs.nodes(getattr(ao, operator).default)
        biases_of_nodes = [b for b in map(bias_of, nodes) if b is not None]
        assert [b.meta["val"].dim() for b in biases_of_nodes] == [1] * 7
        assert sums(graphs) == sums(plain) - 7 - shifts
    torch.testing.assert_close(logits(result), logits(expected), rtol=5e-2, atol=5e-2)


def test_quantisation_behind_norms_and_activations_is_inductors_own_code(model, generator):
    model, tokens, heads = model
    aoext.quantize_(model, INT8)
    result, graphs, expected, plain = both_ways(model, tokens[:1, :1])
    assert plain.of_ours() == {"scaled_linear": 7 + heads}
    # Before q, k and v, before gate and up, before down and before the head; not behind attention.
    assert graphs.of_ours() == {"scaled_mm": 6 + heads, "scaled_linear": 1}
    assert torch.equal(logits(result), logits(expected))


def test_weights_that_pt2e_quantised_become_one_operator_where_they_are_frozen(generator):
    """Zero points are known to be 0 there alone."""
    pt2e = pytest.importorskip("torchao.quantization.pt2e")
    from torchao.quantization.pt2e import quantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    class WeightOnly(quantizer.Quantizer):
        def annotate(self, model):
            spec = quantizer.QuantizationSpec(
                dtype=torch.int8,
                observer_or_fake_quant_ctr=pt2e.PerChannelMinMaxObserver,
                quant_min=-127,
                quant_max=127,
                qscheme=torch.per_channel_symmetric,
                ch_axis=0,
            )
            for node in model.graph.find_nodes(op="call_function", target=aten.linear.default):
                node.meta["quantization_annotation"] = quantizer.QuantizationAnnotation(
                    input_qspec_map={node.args[1]: spec}, _annotated=True
                )
            return model

        def validate(self, model):
            pass

    model, tokens = tiny_lm(generator, FP32)
    with torch.no_grad():
        prepared = prepare_pt2e(torch.export.export(model, (tokens,)).module(), WeightOnly())
        prepared(tokens)
        model = convert_pt2e(prepared)
    for freezing, expected in ((False, {}), (True, {"weight_only_linear": 8})):  # its head, too
        result, graphs, plainly, plain = both_ways(model, tokens, freezing=freezing, pattern_matcher=False)
        assert plain.calls["aten.mm"] == 8
        assert plain.calls["quantized_decomposed.dequantize_per_channel"] == 8
        assert graphs.of_ours() == expected
        assert graphs.calls["aten.mm"] + sum(expected.values()) == 8
        torch.testing.assert_close(result, plainly, rtol=1e-3, atol=1e-3)
