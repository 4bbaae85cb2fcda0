"""Models of GGUF files, written by the format's own package, against their dequantised values."""

from __future__ import annotations

import logging

import numpy
import pytest
import torch

import aoext
from aoext.tensors import GGUF_TYPES, QuantizedTensor
from test_checkpoints import exactly

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from aoext.checkpoints import gguf as blocks  # noqa: E402
from aoext.integrations.gguf.loading import load_gguf  # noqa: E402
from gguf_models import (  # noqa: E402
    ALL,
    IDS,
    KINDS_OF_MODELS,
    MIXTURES,
    random_blocks,
    type_of,
    write,
)


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


OTHERS = {"MXFP4": aoext.Lut4Tensor, "NVFP4": aoext.Lut4Tensor}


@pytest.mark.parametrize("kind", blocks.FORMATS)
def test_blocks_keep_their_values_and_bytes(device, kind):
    raw = random_blocks(kind, 24, 512)
    expected = torch.from_numpy(gguf.quants.dequantize(raw, type_of(kind))).double()
    weight = blocks.weight("layer", kind, torch.from_numpy(raw).to(device), torch.float32)
    assert type(weight) is (OTHERS | GGUF_TYPES)[kind]
    # In float32 products round, as the package's do.
    difference = weight.dequantize().double().cpu() - expected
    assert difference.abs().max() <= 3e-7 * expected.abs().max()
    stored = sum(field.nbytes for name, field in weight.named_fields() if name in ("qdata", "scale"))
    assert stored - 4 <= raw.nbytes
    experts = blocks.weight("layer", kind, torch.from_numpy(raw).view(3, 8, -1).to(device), torch.float32)
    assert torch.equal(experts.dequantize(), weight.dequantize().view(3, 8, -1))


def test_blocks_that_are_none():
    with pytest.raises(ValueError, match=r"layer: Q4_0 must be uint8 \[N, K/32·18\], got \[4, 20\]"):
        blocks.weight("layer", "Q4_0", torch.zeros(4, 20, dtype=torch.uint8), torch.float32)
    with pytest.raises(ValueError, match="layer: Q4_0 must have finite scales, got NaN or Inf"):
        blocks.weight("layer", "Q4_0", torch.full((4, 18), 255, dtype=torch.uint8), torch.float32)


@pytest.mark.parametrize("exponent", [0, 1, 254])
def test_mxfp4_at_the_ends_of_its_exponents(exponent):
    raw = numpy.zeros((1, 17), dtype=numpy.uint8)
    raw[0] = [exponent, *range(0, 256, 16)]
    expected = torch.from_numpy(gguf.quants.dequantize(raw, type_of("MXFP4"))).double()
    weight = blocks.weight("layer", "MXFP4", torch.from_numpy(raw), torch.float32)
    finite = expected.isfinite()  # in float32, which the largest are not in
    assert torch.equal(exactly(weight)[finite], expected[finite])


def test_scales_that_are_nan_are_refused():
    with pytest.raises(ValueError, match="layer: MXFP4 must have finite scales, got NaN or Inf"):
        blocks.weight("layer", "MXFP4", torch.full((4, 17), 255, dtype=torch.uint8), torch.float32)
    with pytest.raises(ValueError, match="layer: Q6_K must have finite scales, got NaN or Inf"):
        blocks.weight("layer", "Q6_K", torch.full((4, 210), 255, dtype=torch.uint8), torch.float32)


@pytest.mark.parametrize("architecture", KINDS_OF_MODELS)
def test_logits_are_those_of_the_dequantised_model(tmp_path, architecture):
    kinds = {**ALL, "blk.0.attn_k": "Q4_1", "blk.0.ffn_down": "Q4_K"}
    expected = write(tmp_path / "model.gguf", architecture, kinds)
    model = load_gguf(tmp_path / "model.gguf", dtype=torch.float32)
    quantised = [name for name, p in model.named_parameters() if isinstance(p, QuantizedTensor)]
    assert len(quantised) == 7
    for name in quantised:
        torch.testing.assert_close(
            model.get_parameter(name).dequantize(), expected.get_parameter(name), rtol=1e-5, atol=1e-6
        )
    wanted = expected(IDS).logits
    assert (model(IDS).logits - wanted).norm() <= 1e-3 * wanted.norm()
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_all_formats_in_one_model(tmp_path, architecture):
    """Rows of q and k, which llama's files have in another order, in formats with and without tables."""
    kinds = dict(
        zip(ALL, ("Q6_K", "MXFP4", "Q2_K", "IQ4_XS", "Q3_K", "Q5_K"), strict=True),
        **{"blk.0.ffn_down": "NVFP4"},
    )
    kinds |= {"output": "Q6_K"} if architecture == "llama" else {}
    expected = write(tmp_path / "model.gguf", architecture, kinds)
    model = load_gguf(tmp_path / "model.gguf", dtype=torch.float32)
    quantised = {name for name, p in model.named_parameters() if isinstance(p, QuantizedTensor)}
    assert len(quantised) == len(kinds)
    for name in quantised:
        weight = model.get_parameter(name).dequantize()
        torch.testing.assert_close(weight, expected.get_parameter(name), rtol=1e-6, atol=1e-7)
    wanted = expected(IDS).logits
    assert (model(IDS).logits - wanted).norm() <= 1e-4 * wanted.norm()
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_formats_without_kernels_are_dequantised_and_named(tmp_path, caplog):
    expected = write(tmp_path / "model.gguf", "llama", {**ALL, "blk.0.ffn_down": "IQ3_S"})
    with caplog.at_level(logging.WARNING):
        model = load_gguf(tmp_path / "model.gguf")
    assert "1 weights" in caplog.text
    assert "model.layers.0.mlp.down_proj.weight (IQ3_S)" in caplog.text
    assert isinstance(model.model.layers[0].mlp.up_proj.weight, GGUF_TYPES["Q4_0"])
    wanted = expected(IDS).logits
    assert (model(IDS).logits - wanted).norm() <= 5e-2 * wanted.norm()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q6_K", "MXFP4"])
def test_embeddings_stay_quantised_and_output_layers_share_them(tmp_path, kind, caplog):
    expected = write(tmp_path / "model.gguf", "gemma3", {"token_embd": kind})
    with caplog.at_level(logging.WARNING):
        model = load_gguf(tmp_path / "model.gguf", dtype=torch.float32)
        plain = load_gguf(tmp_path / "model.gguf", dtype=torch.float32, quantize_embeddings=False)
    assert "load_gguf" not in caplog.text
    weight = model.model.embed_tokens.weight
    assert type(weight) is (OTHERS | GGUF_TYPES)[kind]
    assert model.lm_head.weight is weight
    assert type(plain.model.embed_tokens.weight) is torch.nn.Parameter
    wanted = expected(IDS).logits
    for made in (model, plain):
        assert (made(IDS).logits - wanted).norm() <= 1e-4 * wanted.norm()
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def in_int8(x, block):
    """x as int8 times a scale for each `block` elements, by the definition."""
    parts = x.float().unflatten(-1, (-1, block))
    scale = parts.abs().amax(-1, keepdim=True) / 127
    return ((parts / torch.where(scale == 0, 1, scale)).round() * scale).flatten(-2).to(x.dtype)


@pytest.mark.parametrize(("architecture", "kind"), [("llama", "Q4_0"), ("qwen2", "Q4_K"), ("gemma3", "Q8_0")])
def test_activations_in_int8_by_blocks(tmp_path, architecture, kind):
    kinds = {**dict.fromkeys(ALL, kind), "blk.0.ffn_down": "Q6_K", "token_embd": "Q8_0"}
    expected = write(tmp_path / "model.gguf", architecture, kinds)
    model = load_gguf(tmp_path / "model.gguf", dtype=torch.float32, activation=torch.int8)
    weights = [p for p in model.parameters() if isinstance(p, QuantizedTensor)]
    assert len(weights) == len(kinds)
    for weight in weights:
        values = 256 if type(weight) in (GGUF_TYPES["Q4_K"], GGUF_TYPES["Q6_K"]) else 32
        assert weight.activation is torch.int8
        assert weight.input_block == [1, values]
    # Layer by layer, on what each of them got: between whole models, a sum that ends on the other side of a
    # rounding moves all that follows by a step of int8.
    calls = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and isinstance(layer.weight, QuantizedTensor):
            layer.register_forward_hook(lambda _, rows, y, name=name: calls.update({name: (rows[0], y)}))
    logits = model(IDS).logits
    assert len(calls) >= len(kinds) - 1
    for name, (x, y) in calls.items():
        rounded = in_int8(x, model.get_submodule(name).weight.input_block[1])
        wanted = expected.get_submodule(name)(rounded)
        assert (y - wanted).norm() <= 1e-3 * wanted.norm(), name
    # What rounding costs each layer: a step is a 127th of a block's largest.
    for weight in weights:
        x = torch.randn(16, weight.shape[-1])
        exact = x @ weight.dequantize().mT
        off = (torch.nn.functional.linear(x, weight) - exact).norm() / exact.norm()
        assert 3e-3 <= off <= 1e-2
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(IDS).logits, logits)


def test_activations_in_what_no_kernel_has(tmp_path):
    with pytest.raises(ValueError, match=r"activation must be None or torch\.int8, got torch\.float16"):
        load_gguf(tmp_path / "model.gguf", activation=torch.float16)


def test_unknown_architectures(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "rwkv6")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"must be one of bloom, .* llama, .* got 'rwkv6'"):
        load_gguf(tmp_path / "model.gguf")


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q8_0", "MXFP4"])
@pytest.mark.parametrize("architecture", MIXTURES)
def test_experts(tmp_path, architecture, kind):
    """Gate and up lie apart in the file, and down may have another format."""
    kinds = {f"blk.0.ffn_{part}_exps": kind for part in ("gate", "up")} | {"blk.0.ffn_down_exps": "Q6_K"}
    expected = write(tmp_path / "model.gguf", architecture, {**ALL, **kinds})
    model = load_gguf(tmp_path / "model.gguf", dtype=torch.float32)
    quantised = [name for name, p in model.named_parameters() if isinstance(p, QuantizedTensor)]
    assert len(quantised) == 6
    for name in quantised:
        weight = model.get_parameter(name).dequantize()
        torch.testing.assert_close(weight, expected.get_parameter(name), rtol=1e-5, atol=1e-6)
    wanted = expected(IDS).logits
    assert (model(IDS).logits - wanted).norm() <= 1e-3 * wanted.norm()


def test_experts_without_kernels_are_dequantised_and_named(tmp_path, caplog):
    kinds = dict(zip([f"blk.0.ffn_{part}_exps" for part in ("gate", "up")], ["Q8_0", "Q4_0"], strict=True))
    expected = write(tmp_path / "model.gguf", "qwen3moe", {**kinds, "blk.0.ffn_down_exps": "IQ3_S"})
    with caplog.at_level(logging.WARNING):
        model = load_gguf(tmp_path / "model.gguf", dtype=torch.float32)
    assert "experts.gate_up_proj (Q4_0, Q8_0)" in caplog.text
    assert "experts.down_proj (IQ3_S)" in caplog.text
    assert torch.allclose(model(IDS).logits, expected(IDS).logits, rtol=1e-4, atol=1e-5)
