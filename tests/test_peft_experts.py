"""LoRA on the quantised weights of experts, beside PEFT's own on the dequantised ones."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import aoext
from aoext.integrations.peft_merging import measuring
from aoext.models.experts import expert_weights
from aoext.operators.experts import times
from aoext.tensors import QuantizedTensor
from conftest import compiler_for
from models import trained_on
from moe_models import IDS, MODELS, build
from test_peft import CONFIGS, bits, relative, stir

peft = pytest.importorskip("peft")
pytest.importorskip("transformers")
if not hasattr(peft.tuners.lora.layer, "ParamWrapper"):
    pytest.skip("this PEFT has no target_parameters", allow_module_level=True)

SCHEMES = ["int4", "int8", "float8", "nf4", "nvfp4", "int8 dynamic"]


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def targets(model: nn.Module) -> list[str]:
    """The parameters of experts, as a user names them."""
    named = {
        f"{path.replace('.base_layer', '').rpartition('.')[2]}.{name}"
        for path, module in model.named_modules()
        for name in expert_weights(module)
    }
    return sorted(named)


def lora(model: nn.Module, **options: Any) -> Any:
    return peft.LoraConfig(**{"r": 4, "target_modules": [], "target_parameters": targets(model), **options})


def quantised(plain: nn.Module, scheme: str) -> Any:
    model = copy.deepcopy(plain)
    aoext.quantize_(model, CONFIGS[scheme], lambda module, _: bool(expert_weights(module)))
    return model


def dequantised(plain: Any, model: nn.Module) -> Any:
    """The model with what quantised experts stand for, on transformers' own functions."""
    twin = copy.deepcopy(plain)
    for module, source in zip(twin.modules(), model.modules(), strict=True):
        for name in expert_weights(source):
            weight = source._parameters[name].dequantize()
            setattr(module, name, nn.Parameter(weight, requires_grad=False))
    twin.config._experts_implementation = "eager"
    return twin


def adapters(model: nn.Module) -> dict[str, Any]:
    return {name: p for name, p in model.named_parameters() if "lora_" in name}


def wrappers(model: nn.Module) -> list[Any]:
    """PEFT's layers, those of one module of experts outermost first."""
    return [module for module in model.modules() if type(module).__name__ == "ParamWrapper"]


def delta(layer: Any, names: list[str]) -> Tensor:
    """What PEFT itself adds to a weight."""
    return sum(layer.get_delta_weight(name) for name in names)


def inputs(model: nn.Module, device: torch.device, generator: torch.Generator) -> tuple[Tensor, ...]:
    """20 tokens, and for most experts which of them they go to, and by what weight."""
    experts = wrappers(model)[0].get_base_layer()
    x = torch.randn(20, 64, generator=generator).to(device)
    weights, ids = torch.rand(20, experts.num_experts, generator=generator).softmax(-1).topk(2)
    return (x,) if type(experts).__name__ == "Llama4TextExperts" else (x, ids.to(device), weights.to(device))


def run(layer: Any, x: Tensor, *routing: Tensor) -> list[Tensor]:
    """What a layer makes of tokens, and the gradients of these and of its adapters."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = layer(x, *routing)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in adapters(layer).values())]


def same_start(model: nn.Module, other: nn.Module) -> None:
    """Gives the adapters of two models the same random values."""
    stir(model)
    theirs = adapters(other)
    assert adapters(model).keys() == theirs.keys()
    with torch.no_grad():
        for name, parameter in adapters(model).items():
            theirs[name].copy_(parameter)


def step(model: Any, ids: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    optimizer.step()
    return out.logits.detach()


@pytest.mark.parametrize(
    ("name", "scheme"),
    [*((name, "int4") for name in MODELS), *(("qwen3", scheme) for scheme in SCHEMES if scheme != "int4")],
)
def test_experts_train_as_peft_trains_dequantised_ones(name, scheme, device, generator):
    if device.type == "xpu" and (name, scheme) not in [("qwen3", "int8"), ("gpt_oss", "int4")]:
        pytest.skip("what runs here is the same code")
    plain = build(name, generator).to(device)
    model = quantised(plain, scheme)
    theirs = peft.get_peft_model(dequantised(plain, model), lora(model))
    ours = peft.get_peft_model(model, lora(model))
    same_start(ours, theirs)
    ids = IDS.to(device)
    optimizers = [torch.optim.SGD(list(adapters(each).values()), lr=0.05) for each in (ours, theirs)]
    before = bits(ours)
    bound = 0.05 if "dynamic" in scheme else 1e-4
    for _ in range(3):
        logits = [step(each, ids, by) for each, by in zip((ours, theirs), optimizers, strict=True)]
        assert relative(*logits) < bound
        for mine, other in zip(adapters(ours).values(), adapters(theirs).values(), strict=True):
            assert relative(mine.grad, other.grad) < 5 * bound
            mine.grad = other.grad = None
    for mine, other in zip(adapters(ours).values(), adapters(theirs).values(), strict=True):
        assert relative(mine, other) < bound
    assert all(map(torch.equal, bits(ours), before))


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_the_input_and_routers_get_their_gradients(name, generator):
    """Layers below experts train through these."""
    plain = build(name, generator)
    model = quantised(plain, "int8")
    theirs = peft.get_peft_model(dequantised(plain, model), lora(model, target_modules=["q_proj", "k_proj"]))
    ours = peft.get_peft_model(model, lora(model, target_modules=["q_proj", "k_proj"]))
    same_start(ours, theirs)
    for each in (ours, theirs):
        each(input_ids=IDS, labels=IDS).loss.backward()
    for mine, other in zip(adapters(ours).values(), adapters(theirs).values(), strict=True):
        assert relative(mine.grad, other.grad) < 1e-4


def test_adapters_are_files_that_plain_experts_take_and_give(tmp_path, generator):
    plain = build("qwen3", generator)
    model = quantised(plain, "int4")
    base = dequantised(plain, model)
    options = {"rank_pattern": {r".*\.down_proj": 8}, "alpha_pattern": {r".*\.down_proj": 24}}
    ours = peft.get_peft_model(model, lora(model, **options))
    stir(ours)
    ours.save_pretrained(tmp_path / "ours")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    ours.eval()
    with torch.no_grad():
        wanted = ours(IDS).logits
        assert relative(theirs(IDS).logits, wanted) < 1e-4
        theirs.save_pretrained(tmp_path / "theirs")
        trained = {name: factor.clone() for name, factor in adapters(ours).items()}
        empty = ours.unload()
        again = peft.PeftModel.from_pretrained(empty, tmp_path / "theirs", low_cpu_mem_usage=True).eval()
        assert relative(again(IDS).logits, wanted) < 1e-6  # a product's last bit hangs on where a file lies
    for name, factor in adapters(again).items():
        assert torch.equal(factor, trained.pop(name))
    assert not trained
    assert {p.shape[0] for n, p in adapters(again).items() if "lora_A" in n} == {4 * 8, 8 * 8}


def test_several_adapters_take_turns(generator):
    plain = build("mixtral", generator)
    model = quantised(plain, "int8")
    theirs = peft.get_peft_model(dequantised(plain, model), lora(model))
    ours = peft.get_peft_model(model, lora(model))
    for each in (ours, theirs):
        each.add_adapter("other", lora(model, r=2, use_rslora=True))
        each.eval()
    same_start(ours, theirs)
    with torch.no_grad():
        for chosen in ("default", "other", ["default", "other"]):
            for each in (ours, theirs):
                each.base_model.set_adapter(chosen)
            assert relative(ours(IDS).logits, theirs(IDS).logits) < 1e-4
        with ours.disable_adapter():
            assert torch.equal(ours(IDS).logits, copy.deepcopy(ours).unload()(IDS).logits)
        ours.delete_adapter("default")
        theirs.delete_adapter("default")
        assert relative(ours(IDS).logits, theirs(IDS).logits) < 1e-4
        with pytest.raises(ValueError, match="mixed"):
            ours(IDS, adapter_names=["other", "__base__"])


@pytest.mark.parametrize(("scheme", "noise"), [("int4", 0.15), ("int8", 0.02), ("nvfp4", 0.15)])
@pytest.mark.parametrize("name", ["qwen3", "gpt_oss", "jetmoe"])
def test_merging_one_expert_after_the_other(name, scheme, noise, generator, monkeypatch):
    model = quantised(build(name, generator), scheme)
    ours = peft.get_peft_model(model, lora(model)).eval()
    ours.add_adapter("other", lora(model, r=2))
    stir(ours)
    both, before, seen = ["default", "other"], bits(ours), []
    ours.base_model.set_adapter(both)
    wanted = [layer.get_param().dequantize() + delta(layer, both) for layer in wrappers(ours)]
    dequantize = QuantizedTensor.dequantize
    with torch.no_grad():
        apart = ours(IDS).logits
        with monkeypatch.context() as patch, measuring(ours) as survival, warnings.catch_warnings():
            warnings.simplefilter("error")
            patch.setattr(QuantizedTensor, "dequantize", lambda w: seen.append(w.dim()) or dequantize(w))
            ours.merge_adapter(safe_merge=True)
        assert set(seen) == {2}
        for layer, weight in zip(wrappers(ours), wanted, strict=True):
            assert relative(layer.get_param().dequantize(), weight) < noise
        assert len(survival.layers) == len(wanted)
        assert 0.9 < survival.total < 1.1
        at_once, merged = bits(ours), ours(IDS).logits
        ours.unmerge_adapter()
        assert all(map(torch.equal, bits(ours), before))
        assert torch.equal(ours(IDS).logits, apart)
        for one in both:
            ours.base_model.merge_adapter([one])
        assert all(map(torch.equal, bits(ours), at_once))
        copy.deepcopy(ours).unmerge_adapter()
        ours.unmerge_adapter()
        whole = ours.merge_and_unload()
        assert torch.equal(whole(IDS).logits, merged)
    assert not any("lora" in n for n, _ in whole.named_parameters())


def test_a_broken_adapter_of_experts_does_not_merge(generator):
    model = quantised(build("qwen3", generator), "int8")
    ours = peft.get_peft_model(model, lora(model))
    stir(ours)
    before = bits(ours)
    with torch.no_grad():
        for parameter in adapters(ours).values():
            parameter[3, 5] = float("nan")
    with pytest.raises(ValueError, match="NaN or Inf in the weight with default merged"):
        ours.merge_adapter()
    assert all(map(torch.equal, bits(ours), before))


def test_little_survives_of_a_small_change(generator):
    model = quantised(build("qwen3", generator), "int4")
    ours = peft.get_peft_model(model, lora(model))
    with torch.no_grad():
        for parameter in adapters(ours).values():
            parameter.normal_(std=0.005)
    with pytest.warns(UserWarning, match=r"% of the adapters' change survives .*experts"):
        ours.merge_and_unload()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_computes_the_same_gradients(reentrant, generator):
    model = quantised(build("qwen3", generator), "int4")
    ours = peft.get_peft_model(model, lora(model))
    stir(ours)
    ours.train()

    def gradients() -> list[Tensor]:
        ours.zero_grad()
        ours(input_ids=IDS, labels=IDS).loss.backward()
        return [p.grad.clone() for p in adapters(ours).values()]

    wanted = gradients()
    ours.enable_input_require_grads()
    ours.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for got, gradient in zip(gradients(), wanted, strict=True):
        torch.testing.assert_close(got, gradient)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast(dtype, device, generator):
    """Adapters stay float32, as PEFT has them; products are bfloat16."""
    plain = build("gpt_oss", generator, dtype).to(device)
    model = quantised(plain, "int8")
    theirs = peft.get_peft_model(dequantised(plain, model).float(), lora(model))
    ours = peft.get_peft_model(model, lora(model))
    same_start(ours, theirs)
    arguments = inputs(ours, device, generator)
    with torch.autocast(device.type, torch.bfloat16):
        got = run(wrappers(ours)[0], *arguments)
    for mine, wanted in zip(got, run(wrappers(theirs)[0], *arguments), strict=True):
        assert relative(mine.float(), wanted) < 0.05
    assert {mine.dtype for mine in got[1:]} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "backend"), [("qwen3", "inductor"), ("gpt_oss", "aot_eager"), ("llama4", "aot_eager")]
)
@pytest.mark.skipif(torch.__version__ < "2.13", reason="older releases break the graph at the adapters")
def test_compiled_in_one_graph(name, backend, device, generator):
    torch._dynamo.reset()
    model = quantised(build(name, generator).to(device), "int4")
    ours = peft.get_peft_model(model, lora(model))
    stir(ours)
    layer = wrappers(ours)[0]
    counter = CompileCounterWithBackend(backend if backend == "aot_eager" else compiler_for(device))
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for _ in range(2):
        arguments = inputs(ours, device, generator)
        for got, wanted in zip(run(compiled, *arguments), run(layer, *arguments), strict=True):
            assert relative(got, wanted) < 1e-4
    assert counter.frame_count == 1
    experts = layer.get_base_layer()
    assert not any(name in vars(experts) for name in expert_weights(experts))


@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
def test_plain_experts_beside_quantised_ones_take_adapters_as_well(name, generator):
    model = build("qwen3", generator)
    with pytest.warns(UserWarning, match="experts are left as they are"):
        aoext.quantize_(model, CONFIGS["int8"], lambda _, path: path.endswith(name))
    ours = peft.get_peft_model(model, lora(model))
    trained_on(IDS, ours)
    assert all(bool(p.any()) for p in adapters(ours).values())


@pytest.mark.parametrize("rank", [4, 16])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that the host may wait for")
def test_the_host_waits_for_nothing(rank, generator):
    device = torch.device("cuda")
    model = quantised(build("qwen3", generator, torch.bfloat16).to(device), "int8")
    ours = peft.get_peft_model(model, lora(model, r=rank))
    stir(ours)
    layer, arguments = wrappers(ours)[0], inputs(ours, device, generator)
    x, ids, weights = (t.bfloat16() if t.is_floating_point() else t for t in arguments)
    wanted = run(layer, x, ids, weights)
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = run(layer, x, ids, weights)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for mine, other in zip(got, wanted, strict=True):
        assert relative(mine, other) < 1e-2


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("a", "b"), [(64, 8), (8, 64), (48, 16)])
def test_plain_products_of_bfloat16_are_those_in_float64(a, b, transposed, device, generator):
    rows, weight = (torch.randn(*shape, generator=generator) for shape in ((90, a), (6, a, b)))
    weight = weight.mT.contiguous().mT if transposed else weight
    ends = torch.tensor([20, 20, 41, 40, 77, 83], dtype=torch.int32)
    grad = torch.randn(90, b, generator=generator)
    rows, weight, grad = (t.to(device, torch.bfloat16) for t in (rows, weight, grad))
    leaves = [rows.requires_grad_(), weight.requires_grad_()]
    product = times(*leaves, ends.to(device))
    product.backward(grad)
    wanted, grads = torch.zeros(90, b, dtype=torch.float64), [t.new_zeros(t.shape).double() for t in leaves]
    for e, (begin, end) in enumerate([(0, 20), (20, 20), (20, 41), (41, 41), (41, 77), (77, 83)]):
        x, w, dy = (t.detach().double().cpu() for t in (rows[begin:end], weight[e], grad[begin:end]))
        wanted[begin:end] = x @ w
        grads[0][begin:end], grads[1][e] = (dy @ w.mT).to(device), (x.mT @ dy).to(device)
    assert relative(product.detach().double().cpu(), wanted) < 0.01
    for leaf, gradient in zip(leaves, grads, strict=True):
        assert relative(leaf.grad.double(), gradient) < 0.01
    assert not product[83:].any()
    assert not rows.grad[83:].any()


def test_other_weights_named_as_parameters_are_refused(generator):
    model = build("qwen3", generator)
    aoext.quantize_(model, CONFIGS["int8"], lambda _, path: path.endswith("q_proj"))
    with pytest.raises(TypeError, match=r"weight of a QuantizedLinear is quantised.*target_modules"):
        peft.get_peft_model(model, peft.LoraConfig(target_modules=[], target_parameters=["q_proj.weight"]))
    head = peft.LoraConfig(target_modules=[], target_parameters=["lm_head.weight"])  # which stays plain
    trained_on(IDS, peft.get_peft_model(model, head))


def test_another_function_of_experts_says_what_takes_adapters(generator):
    model = quantised(build("qwen3", generator), "int8")
    ours = peft.get_peft_model(model, lora(model))
    ours.config._experts_implementation = "batched_mm"
    with pytest.raises(NotImplementedError, match=r"set_experts_implementation\('aoext'\)"):
        ours(IDS)
