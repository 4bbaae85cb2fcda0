"""int4 weights whose fields are more than one scale and zero point a group of neighbours."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import aoext

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
N, K, GROUP = 24, 64, 16


def ordered(
    device: torch.device, dtype: torch.dtype, scales: torch.dtype = torch.float32
) -> aoext.Int4Tensor:
    """A random weight whose groups hold columns that lie apart."""
    order = torch.randperm(K, device=device)
    made = aoext.Int4Tensor.from_hp(torch.randn(N, K, device=device, dtype=scales), [1, GROUP])
    return aoext.Int4Tensor(
        made.qdata, made.scale, made.zero_point, [1, GROUP], [N, K], k_order=order, dtype=dtype
    )


def exact(weight: aoext.Int4Tensor) -> Tensor:
    """The weight [N, K] in float64, column by column, on the CPU."""
    from aoext.packing import unpack_int4

    q = unpack_int4(weight.qdata.cpu()).double()
    out = torch.empty(N, K, dtype=torch.float64)
    order = weight.k_order.tolist() if weight.k_order is not None else list(range(K))
    for j, k in enumerate(order):
        group = j // GROUP
        out[:, k] = q[:, j] * weight.scale[group].double().cpu() + weight.zero_point[group].double().cpu()
    return out


@pytest.mark.parametrize("dtype", FLOATS)
def test_columns_in_another_order_and_scales_in_float32(device, dtype):
    weight = ordered(device, dtype)
    assert weight.dtype == dtype
    assert weight.scale.dtype == torch.float32
    expected = exact(weight)
    torch.testing.assert_close(weight.dequantize().cpu(), expected.to(dtype), rtol=0, atol=0)
    x = torch.randn(2, 3, K, device=device, dtype=dtype, requires_grad=True)
    y = F.linear(x, weight)
    bound = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 2e-5}[dtype]
    wanted = x.detach().double().cpu() @ expected.t()
    assert y.dtype == dtype
    assert (y.double().cpu() - wanted).norm() <= bound * wanted.norm()
    y.backward(torch.ones_like(y))
    torch.testing.assert_close(
        x.grad[0, 0].cpu().double(), expected.to(dtype).double().sum(0), rtol=2e-2, atol=2e-2
    )


def test_float32_scales_stay_exact_under_another_dtype(device):
    weight = ordered(device, torch.bfloat16)
    half = weight.to(torch.float16)
    assert half.dtype == torch.float16
    assert half.scale.dtype == torch.float32
    assert torch.equal(exact(half), exact(weight))
    follows = ordered(device, torch.bfloat16, torch.bfloat16).to(torch.float16)
    assert follows.scale.dtype == follows.zero_point.dtype == torch.float16


def test_protocols_keep_the_order(device):
    weight = ordered(device, torch.float32)
    for same in (weight.clone(), copy.deepcopy(weight), weight.detach(), weight.to("cpu"), weight.t().t()):
        assert torch.equal(exact(same), exact(weight))
    rows = weight[8:16]
    torch.testing.assert_close(rows.dequantize(), weight.dequantize()[8:16])
    torch.testing.assert_close(torch.cat([weight[:8], weight[8:]]).dequantize(), weight.dequantize())
    with pytest.raises(NotImplementedError, match="no parts along K of a weight with k_order"):
        weight[:, :GROUP]
    with pytest.raises(NotImplementedError, match="k_order"):
        torch.cat([weight, weight], dim=1)


def test_save_and_load(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(K, N, dtype=torch.bfloat16))
    weight = ordered(torch.device("cpu"), torch.bfloat16)
    model[0].weight = torch.nn.Parameter(weight, requires_grad=False)
    aoext.save_model(model, tmp_path / "model.safetensors")
    other = torch.nn.Sequential(torch.nn.Linear(K, N, dtype=torch.bfloat16))
    aoext.load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(exact(other[0].weight), exact(weight))


@pytest.mark.parametrize(
    "order", [torch.zeros(K, dtype=torch.int64), torch.arange(1, K + 1), -torch.arange(K)]
)
def test_an_order_that_is_no_permutation_is_refused(order):
    made = aoext.Int4Tensor.from_hp(torch.randn(N, K), [1, GROUP])
    with pytest.raises(ValueError, match=r"k_order must be a permutation of 0\.\.63"):
        aoext.Int4Tensor(made.qdata, made.scale, made.zero_point, [1, GROUP], [N, K], k_order=order)


def test_scales_of_other_dtypes_are_refused():
    made = aoext.Int4Tensor.from_hp(torch.randn(N, K, dtype=torch.float16), [1, GROUP])
    with pytest.raises(
        TypeError, match="scale must have the tensor's dtype bfloat16 or float32, got float16"
    ):
        aoext.Int4Tensor(made.qdata, made.scale, made.zero_point, [1, GROUP], [N, K], dtype=torch.bfloat16)
