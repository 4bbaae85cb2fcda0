"""Products of experts on CUDA: what their rows may be, which the host does not know."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from aoext import ops, reference
from aoext.operators.calls import ao
from aoext.ops import with_plan
from aoext.reference import GROUPED_CALLS, Problem, assert_close
from folded import run

BF16, FP16, FP32 = reference.HIGH_PRECISION
GROUPED = "bf16i4bf16_rowwise_grouped"
operator = functools.partial(run, GROUPED)

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(not ops._has_plans(), reason="aoext was built without CUDA"),
]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
hopper = pytest.mark.skipif(not HOPPER or "AOEXT_CUDA_FAMILY" in os.environ, reason="a kernel of 9.0")


@pytest.fixture(params=["chosen", "int4_any", "int4_grouped_ring 1", "int4_grouped_ring 8"])
def kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the plan chooses, and what serves everywhere."""
    name, *block_m = request.param.split()
    config = dict(zip(["block_m"], map(int, block_m), strict=False))
    with with_plan(name, **config) if name != "chosen" else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def host_waits_are_errors() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_cuda(problem: Problem, generator: torch.Generator) -> list[Tensor]:
    call = GROUPED_CALLS["weight_only_linear int4 experts"](problem, generator)
    given = call.named()
    tensors = (given[name] for name in ("input", "weight", "scale", "zero_point", "offsets", "bias"))
    return [t.to("cuda") for t in tensors if t is not None]


def by_experts(args: list[Tensor]) -> Tensor:
    """In float64, by ends that the host reads: each counts as the largest so far, within the rows."""
    x, weight, scale, zero_point, ends = (t.cpu() for t in args[:5])
    result = torch.zeros(x.shape[0], weight.shape[1], dtype=torch.float64)
    begin = 0
    for e, end in enumerate(ends.clamp(0, x.shape[0]).cummax(0).values.tolist()):
        w = reference.int4_float64(weight[e], scale[e], zero_point[e])
        result[begin:end] = x[begin:end].double() @ w.t()
        if len(args) > 5:
            result[begin:end] += args[5][e].cpu().double()
        begin = end
    return result


def ends_of(counts: list[int]) -> Tensor:
    return torch.tensor(list(itertools.accumulate(counts)), dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("experts", "T"),
    [(1, 1), (1, 300), (8, 1), (8, 260), (64, 64), (64, 1500), (300, 90), (300, 1000), (800, 70)],
)
def test_rows_of_experts_are_anything(experts, T, bias, dtype, kernel, generator):
    args = on_cuda(Problem(T, 136, 640, 128, dtype, dtype, experts=experts, bias=bias), generator)
    for used in (1, max(1, experts // 3), experts):  # experts that have rows; some rows are left over
        of_row = torch.randint(0, used, (T - T // 7,), generator=generator)
        args[4] = ends_of(torch.bincount(of_row, minlength=experts).tolist())
        with host_waits_are_errors():
            result = operator(*args)
        assert_close(result.cpu(), by_experts(args))
        assert result[T - T // 7 :].count_nonzero() == 0


@pytest.mark.parametrize("experts", [1, 5, 300])
def test_no_rows(experts, generator):
    args = on_cuda(Problem(0, 136, 640, 128, experts=experts), generator)
    assert operator(*args).shape == (0, 136)


@pytest.mark.parametrize(
    "ends", [[4, 3, 20, 24], [30, 1, 2, 90], [-1, -4, 3, 24], [2**31 - 1] * 4, [-(2**31)] * 4], ids=str
)
def test_ends_of_no_meaning_count_as_the_largest_before(ends, kernel, generator):
    """Neither reads nor writes anything else: as if each end were the largest before it, within the rows."""
    args = on_cuda(Problem(70, 136, 640, 128), generator)
    args[4] = torch.tensor(ends, dtype=torch.int32, device="cuda")
    assert_close(operator(*args).cpu(), by_experts(args))


@hopper
@pytest.mark.parametrize("T", [5, 64, 300])
@pytest.mark.parametrize(
    ("block_n", "block_m"), [(128, 32), (128, 64), (128, 128), (128, 256), (64, 32)], ids=str
)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_one_expert_has_the_bits_of_the_dense_product(T, block_n, block_m, dtype, generator):
    args = on_cuda(Problem(T, 328, 1056, 1056, dtype, dtype, experts=1), generator)
    args[4] = ends_of([T])
    tile = {"block_n": block_n, "block_m": block_m, "blocks": 5}
    with with_plan("int4_grouped_wgmma", **tile):
        result = operator(*args)
    x, *weight, bias = (args[0], *(t[0] for t in args[1:4]), args[5][0])
    with with_plan("int4_wgmma", **tile, cluster=1, stream_k_blocks=0, x_is_left=0):
        assert torch.equal(result, ao.bf16i4bf16_rowwise_bias(x, *weight, bias))


@pytest.mark.parametrize("T", [8, 64, 700])
def test_a_captured_graph_replays_with_other_ends(T, kernel, generator):
    """Rows by a kernel of PyTorch's before, in the graph too, and a call behind another."""
    experts = 16
    args = on_cuda(Problem(T, 640, 640, 128, experts=experts), generator)
    counts = torch.zeros(experts, dtype=torch.int64, device="cuda")

    def run() -> tuple[Tensor, Tensor]:
        ends = counts.cumsum(0).to(torch.int32)
        hidden = operator(args[0], *args[1:4], ends, args[5])
        return hidden, operator(hidden, *args[1:4], ends)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden, result = run()
    for rows in (T, T - 3, T // 2, 0):
        of_row = torch.randint(0, experts, (rows,), generator=generator)
        counts.copy_(torch.bincount(of_row, minlength=experts))
        graph.replay()
        replayed = hidden.clone(), result.clone()
        for one, expected in zip(replayed, run(), strict=True):
            assert torch.equal(one, expected)
        ends = counts.cumsum(0).to(torch.int32)
        assert_close(replayed[0].cpu(), by_experts([args[0], *args[1:4], ends, args[5]]))


def test_an_expert_does_not_see_the_next_ones_weight(kernel, generator):
    """K fills no stage, nor N a tile: what lies behind is another expert's, here not a number."""
    args = on_cuda(Problem(90, 136, 288, 32, experts=3), generator)
    args[4] = ends_of([30, 30, 30])
    expected = operator(*args)
    for part in args[2:4]:
        part[1] = torch.nan
    result = operator(*args)
    assert result[30:60].isnan().all()
    for rows in (slice(0, 30), slice(60, 90)):
        assert torch.equal(result[rows], expected[rows])
