"""What the operators owe PyTorch: opcheck, gradients, compile and export, registration."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import aoext
from aoext.library.info import build_config
from aoext.reference import (
    ACTIVATION_CALLS,
    ALL_CALLS,
    CALLS,
    GROUPED,
    Problem,
    assert_close,
    moved,
    op,
)
from formats import KINDS, OPERATORS, call_of_any

PROBLEM = Problem(3, 40, 64, 32, torch.float32, torch.float32)
# What the generic kernel may serve on a CPU.
MAY_BE_ATEN = ("dequantize rows", "dequantize int8 zeros", *GROUPED)


@pytest.mark.parametrize("kind", KINDS)
def test_opcheck_passes(kind, device, generator):
    args, kwargs = call_of_any(kind, PROBLEM, generator)
    args = tuple(moved(a, device) for a in args)
    if kind in (*ACTIVATION_CALLS, *GROUPED, "weight_int4pack_mm") and args[0].is_floating_point():
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
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        before = [a.clone() for a in tensors]
        op(kind)(*args, **kwargs)
        assert all(
            torch.equal(a.view(torch.uint8), b.view(torch.uint8))
            for a, b in zip(tensors, before, strict=True)
        )
    torch.library.opcheck(op(kind), args, kwargs, test_utils=checks)


def test_the_first_operator_has_the_schema_that_devices_register_against():
    assert str(op("bf16i4bf16_rowwise")._schema) == (
        "ao::bf16i4bf16_rowwise(Tensor input, Tensor weight, Tensor scale, Tensor zero_point) -> Tensor"
    )


def test_operators_have_no_overloads():
    """C shims are named after the operator alone."""
    for operator in aoext.ops.operators():
        assert getattr(torch.ops.ao, operator).overloads() == ["default"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_has_generic_cpu_and_fake_kernels(operator):
    for key in ("CompositeExplicitAutograd", "Meta", "CPU"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"ao::{operator}", key), key


@pytest.mark.parametrize(
    "kind", ["bf16i4bf16_rowwise_bias", "scaled_linear rows", "weight_only_linear float8"]
)
def test_one_compiled_graph_serves_every_batch(kind, device, generator):
    torch._dynamo.reset()
    kwargs = CALLS[kind](PROBLEM, generator).kwargs
    compiled = torch.compile(
        lambda *args: op(kind)(*args, **kwargs) * 2,
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for M in (2, 5, 33):
        args = CALLS[kind](Problem(M, 40, 64, 32), generator).on(device)
        assert torch.equal(compiled(*args), op(kind)(*args, **kwargs) * 2)


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
        meta = op(operator)(*call.on("meta"), **call.kwargs)
        assert (meta.shape, meta.dtype, meta.stride()) == (real.shape, real.dtype, real.stride())


def test_explain_names_the_plan_and_refuses_what_the_operator_refuses(generator):
    few = CALLS["bf16i4bf16_rowwise"](Problem(1, 40, 64, 32), generator).args
    many = CALLS["bf16i4bf16_rowwise"](Problem(500, 40, 64, 32), generator).args
    assert aoext.explain("bf16i4bf16_rowwise", *few).kernel.startswith("gemv_")
    assert aoext.explain("bf16i4bf16_rowwise", *many).kernel.startswith("gemm_")
    for kind in ALL_CALLS:
        call = ALL_CALLS[kind](PROBLEM, generator)
        explanation = aoext.explain(call.operator, *call.args, **call.kwargs)
        by_aten = kind in MAY_BE_ATEN and explanation.device == "generic"
        assert by_aten or explanation.device == "cpu"
        assert str(explanation).startswith(f"{explanation.device}: {explanation.kernel}")
        if not by_aten:
            assert explanation.choices["instruction_set"] == build_config()["cpu instruction set"]
    with pytest.raises(ValueError, match="operator must be one of"):
        aoext.explain("no_such_operator", *few)
    for wrong in (lambda: aoext.explain("int8_mm", *few), lambda: aoext.explain("int8_mm", *few[:2], dtyp=1)):
        with pytest.raises(TypeError, match="explain: arguments must be input, weight, got"):
            wrong()
    with pytest.raises(RuntimeError, match="weight must be int8"):
        aoext.explain("bf16i4bf16_rowwise", few[0], few[1][:, 1:], *few[2:])
    with pytest.raises(RuntimeError, match="arguments must have 3 tensors or more, got 2"):
        aoext.explain("bf16i4bf16_rowwise", *few[:2])


def test_two_threads_calling_at_once_get_right_results(generator):
    from concurrent.futures import ThreadPoolExecutor

    calls = [CALLS["bf16i4bf16_rowwise"](Problem(M, 300, 256, 32), generator) for M in (1, 2, 40, 3)]
    with ThreadPoolExecutor(4) as pool:
        for call, result in [
            (call, pool.submit(op(call.operator), *call.args)) for _ in range(5) for call in calls
        ]:
            assert_close(result.result(), call.reference)


class Dtypes(TorchDispatchMode):
    """What an operator makes on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.made: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.made |= {leaf.dtype for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)}
        return out


@pytest.mark.parametrize("operator", ALL_CALLS)
def test_a_generic_kernel_makes_no_float64(operator, generator):
    """Which "mps" and other devices lack: there a generic kernel is all that runs."""
    call = ALL_CALLS[operator](PROBLEM, generator)
    with Dtypes() as dtypes:
        aoext.ops.generic(call.operator)(*call.args, **call.kwargs)
    assert dtypes.made
    assert torch.float64 not in dtypes.made
