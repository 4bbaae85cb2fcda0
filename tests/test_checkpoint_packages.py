"""Weights as the formats' own packages store them, and weights of ours as these packages read them.

Each test runs where its package is; tests/checkpoint_packers.py has packers for all the others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from aoext.checkpoints import WRITERS, reader_for
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor, QuantizedTensor
from test_checkpoints import exactly

N, K, GROUP = 32, 128, 32


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def close(weight: QuantizedTensor, theirs: Tensor, bound: float) -> None:
    """Whether a weight is what the package says that it is, relative to the largest value."""
    difference = (exactly(weight) - theirs.double()).abs().max()
    assert difference <= bound * theirs.double().abs().max()


def integers(group: int, zeros: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes in 0..15 [N, K], scales float16 and zeros in 1..15 [N, K/group]: 8 without zeros."""
    codes = torch.randint(16, (N, K))
    scales = (torch.rand(N, K // group) * 0.1 + 0.001).half()
    return codes, scales, torch.randint(1, 16, scales.shape) if zeros else torch.full(scales.shape, 8)


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
@pytest.mark.parametrize("group", [GROUP, K])
def test_compressed_tensors_packs_four_bits(device, group, symmetric):
    scheme: dict[str, Any] = {"num_bits": 4, "type": "int", "symmetric": symmetric}
    scheme.update({"strategy": "channel"} if group == K else {"strategy": "group", "group_size": group})
    compress, made = compressor(scheme, "pack-quantized")
    codes, scales, zeros = integers(group, not symmetric)
    exact = values(codes, scales, zeros, torch.arange(K) // group)
    state = {"weight": exact.float(), "weight_scale": scales.float()}
    if not symmetric:
        state["weight_zero_point"] = (zeros - 8).to(torch.int8)
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


# bitsandbytes


def test_bitsandbytes_rows(device):
    functional = pytest.importorskip("bitsandbytes.functional")
    q, largest, _ = functional.int8_vectorwise_quant(torch.randn(N, K).half())
    weight = reader_for({"quant_method": "bitsandbytes", "load_in_8bit": True}).weight(
        "q", {"weight": q.to(device), "SCB": largest.to(device)}, torch.float16
    )
    close(weight, functional.int8_vectorwise_dequant(q, largest), 1e-6)


# HQQ


@pytest.mark.parametrize("group", [GROUP, 64])
def test_hqq_groups(device, group):
    quantize = pytest.importorskip("hqq.core.quantize")
    W_q, meta = quantize.Quantizer.quantize(
        torch.randn(N, K), nbits=4, group_size=group, axis=1, optimize=False, device="cpu"
    )
    shape = torch.tensor(list(meta["shape"]))
    stored = {"W_q": W_q, "scale": meta["scale"], "zero": meta["zero"], "shape": shape}
    weight = reader_for({"quant_method": "hqq"}).weight(
        "q", {key: tensor.to(device) for key, tensor in stored.items()}, torch.float16
    )
    assert weight.block_size == [1, group]
    codes = quantize.Quantizer.unpack[meta["packing"]](W_q).double()
    close(weight, ((codes - meta["zero"].double()) * meta["scale"].double()).view(N, K), 1e-6)


# GPTQModel: GPTQ and AWQ


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("group", [GROUP, K])
def test_gptqmodel_packs_gptq(device, group, act_order):
    linear = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch").TorchLinear
    codes, scales, zeros = integers(group, zeros=True)
    group_of = torch.arange(K) // group
    if act_order:
        group_of = group_of[torch.randperm(K)]
    exact = values(codes, scales, zeros, group_of)
    plain = torch.nn.Linear(K, N, bias=False)
    plain.weight.data = exact.float()
    packed = linear(4, -1 if group == K else group, False, act_order, K, N)
    packed.pack_original(plain, scales.float(), zeros.float(), group_of.int())
    stored = {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
    # What it packs are zeros as they are; it takes one off where it saves version 1.
    settings = {"quant_method": "gptq", "bits": 4, "group_size": -1 if group == K else group}
    weight = reader_for({**settings, "checkpoint_format": "gptq_v2"}).weight(
        "q", {key: tensor.to(device) for key, tensor in stored.items()}, torch.float16
    )
    assert torch.equal(exactly(weight), exact)
    ours, _ = WRITERS["gptq"](symmetric=False).write("q", weight)
    for name, tensor in stored.items():
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


# torchao


def torchao_state(weight: QuantizedTensor) -> tuple[dict[str, Tensor], dict[str, str], Any]:
    """A weight that torchao's own file functions have taken apart, its metadata, and torchao's tensor."""
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    from aoext.integrations.torchao import weight_to_torchao

    theirs = weight_to_torchao("q", weight)
    tensors, metadata = support.flatten_tensor_state_dict({"q.weight": theirs})
    return tensors, metadata, theirs


@pytest.mark.parametrize("made", [Int8Tensor, Float8Tensor, Int4Tensor])
def test_torchao_files(device, made):
    plain = torch.randn(N, K, dtype=torch.bfloat16)
    weight = made.from_hp(plain, [1, GROUP]) if made is Int4Tensor else made.from_hp(plain)
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
    if made is not Int4Tensor:  # whose dequantisation torchao has on GPUs alone
        assert torch.equal(state["q.weight"].dequantize(), theirs.dequantize())
