"""What the operators owe PyTorch: opcheck, gradients, compile and export, registration."""

from __future__ import annotations

import pytest
import torch

import aoext
from reference import (
    ACTIVATION_CALLS,
    ALL_CALLS,
    CALLS,
    INPUT_CALLS,
    Problem,
    assert_close,
    int4_float64,
)

PROBLEM = Problem(3, 40, 64, 32, torch.float32, torch.float32)


def op(name: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.ao, name).default


@pytest.mark.parametrize("operator", aoext.ops.operators())
def test_opcheck_passes(operator, device, generator):
    if operator == "quantize_rowwise":
        args, kwargs = (torch.randn(3, 40, generator=generator), torch.int8), {}
    else:
        call = ALL_CALLS[operator](PROBLEM, generator)
        args, kwargs = call.args, call.kwargs
    args = tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in args)
    if operator in (*ACTIVATION_CALLS, "weight_int4pack_mm"):
        args[0].requires_grad_()
    checks = [
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    ]
    if any(isinstance(a, torch.Tensor) and "float8" in str(a.dtype) for a in args):
        # CPU torch cannot compare float8 tensors, as that check does: what it is for is tested here.
        checks.remove("test_schema")
        before = [a.clone() for a in args]
        op(operator)(*args, **kwargs)
        assert all(
            torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(args, before, strict=True)
        )
    torch.library.opcheck(op(operator), args, kwargs, test_utils=checks)


def test_the_first_operator_has_the_schema_that_devices_register_against():
    assert str(op("bf16i4bf16_rowwise")._schema) == (
        "ao::bf16i4bf16_rowwise(Tensor input, Tensor weight, Tensor scale, Tensor zero_point) -> Tensor"
    )


def test_no_operator_has_overloads():
    for operator in aoext.ops.operators():
        assert getattr(torch.ops.ao, operator).overloads() == ["default"]


@pytest.mark.parametrize("operator", aoext.ops.operators())
def test_every_operator_has_generic_cpu_and_fake_kernels(operator):
    for key in ("CompositeExplicitAutograd", "CPU", "Meta"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"ao::{operator}", key), key


@pytest.mark.parametrize("operator", ACTIVATION_CALLS)
def test_gradients_reach_input_and_bias_and_nothing_else(operator, device, generator):
    call = CALLS[operator](PROBLEM, generator)
    x, *others = (a.to(device) for a in call.args)
    x.requires_grad_()
    has_bias = operator.endswith("_bias") or operator.startswith("scaled")
    floating = [t for t in others if t.dtype in (torch.float32, torch.bfloat16)]
    for t in floating:
        t.requires_grad_()
    result = getattr(torch.ops.ao, operator)(x, *others)
    grad = torch.randn(result.shape, generator=generator).to(device)
    result.backward(grad)
    if "i4" in operator:
        w = int4_float64(*(t.detach().cpu() for t in others[:3]))
    else:
        w = others[0].cpu().double() * others[1].detach().cpu().double()
    assert_close(x.grad, grad.cpu().double() @ w)
    if has_bias:
        assert_close(others[-1].grad[None], grad.cpu().double().sum(0, keepdim=True))
    assert all(t.grad is None for t in floating[: len(floating) - has_bias])


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
        _, *weight = CALLS[operator](PROBLEM, generator).args
    has_bias = operator.endswith("_bias") or operator.startswith("scaled")
    x, *_, last = CALLS[operator](PROBLEM, generator).args
    if has_bias:
        result = getattr(torch.ops.ao, operator)(x, *weight[:-1], last.requires_grad_())
        result.sum().backward()
        assert last.grad.ne(0).all()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        getattr(torch.ops.ao, operator)(x.requires_grad_(), *weight)


BATCHED = {name: (0, 2) if name == "scaled_mm_rowwise" else (0,) for name in INPUT_CALLS}


@pytest.mark.parametrize("operator", BATCHED)
@pytest.mark.filterwarnings("error")  # PyTorch warns where it has to go through a batch by itself
def test_vmap_over_the_input_is_a_leading_dimension(operator, device, generator):
    call = CALLS[operator](Problem(6, 40, 64, 32, leading=(2, 3)), generator)
    args = [a.to(device) for a in call.args]
    in_dims = tuple(1 if i in BATCHED[operator] else None for i in range(len(args)))
    expected = op(operator)(*args, **call.kwargs)
    result = torch.vmap(lambda *a: op(operator)(*a, **call.kwargs), in_dims, out_dims=1)(*args)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("operator", INPUT_CALLS)
@pytest.mark.filterwarnings("error")
def test_vmap_over_weights_takes_each_in_turn(operator, device, generator):
    calls = [CALLS[operator](PROBLEM, generator) for _ in range(3)]
    args = [[a.to(device) for a in call.args] for call in calls]

    def kernel(*a):
        return op(operator)(*a, **calls[0].kwargs)

    result = torch.vmap(kernel)(*(torch.stack(tensors) for tensors in zip(*args, strict=True)))
    assert torch.equal(result, torch.stack([kernel(*a) for a in args]))


def test_operators_without_a_gradient_say_so_in_a_backward_pass(generator):
    x, w, x_scale, w_scale, bias = CALLS["scaled_mm_rowwise"](PROBLEM, generator).args
    result = torch.ops.ao.scaled_mm_rowwise(x, w, x_scale.requires_grad_(), w_scale, bias)
    with pytest.warns(UserWarning, match="ao::scaled_mm_rowwise: an autograd kernel was not registered"):
        result.sum().backward()
    assert x_scale.grad is None


@pytest.mark.parametrize(
    "operator", ["bf16i4bf16_rowwise_bias", "scaled_linear_rowwise", "bf16f8bf16_rowwise"]
)
def test_one_compiled_graph_serves_every_batch(operator, device, generator):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *args: getattr(torch.ops.ao, operator)(*args) * 2,
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for M in (2, 5, 33):
        call = CALLS[operator](Problem(M, 40, 64, 32), generator)
        args = [a.to(device) for a in call.args]
        assert torch.equal(compiled(*args), getattr(torch.ops.ao, operator)(*args) * 2)


def test_inductor_runs_an_operator_between_its_own_kernels(generator):
    torch._dynamo.reset()
    call = CALLS["bf16i4bf16_rowwise"](Problem(4, 40, 64, 32), generator)

    def block(x, *weight):
        return torch.nn.functional.silu(torch.ops.ao.bf16i4bf16_rowwise(x * 2, *weight))

    compiled = torch.compile(block, fullgraph=True)(*call.args)
    torch.testing.assert_close(compiled, block(*call.args), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("operator", CALLS)
def test_fake_results_have_the_shape_and_dtype_of_real_ones(operator, generator):
    for problem in (PROBLEM, Problem(6, 10, 32, 16, leading=(2, 3)), Problem(0, 8, 32, 32)):
        call = CALLS[operator](problem, generator)
        real = op(operator)(*call.args, **call.kwargs)
        meta = op(operator)(*(a.to("meta") for a in call.args), **call.kwargs)
        assert (meta.shape, meta.dtype, meta.stride()) == (real.shape, real.dtype, real.stride())


def test_explain_names_the_plan_and_refuses_what_the_operator_refuses(generator):
    few = CALLS["bf16i4bf16_rowwise"](Problem(1, 40, 64, 32), generator).args
    many = CALLS["bf16i4bf16_rowwise"](Problem(500, 40, 64, 32), generator).args
    assert "nibbles" in aoext.explain("bf16i4bf16_rowwise", *few)
    assert "tiles" in aoext.explain("bf16i4bf16_rowwise", *many)
    for operator in CALLS:
        assert aoext.explain(operator, *CALLS[operator](PROBLEM, generator).args).startswith("cpu/")
    with pytest.raises(ValueError, match="operator must be one of"):
        aoext.explain("no_such_operator", *few)
    with pytest.raises(RuntimeError, match="weight must be int8"):
        aoext.explain("bf16i4bf16_rowwise", few[0], few[1][:, 1:], *few[2:])
    with pytest.raises(RuntimeError, match="must come with 4 tensors, got 2"):
        aoext.explain("bf16i4bf16_rowwise", *few[:2])


def test_two_threads_calling_at_once_get_right_results(generator):
    from concurrent.futures import ThreadPoolExecutor

    calls = [CALLS["bf16i4bf16_rowwise"](Problem(M, 300, 256, 32), generator) for M in (1, 2, 40, 3)]
    with ThreadPoolExecutor(4) as pool:
        for call, result in [
            (call, pool.submit(op(call.operator), *call.args)) for _ in range(5) for call in calls
        ]:
            assert_close(result.result(), call.reference)
