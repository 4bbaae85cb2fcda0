"""Quantisation-aware training: converting changes no logit; gradients, and the ways in which models train."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import aoext
from aoext import QATConfig
from aoext.configs.schemes import SCHEMES, as_config
from aoext.models.layers import QuantizedLinear
from aoext.qat.layers import FakeQuantizedLinear, scheme_of
from aoext.qat.schemes import config_of, quantized
from aoext.quality.grid import Grid
from aoext.reference import randn
from aoext.tensors import QuantizedTensor
from ranks import Ranks

HIDDEN = 128
CONFIGS = {
    **{name: as_config("test", name) for name in SCHEMES},
    "int8 groups": aoext.IntxWeightOnlyConfig(bits=8, group_size=32),
    "int3 symmetric": aoext.IntxWeightOnlyConfig(bits=3, group_size=64, symmetric=True),
    "mxfp4 floor": aoext.MXFP4WeightOnlyConfig("floor"),
}


@pytest.fixture(autouse=True)
def _seeded(generator: torch.Generator) -> None:
    torch.manual_seed(generator.initial_seed())


class Model(nn.Module):
    """Takes token ids; its head has the embedding's weight."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, HIDDEN, padding_idx=0)
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.head = nn.Linear(HIDDEN, 40, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        return self.head(x + self.down(nn.functional.gelu(self.up(x))))


def train(model: nn.Module, ids: Tensor, steps: int = 3) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def random_ids(device: torch.device) -> Tensor:
    return torch.randint(1, 40, (2, 9), device=device)


@pytest.mark.parametrize("learnt", [False, True], ids=["scales follow", "scales train"])
@pytest.mark.parametrize("name", CONFIGS)
def test_converting_changes_no_logit(name, learnt, device):
    model, ids = Model(tied=True).to(device), random_ids(device)
    config = CONFIGS[name]
    summary = aoext.quantize_(model, QATConfig(config, learn_scales=learnt), quantize_embeddings=True)
    assert len(summary.layers) == 3
    losses = train(model, ids, 4)
    assert losses[-1] < losses[0]
    with torch.no_grad():
        before = model(ids)
    aoext.quantize_(model, QATConfig(config, step="convert"))
    assert type(model.up) is QuantizedLinear
    assert model.head.weight is model.embedding.weight
    assert all(
        isinstance(model.get_parameter(f"{n}.weight"), QuantizedTensor) for n in ("up", "down", "head")
    )
    with torch.no_grad():
        assert torch.equal(model(ids), before)
    assert len(model.state_dict()) == 5


@pytest.mark.parametrize("name", ["int4", "float8", "nvfp4", "int2"])
def test_gradients_are_those_of_the_quantised_weight(name, device):
    model, ids = Model().to(device), random_ids(device)
    aoext.quantize_(model, QATConfig(CONFIGS[name]), quantize_embeddings=True)
    train(model, ids)
    model(ids).square().sum().backward()
    layers = {n: m for n, m in model.named_children() if scheme_of(m)}
    plain = {
        n: quantized(m.weight, scheme_of(m)).dequantize().double().requires_grad_() for n, m in layers.items()
    }
    with torch.no_grad():
        embedded = Model().to(device).double()
    twin = embedded.load_state_dict({**model.state_dict()}, strict=False) and embedded
    for n, weight in plain.items():
        del twin.get_submodule(n).weight
        twin.get_submodule(n).weight = weight
    twin(ids).square().sum().backward()
    for n, layer in layers.items():
        expected, found = plain[n].grad, layer.weight.grad.double()
        kept = found != 0
        assert kept.double().mean() >= 0.99 * (expected != 0).double().mean()  # few values saturate
        torch.testing.assert_close(found[kept], expected[kept], rtol=1e-3, atol=1e-4 * expected.abs().max())
    assert not model.embedding.weight.grad[0].any()
    torch.testing.assert_close(model.up.bias.grad.double(), twin.up.bias.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["int4", "int3 symmetric", "float8_block", "nf4", "int8"])
def test_gradients_of_scales_are_those_of_the_rounded_values(name, device, generator):
    """Levels stay where they are for a small step, so that values are linear in scale and offset."""
    weight = randn(generator, 256, 256).to(device)
    grid = Grid.of(CONFIGS[name].quantize(weight))
    narrow = grid.at(grid.scale * 0.6, grid.offset)  # in which values saturate
    grad = randn(generator, 256, 256).to(device)
    of_weight, of_scale, of_offset = narrow.gradients(weight, grad)

    scale, offset = (
        t.double().requires_grad_() if t is not None else None for t in (narrow.scale, narrow.offset)
    )
    block_n, block_k = grid.block_size
    spread = scale.repeat_interleave(block_n, 0).repeat_interleave(block_k, 1)[:256, :256]
    shift = 0 if offset is None else offset.repeat_interleave(block_k, 1)
    level = ((narrow.rounded(weight).double() - shift) / spread).detach().round(decimals=4)
    x = (weight.double() - shift) / spread
    free = of_weight != 0
    assert 0.01 < free.double().mean() < 1
    assert torch.equal(of_weight[free], grad[free])
    # The rounding x → level counts as a shift.
    straight = torch.where(free, x + (level - x).detach(), level) * spread + shift
    straight.backward(grad.double())
    torch.testing.assert_close(of_scale.double(), scale.grad, rtol=1e-3, atol=1e-3)
    if offset is not None:
        torch.testing.assert_close(of_offset.double(), offset.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cast", ["autocast", "model"])
def test_low_precision(dtype, cast, device):
    model, ids = Model().to(device), random_ids(device)
    model = model.to(dtype) if cast == "model" else model
    aoext.quantize_(model, QATConfig("int4", learn_scales=True))
    with torch.autocast(device.type, dtype, enabled=cast == "autocast"):
        model(ids).float().square().mean().backward()
        assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())
        with torch.no_grad():
            before = model(ids)
            aoext.quantize_(model, QATConfig("int4", step="convert"))
            assert torch.equal(model(ids), before)


def test_gradient_checkpointing_and_accumulation(device):
    model, ids = Model().to(device), random_ids(device)
    aoext.quantize_(model, QATConfig("int4", learn_scales=True), quantize_embeddings=True)
    model(ids).square().sum().backward()
    model(ids).square().sum().backward()
    grads = [p.grad / 2 for p in model.parameters()]
    model.zero_grad()
    checkpoint(model, ids, use_reentrant=False).square().sum().backward()
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_compiled_models_train_without_graph_breaks(device):
    if device.type == "xpu":
        pytest.skip("tests of Inductor on XPU stand in files of their own")
    ids = random_ids(device)
    for name, learnt in (("int4", True), ("int4_int8", False)):
        model = Model().to(device)
        aoext.quantize_(model, QATConfig(CONFIGS[name], learn_scales=learnt), quantize_embeddings=True)
        compiled = torch.compile(copy.deepcopy(model), fullgraph=True)
        for each in (model, compiled):
            each(ids).square().sum().backward()
        for own, other in zip(model.parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(own.grad, other.grad, rtol=2e-2, atol=1e-3 * own.grad.abs().max())


def test_states_are_saved_and_training_goes_on(device, tmp_path):
    ids = random_ids(device)

    def prepared() -> nn.Module:
        model = Model().to(device)
        aoext.quantize_(model, QATConfig(CONFIGS["nvfp4"], learn_scales=True))
        return model

    model = prepared()
    optimizer = torch.optim.AdamW(model.parameters())
    model(ids).square().sum().backward()
    optimizer.step()
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "state")
    resumed = prepared()
    of_model, of_optimizer = torch.load(tmp_path / "state")
    resumed.load_state_dict(of_model)
    again = torch.optim.AdamW(resumed.parameters())
    again.load_state_dict(of_optimizer)
    for each, steps in ((model, optimizer), (resumed, again)):
        steps.zero_grad()
        each(ids).square().sum().backward()
        steps.step()
    for each in (resumed, copy.deepcopy(model)):
        assert torch.equal(each(ids), model(ids))


@pytest.mark.parametrize("first", ["prepared", "adapted"])
def test_adapters_train_on_a_frozen_weight(first, device):
    peft = pytest.importorskip("peft")
    model, ids = Model().to(device), random_ids(device)
    lora = peft.LoraConfig(r=4, target_modules=["up", "down"], init_lora_weights="gaussian")
    if first == "prepared":
        aoext.quantize_(model, QATConfig("int4"))
        model = peft.get_peft_model(model, lora)
    else:
        model = peft.get_peft_model(model, lora)
        aoext.quantize_(model, QATConfig("int4"))
    base = model.base_model.model.up.base_layer
    assert type(base) is FakeQuantizedLinear
    losses = train(model, ids, 5)
    assert losses[-1] < losses[0]
    assert base.weight.grad is None
    with torch.no_grad():
        before = model(ids)
        aoext.quantize_(model, QATConfig("int4", step="convert"))
        assert torch.equal(model(ids), before)


def test_adapters_can_be_merged_before_converting(device):
    peft = pytest.importorskip("peft")
    model, ids = Model().to(device), random_ids(device)
    aoext.quantize_(model, QATConfig("int4"))
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["up", "down"]))
    train(adapted, ids, 3)
    merged = adapted.merge_and_unload()
    assert type(merged.up) is FakeQuantizedLinear
    with torch.no_grad():
        before = merged(ids)
        aoext.quantize_(merged, QATConfig("int4", step="convert"))
        assert torch.equal(merged(ids), before)


@pytest.mark.parametrize("learnt", [False, True], ids=["scales follow", "scales train"])
def test_experts_and_transposed_layers_of_transformers(learnt, device):
    transformers = pytest.importorskip("transformers")
    import moe_models

    sizes = {"n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 96, "n_positions": 64}
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    for model in (moe_models._gpt_oss(), moe_models._qwen3(), gpt2):
        model, ids = model.eval().to(device), moe_models.IDS.to(device)
        aoext.quantize_(model, QATConfig("int4", learn_scales=learnt))
        model(input_ids=ids, labels=ids).loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        with torch.no_grad():
            before = model(ids).logits
            summary = aoext.quantize_(model, QATConfig("int4", step="convert"))
            assert torch.equal(model(ids).logits, before)
        assert any(len(layer.shape) == 3 for layer in summary.layers) or model is gpt2


def test_schemes_of_modules_train_together(device):
    model, ids = Model().to(device), random_ids(device)
    config = aoext.PerModuleConfig("int4", {"up": "nf4", "head": None})
    aoext.quantize_(model, QATConfig(config))
    assert type(model.head) is nn.Linear
    assert config_of(scheme_of(model.up).config) == aoext.NF4WeightOnlyConfig()
    with torch.no_grad():
        before = model(ids)
        aoext.quantize_(model, QATConfig(config, step="convert"))
        assert torch.equal(model(ids), before)


def test_without_a_scheme_the_step_convert_gives_plain_layers_back(device):
    model, ids = Model().to(device), random_ids(device)
    names = set(model.state_dict())
    aoext.quantize_(model, QATConfig("int4", learn_scales=True))
    train(model, ids)
    weight = model.up.weight
    aoext.quantize_(model, QATConfig(step="convert"))
    assert type(model.up) is nn.Linear
    assert model.up.weight is weight
    assert set(model.state_dict()) == names


def test_what_cannot_be_is_told_and_changes_nothing(device):
    for arguments, told in (
        ({}, "base_config must be given"),
        ({"base_config": "int4", "step": "train"}, "step must be one of prepare, convert"),
        ({"base_config": "int4", "weight_config": 1}, "weight_config is not taken"),
        ({"base_config": "int4", "step": "convert", "learn_scales": True}, "learn_scales is for"),
        ({"base_config": "int9"}, "scheme must be one of"),
    ):
        with pytest.raises(ValueError, match=told):
            QATConfig(**arguments)
    model = Model().to(device)
    with pytest.raises(ValueError, match="no layer is prepared"):
        aoext.quantize_(model, QATConfig("int4", step="convert"))
    with torch.no_grad():
        model.down.weight[3, 4] = torch.nan
    for learnt in (False, True):
        with pytest.raises(ValueError, match=r"'down': .* finite"):
            aoext.quantize_(model, QATConfig("int4", learn_scales=learnt))
        assert type(model.up) is nn.Linear
    model = Model().to(device)
    aoext.quantize_(model, QATConfig("int4"))
    for config, told in (
        (QATConfig("int4"), "prepared for training already"),
        (aoext.Int8WeightOnlyConfig(), "'up' is prepared for training"),
        (QATConfig("int8", step="convert"), "was prepared for Int4WeightOnlyConfig"),
    ):
        with pytest.raises(ValueError, match=told):
            aoext.quantize_(model, config)
    assert type(model.up) is FakeQuantizedLinear
    with torch.no_grad():
        model.down.weight[3, 4] = torch.nan
    with pytest.raises(ValueError, match=r"'down': .* finite"):
        aoext.quantize_(model, QATConfig("int4", step="convert"))
    assert type(model.up) is FakeQuantizedLinear


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    ranks = Ranks("cpu", 2)
    yield ranks
    ranks.close()


def _distributed(mesh: Any, kind: str, seed: int) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    model = Model()
    aoext.quantize_(model, QATConfig("int4", learn_scales=True))
    alone = copy.deepcopy(model)
    ids = torch.randint(1, 40, (4, 9))
    optimizers = []
    if kind == "ddp":
        together: nn.Module = nn.parallel.DistributedDataParallel(model)
    else:
        for layer in (model.up, model.down):
            fully_shard(layer, mesh=mesh)
        together = fully_shard(model, mesh=mesh)
    for each in (together, alone):
        optimizers.append(torch.optim.SGD(each.parameters(), lr=1e-2))
    for _ in range(2):
        for each, own in ((together, ids[2 * mesh.get_rank() :][:2]), (alone, ids)):
            each(own).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    state = get_model_state_dict(
        together, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=False)
    )
    if kind == "sharded":
        with pytest.raises(ValueError, match="is distributed"):
            aoext.quantize_(together, QATConfig("int4", step="convert"))
    if mesh.get_rank() == 0:
        for name, wanted in alone.state_dict().items():
            torch.testing.assert_close(state[name], wanted, rtol=1e-3, atol=1e-4)
        alone.load_state_dict(state)
        aoext.quantize_(alone, QATConfig("int4", step="convert"))


@pytest.mark.parametrize("kind", ["ddp", "sharded"])
def test_ranks_train_as_one_process_does(kind, ranks, generator):
    ranks(_distributed, kind, generator.initial_seed())
