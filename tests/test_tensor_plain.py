"""What reads a quantised weight as the plain one that it stands for, and sums that stay quantised."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import aoext
from aoext.reference import assert_close, randn
from aoext.tensors import QuantizedTensor
from formats import CLASSES, FORMATS, HIGH_PRECISION, largest_loss, meaning, product, quantized, same

BF16, FP16, FP32 = HIGH_PRECISION
N, K = 24, 64

# Each takes a weight w, or the plain one that it stands for, and a plain matrix o of its shape.
READINGS = {
    "equality": lambda w, o: (w == o, o != w, w.eq(w.abs())),
    "order": lambda w, o: (w < 0, w >= o, o > w),
    "closeness": lambda w, o: (torch.equal(w, w.abs()), torch.allclose(w, o), torch.isclose(w, o)),
    "finiteness": lambda w, o: (torch.isfinite(w).all(), w.isnan(), torch.isinf(w).any()),
    "norms": lambda w, o: (w.norm(), torch.norm(w, dim=1), torch.linalg.norm(w), torch.linalg.matrix_norm(w)),
    "sums": lambda w, o: (w.sum(), w.t().sum(1), w.mean(), w.mean(0), w.std()),
    "extremes": lambda w, o: (w.abs().max(), w.max(1), w.amin(0), w.argmax(), w.topk(3)),
    "elementwise": lambda w, o: (-w, w.abs(), w**2, w.exp(), w.clamp(-1, 1), torch.where(o > 0, w, 0)),
    "scalars": lambda w, o: (w + 1, 1 - w, 2 * w, w / 3, w - 0.5),
    "broadcast": lambda w, o: (w + o[0], w * o[:, :1], o[0] - w),
    "differences": lambda w, o: (o - w, w * o, o / w.exp(), w + w),
    "rows": lambda w, o: (w[0], w[0, 1:5], w[:, -1], w.t()[3], w[None], w.unsqueeze(0), torch.stack(list(w))),
    "gathers": lambda w, o: (w[w > 0.5], w[torch.tensor([3, 0], device=w.device)], w.tril(), w.flip(0)),
    "contractions": lambda w, o: (torch.einsum("bk,nk->bn", o, w), torch.einsum("nk,nk->n", w, o)),
    "into plain": lambda w, o: (o.clone().add_(w), o.clone().mul_(w), o.clone().sub_(w, alpha=2)),
}


@pytest.fixture(params=FORMATS)
def weight(request, device, generator) -> QuantizedTensor:
    return quantized(request.param, N, K, BF16, device, generator)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("format", CLASSES)
def test_a_weight_reads_as_what_it_stands_for(format, reading, inference, device, generator):
    weight = quantized(format, N, K, BF16, device, generator)
    other = randn(generator, N, K, dtype=BF16).to(device)
    with torch.inference_mode(inference):
        results = READINGS[reading](weight, other)
        expected = READINGS[reading](weight.dequantize(), other)
    for result, plain in zip(tree_leaves(results), tree_leaves(expected), strict=True):
        assert type(result) is type(plain)
        assert torch.equal(result, plain) if isinstance(plain, Tensor) else result == plain


def test_a_weight_multiplies_from_the_left(weight, generator):
    x = randn(generator, 2, K, 5, dtype=BF16).to(weight.device)
    bias = randn(generator, 5, dtype=BF16).to(weight.device)
    y = weight @ x
    assert torch.equal(y, linear(x.mT, weight).mT)
    assert_close(y.mT, product(x.mT.contiguous(), weight))
    for one in (weight @ x[0], weight.mm(x[0]), torch.matmul(weight, x[0]), torch.ops.aten.mm(weight, x[0])):
        assert torch.equal(one, linear(x[0].mT, weight).mT)
    for vector in (weight @ x[0, :, 0], torch.mv(weight, x[0, :, 0])):
        assert torch.equal(vector, linear(x[0, :, 0], weight))
    assert torch.equal(torch.addmm(bias, weight, x[0]), weight @ x[0] + bias)
    rows = randn(generator, 3, N, dtype=BF16).to(weight.device)
    assert torch.equal(weight.t() @ rows.t(), (rows @ weight).t())
    square = weight @ weight.t()
    assert_close(square, product(weight.dequantize(), weight))
    with pytest.raises(RuntimeError, match=r"mm: the second factor must be \[K, M\], got \[64\]"):
        weight.mm(bias.new_ones(K))


@pytest.mark.parametrize("format", FORMATS)
def test_products_keep_no_plain_weight_for_the_backward_pass(format, device, generator):
    weight = quantized(format, N, K, FP32, device, generator)
    for call, size in (
        (lambda x: x @ weight, N),
        (lambda x: linear(x, weight.t()), N),
        (lambda x: x @ weight.t(), K),
        (lambda x: weight @ x.t(), K),
    ):
        x = randn(generator, 3, size).to(device).requires_grad_()
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t):
            y = call(x)
        assert not any(t.shape in ((N, K), (K, N)) and t.dtype is FP32 for t in kept)
        y.sum().backward()
        expected = meaning(weight) if size == K else meaning(weight).t()
        if format == "int4_prescaled":
            factors = weight.act_pre_scale.cpu().double()
            expected = expected * factors if size == K else expected * factors[:, None]
        assert_close(x.grad, torch.ones(3, len(expected)).double() @ expected)


def test_a_product_as_it_lies_has_derivatives_of_every_kind(device, generator):
    for format in CLASSES:
        weight = quantized(format, N, K, FP32, device, generator)
        x, tangent = randn(generator, 3, N).to(device), randn(generator, 3, N).to(device)

        def loss(x, weight=weight):
            return (x @ weight).sin().sum()

        plain = meaning(weight)
        y = x.cpu().double() @ plain
        assert_close(
            torch.func.jvp(lambda x, w=weight: x @ w, (x,), (tangent,))[1], tangent.cpu().double() @ plain
        )
        assert_close(torch.func.vmap(lambda v, w=weight: v @ w)(x), y)
        second = torch.func.hessian(lambda v, loss=loss: loss(v))(x[0])
        assert_close(second, -(plain * y[0].sin()) @ plain.t())


@pytest.mark.parametrize("format", FORMATS)
def test_sums_with_a_matrix_stay_in_the_weights_scheme(format, device, generator):
    weight = quantized(format, N, K, BF16, device, generator)
    change = randn(generator, N, K, dtype=BF16).to(device)
    for total, expected in (
        (weight + change, meaning(weight) + change.cpu().double()),
        (change + weight, meaning(weight) + change.cpu().double()),
        (torch.add(weight, change, alpha=2), meaning(weight) + 2 * change.cpu().double()),
        (weight - change, meaning(weight) - change.cpu().double()),
        ((weight.t() + change.t()).t(), meaning(weight) + change.cpu().double()),
    ):
        assert total.named_attributes() == weight.named_attributes()
        error = (meaning(total) - expected).norm() / expected.norm()
        assert error < largest_loss(format)
    if format == "int4_symmetric":
        assert not (weight + change).zero_point.any()


def test_sums_in_place_are_written_into_the_weight(weight, generator):
    change = randn(generator, N, K, dtype=BF16).to(weight.device)
    total, qdata = weight + change, weight.qdata
    parameter = nn.Parameter(weight, requires_grad=False)
    parameter.data += change
    assert weight.qdata.data_ptr() == qdata.data_ptr()
    assert same(weight, total)
    back = weight - change
    weight -= change
    assert same(weight, back)
    assert same(weight.add_(change, alpha=3), torch.add(back, change, alpha=3))


def test_sums_that_want_a_gradient_are_plain(weight, generator):
    change = randn(generator, N, K, dtype=BF16).to(weight.device).requires_grad_()
    total = weight + change
    assert type(total) is Tensor
    assert torch.equal(total, weight.dequantize() + change)
    total.sum().backward()
    assert torch.equal(change.grad, torch.ones_like(change))
    before = copy.deepcopy(weight)
    with pytest.raises(RuntimeError, match="needs a matrix that requires no gradient"):
        weight.add_(change)
    assert same(weight, before)
    with torch.no_grad():
        assert same(weight.add_(change), before + change)


def test_a_weight_norm_behind_quantisation_says_what_is_wrong(weight):
    for weight_norm in (nn.utils.parametrizations.weight_norm, nn.utils.weight_norm):
        layer = nn.Linear(K, N, bias=False)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        with pytest.raises(TypeError, match="weight_norm needs a plain weight"):
            weight_norm(layer)


def test_bytes_are_those_that_are_stored(weight):
    stored = sum(field.nbytes for _, field in weight.named_fields())
    assert weight.nbytes == stored
    assert weight.numel() * weight.element_size() == pytest.approx(stored)


@pytest.mark.parametrize("format", CLASSES)
def test_products_count_as_flops(format, device, generator):
    weight = quantized(format, N, K, FP32, device, generator)
    x = randn(generator, 2, 5, K).to(device).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        linear(x, weight).sum().backward()
    assert counter.get_total_flops() == 2 * (2 * 2 * 5 * K * N)


def test_every_product_counts_as_flops():
    from torch.utils.flop_counter import flop_registry

    for name in aoext.ops.operators():
        operator = getattr(aoext.ops.ao, name)
        names = {argument.name for argument in operator.default._schema.arguments}
        assert (operator in flop_registry) == ({"input", "weight"} <= names), name
