"""The largest of few columns by a sort, as aoext.inductor rewrites it on CUDA."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aoext
from aoext.inductor.passes import rewrites
from aoext.reference import randn
from conftest import compiler_for

BF16 = torch.bfloat16


class Router(nn.Module):
    """The most likely experts of a token and their shares, as models' routers give them."""

    def __init__(self, experts, k) -> None:
        super().__init__()
        self.gate = nn.Linear(64, experts, bias=False, dtype=BF16)
        self.k = k

    def forward(self, x):
        values, index = self.gate(x).float().softmax(-1).topk(self.k, dim=-1)
        return values / values.sum(-1, keepdim=True), index


@pytest.mark.parametrize(("tokens", "experts", "k"), [(1, 128, 8), (5, 32, 4), (64, 60, 6), (3, 513, 2)])
def test_routers(tokens, experts, k, device, generator):
    if compiler_for(device) != "inductor":
        pytest.skip("Inductor has no compiler for this device here")
    model = Router(experts, k).to(device)
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig())
    x = randn(generator, tokens, 64, dtype=BF16).to(device)
    with torch.no_grad():
        rewrites.clear()
        with torch._inductor.config.patch(force_disable_caches=True):
            values, index = torch.compile(model, fullgraph=True)(x)
        scores = model.gate(x).float().softmax(-1)
    assert rewrites["top_by_sort"] == (device.type == "cuda" and experts <= 512)
    # Either of two equal scores may be chosen.
    wanted = scores.double().sort(-1, descending=True).values[:, :k]
    wanted = wanted / wanted.sum(-1, keepdim=True)
    assert index.dtype is torch.int64
    assert all(len(set(row)) == k for row in index.tolist())
    for found in (values.double(), scores.double().gather(1, index)):
        found = found / found.sum(-1, keepdim=True)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
