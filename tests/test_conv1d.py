"""Conv1D of GPT-2, which keeps its weight as [K, N]."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import aoext
from aoext.convert import convert_checkpoint
from aoext.tensors import QuantizedTensor
from conftest import compiler_for
from test_transformers import quantized_names, same_bits

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from aoext.integrations.conv1d import Conv1D, QuantizedConv1D  # noqa: E402

IDS = torch.arange(12)[None]
SCHEMES: dict[str, Any] = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=32),
    "int8": aoext.Int8WeightOnlyConfig(),
    "int8_dynamic": aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": aoext.Float8WeightOnlyConfig(),
    "float8_dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(),
    "float8_block": aoext.Float8WeightOnlyConfig(granularity=aoext.PerBlock([32, 64])),
    "nf4": aoext.NF4WeightOnlyConfig(),
}
load = transformers.AutoModelForCausalLM.from_pretrained


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def gpt2(dtype: torch.dtype = torch.bfloat16) -> Any:
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=96, n_positions=64)
    return transformers.GPT2LMHeadModel(config).to(dtype).eval()


def conv1d(device: torch.device, dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    layer = Conv1D(96, 64)
    torch.nn.init.normal_(layer.bias)
    return torch.nn.Sequential(layer).to(device, dtype)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_layer_computes_with_the_quantised_weight(device, scheme):
    torch._dynamo.reset()
    for dtype in (torch.float32, torch.bfloat16):
        model = conv1d(device, dtype)
        rows = torch.nn.Sequential(torch.nn.Linear(64, 96)).to(device, dtype)
        rows[0].weight.data, rows[0].bias.data = model[0].weight.data.t().contiguous(), model[0].bias.data
        summary = aoext.quantize_(model, SCHEMES[scheme])
        aoext.quantize_(rows, SCHEMES[scheme])
        assert type(model[0]) is QuantizedConv1D
        assert list(model[0].weight.shape) == [64, 96]
        assert summary.layers[0].shape == (96, 64)
        assert "QuantizedConv1D(nf=96, nx=64, weight=" in repr(model)
        assert torch.equal(model[0].weight.dequantize(), rows[0].weight.dequantize().t())
        for shape in ((64,), (3, 64), (2, 3, 64), (0, 64)):
            x = torch.randn(shape, device=device, dtype=dtype)
            assert torch.equal(model(x), rows(x))
    x = torch.randn(5, 64, device=device, dtype=dtype, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    model(x).square().sum().backward()
    rows(y).square().sum().backward()
    assert torch.equal(x.grad, y.grad)
    compiled = torch.compile(model, backend=compiler_for(device), fullgraph=True)
    torch.testing.assert_close(compiled(y.detach()), model(y.detach()), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_from_pretrained_saves_and_loads_bit_for_bit(tmp_path, scheme):
    plain = gpt2()
    plain.save_pretrained(tmp_path / "plain", max_shard_size="60KB")
    model = load(
        tmp_path / "plain", quantization_config=aoext.AoextConfig(SCHEMES[scheme]), dtype=torch.bfloat16
    )
    summary = aoext.quantize_(plain, SCHEMES[scheme])
    assert len(summary.layers) == 8
    assert len(quantized_names(model)) == 8
    same_bits(model, plain)
    model.save_pretrained(tmp_path / "ours", max_shard_size="60KB")
    again = load(tmp_path / "ours")
    same_bits(model, again)
    assert type(again.transformer.h[0].attn.c_attn) is QuantizedConv1D
    generated = [m.generate(IDS, max_new_tokens=4, do_sample=False) for m in (model, plain, again)]
    assert torch.equal(generated[0], generated[1])
    assert torch.equal(generated[0], generated[2])
    convert_checkpoint(tmp_path / "plain", tmp_path / "converted", SCHEMES[scheme])
    same_bits(model, load(tmp_path / "converted"))


def test_files_of_save_model(tmp_path, device):
    model = gpt2().to(device)
    aoext.quantize_(model, SCHEMES["int4"])
    aoext.save_model(model, tmp_path / "model.safetensors", max_shard_size="60KB")
    for where in (device, "meta"):
        with torch.device("meta" if where == "meta" else "cpu"):
            other = gpt2()
        other = other if where == "meta" else other.to(device)
        aoext.load_model(other, tmp_path / "model.safetensors", verify=True)
        same_bits(model, other.to(device))
    layer = conv1d(torch.device("cpu"), torch.bfloat16)
    aoext.quantize_(layer, SCHEMES["int4"])
    aoext.save_model(layer, tmp_path / "layer.safetensors")
    linear = torch.nn.Sequential(torch.nn.Linear(64, 96)).bfloat16()
    with pytest.raises(ValueError, match=r"0\.weight must be bfloat16 \[96, 64\], got .*\[64, 96\]"):
        aoext.load_model(linear, tmp_path / "layer.safetensors")


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"init_lora_weights": "pissa"}])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_lora(device, scheme, options):
    base = conv1d(device)
    aoext.quantize_(base, SCHEMES[scheme])
    x = torch.randn(4, 64, device=device)
    config = peft.LoraConfig(r=4, target_modules=["0"], fan_in_fan_out=True, **options)
    model = peft.get_peft_model(base, config)
    layer = model.base_model.model[0]
    assert isinstance(layer.get_base_layer().weight, QuantizedTensor)
    torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.1)
    before = layer.get_base_layer().weight.dequantize()
    wanted = model(x)
    model.merge_adapter()
    merged = layer.get_base_layer().weight
    assert merged.transposed
    error = (model(x) - wanted).norm() / wanted.norm()
    assert error < (0.2 if scheme == "int4" else 0.08)
    model.unmerge_adapter()
    assert torch.equal(layer.get_base_layer().weight.dequantize(), before)


def test_gpt2_trains_with_adapters(tmp_path):
    gpt2(torch.float32).save_pretrained(tmp_path)
    model = load(tmp_path, quantization_config=aoext.AoextConfig("int8"), dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=["c_attn", "c_fc"]))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    losses = []
    for _ in range(20):
        losses.append(model(input_ids=IDS, labels=IDS).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.8 * losses[0]
    merged = model.merge_and_unload(safe_merge=True)
    merged.save_pretrained(tmp_path / "merged")
    same_bits(merged, load(tmp_path / "merged"))


def test_a_weight_that_a_linear_layer_shares_stays_as_it_is():
    layers = torch.nn.ModuleList([Conv1D(64, 64), torch.nn.Linear(64, 64)])
    layers[1].weight = layers[0].weight
    summary = aoext.quantize_(layers, SCHEMES["int8"])
    assert not summary.layers
    assert "its weight is shared with" in summary.skipped["0"]
    assert layers[0].weight is layers[1].weight
