"""Sorting pairs of token and expert, as products of experts take their rows."""

from __future__ import annotations

import pytest
import torch

import aoext
from aoext.models.routing import routed as moved
from aoext.reference import routed, sorted_by_expert


@pytest.fixture(params=["own", "generic"])
def sort_by_expert(request):
    """The kernel that the device chooses, or the generic twin."""
    generic = request.param == "generic"
    return aoext.ops.generic("sort_by_expert") if generic else torch.ops.ao.sort_by_expert


def assert_sorted(result, expert, experts):
    assert [part.dtype for part in result] == [torch.int64, torch.int64, torch.int32]
    assert {part.device for part in result} == {expert.device}
    assert tuple(part.tolist() for part in result) == sorted_by_expert(expert, experts)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    ("tokens", "k", "experts"), [(1, 4, 32), (7, 2, 1), (33, 8, 128), (700, 8, 5), (5, 1, 8192), (0, 8, 3)]
)
def test_pairs_are_sorted_stably_and_those_without_expert_come_last(
    tokens, k, experts, dtype, device, sort_by_expert, generator
):
    expert = routed(tokens, k, experts, generator).to(dtype).to(device)
    assert_sorted(sort_by_expert(expert, experts), expert, experts)


def test_ids_may_have_any_shape_strides_and_size(device, sort_by_expert, generator):
    expert = routed(24, 4, 6, generator).to(device)
    far = torch.tensor([-(2**63), 2**63 - 1, 3, 2**32 + 1, -1, 3, 0], device=device)
    for ids in (expert.t(), expert.view(2, 3, 4, 4), expert[::3, 1:], expert[0, 0], far):
        assert_sorted(sort_by_expert(ids, 6), ids, 6)


def test_all_pairs_may_have_one_expert_or_none(device, sort_by_expert):
    for expert in (2, 4):
        ids = torch.full((9, 3), expert, device=device)
        assert_sorted(sort_by_expert(ids, 4), ids, 4)


def test_products_take_the_offsets(device, generator):
    """What a layer does: gather by the order, multiply, gather back, sum by the router's weights."""
    x = torch.randn(9, 64, generator=generator).to(device)
    weight = torch.randint(-128, 128, (4, 40, 64), generator=generator, dtype=torch.int8).to(device)
    scale = (torch.rand(4, 40, 1, generator=generator) / 64).to(device)
    expert, share = routed(9, 3, 4, generator).to(device), torch.rand(9, 3, generator=generator).to(device)
    order, place, offsets = torch.ops.ao.sort_by_expert(expert, 4)
    rows = torch.ops.ao.weight_only_linear(
        x[order // 3], weight, scale, offsets=offsets, code=aoext.Code.INT8
    )
    y = torch.bmm(share.unsqueeze(1), rows[place].view(9, 3, 40)).squeeze(1)
    expected = torch.zeros(9, 40, dtype=torch.float64)
    dense = (weight.double() * scale.double()).cpu()
    for (token, j), e in zip(
        torch.cartesian_prod(torch.arange(9), torch.arange(3)), expert.flatten(), strict=True
    ):
        if 0 <= e < 4:
            expected[token] += share[token, j].item() * (dense[e] @ x[token].cpu().double())
    torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("expert", "experts", "message"),
    [
        (
            torch.zeros(3),
            4,
            r"expert must be int32 or int64 with at most 2147483647 elements, got float32 \[3\]",
        ),
        (torch.zeros(1, dtype=torch.int32).expand(2**31), 4, r"expert must be .*, got int32 \[2147483648\]"),
        (torch.zeros(3, dtype=torch.int32), 0, "experts must be 1 to 8192, got 0"),
        (torch.zeros(3, dtype=torch.int32), 8193, "experts must be 1 to 8192, got 8193"),
    ],
    ids=["dtype", "many", "none", "most"],
)
def test_bad_arguments_are_named(expert, experts, message, sort_by_expert):
    with pytest.raises(RuntimeError, match=f"^ao::sort_by_expert: {message}"):
        sort_by_expert(expert, experts)
    with pytest.raises(RuntimeError, match=f"^ao::sort_by_expert: {message}"):
        torch.ops.ao.sort_by_expert(expert.to("meta"), experts)


def test_a_compiled_graph_takes_other_numbers_of_tokens(device, generator):
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def f(expert):
        order, place, offsets = torch.ops.ao.sort_by_expert(expert, 8)
        return order // expert.shape[1], place + 1, offsets + 1

    for tokens in (3, 17, 40):
        expert = routed(tokens, 2, 8, generator).to(device)
        order, place, ends = sorted_by_expert(expert, 8)
        expected = [i // 2 for i in order], [i + 1 for i in place], [end + 1 for end in ends]
        assert tuple(part.tolist() for part in f(expert)) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_tokens_and_of_their_gradients(dtype, device, generator):
    """Rows that are moved by a known permutation have the gradients of what moves them one by one."""
    T, k, E = 7, 3, 4
    x = torch.randn(T, 6, generator=generator, dtype=dtype).to(device).requires_grad_()
    expert = routed(T, k, E, generator).to(device)
    share = torch.rand(T, k, generator=generator, dtype=dtype).to(device)
    matrix = torch.randn(6, 6, generator=generator, dtype=dtype).to(device)
    order, place, ends = torch.ops.ao.sort_by_expert(expert, E)

    def run(rows, offsets):
        inside = torch.arange(len(rows), device=device) < offsets[-1]
        return (rows @ matrix).tanh() * inside.unsqueeze(1)

    def plainly(x):
        rows = run(x[order // k], ends)
        return torch.einsum("tk,tkn->tn", share, rows[place].view(T, k, -1))

    found = []
    for function in (lambda x: moved(x, expert, share, E, run), plainly):
        y = function(x)
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        found.append((y, grad, *torch.autograd.grad(grad.square().sum(), x)))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)
