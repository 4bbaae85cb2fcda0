"""Experts of vLLM's layers of mixtures with weights of a checkpoint of aoext, loaded as vLLM loads them.

It runs where test_vllm.py does, with vLLM 0.33, whose interface it is written for. Ranks are made one after
the other in one process; vLLM sums their outputs.
"""

from __future__ import annotations

import importlib
import itertools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import aoext
import moe_models
from aoext.convert import convert_checkpoint
from aoext.tensors import QuantizedTensor
from test_checkpoints import exactly
from test_vllm import SCHEMES, _one_rank, _seeded, config_of  # noqa: F401

fused_moe = pytest.importorskip("vllm.model_executor.layers.fused_moe", reason="vLLM is not here")

EXPERTS, TOP, HIDDEN, INNER, TOKENS = 4, 2, 64, 128, 9

# What a checkpoint calls a layer's experts, and in them gate, down and up, as vLLM's models name them.
QWEN3 = ("model.layers.0.mlp.experts", ("gate_proj", "down_proj", "up_proj"))
MIXTRAL = ("model.layers.0.block_sparse_moe.experts", ("w1", "w2", "w3"))

# Those whose products quantise their activations, to 8 bits.
DYNAMIC = [name for name in SCHEMES if "dynamic" in name or name in ("int4_int8", "mxfp8")]


@pytest.fixture(autouse=True)
def _fresh_names(_one_rank: None) -> None:  # noqa: F811
    """vLLM keeps the layers of a model by their names, and refuses a second one of a name."""
    from vllm.config import get_current_vllm_config

    compilation = get_current_vllm_config().compilation_config
    compilation.static_forward_context.clear()
    compilation.static_all_moe_layers.clear()


def exact_values(weight: Any) -> Tensor:
    if not isinstance(weight, QuantizedTensor):
        return weight.double()
    return torch.stack([exactly(expert) for expert in weight]) if weight.dim() == 3 else exactly(weight)


def plain_weights(gated: bool = True) -> dict[str, Tensor]:
    up = 2 * INNER if gated else INNER
    return {"up": torch.randn(EXPERTS, up, HIDDEN) / 8, "down": torch.randn(EXPERTS, HIDDEN, INNER) / 11}


def save(
    folder: Path,
    layer: tuple[str, tuple[str, str, str | None]],
    quantize: Callable[[Tensor], Tensor],
    weights: dict[str, Tensor],
    stacked: bool,
    biases: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Writes a checkpoint of one layer's experts; returns their dequantised weights, in float64."""
    prefix, (gate, down, up) = layer
    gated = up is not None
    state: dict[str, Tensor] = {}
    if stacked:
        up_name = "gate_up_proj" if gated else gate
        state = {up_name: quantize(weights["up"]), "down_proj": quantize(weights["down"])}
        exact = {"up": exact_values(state[up_name]), "down": exact_values(state["down_proj"])}
        for name, bias in (biases or {}).items():
            state[f"{up_name if name == 'up' else 'down_proj'}_bias"] = bias
    else:
        parts = (
            dict(zip((gate, up), weights["up"].chunk(2, 1), strict=True)) if gated else {gate: weights["up"]}
        )
        named = {**parts, down: weights["down"]}
        state = {f"{e}.{n}.weight": quantize(w[e]) for n, w in named.items() for e in range(EXPERTS)}
        stacks = {
            n: torch.stack([exact_values(state[f"{e}.{n}.weight"]) for e in range(EXPERTS)]) for n in named
        }
        exact = {"up": torch.cat([stacks[name] for name in parts], 1), "down": stacks[down]}
        for name, bias in (biases or {}).items():
            halves = (
                dict(zip(parts, bias.chunk(len(parts), 1), strict=True)) if name == "up" else {down: bias}
            )
            state.update({f"{e}.{n}.bias": half[e] for n, half in halves.items() for e in range(EXPERTS)})
    model = nn.Module()
    for name, tensor in state.items():
        *path, leaf = f"{prefix}.{name}".split(".")
        module = model
        for step in path:
            module.add_module(step, module._modules.get(step) or nn.Module())
            module = module.get_submodule(step)
        module.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
    aoext.save_model(model, folder / "model.safetensors")
    return {name: weight.double() for name, weight in exact.items()}


def quantizer(scheme: Any, dtype: torch.dtype = torch.bfloat16) -> Callable[[Tensor], Tensor]:
    config = aoext.configs.schemes.as_config("test", scheme)
    return lambda weight: config.quantize(weight.to(dtype))


def vllm_experts(layer: tuple[str, Any], config: Any, **options: Any) -> Any:
    prefix, names = layer
    options = {"activation": "silu", "top_k": TOP, "params_dtype": torch.bfloat16, **options}
    sizes = {"num_experts": EXPERTS, "hidden_size": HIDDEN, "intermediate_size": INNER}
    return fused_moe.FusedMoEFactory(
        quant_config=config, prefix=prefix, ckpt_names=names, **{**sizes, **options}
    ).routed_experts


def load(experts: Any, prefix: str, folder: Path) -> Any:
    """What AutoWeightsLoader and the loader after it do with a layer's experts."""
    stored = pytest.importorskip("safetensors.torch").load_file(folder / "model.safetensors")
    start = f"{prefix}."
    names = {key.removeprefix(start): tensor for key, tensor in stored.items() if key.startswith(start)}
    loaded = set(experts.load_weights(names.items()))
    assert loaded == {name for name, _ in experts.named_parameters()}
    experts.quant_method.process_weights_after_loading(experts)
    return experts


def router(tokens: int = TOKENS, k: int = TOP) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, the router's weights, and its choice; the last expert gets no token."""
    ids = torch.stack([torch.randperm(EXPERTS - 1)[:k] for _ in range(tokens)]).int()
    return torch.randn(tokens, HIDDEN, dtype=torch.bfloat16), torch.rand(tokens, k), ids


def silu_and_mul(rows: Tensor) -> Tensor:
    gate, up = rows.chunk(2, -1)
    return F.silu(gate) * up


def expected(
    exact: dict[str, Tensor],
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    activation: Callable[[Tensor], Tensor] = silu_and_mul,
    biases: dict[str, Tensor] | None = None,
) -> Tensor:
    """The sum of a token's experts in float64, one after the other."""
    output = torch.zeros(len(x), HIDDEN, dtype=torch.float64)
    bias = {name: b.double() for name, b in (biases or {}).items()}
    for token, chosen in enumerate(ids.tolist()):
        for place, e in enumerate(chosen):
            up = F.linear(x[token].double(), exact["up"][e], bias["up"][e] if bias else None)
            down = F.linear(activation(up), exact["down"][e], bias["down"][e] if bias else None)
            output[token] += weights[token, place].double() * down
    return output


def check(output: Tensor, wanted: Tensor, tolerance: float = 0.01) -> None:
    assert output.dtype is torch.bfloat16
    assert (output.double() - wanted).norm() <= tolerance * wanted.norm()


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "one by one"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme(tmp_path, scheme, stacked):
    layer = QWEN3 if stacked else MIXTRAL
    quantize = quantizer(SCHEMES[scheme], torch.float32 if "float32" in scheme else torch.bfloat16)
    exact = save(tmp_path, layer, quantize, plain_weights(), stacked)
    experts = vllm_experts(layer, config_of(tmp_path))
    assert type(experts.quant_method).__name__ == "AoextMoEMethod"
    load(experts, layer[0], tmp_path)
    # Where each expert has a scale of its own for all of its weight, those of its blocks round once.
    rounds = 2**-23 if scheme == "nvfp4" and not stacked else 0
    for weight, name in ((experts.w13_weight, "up"), (experts.w2_weight, "down")):
        assert isinstance(weight, QuantizedTensor)
        assert weight.dtype is torch.bfloat16
        assert (exact_values(weight) - exact[name]).abs().max() <= rounds * exact[name].abs().max()
    x, weights, ids = router()
    output = experts.forward_modular(x, weights, ids)
    check(output, expected(exact, x, weights, ids), 0.06 if scheme in DYNAMIC else 0.01)


class Ranks:
    """Makes layers as each of two ranks does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, by_expert: bool) -> None:
        from vllm.config import get_current_vllm_config

        self.patch = monkeypatch
        parallel = get_current_vllm_config().parallel_config
        monkeypatch.setattr(parallel, "enable_expert_parallel", by_expert)

    def __call__(self, rank: int, layer: Any, config: Any, **options: Any) -> Any:
        from vllm.config import get_current_vllm_config

        where = "vllm.model_executor.layers.fused_moe.config.get_tensor_model_parallel_rank"
        self.patch.setattr(where, lambda: rank)
        get_current_vllm_config().compilation_config.static_forward_context.clear()
        return vllm_experts(layer, config, tp_size=2, **options)


SHARED = ["int4", "int8", "float8_dynamic", "float8 by blocks", "mxfp4", "nvfp4", "nf4"]


@pytest.mark.parametrize("by_expert", [True, False], ids=["experts", "columns"])
@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "one by one"])
@pytest.mark.parametrize("scheme", SHARED)
def test_ranks_share_experts(tmp_path, monkeypatch, scheme, stacked, by_expert):
    exact = save(tmp_path, QWEN3, quantizer(SCHEMES[scheme]), plain_weights(), stacked)
    x, weights, ids = router()
    output = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    layer_of = Ranks(monkeypatch, by_expert)
    for rank in range(2):
        experts = load(layer_of(rank, QWEN3, config_of(tmp_path)), QWEN3[0], tmp_path)
        shape = [EXPERTS // 2, 2 * INNER, HIDDEN] if by_expert else [EXPERTS, INNER, HIDDEN]
        assert list(experts.w13_weight.shape) == shape
        output += experts.forward_modular(x, weights, ids).double()
    check(output.bfloat16(), expected(exact, x, weights, ids), 0.06 if scheme in DYNAMIC else 0.01)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "one by one"])
def test_biases_count_once(tmp_path, monkeypatch, stacked, ranks):
    biases = {"up": torch.randn(EXPERTS, 2 * INNER), "down": torch.randn(EXPERTS, HIDDEN)}
    biases = {name: bias.bfloat16() for name, bias in biases.items()}
    exact = save(tmp_path, QWEN3, quantizer("int8"), plain_weights(), stacked, biases)
    x, weights, ids = router()
    output = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    for rank in range(ranks):
        if ranks == 1:
            experts = vllm_experts(QWEN3, config_of(tmp_path), has_bias=True)
        else:
            experts = Ranks(monkeypatch, False)(rank, QWEN3, config_of(tmp_path), has_bias=True)
        load(experts, QWEN3[0], tmp_path)
        output += experts.forward_modular(x, weights, ids).double()
    check(output.bfloat16(), expected(exact, x, weights, ids, biases=biases))


def clamped(rows: Tensor) -> Tensor:
    gate, up = rows.chunk(2, -1)
    gate = gate.clamp(max=0.5)
    return gate * torch.sigmoid(1.7 * gate) * (up.clamp(-0.5, 0.5) + 1)


def gelu_and_mul(rows: Tensor) -> Tensor:
    gate, up = rows.chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up


ACTIVATIONS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "gelu_tanh": ({}, gelu_and_mul),
    "swigluoai_uninterleave": ({"swiglu_limit": 0.5, "swiglu_alpha": 1.7, "swiglu_beta": 1.0}, clamped),
    "relu2_no_mul": ({}, lambda rows: F.relu(rows) ** 2),
    "silu_no_mul": ({}, F.silu),
}


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "one by one"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_with_and_without_a_gate(tmp_path, monkeypatch, name, stacked):
    options, activation = ACTIVATIONS[name]
    gated = not name.endswith("no_mul")
    if not gated:  # which vLLM has no kernels for on a CPU, where none of its kernels runs here
        gpu = types.SimpleNamespace(is_cuda_alike=lambda: True)
        monkeypatch.setattr("vllm.model_executor.layers.fused_moe.config.current_platform", gpu)
    layer = QWEN3 if gated else (QWEN3[0], ("up_proj", "down_proj", None))
    exact = save(tmp_path, layer, quantizer("int8"), plain_weights(gated), stacked)
    experts = load(vllm_experts(layer, config_of(tmp_path), activation=name, **options), layer[0], tmp_path)
    x, weights, ids = router()
    check(experts.forward_modular(x, weights, ids), expected(exact, x, weights, ids, activation))


def test_the_routers_weights_on_the_input(tmp_path):
    exact = save(tmp_path, QWEN3, quantizer("int8"), plain_weights(), True)
    options = {"top_k": 1, "apply_router_weight_on_input": True}
    experts = load(vllm_experts(QWEN3, config_of(tmp_path), **options), QWEN3[0], tmp_path)
    x, weights, ids = router(k=1)
    wanted = expected(exact, x.double() * weights, torch.ones_like(weights), ids)
    check(experts.forward_modular(x, weights, ids), wanted)


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "one by one"])
@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_names_go_through_a_models_own_mapping(tmp_path, name, stacked):
    """The way of from a file to a layer's output that a model of vLLM goes, but for its router's kernel."""
    from vllm.config import get_current_vllm_config
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.models.utils import AutoWeightsLoader

    model = importlib.import_module(f"vllm.model_executor.models.{name}")
    mapper = (model.MixtralModel if name == "mixtral" else model.Qwen3MoeModel).hf_to_vllm_mapper
    layer = MIXTRAL if name == "mixtral" else QWEN3
    exact = save(tmp_path, layer, quantizer("int4"), plain_weights(), stacked)
    config = config_of(tmp_path)
    config.apply_vllm_mapper(mapper.get_rename_mapper())
    x, weights, ids = router()
    names = {"ckpt_names": layer[1], "prefix": layer[0], "quant_config": config}
    sizes = {"num_experts": EXPERTS, "hidden_size": HIDDEN, "intermediate_size": INNER, "top_k": TOP}
    runner = fused_moe.FusedMoEFactory(
        **sizes, **names, params_dtype=torch.bfloat16, custom_routing_function=lambda **_: (weights, ids)
    )
    root = nn.Module()
    *path, leaf = layer[0].split(".")
    module = root
    for step in path:
        module.add_module(step, nn.Module())
        module = module.get_submodule(step)
    module.add_module(leaf, runner)
    stored = pytest.importorskip("safetensors.torch").load_file(tmp_path / "model.safetensors")
    loaded = AutoWeightsLoader(root).load_weights(stored.items(), mapper=mapper)
    assert loaded == {name for name, _ in root.named_parameters()}
    runner.routed_experts.quant_method.process_weights_after_loading(runner.routed_experts)
    with set_forward_context(None, get_current_vllm_config()):
        output = runner(x, torch.randn(TOKENS, EXPERTS))
    check(output, expected(exact, x, weights, ids))


def mixed(*schemes: Any) -> Callable[[Tensor], Tensor]:
    """Quantises weights by these schemes in turn; None leaves one plain."""
    left = itertools.cycle(schemes)
    return lambda weight: weight.bfloat16() if (scheme := next(left)) is None else quantizer(scheme)(weight)


@pytest.mark.parametrize(
    ("scheme", "stacked", "options", "message"),
    [
        (["int8", None], True, {}, "all quantised, or all plain, and the checkpoint has no quantised w2"),
        (["int8", None], False, {}, "no quantised 1.gate_proj.weight nor 5 more"),
        (["int8", "int4"], False, {}, "merges all experts to w13_weight, so they must be quantised alike"),
        (["int8"], True, {"activation": "swigluoai"}, "the activation swigluoai do not run in vLLM yet"),
        (["int8"], True, {"apply_router_weight_on_input": True}, "where a token has one expert, not 2"),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path, scheme, stacked, options, message):
    save(tmp_path, QWEN3, mixed(*scheme), plain_weights(), stacked)
    with pytest.raises(ValueError, match=f"aoext: {QWEN3[0]}: .*{message}"):
        vllm_experts(QWEN3, config_of(tmp_path), **options)


def test_blocks_across_gate_and_up_run_where_no_rank_divides_them(tmp_path, monkeypatch):
    quantize = quantizer({"scheme": "float8", "granularity": [192, 32]})
    exact = save(tmp_path, QWEN3, quantize, plain_weights(), True)
    experts = load(vllm_experts(QWEN3, config_of(tmp_path)), QWEN3[0], tmp_path)
    x, weights, ids = router()
    check(experts.forward_modular(x, weights, ids), expected(exact, x, weights, ids))
    refusal = r"experts: block_size = \[192, 32\] does not divide the 64, 64 rows of a rank"
    with pytest.raises(ValueError, match=refusal):
        Ranks(monkeypatch, False)(0, QWEN3, config_of(tmp_path))


def test_biases_that_the_layer_lacks_are_named(tmp_path):
    biases = {"up": torch.zeros(EXPERTS, 2 * INNER), "down": torch.zeros(EXPERTS, HIDDEN)}
    save(tmp_path, QWEN3, quantizer("int8"), plain_weights(), True, biases)
    with pytest.raises(ValueError, match=r"the checkpoint has w(13|2)_bias, and vLLM's layer has no biases"):
        load(vllm_experts(QWEN3, config_of(tmp_path)), QWEN3[0], tmp_path)


def test_plain_experts_are_left_to_vllm(tmp_path):
    save(tmp_path, QWEN3, quantizer("int8"), plain_weights(), True)
    config = config_of(tmp_path)
    assert config.get_quant_method(vllm_experts(QWEN3, config), "model.layers.1.mlp.experts") is None


def test_weights_of_other_shapes_are_named(tmp_path):
    save(tmp_path, QWEN3, quantizer("int8"), plain_weights(), False)
    experts = vllm_experts(QWEN3, config_of(tmp_path), tp_size=2)
    loader = experts.get_submodule("w13_weight").qdata.weight_loader
    too_wide = torch.zeros(INNER, 2 * HIDDEN, dtype=torch.int8)
    with pytest.raises(
        ValueError, match=r"experts: qdata of an expert must be \[64, 64\] .* got \[64, 128\]"
    ):
        loader(experts.get_submodule("w13_weight").qdata, too_wide, "w13_weight.qdata", "w1", 0)


@pytest.mark.parametrize("writer", ["save_pretrained", "convert"])
@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_what_others_call_experts_is_found(tmp_path, generator, name, writer):
    model, config = (
        moe_models.build(name, generator, torch.bfloat16),
        aoext.Int4WeightOnlyConfig(group_size=32),
    )
    folder = tmp_path / writer
    if writer == "convert":
        model.save_pretrained(tmp_path / "plain")
        convert_checkpoint(tmp_path / "plain", folder, config)
    aoext.quantize_(model, config)
    if writer == "save_pretrained":
        model.save_pretrained(folder)
    layer, stacks = (MIXTRAL if name == "mixtral" else QWEN3), model.model.layers[0].mlp.experts
    exact = {"up": exact_values(stacks.gate_up_proj), "down": exact_values(stacks.down_proj)}
    experts, _, inner = exact["down"].shape
    sizes = {"num_experts": experts, "intermediate_size": inner}
    served = load(vllm_experts(layer, config_of(folder), **sizes), layer[0], folder)
    x, weights, ids = router()
    check(served.forward_modular(x, weights, ids), expected(exact, x, weights, ids))
