"""Weights as the formats' own packages store them, and weights of ours as these packages read them.

Each test runs where its package is; tests/checkpoint_packers.py has packers for all the others.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import checkpoint_packers as pack
from aoext.checkpoints import WRITERS, reader_for
from aoext.tensors import (
    BlockwiseTensor,
    Float8Tensor,
    Int2Tensor,
    Int4Tensor,
    Int5Tensor,
    Int8Tensor,
    Lut4Tensor,
    QuantizedTensor,
)
from aoext.tensors.nested import with_float_scales
from test_checkpoints import exactly

N, K, GROUP = 32, 128, 32


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def close(weight: QuantizedTensor, theirs: Tensor, bound: float) -> None:
    """Whether a weight is what the package says that it is, relative to the largest value."""
    difference = (exactly(weight) - theirs.double()).abs().max()
    assert difference <= bound * theirs.double().abs().max()


def integers(group: int, zeros: bool, bits: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of so many bits [N, K], scales float16 and zeros, not 0, [N, K/group]: in the middle without."""
    codes, count = torch.randint(2**bits, (N, K)), 2**bits
    scales = (torch.rand(N, K // group) * 0.1 + 0.001).half()
    return (
        codes,
        scales,
        torch.randint(1, count, scales.shape) if zeros else torch.full(scales.shape, count // 2),
    )


def values(codes: Tensor, scales: Tensor, zeros: Tensor, group_of: Tensor) -> Tensor:
    return (codes - zeros[:, group_of]).double() * scales.double()[:, group_of]


# compressed-tensors


def compressor(scheme: dict[str, Any], form: str) -> tuple[Any, Any]:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    made = QuantizationScheme(targets=["Linear"], weights=scheme)
    return BaseCompressor.get_value_from_registry(form), made


def settings_of(scheme: dict[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme}},
    }


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("bits", "group"), [(2, GROUP), (3, GROUP), (4, GROUP), (4, K), (5, K), (6, GROUP), (7, K)]
)
def test_compressed_tensors_packs_integers(device, bits, group, symmetric):
    scheme: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": symmetric}
    scheme.update({"strategy": "channel"} if group == K else {"strategy": "group", "group_size": group})
    compress, made = compressor(scheme, "pack-quantized")
    codes, scales, zeros = integers(group, not symmetric, bits)
    exact = values(codes, scales, zeros, torch.arange(K) // group)
    state = {"weight": exact.float(), "weight_scale": scales.float()}
    if not symmetric:
        state["weight_zero_point"] = (zeros - 2 ** (bits - 1)).to(torch.int8)
    stored = compress.compress(dict(state), made)
    assert stored["weight_packed"].dtype is torch.int32
    weight = reader_for(settings_of(scheme)).weight(
        "q", {key: tensor.to(device) for key, tensor in stored.items()}, torch.float16
    )
    assert torch.equal(exactly(weight), exact)

    ours, facts = WRITERS["compressed-tensors"](symmetric=symmetric).write("q", weight)
    assert {k: v for k, v in facts["weights"].items() if k != "symmetric"} == {
        k: v for k, v in scheme.items() if k != "symmetric"
    }
    for key in ("weight_packed", "weight_shape", *(() if symmetric else ("weight_zero_point",))):
        assert torch.equal(ours[key].cpu(), stored[key]), key
    theirs = compress.decompress({key: tensor.cpu() for key, tensor in ours.items()}, made)["weight"]
    close(weight, theirs, 2**-10)  # the product in scales' dtype


@pytest.mark.parametrize("kind", ["int", "float"])
def test_compressed_tensors_stores_eight_bits(device, kind):
    scheme = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "channel"}
    compress, made = compressor(scheme, f"{kind}-quantized")
    plain = torch.randn(N, K)
    largest = 127 if kind == "int" else 448
    state = {"weight": plain, "weight_scale": plain.abs().amax(1, keepdim=True) / largest}
    stored = compress.compress(dict(state), made)
    weight = reader_for(settings_of(scheme)).weight(
        "q", {key: tensor.to(device) for key, tensor in stored.items()}, torch.bfloat16
    )
    assert type(weight) is (Int8Tensor if kind == "int" else Float8Tensor)
    close(weight, compress.decompress(dict(stored), made)["weight"], 2**-23)
    ours, _ = WRITERS["compressed-tensors"](symmetric=True).write("q", weight)
    assert torch.equal(ours["weight"].cpu().view(torch.int8), stored["weight"].view(torch.int8))
    assert torch.equal(ours["weight_scale"].cpu(), stored["weight_scale"])


@pytest.mark.parametrize("form", ["pack-quantized", "int-quantized"])
@pytest.mark.parametrize("group", [GROUP, K])
def test_compressed_tensors_stores_eight_bits_with_zeros(device, group, form):
    scheme: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": False}
    scheme.update({"strategy": "channel"} if group == K else {"strategy": "group", "group_size": group})
    compress, made = compressor(scheme, form)
    codes, scales, zeros = integers(group, True, 8)
    exact = values(codes, scales, zeros, torch.arange(K) // group)
    state = {
        "weight": exact.float(),
        "weight_scale": scales.float(),
        "weight_zero_point": (zeros - 128).to(torch.int8),
    }
    stored = compress.compress(dict(state), made)
    weight = reader_for(settings_of(scheme)).weight(
        "q", {key: tensor.to(device) for key, tensor in stored.items()}, torch.float16
    )
    assert torch.equal(exactly(weight), exact)
    ours, facts = WRITERS["compressed-tensors"](symmetric=False).write("q", weight)
    assert facts["weights"] == scheme
    compress, _ = compressor(scheme, facts["format"])
    theirs = compress.decompress({key: tensor.cpu() for key, tensor in ours.items()}, made)["weight"]
    close(weight, theirs, 2**-10)  # the product in scales' dtype


def by_the_package(
    scheme: dict[str, Any], form: str, state: dict[str, Tensor], device: torch.device
) -> tuple[QuantizedTensor, dict[str, Tensor], Tensor]:
    """What the package makes of `state`: the weight that is read, its tensors, and its own dequantised."""
    compress, made = compressor(scheme, form)
    stored = compress.compress(dict(state), made)
    parts = {key: tensor.to(device) for key, tensor in stored.items()}
    weight = reader_for(settings_of(scheme)).weight("q", parts, torch.float32)
    return weight, stored, compress.decompress(dict(stored), made)["weight"]


EIGHT = {"num_bits": 8, "symmetric": True}
FOUR = {"num_bits": 4, "type": "float", "symmetric": True}
SCHEMES: dict[str, dict[str, Any]] = {
    "float-quantized": {**EIGHT, "type": "float", "strategy": "block", "block_structure": [16, 48]},
    "int-quantized": {**EIGHT, "type": "int", "strategy": "group", "group_size": GROUP},
    "pack-quantized": {**EIGHT, "type": "int", "strategy": "group", "group_size": GROUP},
    "mxfp8-quantized": {
        **EIGHT,
        "type": "float",
        "strategy": "group",
        "group_size": 32,
        "scale_dtype": torch.uint8,
    },
    "nvfp4-pack-quantized": {
        **FOUR,
        "strategy": "tensor_group",
        "group_size": 16,
        "scale_dtype": torch.float8_e4m3fn,
    },
    "mxfp4-pack-quantized": {**FOUR, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
}


@pytest.mark.parametrize("form", SCHEMES)
def test_compressed_tensors_by_blocks(device, form):
    scheme = SCHEMES[form]
    plain = torch.randn(N + 8, K)
    block = scheme.get("block_structure") or [1, scheme["group_size"]]
    blocks = torch.nn.functional.pad(plain, (0, -K % block[1], 0, -plain.shape[0] % block[0]))
    largest = blocks.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0])).abs().amax((1, 3))
    scale = largest / {"int": 127, "float": 448 if scheme["num_bits"] == 8 else 6}[scheme["type"]]
    state = {"weight": plain}
    if form.startswith("mx"):
        scale = torch.exp2(scale.log2().ceil())
    if form.startswith("nvfp4"):
        state["weight_global_scale"] = (448 * 6 / plain.abs().max()).view(1)
        scale = (scale * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
    state["weight_scale"] = scale
    weight, stored, theirs = by_the_package(scheme, form, state, device)
    assert weight.block_size == block
    # The package has nvfp4's products in bfloat16; the others are exact there, but in the dtype of scales.
    close(weight, theirs, 2**-7 if form.startswith("nvfp4") else 2**-23)
    close(weight, plain, 0.07 if scheme["num_bits"] == 8 else 0.2)  # which it stands for

    ours, facts = WRITERS["compressed-tensors"](symmetric=True).write("q", weight)
    assert facts["format"] == form.replace("pack-", "int-" if form.startswith("pack-") else "pack-")
    if form == "pack-quantized":  # which the writer has as int-quantized
        return
    for key, tensor in stored.items():
        if key == "weight_global_scale":  # which the tensor has as a factor: it rounds both ways
            torch.testing.assert_close(ours[key].cpu(), tensor, rtol=2**-22, atol=0)
            continue
        same = ours[key].cpu().view(torch.uint8), tensor.view(torch.uint8)
        assert torch.equal(*same), key


# bitsandbytes


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("shape", [(N, K), (N, 96), (300, 8)])
def test_bitsandbytes_four_bits(device, kind, nested, shape):
    functional = pytest.importorskip("bitsandbytes.functional")
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

    plain = torch.randn(shape)
    packed, state = functional.quantize_4bit(plain, blocksize=64, quant_type=kind, compress_statistics=nested)
    stored = {"weight": packed, **{f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}}
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    reader = reader_for(settings)
    assert set(stored) <= set(reader.names)
    weight = reader.weight("q", {key: tensor.to(device) for key, tensor in stored.items()}, torch.float32)
    scale = state.absmax
    if nested:
        scale = functional.dequantize_blockwise(scale, state.state2) + state.offset
        if shape[1] % 64 == 0:
            assert torch.equal(with_float_scales(weight).scale.cpu().flatten(), scale)
    # Not its kernel for CPUs, which has rows begin with a block of their own. It rounds the product.
    theirs = _dequantize_4bit_compute(packed.flatten(), scale, state.code, 64, shape, torch.float32)
    close(weight, theirs, 2**-22)
    if shape[1] % 64 == 0:
        close(weight, functional.dequantize_4bit(packed, state), 2**-22)
    close(weight, plain, 0.2)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_bitsandbytes_reads_what_is_written_for_it(kind, nested):
    functional = pytest.importorskip("bitsandbytes.functional")
    plain = torch.randn(128, 320)  # blocks enough for more than one block of scales
    weight = Lut4Tensor.from_hp(plain, kind)
    writer = WRITERS["bitsandbytes"](symmetric=False, **{"double_quantization": nested})
    ours, _ = writer.write("q", weight)
    packed, state = functional.quantize_4bit(plain, blocksize=64, quant_type=kind, compress_statistics=nested)
    theirs = {"weight": packed, **{f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}}
    assert ours.keys() == theirs.keys()
    for key in ("weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map"):
        if key in theirs:
            assert ours[key].dtype is theirs[key].dtype
            difference = ours[key].double() - theirs[key].double()
            assert difference.abs().max() <= (1 if key == "weight.absmax" and nested else 1e-6)
    stored = {key: tensor for key, tensor in ours.items() if key != "weight"}
    read = functional.QuantState.from_dict(
        {key.removeprefix("weight."): value for key, value in stored.items()}, device=torch.device("cpu")
    )
    close(weight, functional.dequantize_4bit(ours["weight"], read), 0.01 if nested else 2**-22)


def test_bitsandbytes_rows(device):
    functional = pytest.importorskip("bitsandbytes.functional")
    q, largest, _ = functional.int8_vectorwise_quant(torch.randn(N, K).half())
    weight = reader_for({"quant_method": "bitsandbytes", "load_in_8bit": True}).weight(
        "q", {"weight": q.to(device), "SCB": largest.to(device)}, torch.float16
    )
    close(weight, functional.int8_vectorwise_dequant(q, largest), 1e-6)


# HQQ


@pytest.mark.parametrize(
    ("bits", "group"), [(1.58, 64), (2, 64), (3, GROUP), (4, GROUP), (4, 64), (5, 64), (6, 64)]
)
def test_hqq_groups(device, bits, group):
    quantize = pytest.importorskip("hqq.core.quantize")
    W_q, meta = quantize.Quantizer.quantize(
        torch.randn(N, K), nbits=bits, group_size=group, axis=1, optimize=False, device="cpu"
    )
    shape = torch.tensor(list(meta["shape"]))
    stored = {"W_q": W_q, "scale": meta["scale"], "zero": meta["zero"], "shape": shape}
    weight = reader_for({"quant_method": "hqq", "nbits": bits}).weight(
        "q", {key: tensor.to(device) for key, tensor in stored.items()}, torch.float16
    )
    assert weight.block_size == [1, group]
    codes = quantize.Quantizer.unpack[meta["packing"]](W_q)[: N * K // group].double()
    close(weight, ((codes - meta["zero"].double()) * meta["scale"].double()).view(N, K), 1e-6)


# GPTQModel: GPTQ and AWQ


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(
    ("bits", "group"), [(2, GROUP), (3, GROUP), (3, K), (4, GROUP), (4, K), (5, GROUP), (6, K)]
)
def test_gptqmodel_packs_gptq(device, bits, group, act_order):
    linear = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch").TorchLinear
    codes, scales, zeros = integers(group, True, bits)
    zeros[::3] = 0  # from which version 1 takes one all the same
    group_of = torch.arange(K) // group
    if act_order:
        group_of = group_of[torch.randperm(K)]
    exact = values(codes, scales, zeros, group_of)
    plain = torch.nn.Linear(K, N, bias=False)
    plain.weight.data = exact.float()
    packed = linear(bits, -1 if group == K else group, False, act_order, K, N)
    packed.pack_original(plain, scales.float(), zeros.float(), group_of.int())
    stored = {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales", "g_idx")}

    def read(form: str, tensors: dict[str, Tensor]) -> QuantizedTensor:
        settings = {"bits": bits, "group_size": -1 if group == K else group, "checkpoint_format": form}
        on_device = {key: tensor.to(device) for key, tensor in tensors.items()}
        return reader_for({"quant_method": "gptq", **settings}).weight("q", on_device, torch.float16)

    # What it packs are zeros as they are; it has 5 and 6 bits in planes alone.
    weight = read("gptq_v2" if bits < 5 else "gptq_p", stored)
    assert torch.equal(exactly(weight), exact)
    if bits > 4:
        return
    first = copy.deepcopy(packed)
    model = pytest.importorskip("gptqmodel.utils.model")
    model.convert_gptq_v2_to_v1_format_module(first, model.QuantizeConfig(bits=bits))
    assert torch.equal(exactly(read("gptq", {**stored, "qzeros": first.qzeros})), exact)
    ours, _ = WRITERS["gptq"](symmetric=False).write("q", weight)
    for name, tensor in stored.items():
        assert torch.equal(ours[name].cpu(), tensor), name


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("group", [GROUP, K])
def test_gptqmodel_packs_eight_bits(device, group, zeros):
    linear = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch").TorchLinear
    (codes, scales, zero), group_of = integers(group, zeros, 8), torch.arange(K) // group
    plain = torch.nn.Linear(K, N, bias=False)
    exact = values(codes, scales, zero, group_of)
    plain.weight.data = exact.float()
    packed = linear(8, -1 if group == K else group, True, False, K, N)
    packed.pack_original(plain, scales.float(), zero.float(), group_of.int())
    stored = {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
    settings = {"quant_method": "gptq", "bits": 8, "group_size": -1 if group == K else group}
    weight = reader_for({**settings, "checkpoint_format": "gptq_v2"}).weight(
        "q", {key: tensor.to(device) for key, tensor in stored.items()}, torch.float16
    )
    assert torch.equal(exactly(weight), exact)
    ours, _ = WRITERS["gptq"](symmetric=False).write("q", weight)
    for name, tensor in stored.items() if not zeros else ():  # which codes have been moved by
        assert torch.equal(ours[name].cpu(), tensor), name


def test_gptqmodel_packs_awq(device):
    packing = pytest.importorskip("gptqmodel.quantization.awq.utils.packing_utils")
    codes, scales, zeros = integers(GROUP, zeros=True)
    qweight, qzeros = packing.pack_awq(codes.t().contiguous(), zeros.t().contiguous(), 4)
    stored = {"qweight": qweight, "qzeros": qzeros, "scales": scales.t().contiguous()}
    weight = reader_for({"quant_method": "awq", "bits": 4, "group_size": GROUP}).weight(
        "q", {key: tensor.to(device) for key, tensor in stored.items()}, torch.float16
    )
    assert torch.equal(exactly(weight), values(codes, scales, zeros, torch.arange(K) // GROUP))


# transformers: float8


@pytest.mark.parametrize("scales", ["float", "e8m0", "bytes"])
@pytest.mark.parametrize("block", [(16, 32), (1, 32)])
def test_transformers_reads_block_float8_alike(device, block, scales):
    finegrained = pytest.importorskip("transformers.integrations.finegrained_fp8")
    tensors, _ = pack.fp8(N, K, block, scales)
    settings = {"quant_method": "fp8", "weight_block_size": list(block)}
    weight = reader_for(settings).weight(
        "q", {key: tensor.to(device) for key, tensor in tensors.items()}, torch.float32
    )
    theirs = finegrained.Fp8Dequantize(None)._dequantize_one(
        tensors["weight"], tensors["weight_scale_inv"], torch.float32
    )
    close(weight, theirs, 2**-23)


# torchao


def torchao_state(weight: QuantizedTensor) -> tuple[dict[str, Tensor], dict[str, str], Any]:
    """A weight that torchao's own file functions have taken apart, its metadata, and torchao's tensor."""
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    from aoext.integrations.torchao import weight_to_torchao

    theirs = weight_to_torchao("q", weight)
    tensors, metadata = support.flatten_tensor_state_dict({"q.weight": theirs})
    return tensors, metadata, theirs


MX_SCALES = {"scale_dtype": torch.float8_e8m0fnu, "input_block": [1, 32]}
TORCHAO_MADE = {
    "int8": Int8Tensor.from_hp,
    "float8": Float8Tensor.from_hp,
    "int4": lambda plain: Int4Tensor.from_hp(plain, [1, GROUP]),
    "float8 by blocks": lambda plain: BlockwiseTensor.from_hp(plain, [8, 32]),
    "int2": lambda plain: Int2Tensor.from_hp(plain, [1, GROUP], symmetric=True),
    "int5": lambda plain: Int5Tensor.from_hp(plain, [1, K], symmetric=True),
    "mxfp8": lambda plain: BlockwiseTensor.from_hp(plain, [1, 32], **MX_SCALES),
    "mxfp4": lambda plain: Lut4Tensor.from_hp(plain, "mxfp4"),
    "nvfp4": lambda plain: Lut4Tensor.from_hp(plain, "nvfp4"),
}


@pytest.mark.parametrize("name", TORCHAO_MADE)
def test_torchao_files(device, name):
    weight = TORCHAO_MADE[name](torch.randn(N, K, dtype=torch.bfloat16))
    stored, metadata, theirs = torchao_state(weight)
    reader = reader_for({"quant_method": "torchao"})
    reader.read_metadata(metadata)
    parts = {key.removeprefix("q."): tensor.to(device) for key, tensor in stored.items()}
    again = reader.weight("q", parts, torch.bfloat16)
    assert torch.equal(exactly(again), exactly(weight))

    writer = WRITERS["torchao"](symmetric=False)
    ours, facts = writer.write("q", again)
    described = writer.metadata({"q": facts}, [])
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    state, left = support.unflatten_tensor_state_dict(
        {f"q.{key}": tensor.cpu() for key, tensor in ours.items()}, described
    )
    assert not left
    assert type(state["q.weight"]) is type(theirs)
    if name != "int4":  # whose dequantisation torchao has on GPUs alone
        assert torch.equal(state["q.weight"].dequantize(), theirs.dequantize())
