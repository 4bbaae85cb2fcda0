"""Which layers quantize_ takes and leaves: training, classes of layers, other packages; what it says."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from aoext.configs import Int4WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
from aoext.models.quantize import quantize_
from aoext.tensors import QuantizedTensor

INT8 = Int8WeightOnlyConfig()


def mlp(*sizes: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(K, N) for K, N in itertools.pairwise(sizes)))


def quantised_layers(model: nn.Module) -> list[str]:
    return [n for n, m in model.named_modules() if isinstance(m._parameters.get("weight"), QuantizedTensor)]


def test_what_is_to_be_trained_in_a_partly_frozen_model_is_left_alone(device):
    model = mlp(64, 64, 64, 8).to(device)
    model[0].requires_grad_(False)
    summary = quantize_(model, INT8)
    assert quantised_layers(model) == ["0"]
    assert list(summary.skipped) == ["1", "2"]
    assert "requires gradients, in a model that is partly frozen (quantize_trainable=True" in str(summary)
    assert model[1].weight.requires_grad
    quantize_(model, INT8, lambda module, name: name == "1", quantize_trainable=True)
    assert quantised_layers(model) == ["0", "1"]


def test_a_trained_head_on_a_frozen_body_is_left_alone():
    model = nn.Sequential(nn.Conv1d(64, 64, 9).requires_grad_(False), nn.Linear(64, 8))
    assert quantize_(model, INT8).layers == []
    model.requires_grad_(True)
    assert quantised_layers(model) == []
    quantize_(model, INT8)
    assert quantised_layers(model) == ["1"]


def test_fresh_models_are_quantised_whole_whatever_table_they_freeze():
    model = nn.Sequential(nn.Embedding(4096, 64).requires_grad_(False), *mlp(64, 64, 64))
    assert len(quantize_(model, INT8).layers) == 2


def test_schemes_can_be_mixed_by_two_calls():
    model = mlp(64, 64, 64, 64)
    quantize_(model, Int4WeightOnlyConfig(64), lambda module, name: name in ("0", "1"))
    assert [layer.name for layer in quantize_(model, INT8).layers] == ["2"]


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("order", ["peft first", "aoext first"])
def test_adapters_of_peft_stay_and_train(order, trainable, device, generator):
    peft = pytest.importorskip("peft")
    model = nn.Sequential(nn.Embedding(16, 64), *mlp(64, 64, 64)).to(device)
    if order == "aoext first":
        quantize_(model, INT8)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=["1", "2"]))
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert len(trained) == 4
    if not trainable:
        adapted.requires_grad_(False)
    summary = quantize_(adapted, INT8)
    assert all(name.endswith("base_layer") for name in quantised_layers(adapted))
    assert len(quantised_layers(adapted)) == 2
    adapters = {name: why for name, why in summary.skipped.items() if "lora_" in name}
    assert len(adapters) == 4
    assert all(why.startswith("it is an adapter of PEFT") for why in adapters.values())
    if trainable:
        adapted(torch.arange(16, device=device)).sum().backward()
        grads = {name: parameter.grad for name, parameter in adapted.named_parameters()}
        assert {name for name, grad in grads.items() if grad is not None} == trained
    quantize_(adapted, INT8, quantize_trainable=True)
    assert len(quantised_layers(adapted)) == 6


class Scaled(nn.Linear):
    """Reads its weight's memory in a form of its own, which a quantised one refuses."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.weight.as_strided(self.weight.shape, (1, self.in_features)))


class Product(nn.Linear):
    """As Falcon's of transformers."""

    def forward(self, input: Tensor) -> Tensor:
        return input @ self.weight.T + self.bias


class Widened(nn.Linear):
    """Computes in float32, with a submodule and a buffer of its own."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.norm = nn.LayerNorm(sizes[0])
        self.register_buffer("factor", torch.ones(1))
        self.calls: list[int] = []

    def forward(self, input: Tensor) -> Tensor:
        self.calls = [*self.calls, 1]
        return super().forward(self.norm(input) * self.factor)


class OfTwo(nn.Linear):
    def forward(self, input: Tensor, other: Tensor) -> Tensor:
        return super().forward(input) + other


class Counting(nn.Linear):
    """Asks for a value of its weight."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.weight[0, 0].item()


@pytest.mark.parametrize(
    "config", [Int4WeightOnlyConfig(64), Int8DynamicActivationInt8WeightConfig()], ids=str
)
def test_subclasses_are_quantised_where_their_forward_can_take_it(config, device):
    model = nn.Sequential(Scaled(64, 64), Product(64, 64), Widened(64, 64)).to(device)
    twins = nn.ModuleDict({"two": OfTwo(64, 64), "counting": Counting(64, 64)}).to(device)
    x = torch.randn(3, 64, device=device)
    expected = model(x)
    summary = quantize_(model, config)
    assert quantised_layers(model) == ["1", "2"]
    assert summary.skipped["0"].startswith("the forward of Scaled cannot take a quantised weight: NotImpl")
    assert [type(layer) for layer in model] == [Scaled, Product, Widened]
    assert model[2].calls == [1]  # the trial has left nothing
    assert model[2].norm.weight.device == x.device
    assert (model(x) - expected).norm() < 0.3 * expected.norm()

    assert quantize_(twins, config).layers == []
    quantize_(twins, config, lambda module, name: name == "two")
    assert twins["two"](x, x).shape == (3, 64)


def test_a_weight_shared_with_a_layer_that_is_left_alone_stays(device):
    model = nn.Sequential(nn.Linear(64, 64), Scaled(64, 64)).to(device)
    model[1].weight = model[0].weight
    summary = quantize_(model, INT8)
    assert summary.skipped["0"] == "its weight is shared with 1, not to be quantised"
    assert model[0].weight is model[1].weight


def test_attention_keeps_its_out_proj_quantised(device):
    attention = nn.MultiheadAttention(64, 4).to(device).eval()
    summary = quantize_(attention, INT8)
    assert quantised_layers(attention) == ["out_proj"]
    assert "in_proj_weight ([192, 64], 0.05 MB): a parameter of MultiheadAttention" in str(summary)
    x = torch.randn(5, 2, 64, device=device)
    assert attention(x, x, x)[0].isfinite().all()


def test_weights_that_are_no_dense_matrices_are_skipped(device):
    model = mlp(64, 64, 64, 64, 64, 64).to(device).requires_grad_(False)
    model[0].weight = nn.Parameter(torch.eye(64, device="cpu").to_sparse(), requires_grad=False)
    model[1].weight = nn.Parameter(torch.randn(64, device=device), requires_grad=False)
    model[2].weight = nn.Parameter(torch.randn(2, 64, 64, device=device), requires_grad=False)
    model[3].weight = nn.Parameter(torch.randn(64, 64, device="cpu"), requires_grad=False)
    model[3].weight.untyped_storage().resize_(0)
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    model.append(nn.Linear(64, 8))
    model[5].weight = nn.Parameter(nested, requires_grad=False)
    for config in (Int4WeightOnlyConfig(64), INT8):
        summary = quantize_(model, config)
        assert summary.skipped["0"] == "its weight must be a dense tensor, not sparse_coo float32 [64, 64]"
        assert summary.skipped["1"] == "its weight must be [N, K], not [64]"
        assert summary.skipped["2"] == "its weight must be [N, K], not [2, 64, 64]"
        assert summary.skipped["3"] == "the memory of its weight was freed, as FSDP does between calls"
        assert summary.skipped["5"] == "its weight must be a dense tensor, not a nested float32 tensor"
    assert quantised_layers(model) == ["4"]


def test_layers_that_could_never_run_are_skipped():
    with torch.device("meta"):
        model = mlp(131072, 2, 131071)
        model.append(nn.Linear(131071, 2))
    summary = quantize_(model, Int8DynamicActivationInt8WeightConfig())
    assert summary.skipped == {"0": "K = 131072 is more than 131071"}
    assert [layer.name for layer in quantize_(model, INT8).layers] == ["0"]


def test_models_that_torchao_has_quantised_are_refused():
    quantization = pytest.importorskip("torchao.quantization")
    theirs, model = mlp(64, 64, 64), mlp(64, 64, 64)
    quantization.quantize_(theirs[1], quantization.Int8WeightOnlyConfig())
    with pytest.raises(
        ValueError, match=r"layer '1' was already quantised by torchao .* leave the layer out"
    ):
        quantize_(theirs, INT8)
    assert quantised_layers(theirs) == []
    assert len(quantize_(theirs, INT8, lambda module, name: name == "0").layers) == 1

    quantize_(model, INT8)
    weights = [layer.weight for layer in model]
    with pytest.raises(RuntimeError, match=r"1\.weight was quantised by torchao \(Int8Tensor\)"):
        model.load_state_dict({"1.weight": theirs[1].weight}, strict=False, assign=True)
    assert all(layer.weight is weight for layer, weight in zip(model, weights, strict=True))
    plain = torch.randn(64, 64)
    model.load_state_dict({"1.weight": plain}, strict=False, assign=True)
    assert torch.equal(model[1].weight, plain)


def test_layers_of_bitsandbytes_are_refused():
    class Params4bit(nn.Parameter):
        pass

    Params4bit.__module__ = "bitsandbytes.nn.modules"  # which has no CPU build for every platform
    model = mlp(64, 64, 64)
    model[1]._parameters["weight"] = Params4bit(torch.randn(64, 64))
    with pytest.raises(ValueError, match=r"layer '1' was already quantised by bitsandbytes"):
        quantize_(model, INT8)
    assert quantised_layers(model) == []


def test_weights_that_accelerate_has_offloaded_are_refused():
    accelerate = pytest.importorskip("accelerate")
    model = mlp(64, 64, 64)
    accelerate.cpu_offload(model[1], "cpu")
    with pytest.raises(ValueError, match=r"layer '1' is offloaded by accelerate.* quantise the model before"):
        quantize_(model, INT8)
    assert quantised_layers(model) == []
    accelerate.hooks.remove_hook_from_submodules(model)
    assert len(quantize_(model, INT8).layers) == 2


def test_the_summary_tells_what_stays_large_and_why():
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_up = nn.Parameter(torch.randn(4, 64, 64))

    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))

    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(64, 64),
            "layers": nn.ModuleList(
                nn.ModuleDict({"up": nn.Linear(64, 64), "odd": nn.Linear(63, 64), "experts": Experts()})
                for _ in range(3)
            ),
            "lstm": nn.LSTM(64, 64),
            "gru": nn.GRUCell(64, 64),
            "conv": nn.Conv2d(64, 64, 3),
            "conv1d": Conv1D(),
        }
    )
    summary = quantize_(model, Int4WeightOnlyConfig(64))
    values = sum(parameter.numel() for parameter in model.parameters())
    assert summary.model_values == values
    assert summary.plain_share == pytest.approx(1 - 3 * 64 * 64 / values)
    first, *lines = str(summary).splitlines()
    assert first.endswith(
        f"3 weights quantised, 3 skipped; {summary.plain_share:.0%} of the model's values stay unquantised"
    )
    assert lines[2:] == [
        "  skipped  layers.*.odd (3): K = 63 is odd",
        "  stays    embedding.weight ([64, 64], 0.02 MB): an embedding (quantize_embeddings=True)",
        "  stays    layers.*.experts.gate_up (3 of [4, 64, 64], 0.20 MB): Experts keeps the weights of "
        "several layers, such as experts, in one 3-D parameter",
        "  stays    lstm.weight_ih_l0 ([256, 64], 0.07 MB): LSTM computes with its weights itself",
        "  stays    lstm.weight_hh_l0 ([256, 64], 0.07 MB): LSTM computes with its weights itself",
        "  stays    gru.weight_ih ([192, 64], 0.05 MB): GRUCell computes with its weights itself",
        "  stays    gru.weight_hh ([192, 64], 0.05 MB): GRUCell computes with its weights itself",
        "  stays    conv.weight ([64, 64, 3, 3], 0.15 MB): a convolution",
        "  stays    conv1d.weight ([64, 64], 0.02 MB): a parameter of Conv1D, which is no nn.Linear's weight",
    ]
    plain = {parameter.name: parameter for parameter in summary.plain}
    assert plain["layers.0.odd.weight"].reason == "K = 63 is odd"
    assert plain["conv.weight"].bytes == 64 * 64 * 9 * 4


def test_a_summary_of_little_left_says_nothing_of_it():
    summary = quantize_(mlp(64, 64, 64), INT8, lambda module, name: name in ("0", "1"))
    assert str(summary).splitlines()[0] == "Int8WeightOnlyConfig(): 2 weights quantised, 0 skipped"
    partly = quantize_(mlp(64, 64, 64), INT8, lambda module, name: name == "0")
    assert "; 51% of the model's values stay unquantised" in str(partly)
    assert "  stays    1.weight ([64, 64], 0.02 MB): filter_fn does not name it" in str(partly)
