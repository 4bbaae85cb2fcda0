"""Routing of tokens to experts, against loops."""

from __future__ import annotations

import pytest
import torch

from aoext.models.routing import sort_by_expert, weighted_sum
from aoext.reference import assert_close, randn

E, k = 6, 3


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_pairs_in_the_order_of_their_experts(tokens, dtype, device, generator):
    """Ids out of range have no expert, on either side."""
    expert = torch.randint(-1, E + 2, (tokens, k), generator=generator).to(dtype)
    order, offsets = sort_by_expert(expert.to(device), E)
    assert offsets.dtype is torch.int32
    assert order.dtype is torch.int64
    pairs = list(enumerate(expert.flatten().tolist()))
    known = [[p for p, id in pairs if id == e] for e in range(E)]
    nobodys = [p for p, id in pairs if not 0 <= id < E]
    assert order.tolist() == [p for own in [*known, nobodys] for p in own]
    assert offsets.tolist() == [sum(len(own) for own in known[: e + 1]) for e in range(E)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_weighted_sum_of_each_tokens_rows(dtype, device, generator):
    expert = torch.randint(0, E, (40, k), generator=generator)
    rows = randn(generator, 40 * k, 20, dtype=dtype)
    weights = randn(generator, 40, k, dtype=dtype)
    order, _ = sort_by_expert(expert.to(device), E)
    result = weighted_sum(rows.to(device), order, weights.to(device))
    expected = torch.zeros(40, 20, dtype=torch.float64)
    for at, pair in enumerate(order.tolist()):
        expected[pair // k] += rows[at].double() * weights[pair // k, pair % k].double()
    assert result.dtype is dtype
    assert_close(result, expected)


def test_a_tokens_sum_does_not_depend_on_other_tokens(device, generator):
    rows = randn(generator, 40 * k, 20, dtype=torch.bfloat16).to(device)
    weights = randn(generator, 40, k).to(device)
    order = torch.arange(40 * k, device=device)
    whole = weighted_sum(rows, order, weights)
    for t in (0, 17, 39):
        alone = weighted_sum(rows[t * k : t * k + k], order[:k], weights[t : t + 1])
        assert torch.equal(whole[t], alone[0])


def test_gradients_reach_rows_and_weights(device, generator):
    expert = torch.randint(0, E, (9, k), generator=generator)
    rows = randn(generator, 9 * k, 5).double().to(device).requires_grad_()
    weights = randn(generator, 9, k).double().to(device).requires_grad_()
    order, _ = sort_by_expert(expert.to(device), E)
    grad = randn(generator, 9, 5).double().to(device)
    weighted_sum(rows, order, weights).backward(grad)
    for at, pair in enumerate(order.tolist()):
        t, i = divmod(pair, k)
        of_row, of_weight = grad[t] * weights[t, i].detach(), (grad[t] * rows[at].detach()).sum()
        torch.testing.assert_close(rows.grad[at], of_row, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(weights.grad[t, i], of_weight, rtol=1e-5, atol=1e-5)
