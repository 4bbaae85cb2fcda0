"""aoext.layouts: conversions between layouts of int4, on every device, without loss or refused."""

from __future__ import annotations

import pytest
import torch

from aoext import reference
from aoext.packing import layouts

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def plain(N, K, group_size, dtype, generator, device):
    weight, scale, zero_point = reference.int4_weight(N, K, group_size, BF16, generator)
    return [weight.to(device), scale.to(dtype).to(device), zero_point.to(dtype).to(device)]


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize(
    ("N", "K", "group_size", "inner"), [(8, 64, 32, 2), (40, 256, 64, 4), (24, 512, 256, 8)]
)
def test_plain_and_tinygemm_hold_the_same_weight(N, K, group_size, inner, dtype, device, generator):
    if dtype is FP16:  # bfloat16 values that float16 holds too
        scales = (torch.randint(1, 64, (2, K // group_size, N), generator=generator) / 32).to(device)
        fields = [plain(N, K, group_size, BF16, generator, device)[0], *scales.half()]
    else:
        fields = plain(N, K, group_size, dtype, generator, device)
    packed, scale_and_zero = layouts.plain_to_tinygemm(*fields, inner)
    assert packed.shape == (N // 8, K // (16 * inner), 32, inner // 2)
    assert scale_and_zero.dtype is BF16
    meaning = reference.tinygemm_float64(layouts.tinygemm_unpack(packed).cpu(), scale_and_zero.cpu())
    assert torch.equal(meaning, reference.int4_float64(*(t.cpu() for t in fields)))
    back = layouts.tinygemm_to_plain(packed, scale_and_zero)
    assert back[1].dtype is BF16
    assert torch.equal(back[0], fields[0])
    assert all(torch.equal(ours.to(dtype), theirs) for ours, theirs in zip(back[1:], fields[1:], strict=True))
    again = layouts.plain_to_tinygemm(*back, inner)
    assert torch.equal(again[0], packed)
    assert torch.equal(again[1], scale_and_zero)
    assert all(t.is_contiguous() and t.device.type == device.type for t in (*back, *again))


def plain_int32(N, K, group_size, dtype, generator, device):
    low = -(2**31)
    words = torch.randint(low, -low, (N, K // 8), generator=generator).to(torch.int32)
    scale = (torch.rand(K // group_size, N, generator=generator) + 0.1).to(dtype)
    zero_point = torch.randint(-128, 128, scale.shape, generator=generator, dtype=torch.int8)
    return [t.to(device) for t in (words, scale, zero_point)]


def plain_int32_float64(words, scale, zero_point):
    u = (words.to(torch.int64)[..., None] >> torch.arange(0, 32, 4)).bitwise_and(15).flatten(1).double()
    group_size = u.shape[1] // scale.shape[0]
    s, z = (t.double().t().repeat_interleave(group_size, 1) for t in (scale, zero_point))
    return (u - z) * s


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize(("N", "K", "group_size"), [(3, 64, 32), (40, 256, 64), (7, 24, 8)])
def test_plain_int32_and_plain_hold_the_same_weight(N, K, group_size, dtype, device, generator):
    fields = plain_int32(N, K, group_size, dtype, generator, device)
    qdata, scale, zero_point = layouts.plain_int32_to_plain(*fields, dtype=FP32)
    assert (scale.dtype, zero_point.dtype) == (FP32, FP32)
    meaning = reference.int4_float64(qdata.cpu(), scale.cpu(), zero_point.cpu())
    assert torch.equal(meaning, plain_int32_float64(*(t.cpu() for t in fields)))
    words, back, integers = layouts.plain_to_plain_int32(qdata, scale, zero_point)
    assert torch.equal(words, fields[0])
    assert torch.equal(back.to(dtype), fields[1])
    assert torch.equal(integers, fields[2])
    assert all(t.is_contiguous() and t.device.type == device.type for t in (words, back, integers))


@pytest.mark.parametrize("inner", [2, 4, 8])
def test_plain_int32_and_tinygemm_hold_the_same_weight(inner, device, generator):
    words, scale, zero_point = plain_int32(40, 256, 64, BF16, generator, device)
    scale = torch.exp2((scale.float() * 8).round()).to(BF16)  # with 7 bits to spare for 8 - zero_point
    packed, scale_and_zero = layouts.plain_int32_to_tinygemm(words, scale, zero_point, inner)
    meaning = reference.tinygemm_float64(layouts.tinygemm_unpack(packed).cpu(), scale_and_zero.cpu())
    assert torch.equal(meaning, plain_int32_float64(words.cpu(), scale.cpu(), zero_point.cpu()))
    back = layouts.tinygemm_to_plain_int32(packed, scale_and_zero)
    assert all(torch.equal(a, b) for a, b in zip(back, (words, scale, zero_point), strict=True))


def test_conversions_by_hand(device):
    words = torch.tensor([[0x76543210]], dtype=torch.int32, device=device)
    scale = torch.tensor([[0.5]], device=device)
    zero_point = torch.tensor([[6]], dtype=torch.int8, device=device)
    qdata, s, z = layouts.plain_int32_to_plain(words, scale, zero_point)
    assert qdata.view(torch.uint8).tolist() == [[0x98, 0xBA, 0xDC, 0xFE]]  # u - 8 = -8, -7, …, -1
    assert (s.tolist(), z.tolist()) == ([[0.5]], [[1.0]])


def test_what_a_layout_cannot_hold_is_refused(device, generator):
    qdata, scale, zero_point = plain(8, 64, 32, FP32, generator, device)
    with pytest.raises(ValueError, match=r"zero_point must be \(8 - i\) \* scale for integers i"):
        layouts.plain_to_plain_int32(qdata, scale, scale * 1.5)
    with pytest.raises(ValueError, match=r"zero_point must be \(8 - i\) \* scale"):
        layouts.plain_to_plain_int32(qdata, scale, scale * 256)
    with pytest.raises(ValueError, match=r"zero_point must be \(8 - i\) \* scale"):
        layouts.plain_to_plain_int32(qdata, scale * 0, scale)
    with pytest.raises(ValueError, match=r"plain_to_tinygemm: scale must be exact in bfloat16"):
        layouts.plain_to_tinygemm(qdata, scale + 2**-20, zero_point, 2)
    with pytest.raises(ValueError, match=r"zero_point must be exact in bfloat16"):
        layouts.plain_to_tinygemm(qdata, scale, torch.full_like(scale, 1 + 2**-20), 2)
    words, scale, zero_point = plain_int32(8, 64, 32, BF16, generator, device)
    with pytest.raises(ValueError, match=r"\(8 - zero_point\) \* scale must be exact in bfloat16"):
        layouts.plain_int32_to_plain(words, torch.full_like(scale, 1.9921875), zero_point * 0 + 1)
    with pytest.raises(ValueError, match=r"\(8 - zero_point\) \* scale must be exact in float32"):
        layouts.plain_int32_to_plain(words, torch.full_like(scale, 1 / 3, dtype=FP32), zero_point * 0 + 1)


BAD_LAYOUTS = [
    (layouts.tinygemm_unpack, ["packed.long"], TypeError, "packed must be int32"),
    (layouts.tinygemm_unpack, ["packed.flat"], ValueError, "packed must be int32"),
    (layouts.tinygemm_to_plain, ["packed", "pairs.half"], TypeError, "scale_and_zero must be bfloat16"),
    (layouts.tinygemm_to_plain, ["packed", "pairs.flat"], ValueError, "scale_and_zero must be bfloat16"),
    (layouts.plain_to_tinygemm, ["qdata.long", "scale", "zero"], TypeError, "qdata must be int8"),
    (layouts.plain_to_tinygemm, ["qdata", "scale", "zero.half"], TypeError, "zero_point must be of scale's dtype"),
    (layouts.plain_to_tinygemm, ["qdata", "scale.flat", "zero"], ValueError, "scale must be"),
    (layouts.plain_to_tinygemm, ["qdata", "scale.twice", "zero"], ValueError, "scale must be .* divides K"),
    (layouts.plain_to_tinygemm, ["qdata", "scale", "zero.twice"], ValueError, "zero_point must be of scale's shape"),
    (layouts.plain_to_tinygemm, ["qdata", "scale", "zero", 3], ValueError, "inner_k_tiles must be 2, 4 or 8, got 3"),
    (layouts.plain_to_tinygemm, ["qdata", "scale", "zero", 2.0], TypeError, "inner_k_tiles must be an int"),
    (layouts.plain_to_tinygemm, ["qdata", "scale", "zero", 8], ValueError, "K one of 16·inner_k_tiles = 128"),
    (layouts.plain_int32_to_plain, ["qdata", "scale", "integers"], TypeError, "qdata must be int32"),
    (layouts.plain_int32_to_plain, ["words", "scale", "zero"], TypeError, "zero_point must be int8"),
    (layouts.plain_to_plain_int32, ["words", "scale", "zero"], TypeError, "qdata must be int8"),
]  # fmt: skip


@pytest.mark.parametrize(("convert", "arguments", "error", "message"), BAD_LAYOUTS)
def test_bad_arguments_of_conversions_are_named(convert, arguments, error, message, device, generator):
    qdata, scale, zero = plain(8, 64, 64, BF16, generator, device)
    good = {
        "packed": torch.zeros(1, 2, 32, 1, dtype=torch.int32, device=device),
        "pairs": torch.stack([scale, zero], -1),
        "qdata": qdata,
        "scale": scale,
        "zero": zero,
        "words": qdata.view(torch.int32),
        "integers": torch.zeros(1, 8, dtype=torch.int8, device=device),
    }
    spoil = {
        "long": lambda t: t.long(),
        "half": lambda t: t.half(),
        "flat": lambda t: t.flatten(),
        "twice": lambda t: torch.cat([t] * 3),
    }

    def value(argument):
        if not isinstance(argument, str):
            return argument
        name, _, how = argument.partition(".")
        return spoil[how](good[name]) if how else good[name]

    with pytest.raises(error, match=rf"^{convert.__name__}: .*{message}"):
        convert(*map(value, arguments))


def test_conversions_work_on_the_meta_device():
    packed = torch.empty(5, 2, 32, 4, dtype=torch.int32, device="meta")
    fields = layouts.tinygemm_to_plain(packed, torch.empty(4, 40, 2, dtype=BF16, device="meta"))
    assert [tuple(t.shape) for t in fields] == [(40, 128), (4, 40), (4, 40)]
    again, pairs = layouts.plain_to_tinygemm(*fields)
    assert (again.shape, pairs.shape) == (packed.shape, (4, 40, 2))
    words, scale, integers = layouts.plain_to_plain_int32(*fields)
    assert (words.shape, integers.dtype) == ((40, 32), torch.int8)
    assert layouts.plain_int32_to_plain(words, scale, integers)[0].shape == (40, 128)
