"""Grouped products: rows sorted by expert, each with a weight of its own."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import subprocess
import sys

import pytest
import torch

import aoext
from aoext.reference import (
    GROUPED,
    GROUPED_CALLS,
    HIGH_PRECISION,
    Problem,
    assert_close,
    moved,
    op,
    operator_of,
    randn,
)
from aoext.reference.stored import LUT4_BLOCKWISE
from conftest import XPU_SIM, on_the_device_alone
from of_experts import call_of

BF16, FP16, FP32 = HIGH_PRECISION
SHAPES = [
    Problem(1, 32, 64, 32),
    Problem(2, 3, 6, 3, FP32, BF16, experts=2),
    Problem(5, 64, 256, 128, FP16, FP32, experts=300),
    Problem(40, 257, 130, 26, FP16, FP16),
    Problem(64, 136, 512, 64, BF16, BF16, experts=64),
    Problem(129, 515, 320, 32, FP32, FP32, experts=3),
    Problem(700, 200, 384, 128, BF16, FP32, experts=8),
    Problem(33, 96, 640, 128, BF16, BF16, experts=1, bias=False),
]
# Where the rows of each of four experts end, of 24: each some, none but one, rows that belong to nobody.
OFFSETS = [[7, 8, 20, 24], [0, 24, 24, 24], [0, 0, 0, 24], [3, 3, 9, 9], [0, 0, 0, 0]]


@pytest.fixture(params=["own", "generic"])
def kernel_of(request):
    """Kind of call -> what to call: the kernel that its device chooses, or the generic twin."""
    return (lambda kind: aoext.ops.generic(operator_of(kind))) if request.param == "generic" else op


# Kinds whose input has no scales.
FLOAT_INPUT = [kind for kind in GROUPED if kind.startswith("weight_only")]


def grouped(operator, problem, generator, offsets):
    """A call with these offsets, and its reference."""
    return GROUPED_CALLS[operator](dataclasses.replace(problem, offsets=tuple(offsets)), generator)


@pytest.mark.parametrize("problem", SHAPES, ids=str)
@pytest.mark.parametrize("operator", GROUPED)
def test_result_is_within_the_bound_of_float64(operator, problem, device, kernel_of, generator):
    call = GROUPED_CALLS[operator](problem, generator)
    assert_close(call.run(device, kernel_of(operator)), call.reference, call.terms)


@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
@pytest.mark.parametrize("operator", GROUPED)
def test_experts_without_rows_and_rows_without_expert(operator, offsets, device, kernel_of, generator):
    call = grouped(operator, Problem(24, 72, 128, 32), generator, offsets)
    result = call.run(device, kernel_of(operator)).cpu()
    assert_close(result, call.reference, call.terms)
    assert result[offsets[-1] :].count_nonzero() == 0


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("problem", [Problem(40, 257, 256, 64), Problem(600, 100, 128, 32, FP32)], ids=str)
@pytest.mark.parametrize("operator", GROUPED)
def test_cpus_give_the_bits_of_a_loop_of_dense_products(operator, problem, threads, generator):
    """Whatever the part of the experts' panels that a thread has."""
    call = GROUPED_CALLS[operator](problem, generator)
    given = {**call.named(), **call.kwargs}
    own = op(operator)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        result = own(**given)
        ends = given.pop("offsets").tolist()
        for expert, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
            dense = {
                name: value[begin:end]
                if name in ("input", "input_scale")
                else value[expert]
                if isinstance(value, torch.Tensor) and name != "table"
                else value
                for name, value in given.items()
            }
            assert torch.equal(result[begin:end], own(**dense))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("M", [5, 24])
@pytest.mark.parametrize("name", ["lut4", "nvfp4"])
def test_one_global_scale_serves_all_experts_as_equal_ones_do(name, M, device, kernel_of, generator):
    stored = next(w for w in LUT4_BLOCKWISE if w.name == name)
    problem = Problem(M, 72, 128, 32, BF16, BF16, experts=6)
    call = call_of("weight_only_linear", stored, stored.dtype, problem, generator)
    given = {n: moved(a, device) for n, a in {**call.named(), **call.kwargs}.items()}
    kernel, scale = kernel_of("weight_only_linear lut4 experts"), given["global_scale"][3]
    shapes = [scale, scale[0], scale.expand(6, 1).contiguous(), scale.repeat(6)]
    x = given.pop("input")
    first, *others = (kernel(x, **{**given, "global_scale": s}) for s in shapes)
    assert all(torch.equal(other, first) for other in others)


# In a process of its own, which reads the environment once.
CHECKED = """
import sys
import torch
if sys.argv[1:] == ["xpu", "simulated"]:
    import xpu_sim
    xpu_sim.install()
import aoext
ao, device = torch.ops.ao, torch.device(sys.argv[1])
weight = torch.ones(4, 40, 64, dtype=torch.int8, device=device)
x, scale = torch.ones(24, 64, device=device), torch.ones(4, 40, 1, device=device)
q, x_scale = x.to(torch.int8), torch.ones(24, 1, device=device)
operators = {
    "weight_only_linear": lambda ends: ao.weight_only_linear(x, weight, scale, 1, offsets=ends),
    "scaled_linear": lambda ends: ao.scaled_linear(x, weight, scale, 1, offsets=ends),
    "scaled_mm": lambda ends: ao.scaled_mm(q, weight, x_scale, scale, 1, offsets=ends),
}
for operator, product in operators.items():
    for ends in ([7, 8, 20, 24], [4, 3, 20, 24], [-1, 2, 3, 24], [4, 8, 20, 25]):
        try:
            product(torch.tensor(ends, dtype=torch.int32, device=device))
        except RuntimeError as error:
            print(operator, ends, error)
        else:
            print(operator, ends, "fine")
if device.type == "cuda":
    graph, ends = torch.cuda.CUDAGraph(), torch.tensor([4, 3, 20, 24], dtype=torch.int32, device=device)
    with torch.cuda.graph(graph):
        product(ends)
"""


def test_bad_offsets_are_errors_on_every_device_where_they_are_checked(device):
    """Those that a graph captures are not."""
    arguments = [str(device)] if device.type != "xpu" or XPU_SIM is None else ["xpu", "simulated"]
    done = subprocess.run(
        [sys.executable, "-c", CHECKED, *arguments],
        env={**os.environ, "AOEXT_CHECK_OFFSETS": "1"},
        capture_output=True,
        text=True,
        cwd=os.path.dirname(__file__),
    )
    assert done.returncode == 0, done.stderr
    lines = iter(done.stdout.splitlines())
    for operator in ("weight_only_linear", "scaled_linear", "scaled_mm"):
        assert next(lines) == f"{operator} [7, 8, 20, 24] fine"
        for ends, got in (
            ("[4, 3, 20, 24]", "3 behind 4"),
            ("[-1, 2, 3, 24]", "-1 behind 0"),
            ("[4, 8, 20, 25]", "25 behind 20"),
        ):
            line = next(lines)
            assert line.startswith(f"{operator} {ends} ao::"), line
            assert line.endswith(f"offsets must be ends that do not decrease, from 0 to T = 24, got {got}"), (
                line
            )


@pytest.mark.parametrize("operator", GROUPED)
def test_no_rows_and_no_columns(operator, device, kernel_of, generator):
    for M, N in ((0, 40), (3, 0)):
        call = grouped(operator, Problem(M, N, 64, 32), generator, [0, 0, M, M])
        assert call.run(device, kernel_of(operator)).shape == (M, N)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("operator", GROUPED)
def test_one_expert_is_the_dense_product(operator, bias, device, generator):
    """To the bound: a device may have another kernel for it."""
    call = grouped(operator, Problem(33, 72, 256, 64, experts=1, bias=bias), generator, [33])
    assert_close(call.run(device, op(operator)), call.reference, call.terms)


@pytest.mark.parametrize("operator", FLOAT_INPUT)
def test_nan_and_infinity_stay_in_their_rows(operator, device, kernel_of, generator):
    call = grouped(operator, Problem(24, 72, 128, 32), generator, OFFSETS[0])
    call.args[0][3, 5], call.args[0][10, 7] = torch.nan, torch.inf
    result = call.run(device, kernel_of(operator)).cpu()
    assert result[3].isnan().all()
    assert (~result[10].isfinite()).all()
    others = [i for i in range(24) if i not in (3, 10)]
    assert_close(result[others], call.reference[others])


@pytest.mark.parametrize("operator", GROUPED)
def test_an_input_need_not_be_contiguous(operator, device, generator):
    call = grouped(operator, Problem(24, 72, 128, 32), generator, OFFSETS[0])
    x, *others = call.on(device)
    wide = torch.stack([x, x], -1)[..., 0]
    assert not wide.is_contiguous()
    kernel = functools.partial(op(operator), **call.kwargs)
    assert torch.equal(kernel(wide, *others), kernel(x, *others))


@pytest.mark.parametrize(
    ("offsets", "meant"),
    [
        ((4, 3, 20, 24), (4, 4, 20, 24)),
        ((0, 1, 2, 25), (0, 1, 2, 24)),
        ((-1, 3, 4, 24), (0, 3, 4, 24)),
        ((30, -5, 2**31 - 1, -(2**31)), (24, 24, 24, 24)),
    ],
    ids=str,
)
@pytest.mark.parametrize("operator", GROUPED)
def test_offsets_of_no_meaning(operator, offsets, meant, device, kernel_of, generator):
    """Are refused where the host reads them, or else mean the largest before them, within the rows."""
    call = grouped(operator, Problem(24, 72, 128, 32), generator, meant)
    call.named()["offsets"].copy_(torch.tensor(offsets))
    kernel = kernel_of(operator)
    explained = aoext.explain(call.operator, *call.on(device), **call.kwargs)
    # The generic kernel of scaled_linear is made of the device's own of other operators.
    is_own = kernel_of is op or call.operator == "scaled_linear"
    if is_own and explained.device not in ("cpu", "generic"):
        operands = call.on(device)
        with on_the_device_alone():  # which writes to its tensors alone
            result = kernel(*operands, **call.kwargs)
        assert_close(result, call.reference, call.terms)
        return
    with pytest.raises(RuntimeError, match=r"ao::\w+: offsets must be .* from 0 to T = 24, got"):
        call.run(device, kernel)


@pytest.mark.parametrize("N", [72, 37])
@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
@pytest.mark.parametrize("operator", FLOAT_INPUT)
def test_gradients_backward_and_forward(operator, offsets, N, device, generator):
    call = grouped(operator, Problem(24, N, 64, 32, FP32, FP32), generator, offsets)
    weight, ends = call.weight, [0, *offsets]
    given = {name: moved(a, device) for name, a in call.named().items()}
    x, bias = given["input"].requires_grad_(), given["bias"].requires_grad_()

    def product(x, bias):
        return op(operator)(*{**given, "input": x, "bias": bias}.values(), **call.kwargs)

    result = product(x, bias)
    grad = randn(generator, *result.shape)
    result.backward(grad.to(device))
    tangent, bias_tangent = randn(generator, *x.shape), randn(generator, *bias.shape)
    _, forward = torch.func.jvp(
        product,
        (x.detach(), bias.detach()),
        (tangent.to(device), bias_tangent.to(device)),
    )
    of_x, of_bias, of_result = (torch.zeros_like(t.cpu(), dtype=torch.float64) for t in (x, bias, result))
    for e, own in enumerate(slice(*pair) for pair in itertools.pairwise(ends)):
        of_x[own] = grad[own].double() @ weight[e]
        of_bias[e] = grad[own].double().sum(0)
        of_result[own] = tangent[own].double() @ weight[e].t() + bias_tangent[e].double()
    assert_close(x.grad, of_x)
    assert_close(bias.grad, of_bias)
    assert_close(forward, of_result)


@pytest.mark.parametrize("operator", ["weight_only_linear int4 experts", "weight_only_linear lut4 experts"])
def test_transforms_of_gradients(operator, device, generator):
    """Gradients over batches of inputs, in forward mode, and once more."""
    call = grouped(operator, Problem(24, 40, 64, 32, FP32, FP32), generator, OFFSETS[0])
    given = {name: moved(a, device) for name, a in call.named().items()}

    def loss(x):
        return op(operator)(*{**given, "input": x}.values(), **call.kwargs).square().sum()

    def gradient(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(loss(x), x)[0].cpu()

    x, tangent = given["input"], randn(generator, 24, 64).to(device)
    together = torch.func.vmap(torch.func.grad(loss))(torch.stack([x, tangent]))
    assert_close(together[0], gradient(x).double())
    assert_close(together[1], gradient(tangent).double())
    # The loss is a quadratic form, so that its second derivative is a difference.
    _, twice = torch.func.jvp(torch.func.grad(loss), (x,), (tangent,))
    assert_close(twice, (gradient(x + tangent).double() - gradient(x).double()), gradient(x).abs().double())
    own = x.clone().requires_grad_()
    first = torch.autograd.grad(loss(own), own, create_graph=True)[0]
    assert_close(torch.autograd.grad(first, own, tangent)[0], twice.cpu().double())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("operator", GROUPED)
def test_vmap_takes_each_call_in_turn(operator, device, generator):
    calls = [GROUPED_CALLS[operator](Problem(9, 40, 64, 32), generator) for _ in range(3)]
    kernel = functools.partial(op(operator), **calls[0].kwargs)
    args = [call.on(device) for call in calls]
    together = [
        torch.stack(parts) if isinstance(parts[0], torch.Tensor) else parts[0]
        for parts in zip(*args, strict=True)
    ]
    in_dims = tuple(0 if isinstance(part, torch.Tensor) else None for part in together)
    result = torch.vmap(kernel, in_dims)(*together)
    assert torch.equal(result, torch.stack([kernel(*a) for a in args]))


@pytest.mark.parametrize("operator", GROUPED)
def test_a_compiled_graph_takes_other_offsets_and_other_numbers_of_rows(operator, device, generator):
    torch._dynamo.reset()
    options = GROUPED_CALLS[operator](Problem(2, 8, 64, 32), generator).kwargs

    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def f(*arguments):
        return op(operator)(*arguments, **options).relu()

    for M, offsets in ((24, OFFSETS[0]), (24, OFFSETS[3]), (31, [1, 2, 30, 31])):
        call = grouped(operator, Problem(M, 72, 64, 32), generator, offsets)
        assert torch.equal(f(*call.on(device)), call.run(device, op(operator)).relu())
