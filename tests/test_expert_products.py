"""Products with plain and dequantised weights of experts, which gradients are made of, and what they cost."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aoext.operators import experts
from aoext.operators.experts import PlainWeights, QuantizedWeights, by_blocks, one_by_one
from aoext.reference import Problem, assert_close, moved, randn, subjects
from aoext.reference.subject import ALL
from of_experts import BY_NAME, random_ends, subject_of

FORMATS = [
    f"weight_only_linear {name}" for name in ("int4", "int8", "nvfp4", "lut4", "float8 128x128", "int8 zeros")
]


def expected(rows, ends, dense):
    """In float64, expert by expert."""
    result = torch.zeros(len(rows), dense.shape[2], dtype=torch.float64)
    for e, (begin, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        result[begin:end] = rows[begin:end].double() @ dense[e]
    return result


def ends_of(case, T, E, generator):
    if case == "by chance":
        return random_ends(T, E, generator)
    ends = torch.full((E,), T, dtype=torch.int32)
    if case == "all of the last":
        ends[:-1] = 0
    return ends


def quantized(name, p, generator):
    """What times_quantized takes of a weight, and the weight in float64."""
    operator, w, dtype = BY_NAME[name]
    subject = subjects.experts(subject_of(operator, w, dtype), w)
    stored = subject.rotated(p, generator)
    operands = w.operands(p, stored)
    return operands, subject.weight.rows(p, stored, ALL)


@pytest.mark.parametrize("way", [by_blocks, one_by_one])
@pytest.mark.parametrize("case", ["by chance", "all of the first", "all of the last"])
@pytest.mark.parametrize(("T", "E"), [(1, 6), (5, 40), (300, 6), (700, 1), (0, 3)])
def test_rows_meet_the_weights_of_their_experts(T, E, case, way, device, generator):
    rows, weight = randn(generator, T, 24), randn(generator, E, 24, 20)
    ends = ends_of(case, T, E, generator)
    result = way(rows.to(device), ends.to(device), PlainWeights(weight.to(device)))
    assert_close(result, expected(rows, ends, weight.double()))


@pytest.mark.parametrize("way", [experts.weights_grad_by_blocks, experts.weights_grad_one_by_one])
@pytest.mark.parametrize(("T", "E"), [(1, 6), (5, 40), (300, 6), (0, 3)])
def test_gradients_of_weights_are_sums_over_their_rows(T, E, way, device, generator):
    """What rows of no expert hold reaches none."""
    rows, grad = randn(generator, T + 2, 24), randn(generator, T + 2, 20)
    ends = ends_of("by chance", T, E, generator)
    for t in (rows, grad):
        t[int(ends[-1]) :] = torch.nan
    result = way(rows.to(device), ends.to(device), grad.to(device)).cpu()
    for e, (begin, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        assert_close(result[e], rows[begin:end].double().mT @ grad[begin:end].double())


@pytest.mark.parametrize("ends", [[4, 3, 20, 24], [30, 1, 2, 90], [-1, -4, 3, 24]], ids=str)
def test_ends_of_no_meaning_count_as_the_largest_before(ends, device, generator):
    rows, weight = randn(generator, 24, 8), randn(generator, 4, 8, 8)
    ends = torch.tensor(ends, dtype=torch.int32)
    result = by_blocks(rows.to(device), ends.to(device), PlainWeights(weight.to(device)))
    assert_close(result, expected(rows, ends.clamp(0, 24).cummax(0).values, weight.double()))


@pytest.mark.parametrize("way", [by_blocks, one_by_one])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_quantised_weights_are_made_plain_a_few_at_a_time(
    name, transposed, way, device, generator, monkeypatch
):
    p = Problem(70, 40, 64, 32, torch.float32, torch.float32, experts=6)
    operands, dense = quantized(name, p, generator)
    dense = dense.mT if transposed else dense
    rows, ends = randn(generator, 70, dense.shape[1]), random_ends(70, 6, generator)
    operands = [moved(operand, device) for operand in operands]
    for memory in (1, 3 * 40 * 64 * 4, 1 << 30):
        monkeypatch.setattr(experts, "_MEMORY", memory)
        weights = QuantizedWeights(torch.float32, transposed, *operands)
        assert_close(way(rows.to(device), ends.to(device), weights), expected(rows, ends, dense))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_quantised_weights_are_made_plain_all_at_once(name, transposed, device, generator):
    """Where each expert's rows are whole blocks."""
    p = Problem(90, 128, 64, 32, torch.bfloat16, torch.bfloat16, experts=6)
    operands, dense = quantized(name, p, generator)
    weights = QuantizedWeights(torch.bfloat16, transposed, *(moved(operand, device) for operand in operands))
    assert weights.rows_are_apart
    plain = weights.of_all()
    assert_close(plain, dense.mT if transposed else dense)
    index = torch.tensor([4, 0, 4], device=device)
    assert torch.equal(weights.of_experts(index), plain[index])
    rows, ends = (
        randn(generator, 90, plain.shape[1]).to(device, torch.bfloat16),
        random_ends(90, 6, generator),
    )
    if hasattr(torch, "_grouped_mm") and device.type != "xpu":
        result = experts.by_library(rows, ends.to(device), plain)
        wanted = by_blocks(rows, ends.to(device), weights)
        assert (result - wanted).norm() < 0.01 * wanted.norm()
        assert not result[ends[-1] :].any()


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that any operation gives."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = (t.untyped_storage().nbytes() for t in tree_leaves(result) if isinstance(t, torch.Tensor))
        self.bytes = max(self.bytes, *sizes, 0)
        return result


@pytest.mark.parametrize("way", [by_blocks, one_by_one])
def test_no_more_than_so_many_plain_weights_are_in_memory(way, generator, monkeypatch):
    monkeypatch.setattr(experts, "_MEMORY", 1 << 18)
    p = Problem(40, 64, 128, 32, torch.float32, torch.float32, experts=96)
    operands, dense = quantized("weight_only_linear int4", p, generator)
    rows, ends = randn(generator, 40, 64), random_ends(40, 96, generator)
    stored = max(t.untyped_storage().nbytes() for t in operands if isinstance(t, torch.Tensor))
    with Largest() as largest:
        way(rows, ends, QuantizedWeights(torch.float32, False, *operands))
    assert stored <= largest.bytes <= 1 << 19 < dense.numel() * 4


@pytest.mark.parametrize("name", [None, *FORMATS])
def test_blocks_read_nothing_on_the_host(name, generator):
    """Fake tensors have no numbers to be read."""
    p = Problem(70, 40, 64, 32, torch.float32, torch.float32, experts=6)
    operands, dense = quantized(name or FORMATS[0], p, generator)

    def product(way):
        with FakeTensorMode(allow_non_fake_inputs=False) as mode:
            fake = [mode.from_tensor(o) if isinstance(o, torch.Tensor) else o for o in operands]
            rows = torch.empty(70, 40)
            ends = torch.empty(6, dtype=torch.int32)
            plain = PlainWeights(torch.empty(dense.shape))
            return way(rows, ends, QuantizedWeights(torch.float32, False, *fake) if name else plain)

    assert product(by_blocks).shape == (70, 64)
    with pytest.raises(DataDependentOutputException):
        product(one_by_one)
