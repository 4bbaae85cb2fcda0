"""PEFT's adapters of every kind on quantised weights: training, merging, what is lost, what PEFT copies."""

from __future__ import annotations

import copy
import io
import os
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import aoext
from aoext.integrations.peft_merging import measuring
from aoext.models.layers import set_plain_weight
from aoext.tensors import QuantizedTensor
from models import trained_on
from test_peft import CONFIGS, HIDDEN, OUT, Model, bits, relative, stir

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

R = {"r": 4}
# Each kind of adapter that PEFT puts around a linear layer, with what it needs here beside its targets.
TUNERS: dict[str, dict[str, Any]] = {
    "Lora": {},
    "AdaLora": {"total_step": 20, "tinit": 2, "tfinal": 5, "init_r": 4, "target_r": 2},
    "Adamss": {},
    "Beft": {},
    "BOFT": {"boft_block_size": 8},
    "C3A": {"block_size": 32},
    "Deft": {},
    "Delora": {},
    "FourierFT": {"n_frequency": 20},
    "Frod": {},
    "Gralora": {},
    "Hira": {},
    "HRA": R,
    "IA3": {"feedforward_modules": ["down"]},
    "Lily": {},
    "LoHa": R,
    "LoKr": R,
    "Miss": R,
    "OFT": {"r": 0, "oft_block_size": 16},
    "OSF": {},
    "Peanut": {},
    "Psoft": {},
    "Pvera": {},
    "RandLora": R,
    "Road": {"group_size": 16},
    "Shira": R,
    "Supertuning": {},
    "TinyLora": {},
    "UniLora": {},
    "VBLoRA": {"r": 4, "num_vectors": 16, "vector_length": 16},
    "Vera": {"r": 8},
    "WaveFT": {},
}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


@pytest.fixture(autouse=True)
def _compilers():
    """PEFT names gcc as the C++ compiler for BOFT's extension, and leaves it where that does not compile."""
    with mock.patch.dict(os.environ):
        yield


def adapted(kind: str, scheme: str = "int8") -> Any:
    model = Model()
    aoext.quantize_(model, CONFIGS[scheme])
    config = getattr(peft, f"{kind}Config", None)
    if config is None:
        pytest.skip(f"this PEFT has no {kind}")
    return peft.get_peft_model(model, config(target_modules=["up", "down"], **TUNERS.get(kind, {})))


def train(model: Any, x: Tensor) -> None:
    target = torch.randn(len(x), OUT)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-3)

    def loss() -> Tensor:
        return nn.functional.mse_loss(model(x), target)

    model.eval()
    before = loss().item()
    model.train()
    for _ in range(4):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    assert loss().item() < before


def weights(model: nn.Module) -> dict[str, nn.Module]:
    """The layers under the adapters."""
    return {name: getattr(model.base_model.model, name).get_base_layer() for name in ("up", "down")}


def dequantized(model: Any) -> Any:
    """A copy whose layers have plain weights, of which PEFT's own code takes care."""
    twin = copy.deepcopy(model)
    for layer in weights(twin).values():
        set_plain_weight(layer, nn.Parameter(layer.weight.dequantize(), requires_grad=False))
    return twin


@pytest.mark.parametrize("kind", TUNERS)
def test_adapters_of_every_kind_train_merge_and_come_off(kind, tmp_path):
    """A merged weight is what PEFT makes of the dequantised one, quantised again."""
    model = adapted(kind)
    x, before = torch.randn(16, HIDDEN), bits(model)
    train(model, x)
    assert all(map(torch.equal, bits(model), before))
    plain, apart = dequantized(model), model(x)
    assert relative(plain(x), apart) < 1e-4

    model.save_pretrained(tmp_path)
    base = copy.deepcopy(model).unload()
    again = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    assert torch.equal(again(x), apart)
    try:
        plain.merge_adapter()
    except (NotImplementedError, ValueError) as error:  # PEFT itself cannot
        with pytest.raises(type(error)):
            model.merge_adapter()
        assert all(map(torch.equal, bits(model), before))
        return
    model.merge_adapter()
    for name, layer in weights(model).items():
        theirs = weights(plain)[name]
        expected = layer.weight.requantized(theirs.weight).dequantize()
        torch.testing.assert_close(layer.weight.dequantize(), expected, rtol=0, atol=1e-6)
        if layer.bias is not None:
            torch.testing.assert_close(layer.bias, theirs.bias)
    if kind != "OSF":  # whose adapters PEFT does not take off
        model.unmerge_adapter()
        assert all(map(torch.equal, bits(model), before))
        assert torch.equal(model(x), apart)
    merged = model.merge_and_unload(safe_merge=True)
    assert isinstance(merged.up.weight, QuantizedTensor)
    assert relative(merged(x), plain(x)) < 0.05


def test_a_kind_that_takes_plain_layers_alone_says_so():
    with pytest.raises(ValueError, match="GLoRA does not support this layer type"):
        adapted("Glora")


def merged_by_hand(scheme: str, std: float) -> tuple[Any, float]:
    """A model with stirred adapters, and what of their change is to survive merging, in float64."""
    model = adapted("Lora", scheme)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=std)
    kept = whole = 0.0
    for name, layer in weights(model).items():
        quantized = layer.weight
        plain = quantized.dequantize()
        change = getattr(model.base_model.model, name).get_delta_weight("default").detach()
        new = quantized.requantized(plain + change).dequantize()
        change, got = change.double(), new.double() - plain.double()
        kept += (got * change).sum().item()
        whole += change.square().sum().item()
    return model, kept / whole


@pytest.mark.parametrize(("scheme", "std"), [("nf4", 0.02), ("int4", 0.03), ("mxfp4", 0.03), ("nvfp4", 0.03)])
def test_merging_warns_once_of_how_little_survives(scheme, std):
    model, expected = merged_by_hand(scheme, std)
    assert expected < 0.9
    merges = (model.merge_adapter, lambda: model.merge_and_unload(safe_merge=True))
    for merge in merges:
        with pytest.warns(UserWarning, match="survives in the merged weights") as found:
            merge()
        (warning,) = (str(w.message) for w in found if "survives" in str(w.message))
        assert abs(float(warning.partition("%")[0]) / 100 - expected) < 0.0051 + 1e-3
        assert "base_model.model" not in warning
        for way in ("dequantise the model first", "model.dequantize()", "keep the adapter apart"):
            assert way in warning
        if merge is merges[0]:
            model.unmerge_adapter()


def test_merging_warns_once_of_a_layer_by_itself():
    model, _ = merged_by_hand("nf4", 0.02)
    with pytest.warns(UserWarning, match="survives in the merged weights") as found:
        model.base_model.model.up.merge()
    assert len(found) == 1


@pytest.mark.parametrize("scheme", ["int8", "int8 dynamic", "float8"])
def test_merging_into_8_bits_says_nothing(scheme):
    model, expected = merged_by_hand(scheme, 0.05)
    assert expected > 0.9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with measuring(model.base_model.model) as survival:
            model.merge_adapter()
        assert survival.total == pytest.approx(expected, abs=1e-3)
        assert survival.layers.keys() == {"up", "down"}
        model.unmerge_adapter()
        model.merge_adapter()


def test_a_dequantised_model_loses_nothing():
    model = llama("int4", embeddings=False)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    stir(model)
    apart = model(IDS).logits
    model.dequantize()
    assert relative(model.merge_and_unload()(IDS).logits, apart) < 1e-4


def test_what_multiplies_the_activation_is_part_of_the_weight():
    """AWQ-like: adapters see x, the weight sees x times act_pre_scale."""
    model = Model()
    aoext.quantize_(model, CONFIGS["int4"])
    weight = model.up.weight
    weight.act_pre_scale = torch.rand(HIDDEN) + 0.5
    model = peft.get_peft_model(model, peft.IA3Config(target_modules=["up"], feedforward_modules=["up"]))
    with torch.no_grad():
        model.base_model.model.up.ia3_l["default"].uniform_(0.5, 2)
    x = torch.randn(8, HIDDEN)
    apart = model(x)
    model.merge_adapter()
    assert relative(model(x), apart) < 0.1
    merged = model.base_model.model.up.get_base_layer().weight
    assert torch.equal(merged.act_pre_scale, weight.act_pre_scale)


@pytest.mark.parametrize("scheme", ["int4", "int8", "nf4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_is_moved_and_cast_between_merge_and_unmerge(scheme, dtype, device):
    model = adapted("Lora", scheme)
    stir(model)
    names, x = set(model.state_dict()), torch.randn(5, HIDDEN)
    expected = copy.deepcopy(model).to(device, dtype)(x.to(device, dtype))
    model.merge_adapter()
    assert set(model.state_dict()) == names
    model.to(device, dtype).unmerge_adapter()
    assert torch.equal(model(x.to(device, dtype)), expected)
    assert not [name for name, _ in model.named_buffers() if "unmerged" in name]


def test_copies_of_a_merged_model_come_apart():
    model = adapted("Lora", "int4")
    stir(model)
    x = torch.randn(5, HIDDEN)
    apart = model(x)
    model.merge_adapter()
    merged, file = model(x), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(other(x), merged)
        other.unmerge_adapter()
        assert torch.equal(other(x), apart)
    assert torch.equal(model(x), merged)


def test_two_kinds_of_adapters_on_one_layer_merge_and_come_off():
    model = Model()
    aoext.quantize_(model, CONFIGS["int8"])
    model = peft.PeftMixedModel(model, peft.LoraConfig(target_modules=["up"], init_lora_weights=False), "one")
    model.add_adapter("two", peft.LoHaConfig(target_modules=["up"], init_weights=False))
    model.set_adapter(["one", "two"])
    model.eval()
    x, before = torch.randn(5, HIDDEN), bits(model)
    apart = model(x)
    for steps in ([None], [["one"], ["two"]], [["two"], ["one"]]):
        for names in steps:
            model.merge_adapter(names)
        assert relative(model(x), apart) < 0.05
        model.unmerge_adapter()
        assert all(map(torch.equal, bits(model), before))
        assert torch.equal(model(x), apart)
    assert relative(model.merge_and_unload()(x), apart) < 0.05


IDS = torch.arange(12).view(2, 6)


def llama(scheme: str, tied: bool = False, embeddings: bool = True) -> Any:
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=60,
        tie_word_embeddings=tied,
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)  # the same base for an adapter that comes back
        model = transformers.LlamaForCausalLM(config).eval()
    aoext.quantize_(
        model, CONFIGS[scheme], lambda _, name: embeddings or "proj" in name, quantize_embeddings=embeddings
    )
    return model


ON_EMBEDDINGS = {
    "modules_to_save": {"modules_to_save": ["embed_tokens"]},
    "trainable tokens": {"trainable_token_indices": [1, 4, 6]},
    "lora": {"target_modules": ["q_proj", "embed_tokens"], "init_lora_weights": True},
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scheme", ["int4", "nf4"])
@pytest.mark.parametrize("kind", ON_EMBEDDINGS)
def test_quantised_embeddings_take_adapters(kind, scheme, tied, tmp_path):
    options = {"r": 4, "target_modules": ["q_proj"], **ON_EMBEDDINGS[kind]}
    if tied and kind == "modules_to_save":
        options["ensure_weight_tying"] = True
    model = llama(scheme, tied)
    before, rows = model(IDS).logits, model.get_input_embeddings().weight
    model = peft.get_peft_model(model, peft.LoraConfig(**options))
    apart = trained_on(IDS, model)
    with model.disable_adapter():
        assert torch.equal(model(IDS).logits, before)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(llama(scheme, tied), tmp_path).eval()
    assert torch.equal(again(IDS).logits, apart)

    model.merge_adapter()
    assert relative(model(IDS).logits, apart) < 0.2
    model.unmerge_adapter()
    assert torch.equal(model(IDS).logits, apart)
    merged = model.merge_and_unload()
    assert relative(merged(IDS).logits, apart) < 0.2
    embedding = merged.get_input_embeddings()
    if kind == "modules_to_save":
        assert type(embedding) is nn.Embedding  # trained in full, and plain
    else:
        assert isinstance(embedding.weight, QuantizedTensor)
        assert (embedding.weight is merged.lm_head.weight) == (tied and kind == "trainable tokens")
    if kind == "trainable tokens":
        others = torch.tensor([i for i in range(60) if i not in (1, 4, 6)])
        assert torch.equal(embedding.weight.dequantize()[others], rows.dequantize()[others])


def test_modules_that_are_trained_in_full_are_plain_copies():
    model = llama("int4", embeddings=False)
    options = {"target_modules": ["q_proj"], "modules_to_save": ["mlp"]}
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, **options))
    copies = {n: p for n, p in model.named_parameters() if "modules_to_save.default" in n}
    assert len(copies) == 3
    assert all(p.requires_grad and not isinstance(p, QuantizedTensor) for p in copies.values())
    before = {name: p.detach().clone() for name, p in copies.items()}
    trained_on(IDS, model)
    assert not any(torch.equal(p, before[name]) for name, p in copies.items())
    model.add_adapter("other", peft.LoraConfig(r=4, **options))
    model.set_adapter("other")
    trained_on(IDS, model)
