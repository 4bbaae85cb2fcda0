"""The sum of a token's experts by its router's weights, against a loop."""

from __future__ import annotations

import pytest
import torch

from aoext.models.routing import weighted_sum
from aoext.reference import assert_close, randn

E, k = 6, 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_the_weighted_sum_of_each_tokens_rows(tokens, dtype, device, generator):
    expert = torch.randint(0, E, (tokens, k), generator=generator)
    rows = randn(generator, tokens * k, 20, dtype=dtype)
    weights = randn(generator, tokens, k, dtype=dtype)
    order, place, _ = torch.ops.ao.sort_by_expert(expert.to(device), E)
    result = weighted_sum(rows.to(device), place, weights.to(device))
    expected = torch.zeros(tokens, 20, dtype=torch.float64)
    for at, pair in enumerate(order.tolist()):
        expected[pair // k] += rows[at].double() * weights[pair // k, pair % k].double()
    assert result.dtype is dtype
    assert_close(result, expected)


def test_a_tokens_sum_does_not_depend_on_other_tokens(device, generator):
    rows = randn(generator, 40 * k, 20, dtype=torch.bfloat16).to(device)
    weights = randn(generator, 40, k).to(device)
    place = torch.arange(40 * k, device=device)
    whole = weighted_sum(rows, place, weights)
    for t in (0, 17, 39):
        alone = weighted_sum(rows[t * k : t * k + k], place[:k], weights[t : t + 1])
        assert torch.equal(whole[t], alone[0])


def test_gradients_reach_rows_and_weights(device, generator):
    expert = torch.randint(0, E, (9, k), generator=generator)
    rows = randn(generator, 9 * k, 5).to(device).requires_grad_()
    weights = randn(generator, 9, k).to(device).requires_grad_()
    order, place, _ = torch.ops.ao.sort_by_expert(expert.to(device), E)
    grad = randn(generator, 9, 5).to(device)
    weighted_sum(rows, place, weights).backward(grad)
    for at, pair in enumerate(order.tolist()):
        t, i = divmod(pair, k)
        of_row, of_weight = grad[t] * weights[t, i].detach(), (grad[t] * rows[at].detach()).sum()
        torch.testing.assert_close(rows.grad[at], of_row)
        torch.testing.assert_close(weights.grad[t, i], of_weight)
