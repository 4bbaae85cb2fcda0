"""A plain matrix into a weight's memory by the device's own kernel: the bits of aoext.packing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aoext
from aoext.reference import randn
from aoext.tensors import BlockwiseTensor, Float8Tensor, Int4Tensor, Int8Tensor, Lut4Tensor, in_place
from formats import E4M3, E5M2, E8M0, FORMATS, same

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
KERNEL_FORMATS = {
    **{f"int4_{g}": lambda w, g=g: Int4Tensor.from_hp(w, [1, g]) for g in (16, 32, 128, 512)},
    "int4_row": lambda w: Int4Tensor.from_hp(w, [1, w.shape[-1]]),
    "int4_symmetric": lambda w: Int4Tensor.from_hp(w, [1, 64], symmetric=True),
    "int4_half_scales": lambda w: Int4Tensor.from_hp(w.half(), [1, 64]),
    "nf4": lambda w: Lut4Tensor.from_hp(w, "nf4"),
    "nf4_in_tiles": lambda w: Lut4Tensor.from_hp(w, "nf4", block_size=[3, 128]),
    "fp4": lambda w: Lut4Tensor.from_hp(w, "fp4"),
    "mxfp4": lambda w: Lut4Tensor.from_hp(w, "mxfp4"),
    "nvfp4": lambda w: Lut4Tensor.from_hp(w, "nvfp4"),
    "nvfp4_one_scale": lambda w: Lut4Tensor.from_hp(w, "nvfp4", two_scales=False),
    "int8": Int8Tensor.from_hp,
    "float8": Float8Tensor.from_hp,
    "float8_e5m2": lambda w: Float8Tensor.from_hp(w, E5M2),
    "float8_blocks": BlockwiseTensor.from_hp,
    "float8_half_scales": lambda w: BlockwiseTensor.from_hp(w, [1, 64], scale_dtype=torch.float16),
    "int8_blocks": lambda w: BlockwiseTensor.from_hp(w, [1, 32], torch.int8, scale_dtype=torch.bfloat16),
    "int8_e4m3_scales": lambda w: BlockwiseTensor.from_hp(w, [1, 48], torch.int8, scale_dtype=E4M3),
    "mxfp8": lambda w: BlockwiseTensor.from_hp(w, [1, 32], E4M3, scale_dtype=E8M0),
}


def _served(weight) -> bool:
    return in_place.is_served(weight)


def _by_packing(weight, plain):
    """What Python makes of a matrix, on the CPU."""
    return weight.to("cpu").requantized(plain.cpu())


def _difference(weight, expected) -> str:
    differing = []
    for (name, own), (_, other) in zip(weight.named_fields(), expected.named_fields(), strict=True):
        a, b = (t.contiguous().view(torch.uint8).cpu() for t in (own, other))
        if not torch.equal(a, b):
            differing.append(f"{name}: {int((a != b).sum())} of {a.numel()} bytes")
    return ", ".join(differing)


def _layer_of(weight) -> nn.Module:
    layer = nn.Linear(1, 1, bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def _check(weight, plain) -> None:
    places = [field.data_ptr() for _, field in weight.named_fields()]
    expected = _by_packing(weight, plain)
    with torch.no_grad():
        weight.copy_(plain)
    assert not _difference(weight, expected)
    assert [field.data_ptr() for _, field in weight.named_fields()] == places


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(48, 1024), (37, 1536)])
@pytest.mark.parametrize("format", KERNEL_FORMATS)
def test_kernels_give_the_bits_of_packing(format, shape, dtype, device, generator):
    weight = KERNEL_FORMATS[format](randn(generator, *shape, dtype=dtype).to(device))
    if device.type in ("cpu", "cuda"):
        assert _served(weight)
    plain = 3 * randn(generator, *shape)
    plain[:3] = 0
    plain[5, ::7] *= 100
    plain[6] *= 1e-6
    plain[7] = plain[7].round()  # ties
    plain[8] = 0.25 * plain[8].sign()
    _check(weight, plain.to(dtype).to(device))


@pytest.mark.parametrize("scale", [1e-44, 1e-39, 2e-38, 1e-20, 3e-5, 1e15, 3e37])
@pytest.mark.parametrize("format", KERNEL_FORMATS)
def test_numbers_at_the_ends_of_float32(format, scale, device, generator):
    weight = KERNEL_FORMATS[format](randn(generator, 16, 1024).to(device))
    plain = (randn(generator, 16, 1024).clamp(-4, 4) * scale).to(device)
    if weight.scale.dtype is torch.float16 and scale > 1e3:
        before = weight.clone()
        with pytest.raises(ValueError, match="float16"):
            weight.copy_(plain)
        assert same(weight, before)
        # What a kernel has written is asked for when it has run; Python refuses before.
        refusal = "it and its scales must be finite" if _served(weight) else ".* that float16 holds"
        with pytest.raises(ValueError, match=f"requantize_: weight: {refusal}"):
            aoext.requantize_(_layer_of(weight), {"weight": plain})
        return
    _check(weight, plain)


@pytest.mark.parametrize("columns", [96, 100, 1030])
@pytest.mark.parametrize(
    "format", ["int8", "float8", "float8_blocks", "nf4", "fp4", "mxfp4", "nvfp4", "int4_row"]
)
def test_rows_that_end_anywhere(format, columns, device, generator):
    weight = KERNEL_FORMATS[format](randn(generator, 130, columns, dtype=torch.bfloat16).to(device))
    _check(weight, randn(generator, 130, columns, dtype=torch.bfloat16).to(device))


@pytest.mark.parametrize("format", KERNEL_FORMATS)
def test_sources_that_lie_otherwise(format, device, generator):
    weight = KERNEL_FORMATS[format](randn(generator, 32, 512, dtype=torch.bfloat16).to(device))
    for plain in (
        randn(generator, 512, 32).to(device).t(),
        randn(generator, 32, 1024).to(device)[:, ::2],
        randn(generator, 64, 520, dtype=torch.bfloat16).to(device)[::2, 8:],
        randn(generator, 33, 513, dtype=torch.bfloat16).to(device)[1:, 1:],
        randn(generator, 32, 512).double().to(device),
    ):
        expected = _by_packing(weight, plain)
        weight.copy_(plain)
        assert not _difference(weight, expected)
    weight.mT.copy_(plain.mT * 2)
    assert not _difference(weight, _by_packing(weight, plain * 2))


@pytest.mark.parametrize("format", KERNEL_FORMATS)
def test_each_expert_is_quantised_for_itself(format, device, generator):
    weight = KERNEL_FORMATS[format](randn(generator, 3, 20, 512, dtype=torch.bfloat16).to(device))
    plain = randn(generator, 3, 20, 512, dtype=torch.bfloat16) * torch.tensor([1, 8, 0.1])[:, None, None]
    _check(weight, plain.to(torch.bfloat16).to(device))


@pytest.mark.parametrize("format", KERNEL_FORMATS)
def test_a_weight_that_holds_the_matrix_keeps_its_bits(format, device, generator):
    weight = KERNEL_FORMATS[format](randn(generator, 40, 1024, dtype=torch.bfloat16).to(device))
    before = weight.clone()
    plain = weight.dequantize()
    weight.copy_(plain)
    assert same(weight, before)
    weight.copy_((plain.float() * 1.001).to(plain.dtype))  # an average's rounding
    assert same(weight, before)
    plain[-1, -1] += 1
    _check(weight, plain)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("format", KERNEL_FORMATS)
def test_what_is_not_finite(format, broken, device, generator):
    weight = KERNEL_FORMATS[format](randn(generator, 24, 512, dtype=torch.bfloat16).to(device))
    before, plain = weight.clone(), randn(generator, 24, 512, dtype=torch.bfloat16).to(device)
    plain[17, 300] = broken
    with pytest.raises(ValueError, match="finite"):
        weight.copy_(plain)
    assert same(weight, before)
    with pytest.raises(ValueError, match="finite"):
        aoext.requantize_(_layer_of(weight), {"weight": plain})


@pytest.mark.parametrize("format", [name for name in FORMATS if name not in ("nf4_nested",)])
def test_writing_without_waiting_leaves_nan_where_it_was(format, device, generator):
    weight = FORMATS[format](randn(generator, 24, 512, dtype=torch.bfloat16).to(device))
    plain = randn(generator, 24, 512, dtype=torch.bfloat16).to(device)
    # What no kernel writes is made by PyTorch's operators of the device, which divide as they do there.
    expected = _by_packing(weight, plain) if _served(weight) else weight.requantized(plain)
    weight.copy_(plain, non_blocking=True)
    assert not _difference(weight, expected)
    if not _served(weight) or weight.global_scale is not None:  # which one NaN takes with it
        return
    plain[17, 300] = torch.nan
    weight.copy_(plain, non_blocking=True)
    values = weight.dequantize().cpu()
    assert values[17, 300].isnan()
    assert values[:17].isfinite().all()


@pytest.mark.parametrize("format", KERNEL_FORMATS)
def test_a_captured_graph_writes_what_its_source_holds(format, device, generator):
    if device.type != "cuda":
        pytest.skip("graphs are CUDA's")
    weight = KERNEL_FORMATS[format](randn(generator, 48, 1024, dtype=torch.bfloat16).to(device))
    source = randn(generator, 48, 1024, dtype=torch.bfloat16).to(device)
    weight.copy_(source)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weight.copy_(source)
    for factor in (2, 0.125):
        source.copy_(randn(generator, 48, 1024, dtype=torch.bfloat16) * factor)
        graph.replay()
        assert not _difference(weight, _by_packing(weight, source))


def test_bad_calls_of_the_operator_name_the_argument(device, generator):
    if device.type not in ("cpu", "cuda"):
        pytest.skip("the device has no kernel")
    weight = Int4Tensor.from_hp(randn(generator, 16, 64).to(device), [1, 32])
    fields = (weight.qdata, weight.scale, weight.code, weight.block_size, weight.zero_point)

    def call(source, *fields):
        return torch.ops.ao._quantize_weight_(source, *fields, None, None, -1, -1.0, 0.0, True)

    plain = randn(generator, 16, 64).to(device)
    for source in (plain[:, :32], plain.t(), plain.double(), plain.to(torch.int8)):
        with pytest.raises(
            RuntimeError, match=r"_quantize_weight_: source must be bfloat16, float16 or float32 \[16, 64\]"
        ):
            call(source, *fields)
    with pytest.raises(RuntimeError, match="scale must be"):
        call(plain, weight.qdata, weight.scale.double(), *fields[2:])
    with pytest.raises(RuntimeError, match="code must be"):
        call(plain, weight.qdata, weight.scale, 99, *fields[3:])
