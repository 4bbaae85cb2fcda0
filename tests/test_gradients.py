"""Gradients of the operators, backward and forward, alone and under the transforms of torch.func."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from aoext.reference import (
    ACTIVATION_CALLS,
    ALL_CALLS,
    BIAS_CALLS,
    CALLS,
    INPUT_CALLS,
    Problem,
    assert_close,
    moved,
    op,
    randn,
)
from formats import KINDS, call_of_any

PROBLEM = Problem(3, 40, 64, 32, torch.float32, torch.float32)
DIFFERENTIABLE = [*ACTIVATION_CALLS, "weight_int4pack_mm"]


@pytest.mark.parametrize("operator", ACTIVATION_CALLS)
def test_gradients_reach_input_and_bias_and_nothing_else(operator, device, generator):
    call = CALLS[operator](PROBLEM, generator)
    given = {name: moved(a, device) for name, a in call.named().items()}
    x, bias = given["input"], given.get("bias")
    tensors = [t for t in given.values() if isinstance(t, torch.Tensor)]
    floating = [t for t in tensors if t.dtype in (torch.float32, torch.bfloat16)]
    for t in floating:
        t.requires_grad_()
    result = op(operator)(*given.values(), **call.kwargs)
    grad = torch.randn(result.shape, generator=generator).to(device)
    result.backward(grad)
    assert_close(x.grad, grad.cpu().double() @ call.weight)
    if bias is not None:
        assert_close(bias.grad[None], grad.cpu().double().sum(0, keepdim=True))
    assert all(t.grad is None for t in floating if t is not x and t is not bias)


def test_gradient_of_a_bfloat16_input_keeps_dtype_and_shape(device, generator):
    problem = Problem(6, 24, 64, 32, leading=(2, 3))
    x, *others = (a.to(device) for a in CALLS["bf16i4bf16_rowwise"](problem, generator).args)
    x.requires_grad_()
    torch.ops.ao.bf16i4bf16_rowwise(x, *others).sum().backward()
    assert x.grad.dtype is torch.bfloat16
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("operator", ACTIVATION_CALLS)
def test_a_weight_is_kept_for_the_backward_pass_only_where_the_input_wants_a_gradient(operator, generator):
    """A bias alone may be trained on weights that were made in inference mode."""
    with torch.inference_mode():
        call = CALLS[operator](PROBLEM, generator)
    others = CALLS[operator](PROBLEM, generator).named()
    given = {**call.named(), "input": others["input"]}
    if operator in BIAS_CALLS:
        bias = others["bias"].requires_grad_()
        result = op(operator)(*{**given, "bias": bias}.values(), **call.kwargs)
        result.sum().backward()
        assert bias.grad.ne(0).all()
    given["input"].requires_grad_()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        op(operator)(*given.values(), **call.kwargs)


BATCHED = {name: (0, 2) if name.startswith("scaled_mm") else (0,) for name in INPUT_CALLS}


@pytest.mark.parametrize("operator", BATCHED)
@pytest.mark.filterwarnings("error")  # PyTorch warns where it has to go through a batch by itself
def test_vmap_over_the_input_is_a_leading_dimension(operator, device, generator):
    call = CALLS[operator](Problem(6, 40, 64, 32, leading=(2, 3)), generator)
    args = call.on(device)
    in_dims = tuple(1 if i in BATCHED[operator] else None for i in range(len(args)))
    expected = op(operator)(*args, **call.kwargs)
    result = torch.vmap(lambda *a: op(operator)(*a, **call.kwargs), in_dims, out_dims=1)(*args)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("operator", INPUT_CALLS)
@pytest.mark.filterwarnings("error")
def test_vmap_over_weights_takes_each_in_turn(operator, place, device, generator):
    calls = [CALLS[operator](PROBLEM, generator) for _ in range(3)]
    args = [call.on(device) for call in calls]

    def kernel(*a):
        return op(operator)(*a, **calls[0].kwargs)

    in_dims = tuple(min(place, a.dim()) if isinstance(a, torch.Tensor) else None for a in args[0])
    stacked = [
        a[0] if dim is None else torch.stack(a, dim)
        for a, dim in zip(zip(*args, strict=True), in_dims, strict=True)
    ]
    assert torch.equal(torch.vmap(kernel, in_dims)(*stacked), torch.stack([kernel(*a) for a in args]))


@pytest.fixture(params=DIFFERENTIABLE)
def linear_map(request, device, generator):
    """A product as a function of its input [..., K], an input [3, K], and the weight [N, K] in float64."""
    operator = request.param
    call = ALL_CALLS[operator](PROBLEM, generator)
    x, *others = call.on(device)

    def function(a):
        y = op(operator)(a.reshape(-1, a.shape[-1]), *others, **call.kwargs)
        return y.reshape(*a.shape[:-1], y.shape[-1])

    return function, x, call.weight


def test_vjp_and_grad(linear_map, generator):
    f, x, weight = linear_map
    v = randn(generator, *f(x).shape, dtype=x.dtype).to(x.device)
    y, vjp = torch.func.vjp(f, x)
    assert torch.equal(y, f(x))
    expected = v.cpu().double() @ weight
    assert_close(vjp(v)[0], expected)
    assert_close(torch.func.grad(lambda a: (f(a) * v).sum())(x), expected)
    torch._dynamo.reset()  # or shapes that differ between tests become dynamic
    assert_close(torch.compile(torch.func.grad(lambda a: (f(a) * v).sum()), backend="aot_eager")(x), expected)


def test_gradients_of_each_sample(linear_map, generator):
    f, x, weight = linear_map
    v = randn(generator, *f(x).shape, dtype=x.dtype).to(x.device)
    samples = torch.vmap(torch.func.grad(lambda a, b: (f(a) * b).sum()))(x, v)
    assert_close(samples, v.cpu().double() @ weight)
    whole = torch.func.grad(lambda a: (torch.vmap(f)(a) * v).sum())(x)
    assert_close(whole, v.cpu().double() @ weight)


def test_forward_mode(linear_map, generator):
    f, x, weight = linear_map
    v = randn(generator, *x.shape, dtype=x.dtype).to(x.device)
    expected = v.cpu().double() @ weight.t()
    y, tangent = torch.func.jvp(f, (x,), (v,))
    assert torch.equal(y, f(x))
    assert_close(tangent, expected)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(f(forward_ad.make_dual(x, v)))
    assert_close(dual.tangent, expected)
    _, tangents = torch.vmap(lambda a, b: torch.func.jvp(f, (a,), (b,)))(x, v)
    assert_close(tangents, expected)


def test_jacobians(linear_map):
    f, x, weight = linear_map
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        assert_close(jacobian(f)(x[0]), weight)
    if x.dtype is torch.float32:
        hessian = torch.func.hessian(lambda a: f(a).square().sum())(x[0])
        assert_close(hessian, 2 * weight.t() @ weight, slack=4)


def test_functionalize(linear_map):
    f, x, _ = linear_map
    y = torch.func.functionalize(lambda a: f(a.clone().mul_(2)))(x)
    assert torch.equal(y, f(2 * x))


@pytest.mark.parametrize("operator", KINDS)
def test_vmap_over_a_batch_of_none(operator, device, generator):
    """An empty batch of each tensor alone, and of all at once."""
    # So few rows that one kernel has them and twice as many.
    args, kwargs = call_of_any(operator, Problem(1, 8, 64, 32), generator)
    args = [moved(a, device) for a in args]

    def run(*args):
        result = op(operator)(*args, **kwargs)
        return result if isinstance(result, tuple) else (result,)

    tensors = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
    for batched in [*([i] for i in tensors), tensors]:
        for size in (0, 2):
            many = [torch.stack([a] * 2)[:size] if i in batched else a for i, a in enumerate(args)]
            in_dims = tuple(0 if i in batched else None for i in range(len(args)))
            results = torch.vmap(run, in_dims)(*many)
            for result, alone in zip(results, run(*args), strict=True):
                assert result.shape == (size, *alone.shape)
                assert result.dtype is alone.dtype
                assert all(torch.equal(r.cpu(), alone.cpu()) for r in result)


def test_vmap_over_empty_inputs(linear_map):
    f, x, _ = linear_map
    empty = x[:0].expand(2, 0, -1)
    assert torch.vmap(f)(empty).shape == (2, 0, f(x).shape[1])


@pytest.mark.parametrize("operator", [name for name in ACTIVATION_CALLS if name in BIAS_CALLS])
def test_tangents_of_the_bias(operator, device, generator):
    call = CALLS[operator](PROBLEM, generator)
    given = {name: moved(a, device) for name, a in call.named().items()}
    bias = given["bias"]
    tangent = torch.randn(bias.shape, generator=generator).to(bias)
    _, result = torch.func.jvp(
        lambda b: op(operator)(*{**given, "bias": b}.values(), **call.kwargs), (bias,), (tangent,)
    )
    assert torch.equal(result, tangent.to(result.dtype).expand_as(result))


def test_operators_without_a_gradient_say_so_in_a_backward_pass(generator):
    x, w, x_scale, w_scale, bias = CALLS["scaled_mm_rowwise"](PROBLEM, generator).args
    result = torch.ops.ao.scaled_mm_rowwise(x, w, x_scale.requires_grad_(), w_scale, bias)
    with pytest.warns(UserWarning, match="ao::scaled_mm_rowwise: an autograd kernel was not registered"):
        result.sum().backward()
    assert x_scale.grad is None
