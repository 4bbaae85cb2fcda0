"""Attention of one token whose heads share keys and values, as aoext.inductor rewrites it."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

import aoext
from aoext.inductor.passes import rewrites
from aoext.reference import randn
from conftest import compiler_for

HEADS, GROUP, SIZE, LENGTH = 8, 4, 32, 48
BF16 = torch.bfloat16


class Attention(nn.Module):
    """Queries by a linear layer, keys and values of a cache repeated for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HEADS * SIZE, HEADS * SIZE, bias=False, dtype=BF16)

    def forward(self, x, key, value, mask):
        query = self.query(x).view(*x.shape[:2], HEADS, SIZE).transpose(1, 2)
        key, value = (
            t[:, :, None].expand(-1, -1, GROUP, -1, -1).reshape(len(t), HEADS, LENGTH, SIZE)
            for t in (key, value)
        )
        result = F.scaled_dot_product_attention(query, key, value, mask)
        return result.transpose(1, 2).flatten(2)


def case(tokens, heads_of_mask, device, generator, batch=2):
    model = Attention().to(device)
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig())
    x = randn(generator, batch, tokens, HEADS * SIZE, dtype=BF16)
    caches = [randn(generator, batch, HEADS // GROUP, LENGTH, SIZE, dtype=BF16) for _ in range(2)]
    mask = torch.rand(batch, heads_of_mask, tokens, LENGTH, generator=generator) < 0.7
    return model, [t.to(device) for t in (x, *caches, mask)]


@pytest.mark.parametrize(
    ("tokens", "heads_of_mask", "count"), [(1, 1, 1), (1, HEADS, 0), (3, 1, 0)], ids=["one", "own masks", "3"]
)
def test_keys_and_values_are_not_repeated(tokens, heads_of_mask, count, device, generator):
    if compiler_for(device) != "inductor":
        pytest.skip("Inductor has no compiler for this device here")
    model, inputs = case(tokens, heads_of_mask, device, generator)
    with torch.no_grad():
        expected = model(*inputs)
        rewrites.clear()
        with torch._inductor.config.patch(force_disable_caches=True):
            result, (code,) = run_and_get_code(torch.compile(model, fullgraph=True), *inputs)
    (kind,) = re.findall(r"_scaled_dot_product_(\w+)_attention\w*\.default\(", code)  # once, and in one way
    assert rewrites["group_queries"] == (1 if kind == "cudnn" else count)
    error = (result.double() - expected.double()).norm() / expected.double().norm()
    assert error < 1e-2


def test_heads_that_lie_in_the_batch_are_left_as_they_are(generator):
    """A repetition over other dimensions than those of queries and heads."""

    class Merged(Attention):
        def forward(self, x, key, value, mask):
            query = self.query(x).view(-1, GROUP, 1, SIZE)
            key, value = (
                t[:, :, None].expand(-1, -1, GROUP, -1, -1).reshape(-1, GROUP, LENGTH, SIZE)
                for t in (key, value)
            )
            return F.scaled_dot_product_attention(query, key, value, mask.repeat(2, 1, 1, 1))

    model = Merged()
    _, inputs = case(1, 1, torch.device("cpu"), generator)
    model.load_state_dict(Attention().state_dict())
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig())
    rewrites.clear()
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        result, expected = torch.compile(model, fullgraph=True)(*inputs), model(*inputs)
    assert rewrites["group_queries"] == 0
    assert (result.double() - expected.double()).norm() < 1e-2 * expected.double().norm()


def test_the_option_leaves_them_as_they_are(generator):
    model, inputs = case(1, 1, torch.device("cpu"), generator)
    rewrites.clear()
    with torch.no_grad(), aoext.inductor.patch(group_queries=False):
        torch.compile(model, fullgraph=True)(*inputs)
    assert "group_queries" not in rewrites
