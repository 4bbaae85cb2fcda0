"""LoRA by groups of K, PEFT's use_qalora, which merges into zero points without loss."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aoext
from aoext.integrations.peft_merging import measuring
from aoext.tensors import QuantizedTensor
from models import trained_on
from test_peft import CONFIGS, HIDDEN, INNER, Model, bits, relative, stir

peft = pytest.importorskip("peft")
if not hasattr(peft.tuners.lora.variants, "QALoraLinearVariant"):
    pytest.skip("this PEFT has no use_qalora", allow_module_level=True)

SCHEMES: dict[str, Any] = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=32),
    "int4 symmetric": aoext.Int4WeightOnlyConfig(group_size=32, symmetric=True),
    "int4 under int8": CONFIGS["int4 under int8"],
    **{f"int{bits}": aoext.IntxWeightOnlyConfig(bits=bits, group_size=32) for bits in (2, 3, 5, 6, 7)},
}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def by_groups(**options: Any) -> Any:
    defaults = {"r": 4, "target_modules": ["up", "down"], "use_qalora": True, "qalora_group_size": 32}
    return peft.LoraConfig(**{**defaults, **options})


def adapted(scheme: Any, device: torch.device, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    model = Model().to(device, dtype)
    aoext.quantize_(model, scheme)
    return peft.get_peft_model(model, by_groups(**options))


def codes(model: nn.Module) -> list[Tensor]:
    return [p.qdata.clone() for p in model.parameters() if isinstance(p, QuantizedTensor)]


def delta(layer: Any, adapter: str = "default") -> Tensor:
    """What the adapter adds to a weight, of its formula in float64."""
    group, K = layer.qalora_group_size[adapter], layer.in_features
    a, b = (m[adapter].weight.double() for m in (layer.lora_A, layer.lora_B))
    return (b @ a).repeat_interleave(group, 1) * layer.scaling[adapter] * (K // group) / group


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_merges_without_loss(scheme, dtype, device):
    if device.type == "xpu" and scheme not in ("int4", "int5"):
        pytest.skip("what runs here is the same code")
    model = adapted(SCHEMES[scheme], device, dtype)
    stir(model)
    model.eval()
    up, down = (getattr(model.base_model.model, name) for name in ("up", "down"))
    before, ours = bits(model), codes(model)
    weights = [layer.weight.to(torch.float32).dequantize().double() for layer in (up, down)]
    x = torch.randn(16, HIDDEN, device=device, dtype=dtype)
    with torch.no_grad():
        apart = model(x)
        with measuring(model) as survival:
            model.merge_adapter(safe_merge=True)
        assert abs(survival.total - 1) < 1e-3
        assert all(map(torch.equal, codes(model), ours))
        for layer, weight in zip((up, down), weights, strict=True):
            got = layer.weight.to(torch.float32).dequantize().double() - weight
            assert relative(got, delta(layer)) < 1e-3  # where zero points of bfloat16 would leave noise
        bound = 1e-5 if dtype is torch.float32 else 0.02
        assert relative(model(x).float(), apart.float()) < (0.03 if "under" in scheme else bound)
        model.unmerge_adapter()
        assert all(map(torch.equal, bits(model), before))
        assert torch.equal(model(x), apart)


def test_it_trains_is_saved_and_loads_as_pefts(tmp_path, device):
    model = adapted(SCHEMES["int4"], device)
    before = bits(model)
    x = torch.randn(2, 8, HIDDEN, device=device)
    target = torch.randn(2, 8, 32, device=device)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    losses = []
    for _ in range(10):
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.97 * losses[0]
    assert all(map(torch.equal, bits(model), before))
    model.eval()
    wanted = model(x)
    model.save_pretrained(tmp_path)
    base = copy.deepcopy(model).unload()
    again = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    assert again.base_model.model.up.lora_A["default"].weight.shape == (4, HIDDEN // 32)
    assert torch.equal(again(x), wanted)
    layer = again.base_model.model.up
    added = peft.tuners.lora.variants.QALoraLinearVariant.forward(layer, "default", x, torch.zeros(()))
    assert relative(layer(x) - layer.base_layer(x), added) < 1e-4
    merged = again.merge_and_unload()
    assert relative(merged(x), wanted) < 1e-5


def test_several_adapters_and_coarser_groups(device):
    model = adapted(SCHEMES["int4"], device, lora_alpha=3)
    model.add_adapter("coarse", by_groups(qalora_group_size=64, target_modules=["up"]))
    model.add_adapter("plain", peft.LoraConfig(r=2, target_modules=["up"]))
    stir(model)
    model.eval()
    x, before, ours = torch.randn(3, HIDDEN, device=device), bits(model), codes(model)
    with torch.no_grad():
        model.base_model.set_adapter(["default", "coarse"])
        apart = model(x)
        for name in ("default", "coarse"):
            model.base_model.merge_adapter([name])
        assert all(map(torch.equal, codes(model), ours))
        assert relative(model(x), apart) < 1e-5
        model.base_model.merge_adapter(["plain"])  # beside which codes are rounded
        assert not all(map(torch.equal, codes(model), ours))
        model.unmerge_adapter()
        assert all(map(torch.equal, bits(model), before))


def test_a_merged_model_is_saved(tmp_path, generator):
    transformers = pytest.importorskip("transformers")
    from test_transformers import IDS, llama

    llama().save_pretrained(tmp_path / "plain")
    load = transformers.AutoModelForCausalLM.from_pretrained
    scheme = aoext.AoextConfig(aoext.Int4WeightOnlyConfig(group_size=32))
    model = load(tmp_path / "plain", quantization_config=scheme, dtype=torch.bfloat16)
    config = by_groups(target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    logits = trained_on(IDS, model, steps=6)
    merged = model.merge_and_unload(safe_merge=True)
    weights = [p for p in merged.parameters() if isinstance(p, QuantizedTensor)]
    assert {w.zero_point.dtype for w in weights} == {torch.float32}
    assert relative(merged(IDS).logits, logits) < 0.02
    merged.save_pretrained(tmp_path / "merged")
    again = load(tmp_path / "merged", dtype=torch.bfloat16).eval()
    assert torch.equal(again(IDS).logits, merged(IDS).logits)


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("nf4", {}, "zero points of weights of 2 to 7 bits in groups, and this one is"),
        ("int8", {}, "and this one is int8"),
        ("int4", {"qalora_group_size": 16}, "a multiple of the weight's group_size, 32, got 16"),
        ("int4", {"qalora_group_size": 96, "target_modules": ["up"]}, "divisible by"),
        ("int4", {"use_dora": True}, "no other kind"),
    ],
)
def test_what_cannot_merge_without_loss_is_refused(scheme, options, message, device):
    assert INNER % 32 == HIDDEN % 32 == 0
    with pytest.raises(ValueError, match=message):
        adapted(CONFIGS[scheme], device, **options)


def test_factors_of_activations_and_other_orders_are_refused(device):
    model = Model().to(device)
    aoext.quantize_(model, SCHEMES["int4"])
    model.up.weight.act_pre_scale = torch.rand(HIDDEN, device=device) + 0.5
    with pytest.raises(ValueError, match="has act_pre_scale"):
        peft.get_peft_model(model, by_groups())
