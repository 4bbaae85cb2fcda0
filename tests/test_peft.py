"""PEFT's adapters on quantised weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aoext
from aoext.configs.schemes import as_config
from aoext.models.layers import QuantizedLinear
from aoext.tensors import QuantizedTensor
from models import trained_on
from test_checkpoints import exactly

peft = pytest.importorskip("peft")

HIDDEN, INNER, OUT = 64, 96, 32
CONFIGS = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=32),
    "int4 symmetric": aoext.Int4WeightOnlyConfig(group_size=32, symmetric=True),
    "int8": aoext.Int8WeightOnlyConfig(),
    "int8 dynamic": aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": aoext.Float8WeightOnlyConfig(),
    "float8 dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(torch.float8_e5m2),
    "nf4": aoext.NF4WeightOnlyConfig(),
    "float8 blocks": aoext.Float8WeightOnlyConfig(granularity=aoext.PerBlock([128, 128])),
    "float8 blocks dynamic": as_config("test", "float8_block"),
    "mxfp4": aoext.MXFP4WeightOnlyConfig(),
    "nvfp4": aoext.NVFP4WeightOnlyConfig(),
    "int4 under int8": aoext.Int8DynamicActivationInt4WeightConfig(group_size=32),
}
TABLES = ("nf4", "mxfp4", "nvfp4")
KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "pissa": {"init_lora_weights": "pissa"},
    "pissa, by iteration": {"init_lora_weights": "pissa_niter_4"},
    "olora": {"init_lora_weights": "olora"},
}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


class Model(nn.Module):
    """Its activation is smooth: relu's gradient changes by one where two computations round apart."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, OUT, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.up(x)))


def adapted(scheme: str, device: torch.device, **options: Any) -> Any:
    model = Model().to(device)
    aoext.quantize_(model, CONFIGS[scheme])
    config = peft.LoraConfig(r=4, target_modules=["up", "down"], **options)
    return peft.get_peft_model(model, config)


def stir(model: nn.Module) -> None:
    """Gives the adapters values, as training does."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name and "magnitude" not in name:
                parameter.normal_(std=0.05)


def bits(model: nn.Module) -> list[Tensor]:
    weights = (p for p in model.parameters() if isinstance(p, QuantizedTensor))
    return [t.clone().view(torch.uint8) for weight in weights for _, t in weight.named_fields()]


def relative(got: Tensor, wanted: Tensor) -> float:
    return ((got - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [(scheme, "lora") for scheme in CONFIGS]
    + [
        (scheme, kind)
        for scheme in ("int4", "float8", "nf4", "float8 blocks")
        for kind in KINDS
        if kind != "lora"
    ],
)
def test_training_and_merging(device, scheme, kind):
    model = adapted(scheme, device, **KINDS[kind])
    x, target = torch.randn(16, HIDDEN, device=device), torch.randn(16, OUT, device=device)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    losses = []
    before = bits(model)
    for _ in range(10):
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
    assert all(map(torch.equal, bits(model), before))  # the weights themselves took no part

    model.eval()
    apart = model(x)
    model.merge_adapter()
    # The error of quantising a weight, and activations.
    step = 0.2 if scheme in TABLES else 0.12 if "int4" in scheme or "dynamic" in scheme else 0.06
    assert 0 < relative(model(x), apart) < step
    model.unmerge_adapter()
    assert all(map(torch.equal, bits(model), before))
    assert torch.equal(model(x), apart)
    whole = model.merge_and_unload(safe_merge=True)
    assert type(whole.up) is QuantizedLinear
    assert relative(whole(x), apart) < step


@pytest.mark.parametrize("kind", ["pissa", "olora"])
@pytest.mark.parametrize("scheme", ["int4", "int8", "float8", "nf4", "float8 blocks"])
def test_initialisations_that_change_the_weight_keep_the_product(device, scheme, kind):
    model = Model().to(device)
    aoext.quantize_(model, CONFIGS[scheme])
    x = torch.randn(8, HIDDEN, device=device)
    before, stored = model(x), bits(model)
    adapters = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["up"], **KINDS[kind]))
    assert relative(adapters(x), before) < (0.2 if scheme in TABLES else 0.1)
    assert not torch.equal(bits(model)[0], stored[0])


@pytest.mark.parametrize("scheme", ["int4", "int8", "float8", "nf4", "float8 blocks", "nvfp4"])
def test_gradients_are_those_of_the_dequantised_model(device, scheme):
    model = adapted(scheme, device)
    stir(model)
    x = torch.randn(5, HIDDEN, device=device, requires_grad=True)
    wanted_x = x.detach().clone().requires_grad_()
    model(x).square().sum().backward()
    ours = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for module in model.modules():
        weight = module._parameters.get("weight")
        if isinstance(weight, QuantizedTensor):
            module.weight = nn.Parameter(weight.dequantize(), requires_grad=False)
    model.zero_grad()
    model(wanted_x).square().sum().backward()
    theirs = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert ours
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert relative(gradient, theirs[name]) < 1e-4, name
    assert relative(x.grad, wanted_x.grad) < 1e-4


def test_several_adapters_and_mixed_batches(device, tmp_path):
    model = adapted("int8", device)
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["up"]))
    stir(model)
    model.eval()
    x = torch.randn(4, HIDDEN, device=device)
    alone = {}
    for name in ("default", "other"):
        model.set_adapter(name)
        alone[name] = model(x)
    with model.disable_adapter():
        alone["__base__"] = model(x)
    names = ["default", "__base__", "other", "default"]
    mixed = model(x, adapter_names=names)
    for row, name in enumerate(names):
        torch.testing.assert_close(mixed[row], alone[name][row], rtol=1e-4, atol=1e-4)

    before = bits(model)
    model.base_model.merge_adapter(["default"])
    model.base_model.merge_adapter(["other"])
    at_once = bits(model)
    model.unmerge_adapter()
    assert all(map(torch.equal, bits(model), before))
    model.base_model.merge_adapter(["default", "other"])
    assert all(map(torch.equal, bits(model), at_once))
    model.unmerge_adapter()

    model.save_pretrained(tmp_path)
    base = model.unload()
    again = peft.PeftModel.from_pretrained(base, tmp_path / "other", adapter_name="other").eval()
    assert torch.equal(again(x), alone["other"])


def test_a_broken_adapter_does_not_merge_safely():
    model = adapted("int8", torch.device("cpu"))
    stir(model)
    with torch.no_grad():
        model.base_model.model.up.lora_A["default"].weight[0, 0] = float("inf")
    before = bits(model)
    with pytest.raises(ValueError, match="NaNs detected in the merged weights"):
        model.merge_adapter(safe_merge=True)
    assert all(map(torch.equal, bits(model), before))


def test_biases_of_adapters_merge():
    layer = nn.Sequential(nn.Linear(HIDDEN, OUT))
    aoext.quantize_(layer, CONFIGS["int8"])
    model = peft.get_peft_model(layer, peft.LoraConfig(r=4, target_modules=["0"], lora_bias=True))
    stir(model)
    model.eval()
    x = torch.randn(3, HIDDEN)
    apart, bias = model(x), layer[0].get_base_layer().bias.clone()
    model.merge_adapter()
    assert relative(model(x), apart) < 0.05
    model.unmerge_adapter()
    assert torch.equal(layer[0].get_base_layer().bias, bias)


@pytest.mark.parametrize("scheme", CONFIGS)
def test_a_model_is_prepared_for_training(scheme):
    """What comes before QLoRA: the rest in float32, inputs that take gradients, checkpointing."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    aoext.quantize_(model, CONFIGS[scheme], lambda _, name: "proj" in name)
    before = {name: exactly(p) for name, p in model.named_parameters() if isinstance(p, QuantizedTensor)}
    assert len(before) == 7
    model = peft.prepare_model_for_kbit_training(model)
    assert model.is_gradient_checkpointing
    plain = [p for p in model.parameters() if not isinstance(p, QuantizedTensor)]
    assert not any(p.requires_grad for p in model.parameters())
    assert {p.dtype for p in plain} == {torch.float32}
    assert all(torch.equal(exactly(model.get_parameter(name)), weight) for name, weight in before.items())
    stored = bits(model)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    stir(model)
    model.train()
    ids = torch.arange(12)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    gradients = [p.grad for name, p in model.named_parameters() if "lora_" in name]
    assert len(gradients) == 4
    assert all(bool(g.isfinite().all()) and bool(g.any()) for g in gradients)
    assert all(map(torch.equal, bits(model), stored))


@pytest.mark.parametrize(
    "name",
    ["nf4, nested", "fp8", "modelopt, nvfp4", "gptq, 8 bits, act-order", "int-quantized, zeros"],
)
def test_adapters_on_a_checkpoint_that_another_library_has_quantised(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    from test_transformers import FOREIGN, IDS, foreign_checkpoint

    foreign_checkpoint(tmp_path / "theirs", *FOREIGN[name])
    load = transformers.AutoModelForCausalLM.from_pretrained
    keep = {"quantization_config": aoext.AoextConfig.keep(), "dtype": torch.float32}
    model = peft.prepare_model_for_kbit_training(load(tmp_path / "theirs", **keep))
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    logits = trained_on(IDS, model, steps=6, rate=1e-3)
    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(load(tmp_path / "theirs", **keep), tmp_path / "adapter").eval()
    assert torch.equal(again(IDS).logits, logits)
    merged = model.merge_and_unload(safe_merge=True)  # quantised anew, by the checkpoint's scheme
    assert relative(merged(IDS).logits, logits) < 0.3
    kinds = {type(p) for p in again.parameters() if isinstance(p, QuantizedTensor)}
    assert {type(p) for p in merged.parameters() if isinstance(p, QuantizedTensor)} == kinds
