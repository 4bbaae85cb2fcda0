"""Quantised weights of experts [E, N, K]: made one by one, selected, sliced, multiplied, copied, saved."""

from __future__ import annotations

import io

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import linear

import aoext
from aoext import serialization
from aoext.reference import assert_close, randn
from aoext.tensors import BlockwiseTensor, Int4Tensor, Int8Tensor
from formats import CLASSES, FORMATS, GROUP_SIZE, HIGH_PRECISION, largest_loss, product, same
from models import contents

BF16, FP16, FP32 = HIGH_PRECISION
E, N, K = 5, 24, 4 * GROUP_SIZE
# Where the rows of each expert end, of 30: one has none, and the last two rows have no expert.
OFFSETS = [3, 3, 10, 20, 28]
ALL = sorted(FORMATS.keys() - {"int4_prescaled"})


def experts(format, dtype, device, generator):
    """A weight [E, N, K] and the plain one that it is made of."""
    plain = randn(generator, E, N, K, dtype=dtype).to(device)
    return FORMATS[format](plain), plain


@pytest.fixture(params=CLASSES)
def weight(request, device, generator):
    return experts(request.param, BF16, device, generator)[0]


def own_rows(offsets):
    return [slice(begin, end) for begin, end in zip([0, *offsets], offsets, strict=False)]


def grouped(x, weight, offsets):
    """The grouped product in float64, expert by expert."""
    result = torch.zeros(len(x), weight.shape[1], dtype=torch.float64)
    for of_expert, rows in zip(weight, own_rows(offsets), strict=True):
        result[rows] = product(x[rows], of_expert)
    return result


@pytest.mark.parametrize("format", ALL)
def test_each_expert_is_quantised_as_a_weight_alone(format, device, generator):
    weight, plain = experts(format, BF16, device, generator)
    assert weight.shape == plain.shape
    assert weight.stride() == plain.stride()
    assert len(weight.unbind()) == E
    for e, of_expert in enumerate(weight):
        assert type(of_expert) is type(weight)
        assert same(of_expert, FORMATS[format](plain[e]))
        assert torch.equal(weight.dequantize()[e], of_expert.dequantize())
    loss = (weight.dequantize() - plain).float().norm() / plain.float().norm()
    assert loss < largest_loss(format)


@pytest.mark.parametrize(
    ("format", "dtype"),
    [(format, dtype) for format in ALL for dtype in HIGH_PRECISION if dtype is BF16 or format in CLASSES],
)
def test_grouped_products(format, dtype, device, generator):
    weight, _ = experts(format, dtype, device, generator)
    x = randn(generator, 30, K, dtype=dtype).to(device)
    offs = torch.tensor(OFFSETS, dtype=torch.int32, device=device)
    result = torch._grouped_mm(x, weight.transpose(-2, -1), offs=offs)
    assert_close(result, grouped(x, weight, OFFSETS))
    assert not result[OFFSETS[-1] :].any()
    if hasattr(torch.nn.functional, "grouped_mm"):
        assert torch.equal(torch.nn.functional.grouped_mm(x, weight.mT, offs=offs), result)


def test_what_belongs_to_the_columns_of_an_activation_follows_its_rows(device, generator):
    plain = randn(generator, E, N, K).to(device)
    x = randn(generator, 30, K).to(device)
    offs = torch.tensor(OFFSETS, dtype=torch.int32, device=device)
    orders = torch.stack([torch.randperm(K, generator=generator) for _ in range(E)]).to(device)
    scales = (randn(generator, E, K).abs() + 0.5).to(device)
    int4 = Int4Tensor.from_hp(plain, [1, GROUP_SIZE])
    fields = (int4.qdata, int4.scale, int4.zero_point, int4.block_size, int4.shape)
    int8 = BlockwiseTensor.from_hp(plain, [1, GROUP_SIZE], torch.int8)
    for weight in (
        Int4Tensor(*fields, k_order=orders, act_pre_scale=scales),
        BlockwiseTensor(int8.qdata, int8.scale, int8.block_size, FP32, k_order=orders),
    ):
        each = [linear(x[rows], of_expert) for rows, of_expert in zip(own_rows(OFFSETS), weight, strict=True)]
        result = torch._grouped_mm(x, weight.mT, offs=offs)
        assert_close(result[: OFFSETS[-1]], torch.cat(each).double().cpu())
        # And the product with the weight as it lies, of which gradients are made.
        y = randn(generator, 30, N).to(device)
        back = [y[rows] @ of_expert for rows, of_expert in zip(own_rows(OFFSETS), weight, strict=True)]
        result = torch._grouped_mm(y, weight, offs=offs)
        assert_close(result[: OFFSETS[-1]], torch.cat(back).double().cpu())


def test_products_of_batches(weight, generator):
    x = randn(generator, E, 3, K, dtype=BF16).to(weight.device)
    y = randn(generator, E, 3, N, dtype=BF16).to(weight.device)
    expected = torch.stack([product(rows, of_expert) for rows, of_expert in zip(x, weight, strict=True)])
    result = torch.bmm(x, weight.mT)
    assert_close(result, expected)
    assert torch.equal(x @ weight.mT, result)
    assert torch.equal(torch.bmm(weight, x.mT).mT, result)
    assert torch.equal(torch._grouped_mm(x, weight.mT), result)
    assert torch.equal(torch.baddbmm(y, x, weight.mT, beta=2), result + y * 2)
    first = torch.stack([product(x[0], of_expert) for of_expert in weight])
    assert_close(x[0] @ weight.mT, first)
    assert_close(x[0, 0] @ weight.mT, first[:, 0])
    assert_close(weight @ x[0, 0], first[:, 0])
    plain = weight.dequantize().double().cpu()
    assert_close(torch.bmm(y, weight), y.double().cpu() @ plain)


def test_gradients_pass_grouped_products_both_ways(weight, generator):
    weight = weight.to(FP32)
    offs = torch.tensor(OFFSETS, dtype=torch.int32, device=weight.device)
    plain = weight.dequantize().double().cpu()
    for view in (weight, weight.mT):
        x = randn(generator, 30, view.shape[1]).to(weight.device).requires_grad_()
        result = torch._grouped_mm(x, view, offs=offs)
        grad = randn(generator, *result.shape)
        result.backward(grad.to(weight.device))
        expected = torch.zeros(x.shape, dtype=torch.float64)
        for e, rows in enumerate(own_rows(OFFSETS)):
            expected[rows] = grad[rows].double() @ (plain[e].t() if view is weight else plain[e])
        assert_close(x.grad, expected)


def test_selection_and_slices_are_views(weight):
    plain = weight.dequantize()
    for index in (3, -1, slice(1, 4), (slice(None), slice(16)), (slice(2), slice(None), slice(16, 48))):
        part = weight[index]
        assert torch.equal(part.dequantize(), plain[index])
        own = dict(weight.named_fields())
        for name, field in part.named_fields():
            assert field.untyped_storage().data_ptr() == own[name].untyped_storage().data_ptr()
    assert same(weight.narrow(0, 1, 3), weight[1:4])
    assert torch.equal(weight.mT[2].dequantize(), plain[2].t())
    assert torch.equal(weight.mT[:, 16:48, :16].dequantize(), plain.mT[:, 16:48, :16])
    assert torch.equal(weight[:, 3].cpu(), plain[:, 3].cpu())


def test_experts_by_indices_are_copies(weight):
    plain = weight.dequantize()
    ids = torch.tensor([4, 0, 0, -1], device=weight.device)
    for part, expected in (
        (weight[ids], plain[ids]),
        (weight.index_select(0, ids % E), plain[ids]),
        (weight[ids > 0], plain[ids > 0]) if len(ids) == E else (weight[ids[:1]], plain[ids[:1]]),
        (weight[torch.tensor(2)], plain[2]),
    ):
        assert type(part) is type(weight)
        assert torch.equal(part.dequantize(), expected)


def test_parts_together_are_the_whole(weight):
    assert same(torch.stack(list(weight)), weight)
    for dim in range(3):
        assert same(torch.cat(weight.chunk(2, dim), dim), weight)
        assert same(torch.cat(weight.mT.chunk(2, dim), dim).mT, weight)
    grown = torch.nn.functional.pad(weight, (0, 0, 0, 0, 0, 1))
    assert same(grown[:E], weight)


def test_copies(weight, generator):
    other = weight.requantized(randn(generator, E, N, K).to(weight.device))
    part = other.clone()
    part[1:3].copy_(weight[1:3])
    assert same(part[1:3], weight[1:3])
    assert same(part[3], other[3])
    assert same(other.copy_(weight), weight)
    again = weight.requantized(weight.dequantize())
    assert same(weight.mT.requantized(weight.mT.dequantize()).mT, again)
    assert weight.to(FP16).dtype is FP16
    assert weight.new_zeros(2, N, K).shape == (2, N, K)
    assert type(weight.new_empty(2, N, K)) is type(weight)
    assert same(weight + torch.zeros_like(weight.dequantize()), weight)


def test_a_sum_is_quantised_expert_by_expert(weight, generator):
    step = randn(generator, E, N, K, dtype=BF16).to(weight.device)
    total = weight + step
    assert type(total) is type(weight)
    wanted = weight.dequantize().float() + step.float()
    assert (total.dequantize() - wanted).norm() / wanted.norm() < 0.2


@pytest.mark.parametrize("transposed", [False, True])
def test_files(weight, transposed, tmp_path):
    weight = weight.mT if transposed else weight
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    assert same(torch.load(file), weight)
    flat = aoext.flatten_state_dict({"w": weight})
    assert flat["w.qdata"].shape[0] == E
    tensors, metadata = serialization.flattened({"w": weight})
    save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, tmp_path / "w", metadata)
    stored, _ = contents(tmp_path / "w")
    description = serialization.descriptions_in(tmp_path / "w")["w"]
    assert same(serialization.assembled("w", description, stored), weight.cpu())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda w, x: linear(x, w),
            RuntimeError,
            r"weight must be int8 \[N, K/2\] .* got int8 \[5, 24, 32\]",
        ),
        (lambda w, x: torch.mm(x, w.mT), RuntimeError, r"mm: the weight must be \[N, K\], got \[5, 64, 24\]"),
        (lambda w, x: torch._grouped_mm(x, w.mT), RuntimeError, r"offs must be int32 \[E\]"),
        (lambda w, x: torch.bmm(x, w.mT), RuntimeError, "bmm: input must have 3 dimensions"),
        (lambda w, x: x.expand(2, -1, -1) @ w.mT, RuntimeError, "a weight of 5 experts needs as many"),
        (lambda w, x: w.t(), RuntimeError, r"t\(\) is for matrices"),
        (lambda w, x: w.transpose(0, 1), NotImplementedError, "for the dimension of experts"),
        (lambda w, x: w.permute(1, 0, 2), NotImplementedError, "for the dimension of experts"),
        (lambda w, x: w[2:2], ValueError, "a slice along E must have elements"),
        (lambda w, x: w[E], IndexError, "index 5 is out of bounds"),
        (lambda w, x: w.view(E * N, K), NotImplementedError, "for another shape"),
        (lambda w, x: torch.stack([w, w]), NotImplementedError, "for matrices alone"),
        (lambda w, x: type(w).from_hp(w.dequantize()[:0], w.block_size), ValueError, "must have some"),
    ],
)
def test_what_is_refused(call, error, message, generator):
    weight, _ = experts("int4", BF16, torch.device("cpu"), generator)
    with pytest.raises(error, match=message):
        call(weight, randn(generator, 30, K, dtype=BF16))


def test_one_expert_at_a_time_is_plain(generator, monkeypatch):
    """Quantising needs no float copy of all experts, nor does a sum."""
    largest = 0
    to = torch.Tensor.to

    def watched(self, *args, **kwargs):
        nonlocal largest
        result = to(self, *args, **kwargs)
        if result.dtype is FP32:
            largest = max(largest, result.numel())
        return result

    plain = randn(generator, E, N, K, dtype=BF16)
    monkeypatch.setattr(torch.Tensor, "to", watched)
    for format in ALL:
        FORMATS[format](plain)
    assert 0 < largest <= N * K


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=str)
def test_experts_whose_memory_is_gone_are_refused(dtype, device):
    weight = torch.zeros(4, 16, 16, dtype=dtype, device=device)
    weight.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"must have memory, got .* with freed storage"):
        Int8Tensor.from_hp(weight)
