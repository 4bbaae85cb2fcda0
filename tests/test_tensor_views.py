"""Views and copies of quantised weights: slices that alias, copy_, .t(), .to(), contiguous."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from aoext.reference import assert_close, randn
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor, Lut4Tensor, NestedLut4Tensor
from aoext.tensors.groups import GroupsTensor
from formats import CLASSES, FORMATS, GROUP_SIZE, HIGH_PRECISION, SLICED, meaning, product, quantized, same

BF16, FP16, FP32 = HIGH_PRECISION
UNIT = 32  # columns that every format can be cut by
N, K = 24, 4 * UNIT

ROWS = slice(5, 17)
COLUMNS = slice(UNIT, 3 * UNIT)


@pytest.fixture(params=FORMATS)
def weight(request, device, generator):
    return quantized(request.param, N, K, BF16, device, generator)


sliced = pytest.mark.parametrize("weight", SLICED, indirect=True)


@pytest.mark.parametrize(
    "index", [(ROWS,), (slice(None), COLUMNS), (ROWS, COLUMNS), (slice(-3, None), slice(-UNIT, None))]
)
def test_slices_mean_what_slices_of_a_plain_weight_mean(weight, index, generator):
    part = weight[index]
    assert torch.equal(meaning(part), meaning(weight)[index])
    assert torch.equal(part.dequantize(), weight.dequantize()[index])
    assert torch.equal(part.t().dequantize(), weight.dequantize()[index].t())
    x = randn(generator, 3, part.shape[1], dtype=BF16).to(weight.device)
    assert_close(linear(x, part), product(x, part))
    assert torch.equal(linear(x, part), linear(x, part.contiguous()))


def test_narrow_and_slices_of_the_transposed_view_agree(weight):
    assert same(weight.narrow(0, 5, 12), weight[ROWS])
    assert same(weight.narrow(1, UNIT, 2 * UNIT), weight[:, COLUMNS])
    assert same(weight.t()[COLUMNS, ROWS].t(), weight[ROWS, COLUMNS])
    assert same(weight[3:3], weight.narrow(0, 3, 0))
    assert weight[3:3].shape == (0, K)
    assert same(weight[:], weight)


@sliced
def test_chunks_and_splits_are_slices(weight):
    def agree(parts, slices):
        assert len(parts) == len(slices)
        assert all(same(part, cut) for part, cut in zip(parts, slices, strict=True))

    agree(weight.chunk(2), [weight[:12], weight[12:]])
    agree(weight.split(10), [weight[:10], weight[10:20], weight[20:]])
    agree(weight.split([3, 0, 21]), [weight[:3], weight[3:3], weight[3:]])
    agree(weight.tensor_split(2, dim=1), [weight[:, : K // 2], weight[:, K // 2 :]])
    agree(weight.t().chunk(2, dim=-1), [weight.t()[:, :12], weight.t()[:, 12:]])
    parts = weight.chunk(2)
    parts[0].copy_(weight[12:].clone())  # they are views
    assert same(weight[:12], weight[12:])
    with pytest.raises(RuntimeError, match="split_size must be positive"):
        weight.split(0)
    with pytest.raises(RuntimeError, match=f"must add up to {N}"):
        weight.split([N, 1])


@sliced
def test_cat_is_the_inverse_of_split(weight, generator):
    for dim in (0, 1, -1):
        whole = torch.cat(weight.split(UNIT if dim else 10, dim), dim)
        assert same(whole, weight)
        assert torch.equal(whole.dequantize(), weight.dequantize())
    assert same(torch.cat(weight.t().chunk(2, 1), 1).t(), weight)
    twice = torch.cat([weight, weight[:3]])
    x = randn(generator, 5, K, dtype=BF16).to(weight.device)
    assert_close(linear(x, twice), product(x, twice))
    assert torch.equal(linear(x, twice)[:, :N], linear(x, weight))


def test_cat_of_what_differs_is_refused(device, generator):
    int4, int8, other = (quantized(f, N, K, BF16, device, generator) for f in ("int4", "int8", "int8"))
    for tensors, dim in (([int4, int8], 0), ([int4, int4.dequantize()], 0), ([int8, int8[:3]], 1)):
        with pytest.raises(
            ValueError, match=f"cat needs weights that differ in the size of dimension {dim} alone"
        ):
            torch.cat(tensors, dim)
    with pytest.raises(ValueError, match="cat along K needs the same scale in all weights"):
        torch.cat([int8, other], 1)


@sliced
def test_fields_of_slices_are_views_of_the_parents(weight):
    parents = dict(weight.named_fields())
    for part in (weight[ROWS], weight[:, COLUMNS], weight.t()[COLUMNS], weight.detach()):
        for name, field in part.named_fields():
            storage = parents[name].untyped_storage()
            assert field.untyped_storage().data_ptr() == storage.data_ptr()


@pytest.mark.parametrize("index", [(ROWS,), (slice(None), COLUMNS), (ROWS, COLUMNS)])
@pytest.mark.parametrize("format", ["int4", "int4_symmetric"])
def test_copy_into_a_slice_changes_the_parent_there_alone(format, index, device, generator):
    parent = quantized(format, N, K, BF16, device, generator)
    other = quantized(format, N, K, BF16, device, generator)
    expected = meaning(parent)
    expected[index] = meaning(other)[index]
    parent[index].copy_(other[index])
    assert torch.equal(meaning(parent), expected)


@pytest.mark.parametrize("format", ["int8", "int8_dynamic", "float8", "float8_e5m2"])
def test_copy_into_rows_of_a_row_scaled_weight(format, device, generator):
    parent = quantized(format, N, K, BF16, device, generator)
    other = quantized(format, N, K, BF16, device, generator)
    expected = torch.cat((meaning(parent)[:5], meaning(other)[:12], meaning(parent)[17:]))
    parent.narrow(0, 5, 12).copy_(other.narrow(0, 0, 12))
    assert torch.equal(meaning(parent), expected)


@pytest.mark.parametrize("format", ["int8", "float8"])
def test_copy_into_columns_cannot_change_scales_of_whole_rows(format, device, generator):
    parent = quantized(format, N, K, BF16, device, generator)
    other = quantized(format, N, K, BF16, device, generator)
    before = meaning(parent)
    with pytest.raises(ValueError, match="cannot change its scale, which serves whole rows"):
        parent[:, COLUMNS].copy_(other[:, COLUMNS])
    assert torch.equal(meaning(parent), before)
    other.scale.copy_(parent.scale)
    parent[:, COLUMNS].copy_(other[:, COLUMNS])
    expected = torch.cat((before[:, :UNIT], meaning(other)[:, COLUMNS], before[:, 3 * UNIT :]), 1)
    assert torch.equal(meaning(parent), expected)


def test_a_tensor_parallel_loader_fills_shards(weight, generator):
    """Ranks take rows, or columns, of a full weight; together they make up the whole one."""
    x = randn(generator, 3, K, dtype=BF16).to(weight.device)
    by_rows = [weight.narrow(0, first, N // 2).clone() for first in (0, N // 2)]
    for shard, first in zip(by_rows, (N // 2, 0), strict=True):
        shard.copy_(weight.narrow(0, first, N // 2))
    whole = linear(x, weight)
    swapped = torch.cat([linear(x, shard) for shard in by_rows], -1)
    assert_close(swapped.roll(N // 2, -1), product(x, weight))
    assert swapped.shape == whole.shape
    by_columns = [weight.narrow(1, first, K // 2) for first in (0, K // 2)]
    assert torch.equal(torch.cat([meaning(shard) for shard in by_columns], 1), meaning(weight))


@pytest.mark.parametrize(("first", "last"), [(8, 32), (16, 24), (1, 64), (0, 31)])
def test_int4_columns_are_cut_on_group_boundaries_only(first, last, device, generator):
    weight = quantized("int4", N, K, BF16, device, generator)
    message = rf"along K must begin and end on group boundaries, here multiples of 16, got {first}"
    for view in (weight, weight[3:7]):
        with pytest.raises(ValueError, match=message):
            view[:, first:last]
        with pytest.raises(ValueError, match=message):
            view.t()[first:last]


def test_int4_columns_are_cut_between_bytes(generator):
    weight = Int4Tensor.from_hp(randn(generator, 4, 12), [1, 3])
    with pytest.raises(ValueError, match="multiples of 6, got 3:9"):
        weight[:, 3:9]
    assert torch.equal(meaning(weight[:, 6:12]), meaning(weight)[:, 6:12])


def test_scales_of_whole_rows_stay_where_columns_are_cut(generator):
    w = randn(generator, 6, 40)
    for weight in (Int8Tensor.from_hp(w), Float8Tensor.from_hp(w), Int4Tensor.from_hp(w, [1, 40])):
        part = weight[:, 4:30]
        assert part.block_size == [1, 26]
        assert part.scale.data_ptr() == weight.scale.data_ptr()
        assert torch.equal(meaning(part), meaning(weight)[:, 4:30])
        with pytest.raises(ValueError, match="got 4:4 of 40"):
            weight[:, 4:4]


def test_copy_of_what_differs_is_refused(device, generator):
    weight = quantized("int4", N, K, BF16, device, generator)
    w = weight.dequantize()
    for other in (
        quantized("int4", N, 2 * K, BF16, device, generator),
        Int4Tensor.from_hp(w, [1, 2 * GROUP_SIZE]),
        quantized("int4_prescaled", N, K, BF16, device, generator),
        quantized("int4", K, N // 3 * 2, BF16, device, generator).t(),
    ):
        with pytest.raises(ValueError, match="copy_ needs a source with the same shape, block_size"):
            weight.copy_(other)
    with pytest.raises(ValueError, match="stored dtype"):
        Float8Tensor.from_hp(w).copy_(Float8Tensor.from_hp(w, torch.float8_e5m2))
    for target, source in ((w, weight), (weight, Int8Tensor.from_hp(w))):
        with pytest.raises(NotImplementedError, match=r"aten\.copy_\.default from"):
            target.copy_(source)


def test_copy_converts_scales(device, generator):
    source = quantized("int4", N, K, FP32, device, generator)
    target = quantized("int4", N, K, BF16, device, generator)
    target.copy_(source)
    assert same(target, source.to(BF16))


def test_clones_and_contiguous_copies_stand_alone(weight):
    for part in (weight, weight[ROWS], weight[:, COLUMNS]):
        copy = part.clone()
        assert same(copy, part)
        for name, field in copy.named_fields():
            assert field.is_contiguous()
            assert field.data_ptr() != getattr(part, name).data_ptr()
    assert weight.contiguous() is weight
    assert same(weight[:, COLUMNS].contiguous(), weight[:, COLUMNS])
    assert all(field.is_contiguous() for _, field in weight[:, COLUMNS].contiguous().named_fields())


@pytest.fixture
def nested(device, generator):
    """64 rows of 4 groups are a block of nested scales."""
    return quantized("nf4_nested", 150, 4 * GROUP_SIZE, BF16, device, generator)


def test_nested_scales_that_are_cut_between_blocks_keep_their_bytes(nested):
    plain = nested.dequantize()
    for part, expected in ((nested[64:128], plain[64:128]), (nested[128:], plain[128:])):
        assert type(part) is NestedLut4Tensor
        assert torch.equal(part.dequantize(), expected)
        assert all(
            field.untyped_storage().data_ptr() == getattr(nested, name).untyped_storage().data_ptr()
            for name, field in part.named_fields()
        )
    assert same(torch.cat(nested.split(64)), nested)
    assert same(torch.cat([nested[64:128], nested])[64:], nested)
    other = nested.clone()
    other[64:128].copy_(nested[:64])
    assert torch.equal(other.dequantize(), torch.cat((plain[:64], plain[:64], plain[128:])))


def test_nested_scales_that_are_cut_elsewhere_become_floats(nested, generator):
    plain, x = nested.dequantize(), randn(generator, 3, nested.shape[1], dtype=BF16).to(nested.device)
    for part, expected in (
        (nested[3:70], plain[3:70]),
        (nested[:, GROUP_SIZE:], plain[:, GROUP_SIZE:]),
        (torch.cat(nested.split(40)), plain),
        (torch.cat([nested, nested]), torch.cat([plain, plain])),
        (torch.nn.functional.pad(nested, [0, 0, 0, 3]), torch.nn.functional.pad(plain, [0, 0, 0, 3])),
    ):
        assert type(part) is Lut4Tensor
        assert torch.equal(part.dequantize(), expected)
        if part.shape[1] == len(x[0]):
            assert_close(linear(x, part), x.double().cpu() @ meaning(part).t())
    with pytest.raises(NotImplementedError, match="this part of a weight is a copy, since it cuts a block"):
        nested[3:70].copy_(nested[5:72])
    with pytest.raises(NotImplementedError, match="and cannot be written into"):
        nested[:3].copy_(plain[3:6])
    part = nested[3:70].clone()
    part.copy_(nested[5:72])
    assert torch.equal(part.dequantize(), plain[5:72])


def test_transposing_twice_is_nothing(weight):
    assert same(weight.t().t(), weight)
    assert same(weight.t().clone().t(), weight)
    assert weight.t().shape == (K, N)
    assert weight.t().stride() == (1, K)
    assert same(weight.transpose(0, -2), weight)
    for call in (lambda: weight.transpose(0, 2), lambda: weight.permute(0, 2)):
        with pytest.raises(IndexError, match=r"must be in \[-2, 1\]"):
            call()


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_to_dtype_converts_what_is_in_the_activations_dtype(weight, dtype):
    converted = weight.to(dtype)
    assert converted.dtype is dtype
    assert (converted is weight) == (dtype is BF16)
    for name, field in converted.named_fields():
        before = getattr(weight, name)
        follows = isinstance(weight, GroupsTensor) and name != "qdata"
        assert field.dtype is (dtype if follows else before.dtype)
        assert torch.equal(field.float(), before.float().to(field.dtype).float())
    assert same(converted.to(BF16), weight)


def test_to_device_moves_every_field(weight):
    for moved in (weight.to("meta"), weight.to(device="meta", dtype=FP16)):
        assert moved.is_meta
        assert all(field.is_meta for _, field in moved.named_fields())
    assert same(weight.cpu().to(weight.device), weight)
    assert weight.to(weight.device) is weight


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("format", CLASSES)
def test_to_other_dtypes_is_refused(format, dtype, device, generator):
    weight = quantized(format, N, K, BF16, device, generator)
    with pytest.raises(TypeError, match="dtype must be bfloat16, float16, float32 or float64, got"):
        weight.to(dtype)


@sliced
def test_views_in_inference_mode(weight, generator):
    x = randn(generator, 3, K, dtype=BF16).to(weight.device)
    expected = linear(x, weight), weight[ROWS], weight.to(FP16)
    with torch.inference_mode():
        for inside in (weight, weight.clone()):
            assert torch.equal(x @ inside.t(), expected[0])
            assert same(inside.narrow(0, 5, 12), expected[1])
            assert same(inside.half(), expected[2])
            inside[:5].copy_(inside[5:10].clone())
    assert torch.equal(meaning(weight)[:5], meaning(weight)[5:10])


def test_views_of_a_weights_own_shape(weight):
    for view in (
        weight.view(N, K),
        weight.view(-1, K),
        weight.view_as(weight),
        weight.reshape([N, K]),
        weight.as_strided((N, K), (K, 1)),
    ):
        assert same(view, weight)
        assert view.qdata.data_ptr() == weight.qdata.data_ptr()
    assert same(weight.t().view(K, N).t(), weight)
    flat = weight.view(-1)
    assert flat.shape == (N * K,)
    assert repr(flat) == f"{weight!r}.view(-1)"


@sliced
def test_new_weights_of_the_same_form(weight):
    zeros = weight.new_zeros(3, K)
    assert zeros.shape == (3, K)
    assert not meaning(zeros).any()
    assert same(weight.t().new_zeros(K, 3).t(), zeros)
    assert same(weight.new_zeros(3, K, dtype=FP16), zeros.to(FP16))
    assert weight.new_zeros(3, K, device="meta").is_meta
    assert same(zeros.copy_(weight[:3]), weight[:3])
    for empty in (torch.empty_like(weight), torch.empty_like(weight[:, COLUMNS], dtype=FP16)):
        assert all(field.is_contiguous() for _, field in empty.named_fields())
    assert empty.dtype is FP16
    assert same(empty.copy_(weight[:, COLUMNS]), weight[:, COLUMNS].to(FP16))


def test_new_zeros_of_int4_have_whole_groups(device, generator):
    weight = quantized("int4", N, K, BF16, device, generator)
    assert weight.new_zeros(3, 2 * GROUP_SIZE).scale.shape == (2, 3)
    with pytest.raises(ValueError, match=f"K of whole groups of {GROUP_SIZE}, got {GROUP_SIZE + 1}"):
        weight.new_zeros(3, GROUP_SIZE + 1)


@sliced
def test_padding_puts_zeros_behind_a_weight(weight):
    for pad, rows, columns in (
        ([0, 0, 0, 3], 3, 0),
        ([0, UNIT], 0, UNIT),
        ([0, UNIT, 0, 1], 1, UNIT),
    ):
        padded = torch.nn.functional.pad(weight, pad)
        assert padded.shape == (N + rows, K + columns)
        assert same(padded[:N, :K], weight)
        assert torch.equal(meaning(padded), torch.nn.functional.pad(meaning(weight), pad))
    assert same(
        torch.nn.functional.pad(weight.t(), [0, 3]).t(), torch.nn.functional.pad(weight, [0, 0, 0, 3])
    )
    copy = torch.nn.functional.pad(weight, [0, 0])
    assert same(copy, weight)
    assert all(field.data_ptr() != getattr(weight, name).data_ptr() for name, field in copy.named_fields())
    for pad, value in (([1, 0], 0), ([0, -UNIT], 0), ([0, UNIT], 1)):
        with pytest.raises(NotImplementedError, match="pad is implemented for zeros at the end alone"):
            torch.nn.functional.pad(weight, pad, value=value)


def test_int4_of_one_group_is_padded_with_zeros_and_not_with_its_zero_points(device, generator):
    weight = quantized("int4", N, GROUP_SIZE, BF16, device, generator)
    padded = torch.nn.functional.pad(weight, [0, 2 * GROUP_SIZE])
    assert torch.equal(meaning(padded), torch.nn.functional.pad(meaning(weight), [0, 2 * GROUP_SIZE]))
    assert padded.block_size == weight.block_size


def test_int4_is_padded_by_whole_groups(device, generator):
    weight = quantized("int4", N, K, BF16, device, generator)
    with pytest.raises(ValueError, match=f"pad along K must be a multiple of {GROUP_SIZE}, got 8"):
        torch.nn.functional.pad(weight, [0, 8])


def test_pinning_does_what_it_does_to_plain_tensors(weight):
    plain = torch.zeros(1, device=weight.device)
    assert weight.is_pinned() == plain.is_pinned()
    try:
        plain.pin_memory()
    except RuntimeError:
        with pytest.raises(RuntimeError):
            weight.pin_memory()
    else:
        assert weight.pin_memory().is_pinned()
        assert same(weight.pin_memory(), weight)
