"""Products of experts with low-rank changes as one function, against dense weights in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from aoext.models.adapted import AdaptedWeight, Change
from aoext.reference import randn
from aoext.tensors import Int8Tensor, Lut4Tensor, low_rank_experts
from aoext.tensors.products import linear

E, N, K, R = 4, 48, 64, 8
OFFSETS = (3, 3, 10, 15)  # expert 1 has no rows, and the last two rows have no expert
ROWS = 17
SCALES = (0.5, 2.0)


def weights(generator: Generator, device: torch.device, dtype: torch.dtype, kind: str) -> torch.Tensor:
    plain = randn(generator, E, N, K, dtype=dtype).to(device) / K**0.5
    return Int8Tensor.from_hp(plain) if kind == "int8" else Lut4Tensor.from_hp(plain, "nf4")


def changes(generator: Generator, device: torch.device) -> list[Change]:
    """What is added to a weight [E, N, K], with factors in float32."""
    return [
        Change(
            (randn(generator, E, N, R).to(device) / R).requires_grad_(),
            (randn(generator, E, R, K).to(device) / R).requires_grad_(),
            scale,
        )
        for scale in SCALES
    ]


def product(rows: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    """In float64, row by row."""
    result, begin = [], 0
    for e, end in enumerate(OFFSETS):
        matrix = weight[e] if transposed else weight[e].mT
        part = rows[begin:end] @ matrix
        result.append(part if bias is None else part + bias[e])
        begin = end
    return torch.cat([*result, rows.new_zeros(len(rows) - begin, result[0].shape[1])])


def leaves(rows: Tensor, bias: Tensor | None, parts: list[Change]) -> list[Tensor]:
    factors = [factor for part in parts for factor in part[:2]]
    return [rows, *factors] if bias is None else [rows, bias, *factors]


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_values_and_gradients(transposed, with_bias, dtype, kind, device, generator):
    weight = weights(generator, device, dtype, kind)
    parts = changes(generator, device)
    rows = randn(generator, ROWS, N if transposed else K, dtype=dtype).to(device).requires_grad_()
    bias = randn(generator, E, K if transposed else N, dtype=dtype).to(device) if with_bias else None
    bias = None if bias is None else bias.requires_grad_()
    offsets = torch.tensor(OFFSETS, dtype=torch.int32, device=device)
    assert low_rank_experts.takes(rows, weight, parts)
    result = AdaptedWeight(weight, parts).times(rows, bias, transposed, offsets)
    grad = randn(generator, *result.shape, dtype=dtype).to(device)
    inputs = leaves(rows, bias, parts)
    grads = torch.autograd.grad(result, inputs, grad)

    dense = weight.dequantize().double()
    doubles = [tensor.detach().double().requires_grad_() for tensor in inputs]
    factors = doubles[1 if bias is None else 2 :]
    whole = dense + sum(
        s * left @ right for s, left, right in zip(SCALES, factors[::2], factors[1::2], strict=True)
    )
    expected = product(doubles[0], whole, None if bias is None else doubles[1], transposed)
    expected_grads = torch.autograd.grad(expected, doubles, grad.double())
    bound = 2e-2 if dtype is torch.bfloat16 else 1e-5
    for found, wanted in zip((result, *grads), (expected, *expected_grads), strict=True):
        assert found.isfinite().all()
        assert (found.double() - wanted).norm() <= bound * wanted.norm()
    assert not result[OFFSETS[-1] :].any()
    assert not grads[0][OFFSETS[-1] :].any()
    assert [g.dtype for g in grads] == [tensor.dtype for tensor in inputs]
    with torch.no_grad():
        assert torch.equal(AdaptedWeight(weight, parts).times(rows, bias, transposed, offsets), result)


@pytest.mark.parametrize("frozen", ["rows", "left", "right"])
def test_what_is_frozen_gets_no_gradient_and_changes_no_other(frozen, device, generator):
    weight, parts = weights(generator, device, torch.float32, "int8"), changes(generator, device)
    rows = randn(generator, ROWS, K).to(device).requires_grad_()
    offsets = torch.tensor(OFFSETS, dtype=torch.int32, device=device)

    def grads() -> dict[str, Tensor | None]:
        named = {"rows": rows, "left": parts[0].left, "right": parts[0].right}
        for tensor in named.values():
            tensor.grad = None
        AdaptedWeight(weight, parts).times(rows, None, False, offsets).square().sum().backward()
        return {name: tensor.grad for name, tensor in named.items()}

    before = grads()
    (rows if frozen == "rows" else getattr(parts[0], frozen)).requires_grad_(False)
    after = grads()
    assert after.pop(frozen) is None
    for name, grad in after.items():
        assert torch.equal(grad, before[name])


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_gradients(transposed, device, generator):
    weight, parts = weights(generator, device, torch.float32, "int8"), changes(generator, device)
    rows = randn(generator, ROWS, N if transposed else K).to(device).requires_grad_()
    offsets = torch.tensor(OFFSETS, dtype=torch.int32, device=device)
    grad = randn(generator, ROWS, K if transposed else N).to(device).requires_grad_()
    one = AdaptedWeight(weight, parts).times(rows, None, transposed, offsets)
    several = linear(rows, weight, None, transposed, offsets)
    for part in parts:
        several = low_rank_experts.added(several, rows, part, transposed, offsets)
    found, expected = (
        torch.autograd.grad(
            torch.autograd.grad(result, rows, grad, create_graph=True)[0].square().sum(),
            [grad, parts[0].left, parts[1].right],
        )
        for result in (one, several)
    )
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other)


def test_a_weight_that_was_overwritten_meanwhile_is_refused(device, generator):
    weight, parts = weights(generator, device, torch.float32, "int8"), changes(generator, device)
    rows = randn(generator, ROWS, K).to(device).requires_grad_()
    offsets = torch.tensor(OFFSETS, dtype=torch.int32, device=device)
    result = AdaptedWeight(weight, parts).times(rows, None, False, offsets)
    weight.copy_(randn(generator, E, N, K).to(device))
    with pytest.raises(RuntimeError, match="modified by an inplace operation: a Int8Tensor"):
        result.sum().backward()
