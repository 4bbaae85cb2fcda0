"""Models of GGUF files, written by the format's own package, against their dequantised values."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import aoext
from aoext.tensors import BlockwiseTensor, Lut4Tensor, QuantizedTensor
from test_checkpoints import exactly

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from aoext.checkpoints import gguf as blocks  # noqa: E402
from aoext.integrations.gguf import load_gguf  # noqa: E402

HIDDEN, INNER, VOCABULARY, HEADS, KV_HEADS = 256, 512, 96, 4, 2
IDS = torch.arange(10)[None]


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


# Where the float16 scales of a block lie; of the others at its beginning.
SCALES = {"Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,), "Q3_K": (108,), "MXFP4": ()}

# The weight's class and the values that share a scale.
KINDS: dict[str, tuple[Any, int]] = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q4_K"), (aoext.Int4Tensor, 32)),
    **dict.fromkeys(("Q8_0", "Q5_0"), (BlockwiseTensor, 32)),
    **dict.fromkeys(("Q6_K", "Q3_K"), (BlockwiseTensor, 16)),
    **dict.fromkeys(("IQ4_NL", "IQ4_XS", "MXFP4"), (Lut4Tensor, 32)),
}


def random_blocks(kind: str, rows: int, columns: int) -> numpy.ndarray:
    """Blocks with random bits, but small finite scales."""
    form = blocks.FORMATS[kind]
    raw = torch.randint(256, (rows, columns // form.values, form.bytes), dtype=torch.uint8)
    small = 0.001 if kind in ("Q8_0", "Q6_K", "Q3_K", "IQ4_NL", "IQ4_XS") else 0.01
    for at in SCALES.get(kind, (0,)):
        scale = (torch.rand(*raw.shape[:2], 1) * small).half()
        raw[..., at : at + 2] = scale.view(torch.uint8)
    if kind == "MXFP4":
        raw[..., 0] = torch.randint(110, 122, raw.shape[:2], dtype=torch.uint8)
    return raw.flatten(1).numpy()


def type_of(kind: str) -> Any:
    return gguf.GGMLQuantizationType[kind]


@pytest.mark.parametrize("kind", blocks.FORMATS)
def test_blocks_keep_their_values(device, kind):
    raw = random_blocks(kind, 24, 512)
    expected = torch.from_numpy(gguf.quants.dequantize(raw, type_of(kind))).double()
    weight = blocks.weight("layer", kind, torch.from_numpy(raw).to(device), torch.bfloat16)
    made, group = KINDS[kind]
    assert type(weight) is made
    assert weight.block_size == [1, group]
    error = 3e-7 if kind in ("Q4_1", "Q4_K") else 0  # whose zeros round once
    # In float32 their product rounds once, and so does the package's.
    assert (exactly(weight) - expected).abs().max() <= (error + 2.0**-24) * expected.abs().max()
    dequantised = weight.to(torch.float32).dequantize().double().cpu()
    assert (dequantised - expected).abs().max() <= 3e-7 * expected.abs().max()


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


def test_several_weights_and_exponents_that_are_nan_are_refused():
    experts = torch.zeros(8, 4, 34, dtype=torch.uint8)
    with pytest.raises(ValueError, match="layer: several weights, such as those of experts, in one 3-D"):
        blocks.weight("layer", "Q8_0", experts, torch.float32)
    with pytest.raises(ValueError, match="layer: MXFP4 must have finite scales, got NaN or Inf"):
        blocks.weight("layer", "MXFP4", torch.full((4, 17), 255, dtype=torch.uint8), torch.float32)
    with pytest.raises(ValueError, match="layer: Q6_K must have finite scales, got NaN or Inf"):
        blocks.weight("layer", "Q6_K", torch.full((4, 210), 255, dtype=torch.uint8), torch.float32)


def in_pairs(weight: Tensor, heads: int) -> Tensor:
    """Rows as the file has them, for rotations of neighbours."""
    return weight.view(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


KINDS_OF_MODELS = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma2": "Gemma2",
    "gemma3": "Gemma3Text",
}


def write(
    path: Path,
    architecture: str,
    kinds: dict[str, str],
    further: dict[str, numpy.ndarray] | None = None,
    keys: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Writes a model, of one layer if not asked for more; returns transformers' model of the file's values.

    kinds: the formats of matrices; float32 for those that are not named. further: more tensors, or others in
    place of the model's. keys: more metadata, without the architecture's name. settings: of the config
    """
    gemma, kind = architecture.startswith("gemma"), KINDS_OF_MODELS[architecture]
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    defaults = {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": gemma,
        **({"query_pre_attn_scalar": HIDDEN // HEADS} if gemma else {}),
        **({"rope_parameters": {"full_attention": rope, "sliding_attention": rope}} if kind == "Gemma3Text" else {}),
    }
    config = getattr(transformers, f"{kind}Config")(**{**defaults, **settings})
    model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).float().eval()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    for key, value in (keys or {}).items():
        name = key if "tokenizer." in key or "general." in key or "split." in key else f"{architecture}.{key}"
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, module in modules(model, architecture).items():
        for leaf, parameter in module.named_parameters():
            value = parameter.data
            turned = heads.get(name.rpartition(".")[2]) if architecture == "llama" else None
            if name in kinds and leaf == "weight":
                made = kinds[name]
                if made in blocks.FORMATS:
                    raw = random_blocks(made, *value.shape)
                else:
                    raw = gguf.quants.quantize(value.numpy(), type_of(made))
                stored = torch.from_numpy(gguf.quants.dequantize(raw, type_of(made)).copy())
                if turned:  # the other way round
                    stored = stored.view(turned, -1, 2, value.shape[1]).transpose(1, 2).reshape(value.shape)
                parameter.data = stored
                writer.add_tensor(f"{name}.{leaf}", raw, raw_dtype=type_of(made))
                continue
            if leaf == "bias":
                parameter.data = value = torch.randn_like(value)
            if gemma and "norm" in name:
                parameter.data = value = torch.randn_like(value) * 0.1
                value = value + 1
            if turned:
                value = in_pairs(value, turned)
            if f"{name}.{leaf}" not in (further or {}):
                writer.add_tensor(f"{name}.{leaf}", value.numpy())
    for name, tensor in (further or {}).items():
        if tensor is not None:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def modules(model: Any, architecture: str) -> dict[str, Any]:
    """Modules with parameters by llama.cpp's names."""
    found = {"token_embd": model.model.embed_tokens, "output_norm": model.model.norm}
    if not model.config.tie_word_embeddings:
        found["output"] = model.lm_head
    gemma = architecture.startswith("gemma")
    for i, layer in enumerate(model.model.layers):
        found |= {
            f"blk.{i}.attn_norm": layer.input_layernorm,
            **{f"blk.{i}.attn_{part}": getattr(layer.self_attn, f"{part}_proj") for part in "qkv"},
            f"blk.{i}.attn_output": layer.self_attn.o_proj,
            f"blk.{i}.ffn_norm": layer.pre_feedforward_layernorm if gemma else layer.post_attention_layernorm,
            **{f"blk.{i}.ffn_{part}": getattr(layer.mlp, f"{part}_proj") for part in ("gate", "up", "down")},
        }
        if gemma:
            found[f"blk.{i}.post_attention_norm"] = layer.post_attention_layernorm
            found[f"blk.{i}.post_ffw_norm"] = layer.post_feedforward_layernorm
        if architecture in ("qwen3", "gemma3"):
            found[f"blk.{i}.attn_q_norm"] = layer.self_attn.q_norm
            found[f"blk.{i}.attn_k_norm"] = layer.self_attn.k_norm
    return found


ALL = {
    f"blk.0.{name}": "Q4_0" for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up")
}


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
        zip(ALL, ("Q6_K", "MXFP4", "Q8_0", "IQ4_XS", "Q3_K", "Q5_0"), strict=True),
        **{"blk.0.ffn_down": "IQ4_NL"},
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
    expected = write(tmp_path / "model.gguf", "llama", {**ALL, "blk.0.ffn_down": "Q5_1"})
    with caplog.at_level(logging.WARNING):
        model = load_gguf(tmp_path / "model.gguf")
    assert "1 weights" in caplog.text
    assert "model.layers.0.mlp.down_proj.weight (Q5_1)" in caplog.text
    assert isinstance(model.model.layers[0].mlp.up_proj.weight, aoext.Int4Tensor)
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
    assert type(weight) is KINDS[kind][0]
    assert model.lm_head.weight is weight
    assert type(plain.model.embed_tokens.weight) is torch.nn.Parameter
    wanted = expected(IDS).logits
    for made in (model, plain):
        assert (made(IDS).logits - wanted).norm() <= 1e-4 * wanted.norm()
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_unknown_architectures(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"architecture must be one of llama, qwen2, .* got 'mamba'"):
        load_gguf(tmp_path / "model.gguf")


def test_experts_are_refused_by_name(tmp_path):
    experts = {"blk.0.ffn_gate_exps.weight": numpy.zeros((4, 8, HIDDEN), dtype=numpy.float32)}
    write(tmp_path / "model.gguf", "llama", ALL, experts)
    with pytest.raises(ValueError, match=r"blk\.0\.ffn_gate_exps\.weight has the weights of experts, which"):
        load_gguf(tmp_path / "model.gguf")
