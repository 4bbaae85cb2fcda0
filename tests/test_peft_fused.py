"""LoRA's layers on quantised weights as one function: it gives what PEFT's own operations give."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import aoext
from aoext.integrations import peft_fused
from aoext.tensors import low_rank
from test_peft import CONFIGS, HIDDEN, OUT, Model, adapted, stir

peft = pytest.importorskip("peft")


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """How many adapters each call had that went the short way."""
    found: list[int] = []

    def counted(input: Tensor, weight: Any, bias: Any, adapters: Any) -> Tensor:
        found.append(len(adapters))
        return low_rank.adapted_linear(input, weight, bias, adapters)

    monkeypatch.setattr(peft_fused, "adapted_linear", counted)
    return found


def run(model: nn.Module, x: Tensor, monkeypatch: Any = None) -> dict[str, Tensor]:
    """The result and all gradients; by PEFT's own operations where these are asked for."""
    x = x.detach().clone().requires_grad_()
    model.zero_grad()
    with monkeypatch.context() if monkeypatch else nullcontext() as patch:
        if patch is not None:
            patch.setattr(peft_fused, "_adapters", lambda *_: None)
        result = model(x)
    result.float().square().sum().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"result": result.detach(), "x": x.grad, **grads}


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def alike(ours: dict[str, Tensor], theirs: dict[str, Tensor], bound: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype is theirs[name].dtype
        assert apart(tensor, theirs[name]) < bound, name


@pytest.mark.parametrize(
    ("scheme", "rows"),
    [(scheme, (3, 4)) for scheme in (*CONFIGS, "autocast", "bfloat16")]
    + [(scheme, (600,)) for scheme in ("nf4", "int8 dynamic", "autocast", "bfloat16")],
)
def test_values_and_gradients_are_those_of_pefts_operations(device, scheme, rows, calls, monkeypatch):
    dtype = torch.bfloat16 if scheme == "bfloat16" else torch.float32
    model = Model().to(device, dtype)
    aoext.quantize_(model, CONFIGS.get(scheme, CONFIGS["nf4"]))
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["up", "down"], use_rslora=True))
    stir(model)
    model.base_model.model.up.bias.requires_grad_()
    x = torch.randn(*rows, HIDDEN, device=device, dtype=dtype)
    with torch.autocast(device.type, torch.bfloat16, enabled=scheme == "autocast"):
        ours = run(model, x)
        assert calls == [1, 1]
        theirs = run(model, x, monkeypatch)
    assert calls == [1, 1]
    assert len(ours) == 7
    alike(ours, theirs, 2e-2 if scheme in ("autocast", "bfloat16") or "dynamic" in scheme else 1e-4)
    with torch.no_grad():
        assert apart(model(x), ours["result"]) < 1e-2


def test_several_adapters_and_frozen_factors(device, calls, monkeypatch):
    model = adapted("int4", device)
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["up"]))
    model.base_model.set_adapter(["default", "other"])
    stir(model)
    x = torch.randn(5, HIDDEN, device=device)
    for factor in ("", "lora_A", "lora_B"):
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.requires_grad_(not factor or factor not in name)
        calls.clear()
        ours = run(model, x)
        assert calls == [2, 1]
        alike(ours, run(model, x, monkeypatch), 1e-4)


@pytest.mark.parametrize("rows", [5, 600])
def test_factors_of_the_activation_count(rows, device, calls, monkeypatch):
    model = adapted("int4", device)
    stir(model)
    for name in ("up", "down"):
        base = getattr(model.base_model.model, name).base_layer
        factors = torch.rand(base.weight.shape[1], device=device) + 0.5
        fields = {**dict(base.weight.named_fields()), "act_pre_scale": factors}
        base.weight = nn.Parameter(base.weight.data.remade(fields), requires_grad=False)
    x = torch.randn(rows, HIDDEN, device=device)
    ours = run(model, x)
    assert calls == [1, 1]
    alike(ours, run(model, x, monkeypatch), 1e-4)


def goes_pefts_way(model: Any, x: Tensor, calls: list[int], **options: Any) -> None:
    calls.clear()
    assert model(x, **options).isfinite().all()
    assert calls == []


def test_what_is_not_plain_goes_pefts_way(device, calls):
    x = torch.randn(5, HIDDEN, device=device)
    for options in ({"use_dora": True}, {"lora_dropout": 0.5}, {"lora_bias": True}):
        goes_pefts_way(adapted("int8", device, **options), x, calls)
    model = adapted("int8", device)
    with model.disable_adapter():
        goes_pefts_way(model, x, calls)
    for name in ("up", "down"):
        base = getattr(model.base_model.model, name).base_layer
        fields = {**dict(base.weight.named_fields()), "input_scale": torch.full((1,), 0.02, device=device)}
        base.weight = nn.Parameter(base.weight.data.remade(fields), requires_grad=False)
    goes_pefts_way(model, x, calls)
    model = adapted("int8", device)
    model.eval()
    goes_pefts_way(model, x, calls, adapter_names=["default", "__base__", "default", "default", "__base__"])
    seen: list[Any] = []
    hooks = [
        getattr(model.base_model.model, name).lora_A.default.register_forward_hook(lambda *_: seen.append(0))
        for name in ("up", "down")
    ]
    goes_pefts_way(model, x, calls)
    assert len(seen) == 2
    for hook in hooks:
        hook.remove()
    model(x)
    assert calls == [1, 1]
    model.merge_adapter()
    goes_pefts_way(model, x, calls)
    dropout = adapted("int8", device, lora_dropout=0.5).eval()
    dropout(x)
    assert calls == [1, 1]


def test_under_torch_func_and_compile(device, calls, monkeypatch):
    model = adapted("int8", device)
    stir(model)
    x = torch.randn(5, HIDDEN, device=device)
    wanted = run(model, x)
    calls.clear()
    grad = torch.func.grad(lambda x: model(x).square().sum())(x)
    torch.testing.assert_close(grad, wanted["x"])
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert calls == []
    alike(run(compiled, x), {f"_orig_mod.{n}" if "." in n else n: t for n, t in wanted.items()}, 1e-4)
    assert calls == []


@pytest.mark.filterwarnings("ignore:Input #")
def test_first_and_second_derivatives(device):
    """In float32, whose products these are: steps are wide, since each is linear in each factor."""
    layer = nn.Linear(16, 8, device=device)
    aoext.quantize_(layer, aoext.Int8WeightOnlyConfig())
    x, a, b = (torch.randn(shape, device=device, requires_grad=True) for shape in ((3, 16), (2, 16), (8, 2)))

    def function(x: Tensor, bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return low_rank.adapted_linear(x, layer.weight, bias, [low_rank.Adapter(a, b, 0.5)])

    inputs = (x, layer.bias, a, b)
    assert gradcheck(function, inputs, eps=0.1, atol=2e-3, rtol=2e-3)
    assert gradgradcheck(function, inputs, eps=0.1, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_leaves_out_the_last_product(device, reentrant, monkeypatch):
    model = adapted("nf4", device)
    stir(model)
    x = torch.randn(5, HIDDEN, device=device)
    wanted = run(model, x)
    products: list[int] = []
    original = low_rank._product
    monkeypatch.setattr(low_rank, "_product", lambda *a: products.append(a[1].shape[0]) or original(*a))

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    ours = run(Checkpointed(), x)
    alike({name.removeprefix("inner."): t for name, t in ours.items()}, wanted, 1e-6)
    assert len(products) == (4 if reentrant else 3)
    assert products.count(OUT) == (2 if reentrant else 1)


def test_a_weight_that_was_overwritten_meanwhile_is_refused(device):
    model = adapted("int8", device)
    result = model(torch.randn(5, HIDDEN, device=device))
    weight = model.base_model.model.up.base_layer.weight
    weight.copy_(torch.randn(weight.shape, device=device))
    with pytest.raises(RuntimeError, match="modified by an inplace operation: a Int8Tensor"):
        result.sum().backward()


def test_the_result_may_be_written_into(device, monkeypatch):
    model = adapted("int8", device)
    stir(model)

    class Written(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return model.base_model.model.up(x).mul_(2).relu_()

    written, x = Written(), torch.randn(5, HIDDEN, device=device)
    alike(run(written, x), run(written, x, monkeypatch), 1e-5)
