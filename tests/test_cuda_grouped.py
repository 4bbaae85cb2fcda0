"""Products of experts on CUDA: what their rows may be, which the host does not know."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import aoext
from aoext import ops, reference
from aoext.operators.calls import ao
from aoext.ops import with_plan
from aoext.reference import Problem, Stored, assert_close
from aoext.reference.subject import ALL
from of_experts import BY_NAME, Experts, draw, random_ends

BF16, FP16, FP32 = reference.HIGH_PRECISION
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(not ops._has_plans(), reason="aoext was built without CUDA"),
]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
hopper = pytest.mark.skipif(not HOPPER or "AOEXT_CUDA_FAMILY" in os.environ, reason="a kernel of 9.0")


@contextlib.contextmanager
def host_waits_are_errors() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# N and K that no tile divides; K a multiple of what blocks of 128 and groups of 32 want.
N, K = 136, 640


@pytest.fixture(params=list(BY_NAME))
def product(request: pytest.FixtureRequest) -> tuple[str, Stored, torch.dtype]:
    return BY_NAME[request.param]


def run(drawn: Experts, ends: Tensor) -> Tensor:
    args, kwargs = drawn.arguments(ends, "cuda")
    kernel = getattr(ao, drawn.subject.operator)
    assert aoext.explain(drawn.subject.operator, *args, **kwargs).device == "cuda"
    with host_waits_are_errors():
        return kernel(*args, **kwargs)


def check(drawn: Experts, ends: Tensor) -> None:
    result = run(drawn, ends).cpu()
    assert_close(result, *drawn.expected(ends))
    assert result[max(int(ends.max()), 0) :].count_nonzero() == 0


def ends_of(counts: list[int]) -> Tensor:
    return torch.tensor(list(itertools.accumulate(counts)), dtype=torch.int32)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("T", [1, 9, 70, 700])
def test_rows_of_experts_are_anything(T, dtype, product, generator):
    """By chance, in one expert, in the last, one each; some rows are left over."""
    for experts, bias in ((1, True), (7, False), (160, True)) if T < 100 else ((5, True),):
        p = Problem(T, N, K, 128, dtype, dtype, experts=experts, bias=bias)
        drawn = draw(*product, p, generator)
        check(drawn, random_ends(T, experts, generator))
        check(drawn, ends_of([T - T // 7, *[0] * (experts - 1)]))
        check(drawn, ends_of([*[0] * (experts - 1), T]))
        check(drawn, torch.arange(1, experts + 1, dtype=torch.int32).clamp(max=T))


@pytest.mark.parametrize("T", [5, 100])
def test_shapes_and_dtypes_that_no_fast_kernel_takes(T, product, generator):
    """Odd sizes, input and scales of float32."""
    p = Problem(T, 37, 84, 42, FP32, BF16, experts=6)
    operator, w, dtype = product
    if w.block is not None and w.block[1] == 16:
        p = dataclasses.replace(p, K=96)
    drawn = draw(operator, w, dtype, p, generator)
    check(drawn, random_ends(T, 6, generator))


def test_no_rows(product, generator):
    p = Problem(0, N, K, 128, experts=5)
    drawn = draw(*product, p, generator)
    args, kwargs = drawn.arguments(torch.zeros(5, dtype=torch.int32), "cuda")
    assert getattr(ao, drawn.subject.operator)(*args, **kwargs).shape == (0, N)


@pytest.mark.parametrize("T", [24, 70])
def test_ends_of_no_meaning_count_as_the_largest_before(T, product, generator):
    """Neither reads nor writes anything else: as if each end were the largest before it, within the rows."""
    drawn = draw(*product, Problem(T, N, K, 128), generator)
    for ends in ([4, 3, 20, 24], [30, 1, 2, 90], [-1, -4, 3, 24], [2**31 - 1] * 4, [-(2**31)] * 4):
        check(drawn, torch.tensor(ends, dtype=torch.int32))


@pytest.mark.parametrize("T", [8, 64, 700])
def test_a_captured_graph_replays_with_other_ends(T, product, generator):
    """Ends by kernels of PyTorch's before, in the graph too, and the call twice."""
    experts = 16
    drawn = draw(*product, Problem(T, N, K, 128, experts=experts), generator)
    counts = torch.zeros(experts, dtype=torch.int64, device="cuda")
    kernel = getattr(ao, drawn.subject.operator)

    args, kwargs = drawn.arguments(ends_of([0] * experts), "cuda")
    [at] = [
        i for i, a in enumerate(args) if isinstance(a, Tensor) and a.dtype is torch.int32 and a.dim() == 1
    ]

    def run_both() -> tuple[Tensor, Tensor]:
        args[at] = counts.cumsum(0).to(torch.int32)
        return kernel(*args, **kwargs), kernel(*args, **kwargs)

    run_both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first, second = run_both()
    for rows in (T, T - 3, T // 2, 0):
        of_row = torch.randint(0, experts, (rows,), generator=generator)
        counts.copy_(torch.bincount(of_row, minlength=experts))
        graph.replay()
        assert torch.equal(first, second)
        assert torch.equal(first, run_both()[0])
        assert_close(first.cpu(), *drawn.expected(counts.cumsum(0).to(torch.int32)))


def test_an_expert_does_not_see_the_next_ones_weight(product, generator):
    """K fills no stage, nor N a tile: what lies behind is another expert's, here not a number."""
    drawn = draw(*product, Problem(90, N, 288, 32, experts=3), generator)
    ends = ends_of([30, 30, 30])
    expected = run(drawn, ends)
    w = product[1]
    scale = drawn.weights[w.tensors - 1 if w.has_nested_scale else 1]  # nested ones are integers, by factors
    scale[1] = torch.full(scale[1].shape, torch.nan).to(scale.dtype)
    result = run(drawn, ends)
    assert result[30:60].isnan().all()
    for rows in (slice(0, 30), slice(60, 90)):
        assert torch.equal(result[rows], expected[rows])


@pytest.mark.parametrize("T", [1, 9, 64])
@pytest.mark.parametrize("name", ["int4_any", "int4_grouped_ring 1", "int4_grouped_ring 8"])
def test_int4_by_each_of_its_kernels(name, T, generator):
    kernel, *block_m = name.split()
    config = dict(zip(["block_m"], map(int, block_m), strict=False))
    drawn = draw(*BY_NAME["weight_only_linear int4"], Problem(T, N, K, 128, experts=40), generator)
    with with_plan(kernel, **config):
        check(drawn, random_ends(T, 40, generator))


@hopper
@pytest.mark.parametrize("T", [5, 64, 300])
@pytest.mark.parametrize(
    ("block_n", "block_m"), [(128, 32), (128, 64), (128, 128), (128, 256), (64, 32)], ids=str
)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_one_expert_has_the_bits_of_the_dense_product(T, block_n, block_m, dtype, generator):
    drawn = draw(
        *BY_NAME["weight_only_linear int4"], Problem(T, 328, 1056, 1056, dtype, dtype, experts=1), generator
    )
    tile = {"block_n": block_n, "block_m": block_m, "blocks": 5}
    with with_plan("int4_grouped_wgmma", **tile):
        result = run(drawn, ends_of([T]))
    weight, scale, zero, bias = (part[0].cuda() for part in drawn.weights)
    with with_plan("int4_wgmma", **tile, cluster=1, stream_k_blocks=0, x_is_left=0):
        dense = ao.bf16i4bf16_rowwise_bias(drawn.inputs[0].cuda(), weight, scale, zero, bias)
    assert torch.equal(result, dense)


@pytest.mark.parametrize("T", [1, 70, 700])
def test_gradients_wait_for_nothing_and_go_into_graphs(T, product, generator):
    """With other ends at each replay."""
    operator = product[0]
    if operator == "scaled_mm":
        pytest.skip("it has no gradient")
    experts = 16
    drawn = draw(*product, Problem(T, N, K, 128, FP32, FP32, experts=experts), generator)
    args, kwargs = drawn.arguments(ends_of([0] * experts), "cuda")
    [at] = [
        i for i, a in enumerate(args) if isinstance(a, Tensor) and a.dtype is torch.int32 and a.dim() == 1
    ]
    ends, x = args[at], args[0].requires_grad_()
    grad = torch.randn(T, N, generator=generator).cuda()

    def gradient() -> Tensor:
        return torch.autograd.grad(getattr(ao, operator)(*args, **kwargs), x, grad)[0]

    dense = drawn.subject.weight.rows(drawn.problem, (*drawn.weights, ends), ALL)
    with host_waits_are_errors():
        gradient()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = gradient()
    for rows in (T, T // 2, 0):
        ends.copy_(random_ends(rows, experts, generator))
        graph.replay()
        expected = torch.zeros(T, K, dtype=torch.float64)
        for e, (begin, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            expected[begin:end] = grad[begin:end].cpu().double() @ dense[e]
        assert_close(result.cpu(), expected)
