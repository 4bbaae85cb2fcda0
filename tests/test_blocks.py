"""Weights with a scale a block: codes and scales are those of the field's own quantisers, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

import aoext
from aoext.formats.lookup_tables import LUT4_FORMATS
from aoext.packing.blockwise import blockwise_quantize, lut4_quantize
from aoext.reference import assert_close, randn
from aoext.tensors import BlockwiseTensor, Int4Tensor, Lut4Tensor
from formats import bits, meaning, product, same

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
N, K = 64, 256


def normal(g) -> Tensor:
    return randn(g, N, K)


def of_many_sizes(g) -> Tensor:
    """Groups from 2^-20 to 2^20."""
    exponents = torch.randint(-20, 20, (N, K // 16), generator=g).float()
    return randn(g, N, K) * torch.exp2(exponents).repeat_interleave(16, 1)


def on_ties(g) -> Tensor:
    """Quarters, many of which lie midway between two codes; rows of zeros and of minus zeros."""
    w = randn(g, N, K).mul(4).round().div(4)
    w[3], w[5, :32] = 0, -0.0
    return w


WEIGHTS = [normal, of_many_sizes, on_ties]


def differing(a: Tensor, b: Tensor) -> int:
    assert a.shape == b.shape
    return int((bits(a) != bits(b)).sum())


@pytest.fixture(params=WEIGHTS, ids=lambda make: make.__name__)
def weight(request, generator) -> Tensor:
    return request.param(generator)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("scaling", ["rceil", "floor"])
def test_mx_is_torchaos(scaling, dtype, weight):
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    mode = mx.ScaleCalculationMode(scaling)
    w = weight.to(dtype)
    for element in (E4M3, E5M2):
        scale, q = mx.to_mx(w, element, 32, mode)
        ours = BlockwiseTensor.from_hp(w, [1, 32], element, scale_dtype=E8M0, scaling=scaling)
        assert differing(scale, ours.scale) == differing(q, ours.qdata) == 0
    scale, q = mx.to_mx(w, torch.float4_e2m1fn_x2, 32, mode)
    packed = Lut4Tensor.from_hp(w, "mxfp4", scaling=scaling)
    assert differing(scale, packed.scale) == differing(q.view(torch.uint8), packed.qdata) == 0


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("two_scales", [True, False])
def test_nvfp4_is_torchaos(two_scales, dtype, weight):
    nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    w = weight.to(dtype)
    whole = nvfp4.per_tensor_amax_to_scale(w.abs().max()) if two_scales else None
    theirs = nvfp4.NVFP4Tensor.to_nvfp4(w, per_tensor_scale=whole)
    ours = Lut4Tensor.from_hp(w, "nvfp4", two_scales=two_scales)
    assert differing(theirs.scale, ours.scale) == 0
    assert differing(theirs.qdata.view(torch.uint8), ours.qdata) == 0
    assert (ours.global_scale is None) if whole is None else (ours.global_scale == whole).all()
    # The values too: torchao multiplies the scales first, so its float32 may round otherwise.
    torch.testing.assert_close(theirs.dequantize(FP32), ours.to(FP32).dequantize(), rtol=2e-7, atol=0)


def test_float8_blocks_are_torchaos_and_deepseeks(weight):
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    w = weight[:, :128] + 2**-30  # both divide a block of zeros by its scale, 0, which ours is not
    for block in ([1, 128], [32, 64]):
        scale = primitives._choose_scale_float8(w, block)
        q = primitives._quantize_affine_float8(w, scale)
        ours = BlockwiseTensor.from_hp(w, block)
        assert differing(scale, ours.scale) == differing(q, ours.qdata) == 0

    # DeepSeek's kernels are Triton's, for GPUs: s = amax / 448, y = x / s, in float32 of any dtype. torchao
    # divides in the weight's dtype, so of bfloat16 its scales have 8 bits.
    rounded = w.to(BF16)
    tiles = rounded.float().unflatten(0, (-1, 32)).unflatten(2, (-1, 64))
    scale = tiles.abs().amax((1, 3), keepdim=True) / torch.tensor(448.0)
    ours = BlockwiseTensor.from_hp(rounded, [32, 64])
    assert differing(scale[:, 0, :, 0], ours.scale) == 0
    assert differing((tiles / scale).flatten(2).flatten(0, 1).to(E4M3), ours.qdata) == 0


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("format", ["nf4", "fp4"])
def test_4_bits_of_bitsandbytes_are_its_own(format, dtype, weight):
    functional = pytest.importorskip("bitsandbytes.functional")
    w = weight.clamp(-60000, 60000).to(dtype)
    packed, state = functional.quantize_4bit(w, quant_type=format)
    ours = Lut4Tensor.from_hp(w, format)
    assert differing(state.code, ours.table) == 0
    assert differing(state.absmax.view(N, -1), ours.scale) == 0
    swapped = packed.view(N, K // 2)  # which has the even k in the high nibble
    assert differing((swapped >> 4) | (swapped << 4), ours.qdata) == 0


def test_q8_0_is_ggufs(weight):
    quants, constants = pytest.importorskip("gguf.quants"), pytest.importorskip("gguf.constants")
    w = weight.clamp(-2000, 2000)
    blocks = torch.from_numpy(quants.quantize(w.numpy(), constants.GGMLQuantizationType.Q8_0))
    blocks = blocks.view(N, K // 32, 34)
    scale = blocks[..., :2].contiguous().view(FP16).squeeze(-1)
    q = blocks[..., 2:].contiguous().view(torch.int8).flatten(1)
    ours = BlockwiseTensor.from_hp(w, [1, 32], torch.int8, scale_dtype=FP16)
    # gguf rounds ties away from zero, and its float16 scales to 0; ours are 1 of zeros, and else no less than
    # float16's smallest number.
    alike = (scale >= 2**-14).repeat_interleave(32, 1)
    assert torch.equal(scale[scale >= 2**-14], ours.scale[scale >= 2**-14])
    steps = w / (w.unflatten(1, (-1, 32)).abs().amax(-1) / 127).repeat_interleave(32, 1)
    near_tie = ((steps.abs() % 1) - 0.5).abs() < 1e-4
    assert torch.equal(q[alike & ~near_tie], ours.qdata[alike & ~near_tie])
    assert (q.int() - ours.qdata.int())[alike].abs().max() <= 1
    assert alike.float().mean() > 0.4


def test_mxfp4_is_ggufs(weight):
    quants, constants = pytest.importorskip("gguf.quants"), pytest.importorskip("gguf.constants")
    blocks = torch.from_numpy(quants.quantize(weight.numpy(), constants.GGMLQuantizationType.MXFP4))
    blocks = blocks.view(N, K // 32, 17)
    codes = torch.cat([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], -1).flatten(1)
    ours = Lut4Tensor.from_hp(weight, "mxfp4", scaling="floor")
    assert torch.equal(blocks[..., 0], ours.scale.view(torch.uint8))
    table = torch.tensor(LUT4_FORMATS["mxfp4"].table)
    theirs = table[codes.long()]
    own = table[torch.stack([ours.qdata & 15, ours.qdata >> 4], -1).flatten(1).long()]
    # Only ties may differ: gguf takes the first code for a value midway, and always 0 for a zero.
    scaled = weight / torch.exp2(blocks[..., 0].float() - 127).repeat_interleave(32, 1)
    assert torch.equal((scaled - theirs).abs(), (scaled - own).abs())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_inf_are_refused(value, generator):
    w = randn(generator, 8, 64)
    w[3, 5] = value
    for call in (
        lambda: BlockwiseTensor.from_hp(w, [4, 32]),
        lambda: BlockwiseTensor.from_hp(w, [1, 32], scale_dtype=E8M0),
        *(lambda f=f: Lut4Tensor.from_hp(w, f) for f in LUT4_FORMATS),
    ):
        with pytest.raises(ValueError, match="w must be finite"):
            call()


@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-38, 2.0**-126, 1e-30, 3e38])
def test_weights_of_the_smallest_and_largest_sizes_keep_their_values(size, generator):
    w = torch.rand(4, 64, generator=generator).clamp_(0.25) * size
    for weight in (
        BlockwiseTensor.from_hp(w, [2, 32]),
        BlockwiseTensor.from_hp(w, [2, 32], torch.int8),
        BlockwiseTensor.from_hp(w, [2, 32], scale_dtype=E8M0),
        *(Lut4Tensor.from_hp(w, format) for format in LUT4_FORMATS),
    ):
        values = meaning(weight)
        assert values.isfinite().all()
        # Scales have steps of their own where float32 and float8 end.
        step = 2**-127 * 6 if weight.scale.dtype is torch.uint8 else 2**-140
        assert ((values - w.double()).abs() <= 0.25 * w.double() + step).all()


# Blocks of several rows, and partial ones at both ends


MAKERS = {
    "float8": lambda w: BlockwiseTensor.from_hp(w, [16, 48], input_block=[1, 48]),
    "int8": lambda w: BlockwiseTensor.from_hp(w, [16, 48], torch.int8, scale_dtype=FP16),
    "mxfp8": lambda w: BlockwiseTensor.from_hp(w, [16, 48], scale_dtype=torch.uint8),
    "lut4": lambda w: Lut4Tensor.from_hp(w, "nvfp4", block_size=[16, 48]),
}


@pytest.fixture(params=MAKERS)
def blocks(request, device, generator) -> Any:
    return MAKERS[request.param](randn(generator, 40, 112, dtype=BF16).to(device))


def test_partial_blocks_multiply_and_dequantise(blocks, generator):
    assert blocks.scale.shape == (3, 3)
    x = randn(generator, 5, 112, dtype=BF16).to(blocks.device)
    assert_close(linear(x, blocks), product(x, blocks))
    torch.testing.assert_close(blocks.dequantize().cpu(), meaning(blocks).to(BF16))
    rows = torch.tensor([39, 0, 16, 15, 39], device=blocks.device)
    assert torch.equal(embedding(rows, blocks), blocks.dequantize()[rows])


def test_parts_begin_and_end_on_blocks_or_at_the_end(blocks):
    plain = blocks.dequantize()
    for rows in (slice(0, 16), slice(16, 40), slice(32, 40), slice(40, 40), slice(0, 40)):
        assert torch.equal(blocks[rows].dequantize(), plain[rows])
        assert torch.equal(blocks.t()[:, rows].dequantize(), plain.t()[:, rows])
    for columns in (slice(0, 48), slice(48, 112), slice(96, 112)):
        assert torch.equal(blocks[:, columns].dequantize(), plain[:, columns])
    for part in (lambda: blocks[8:], lambda: blocks[:20], lambda: blocks[:, 24:], lambda: blocks[:, :100]):
        with pytest.raises(ValueError, match="must begin and end on group boundaries"):
            part()
    parts = blocks.split([16, 16, 8])
    assert same(torch.cat(parts), blocks)
    assert same(torch.cat(blocks.split([96, 16], 1), 1), blocks)
    with pytest.raises(ValueError, match="needs weights of whole blocks but for the last"):
        torch.cat([parts[2], parts[0]])


def test_a_slice_shares_memory_with_the_weight(blocks):
    fresh = blocks.clone()
    fresh[16:].copy_(blocks[16:])
    fresh[:16].copy_(blocks[16:32])
    assert torch.equal(fresh.dequantize()[:16], blocks.dequantize()[16:32])
    assert torch.equal(fresh.dequantize()[16:], blocks.dequantize()[16:])


def test_new_weights_of_its_form_have_blocks_of_its_size(blocks):
    for weight in (torch.zeros_like(blocks), blocks.new_zeros(17, 50), blocks.new_empty(3, 8)):
        assert weight.block_size == [16, 48]
        assert type(weight) is type(blocks)
    assert not torch.zeros_like(blocks).dequantize().any()
    padded = torch.nn.functional.pad(blocks[:32], (0, 0, 0, 7))
    assert padded.shape == (39, 112)
    assert torch.equal(padded.dequantize()[:32], blocks.dequantize()[:32])
    assert not padded.dequantize()[32:].any()
    with pytest.raises(ValueError, match="must be behind whole blocks of 16, got 8 behind 40"):
        torch.nn.functional.pad(blocks, (0, 0, 0, 8))


def test_another_weight_in_its_scheme(blocks, generator):
    plain = randn(generator, 40, 112, dtype=BF16).to(blocks.device)
    again = blocks.requantized(plain)
    assert again.named_attributes() == blocks.named_attributes()
    made = {name: MAKERS[name](plain) for name in MAKERS}
    assert any(same(again, other) for other in made.values())


CODES, SCALES = torch.zeros(6, 8, dtype=torch.int8), torch.ones(2, 2)
PACKED, TABLE = torch.zeros(6, 4, dtype=torch.uint8), torch.zeros(16)
BAD = [
    (BlockwiseTensor, (CODES.float(), SCALES, [3, 4], BF16), TypeError, "qdata must be int8, float8_e4m3fn"),
    (BlockwiseTensor, (CODES, SCALES.double(), [3, 4], BF16), TypeError, "scale must be bfloat16"),
    (BlockwiseTensor, (CODES, SCALES, [2, 4], BF16), ValueError, r"scale must be \[3, 2\]"),
    (BlockwiseTensor, (CODES, SCALES, [0, 4], BF16), ValueError, r"\[block_n, block_k\].*got \[0, 4\]"),
    (BlockwiseTensor, (CODES, SCALES, 4, BF16), TypeError, r"block_size must be \[block_n, block_k\]"),
    (BlockwiseTensor, (CODES[:, :0], SCALES, [3, 4], BF16), ValueError, "qdata must have columns"),
    (BlockwiseTensor, (CODES, SCALES, [3, 4], torch.int8), TypeError, "dtype must be"),
    (BlockwiseTensor, (CODES, SCALES, [3, 4], BF16, [2, 4]), ValueError, r"input_block must be \[1,"),
    (BlockwiseTensor, (CODES, SCALES, [3, 4], BF16, 4), TypeError, "input_block must be"),
    (Lut4Tensor, (CODES, TABLE, SCALES, [3, 4], BF16), TypeError, "qdata must be uint8"),
    (Lut4Tensor, (PACKED, TABLE[:15], SCALES, [3, 4], BF16), ValueError, r"table must be \[16\]"),
    (Lut4Tensor, (PACKED, TABLE.half(), SCALES, [3, 4], BF16), TypeError, "table must be float32"),
    (Lut4Tensor, (PACKED, TABLE, SCALES, [3, 5], BF16, SCALES), ValueError, "global_scale must be"),
    (Lut4Tensor, (PACKED, TABLE, SCALES, [4, 3], BF16), ValueError, r"scale must be \[2, 3\]"),
    (Int4Tensor, (CODES, SCALES, SCALES, [1, 8], (6, 16)), ValueError, "scale must be"),
]


@pytest.mark.parametrize(("kind", "arguments", "error", "message"), BAD)
def test_what_does_not_fit_is_named(kind, arguments, error, message):
    with pytest.raises(error, match=f"{kind.__name__}: .*{message}"):
        kind(*arguments)


def test_arguments_of_quantisers_are_checked(generator):
    w = randn(generator, 4, 8)
    for call, error, message in (
        (lambda: BlockwiseTensor.from_hp(w, [4]), TypeError, r"BlockwiseTensor: block_size must be"),
        (lambda: BlockwiseTensor.from_hp(w.double()), TypeError, "w must be bfloat16"),
        (lambda: BlockwiseTensor.from_hp(w, dtype=torch.uint8), ValueError, "dtype must be int8"),
        (lambda: blockwise_quantize(w, [1, 4], scale_dtype=torch.int8), ValueError, "scale_dtype must be"),
        (lambda: blockwise_quantize(w, [1, 4], scaling="even"), ValueError, "scaling must be one of rceil"),
        (lambda: blockwise_quantize(w[:0], [1, 4]), ValueError, "neither of them 0"),
        (lambda: lut4_quantize(w[:, :7], TABLE, [1, 4]), ValueError, "K even"),
        (
            lambda: Lut4Tensor.from_hp(w).new_zeros(2, 5),
            ValueError,
            "needs a K that is a multiple of 2, got 5",
        ),
        (lambda: Lut4Tensor.from_hp(w, "int4"), ValueError, "format must be one of mxfp4"),
        (lambda: Lut4Tensor.from_hp(w, "nf4", two_scales=True), ValueError, "two_scales are nvfp4's"),
        (lambda: Int4Tensor.from_hp(w, [1, 4], activation=BF16), ValueError, "activation must be None, int8"),
    ):
        with pytest.raises(error, match=message):
            call()


# Configs with torchao's names


def test_configs_take_torchaos_granularities_and_modes():
    quantization = pytest.importorskip("torchao.quantization")
    workflow = pytest.importorskip("torchao.prototype.mx_formats")
    config = aoext.Float8DynamicActivationFloat8WeightConfig
    ours = config(granularity=(aoext.PerBlock([1, 128]), aoext.PerBlock([128, 128])))
    theirs = quantization.PerBlock([1, 128]), quantization.PerBlock([128, 128])
    assert config(granularity=theirs) == config(granularity=list(theirs)) == ours
    assert config(granularity=quantization.PerRow()) == config(granularity=None or aoext.PerRow()) == config()
    mode = workflow.MXDynamicActivationMXWeightConfig().scaling_mode
    assert aoext.MXDynamicActivationMXWeightConfig(scaling_mode=mode).scaling_mode == "rceil"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: aoext.PerBlock([1]), TypeError, "PerBlock: block_size must be"),
        (lambda: aoext.PerBlock([0, 4]), ValueError, "PerBlock: block_size must be"),
        (lambda: aoext.Float8WeightOnlyConfig(granularity=128), TypeError, "granularity must be PerRow"),
        (
            lambda: aoext.Float8DynamicActivationFloat8WeightConfig(granularity=aoext.PerBlock([8, 8])),
            ValueError,
            r"granularity must be PerRow\(\), or \(PerBlock",
        ),
        (
            lambda: aoext.MXDynamicActivationMXWeightConfig(weight_dtype=E5M2),
            ValueError,
            "activation_dtype must be weight_dtype",
        ),
        (
            lambda: aoext.MXDynamicActivationMXWeightConfig(weight_dtype=torch.float4_e2m1fn_x2),
            ValueError,
            "weight_dtype must be float8_e4m3fn",
        ),
        (lambda: aoext.MXFP4WeightOnlyConfig("even"), ValueError, "scaling_mode must be one of rceil, floor"),
        (lambda: aoext.NF4WeightOnlyConfig(0), ValueError, "block_size must be positive"),
        (lambda: aoext.NVFP4WeightOnlyConfig(1), TypeError, "use_dynamic_per_tensor_scale must be a bool"),
        (lambda: aoext.Int8DynamicActivationInt4WeightConfig(0), ValueError, "group_size must be positive"),
    ],
)
def test_configs_name_what_does_not_fit(make, error, message):
    with pytest.raises(error, match=message):
        make()
