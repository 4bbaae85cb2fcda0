"""quantize_ and its configs: which layers, ties, devices, memory, progress, and the summary."""

from __future__ import annotations

import sys
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from aoext.configs import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8DynamicActivationInt4WeightConfig,
    Float8WeightOnlyConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt4WeightConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MXDynamicActivationMXWeightConfig,
    MXFP4WeightOnlyConfig,
    NF4WeightOnlyConfig,
    NVFP4WeightOnlyConfig,
    PerBlock,
)
from aoext.models import quantize as quantize_module
from aoext.models.quantize import quantize_
from aoext.reference import randn
from aoext.tensors import BlockwiseTensor, Float8Tensor, Int3Tensor, Int4Tensor, Int8Tensor, Lut4Tensor
from formats import same

BY_BLOCKS = Float8DynamicActivationFloat8WeightConfig(granularity=(PerBlock([1, 128]), PerBlock([128, 128])))
CONFIGS = [
    (Int4WeightOnlyConfig(group_size=32), Int4Tensor, {"block_size": [1, 32]}),
    (Int4WeightOnlyConfig(group_size=64, symmetric=True), Int4Tensor, {"block_size": [1, 64]}),
    (Int8WeightOnlyConfig(), Int8Tensor, {"dynamic_activation": False}),
    (Int8DynamicActivationInt8WeightConfig(), Int8Tensor, {"dynamic_activation": True}),
    (Float8WeightOnlyConfig(), Float8Tensor, {"dynamic_activation": False}),
    (Float8WeightOnlyConfig(torch.float8_e5m2), Float8Tensor, {"dynamic_activation": False}),
    (Float8DynamicActivationFloat8WeightConfig(), Float8Tensor, {"dynamic_activation": True}),
    (Int8DynamicActivationInt4WeightConfig(), Int4Tensor, {"activation": torch.int8}),
    (Float8DynamicActivationInt4WeightConfig(64), Int4Tensor, {"activation": torch.float8_e4m3fn}),
    (Float8WeightOnlyConfig(granularity=PerBlock([48, 40])), BlockwiseTensor, {"block_size": [48, 40]}),
    (BY_BLOCKS, BlockwiseTensor, {"block_size": [128, 128], "input_block": [1, 128]}),
    (MXDynamicActivationMXWeightConfig(), BlockwiseTensor, {"input_block": [1, 32]}),
    (MXFP4WeightOnlyConfig(), Lut4Tensor, {"block_size": [1, 32]}),
    (NVFP4WeightOnlyConfig(), Lut4Tensor, {"block_size": [1, 16]}),
    (NVFP4WeightOnlyConfig(False), Lut4Tensor, {"global_scale": None}),
    (NF4WeightOnlyConfig(), Lut4Tensor, {"block_size": [1, 64]}),
    (IntxWeightOnlyConfig(32, bits=3), Int3Tensor, {"block_size": [1, 32]}),
    (IntxWeightOnlyConfig(32, bits=8), BlockwiseTensor, {"block_size": [1, 32]}),
]


class Block(nn.Module):
    """A residual MLP with a norm and an embedding beside its linears."""

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, dim)
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return x + self.down(torch.relu(self.up(self.norm(x))))


@pytest.fixture
def model(device, generator):
    model = Block()
    for parameter in model.parameters():
        parameter.data = randn(generator, *parameter.shape) * 0.1
    return model.to(device)


@pytest.mark.parametrize(("config", "kind", "attributes"), CONFIGS, ids=lambda value: str(value))
def test_every_config_quantises_the_linears_in_place(config, kind, attributes, model, device):
    tokens = torch.arange(16, device=device)[None]
    expected = model(tokens)
    layers = model.up, model.down
    weights = [layer.weight.detach() for layer in layers]
    summary = quantize_(model, config)
    assert [layer.name for layer in summary.layers] == ["up", "down"]
    assert (model.up, model.down) == layers
    for layer, weight in zip(layers, weights, strict=True):
        assert type(layer.weight) is kind
        assert isinstance(layer.weight, nn.Parameter)
        assert not layer.weight.requires_grad
        assert same(layer.weight, config.quantize(weight))
        for name, value in attributes.items():
            assert getattr(layer.weight, name) == value
    assert type(model.embedding.weight) is nn.Parameter
    y = model(tokens)
    assert not torch.equal(y, expected)
    assert ((y - expected).norm() / expected.norm()).item() < 0.3


def test_symmetric_weights_have_no_zero_points(model):
    quantize_(model, Int4WeightOnlyConfig(32, symmetric=True))
    assert not model.up.weight.zero_point.any()
    quantized_once = model.up.weight
    quantize_(model, Int4WeightOnlyConfig(32))
    assert model.up.weight is quantized_once


def test_the_summary_counts_bytes_and_bits(model):
    before = sum(parameter.nbytes for parameter in model.parameters())
    summary = quantize_(model, Int4WeightOnlyConfig(group_size=32))
    # float32: 4 bits, and a scale and a zero point of 32 bits for 32 weights
    assert summary.bits_per_weight == 4 + 2
    assert summary.bytes_before == 2 * 64 * 128 * 4
    assert summary.bytes_after == 2 * 64 * 128 * 6 // 8
    assert summary.model_bytes_before == before
    assert summary.model_bytes_after == before - summary.bytes_before + summary.bytes_after
    assert str(summary) == (
        "Int4WeightOnlyConfig(group_size=32, symmetric=False): 2 weights quantised, 0 skipped\n"
        "  weights  0.07 MB -> 0.01 MB, 6.000 bits per weight\n"
        "  model    0.07 MB -> 0.02 MB\n"
        "  stays    embedding.weight ([16, 64], 0.00 MB): an embedding (quantize_embeddings=True)"
    )
    again = quantize_(model, Int8WeightOnlyConfig())
    assert again.layers == []
    assert again.bits_per_weight != again.bits_per_weight  # NaN
    assert again.skipped["up"].startswith("already quantised: Int4Tensor(shape=[128, 64]")


def test_layers_that_cannot_be_quantised_are_skipped_with_the_reason(generator):
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
    model = nn.ModuleDict(
        {
            "good": nn.Linear(64, 8),
            "odd": nn.Linear(63, 8),
            "group": nn.Linear(48, 8),
            "float64": nn.Linear(64, 8, dtype=torch.float64),
            "empty": nn.Linear(64, 0),
            "lazy": nn.LazyLinear(8),
            "normed": parametrized,
        }
    )
    summary = quantize_(model, Int4WeightOnlyConfig(group_size=32))
    assert [layer.name for layer in summary.layers] == ["good"]
    assert summary.skipped == {
        "odd": "K = 63 is odd",
        "group": "group_size = 32 does not divide K = 48 (16 or group_size='auto' would)",
        "float64": "its weight must be bfloat16, float16 or float32, not float64",
        "empty": "its weight is empty: [0, 64]",
        "lazy": "its weight is not initialised yet",
        "normed": "its weight is computed from other parameters",
    }
    assert "  skipped  odd: K = 63 is odd\n" in str(summary)
    assert type(model["odd"].weight) is nn.Parameter


def test_filter_fn_chooses_by_module_and_name(model):
    seen = {}

    def choose(module: nn.Module, name: str) -> bool:
        seen[name] = module
        return name in ("", "up", "embedding", "norm")

    summary = quantize_(model, Int8WeightOnlyConfig(), filter_fn=choose)
    assert [layer.name for layer in summary.layers] == ["up"]
    assert summary.skipped == {
        "embedding": "embeddings are quantised with quantize_embeddings=True",
        "norm": (
            "only nn.Linear, nn.Embedding, Conv1D and experts of transformers can be quantised, not LayerNorm"
        ),
    }
    assert type(model.down.weight) is nn.Parameter
    assert seen == dict(model.named_modules())


def test_a_model_can_be_a_single_layer(device):
    layer = nn.Linear(64, 8, device=device)
    assert len(quantize_(layer, Int8WeightOnlyConfig()).layers) == 1
    assert isinstance(layer.weight, Int8Tensor)
    odd = nn.Linear(63, 8, device=device)
    assert "skipped  (the model): K = 63 is odd" in str(quantize_(odd, Int4WeightOnlyConfig()))


def test_tied_weights_are_quantised_once_and_stay_tied(device):
    model = nn.ModuleList(nn.Linear(64, 32, device=device) for _ in range(3))
    model[2].weight = model[0].weight
    summary = quantize_(model, Int8WeightOnlyConfig())
    assert model[2].weight is model[0].weight
    assert model[1].weight is not model[0].weight
    assert [(layer.name, layer.tied) for layer in summary.layers] == [("0", ("2",)), ("1", ())]
    assert summary.bytes_before == 2 * 64 * 32 * 4


def test_weights_tied_to_what_stays_are_skipped(device):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(32, 64)
            self.head = nn.Linear(64, 32)
            self.head.weight = self.embedding.weight
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
            self.second.weight = self.first.weight

    model = Tied().to(device)
    summary = quantize_(model, Int8WeightOnlyConfig(), lambda m, n: n in ("head", "first"))
    assert summary.layers == []
    assert summary.skipped == {
        "head": "its weight is shared with embedding, not to be quantised",
        "first": "its weight is shared with second, not to be quantised",
    }
    assert model.head.weight is model.embedding.weight
    assert model.first.weight is model.second.weight


def test_device_moves_the_whole_model(device):
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(63, 8))
    summary = quantize_(model, Int4WeightOnlyConfig(group_size=64), device=device)
    assert len(summary.layers) == 1
    here = torch.empty(0, device=device).device
    assert {parameter.device for parameter in model.parameters()} == {here}
    assert model[0].weight.qdata.device == here


def test_meta_models_are_quantised_without_values():
    with torch.device("meta"):
        model = Block()
    summary = quantize_(model, Int4WeightOnlyConfig(group_size=64))
    assert model.up.weight.qdata.is_meta
    assert summary.bits_per_weight == 5


def test_replaced_weights_are_freed_one_by_one(monkeypatch):
    """Peak memory is the model and one layer: a weight is gone when the next one's turn comes."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    weights = [weakref.ref(layer.weight) for layer in model]
    alive = []
    quantize_layer = quantize_module._quantize_layer

    def watched(*arguments):
        alive.append(sum(weight() is not None for weight in weights))
        return quantize_layer(*arguments)

    monkeypatch.setattr(quantize_module, "_quantize_layer", watched)
    quantize_(model, Int8WeightOnlyConfig())
    assert alive == [4, 3, 2, 1]
    assert all(weight() is None for weight in weights)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("config", [Int4WeightOnlyConfig(32), Int8WeightOnlyConfig()], ids=str)
def test_a_weight_that_is_not_finite_raises_before_anything_changes(config, value, dtype, model):
    model.to(dtype)
    model.down.weight.data[3, 5] = value
    before = dict(model.named_parameters())
    with pytest.raises(ValueError, match=r"quantize_: layer 'down': .* must be finite"):
        quantize_(model, config)
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert type(model.up) is nn.Linear


def test_a_range_beyond_float32_is_quantised(device):
    model = nn.Sequential(nn.Linear(64, 8), nn.Linear(64, 8)).to(device)
    model[1].weight.data[0, 0], model[1].weight.data[0, 63] = 3e38, -3e38
    assert len(quantize_(model, Int4WeightOnlyConfig(64)).layers) == 2
    row = model[1].weight.dequantize()[0]
    assert row[0].item() == pytest.approx(3e38)
    assert row[63].item() == pytest.approx(-3e38)


def test_tensors_without_values_cannot_move(device):
    model = nn.Sequential(nn.Linear(64, 8), nn.Linear(64, 8))
    model[1].bias = nn.Parameter(torch.empty(8, device="meta"))
    with pytest.raises(ValueError, match=r"quantize_: 1\.bias is on the meta device and has no values for"):
        quantize_(model, Int8WeightOnlyConfig(), device=device)
    assert type(model[0].weight) is nn.Parameter


def test_ties_survive_a_class_that_refuses_new_weights(device):
    class Stubborn(nn.Linear):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "weight" and self.__dict__.get("stubborn"):
                raise RuntimeError("this weight is final")
            super().__setattr__(name, value)

    model = nn.Sequential(nn.Linear(64, 8), Stubborn(64, 8), nn.Linear(64, 8)).to(device)
    model[1].weight = model[2].weight = model[0].weight
    model[1].stubborn = True
    quantize_(model, Int8WeightOnlyConfig())
    assert isinstance(model[1].weight, Int8Tensor)
    assert model[0].weight is model[1].weight is model[2].weight


def test_group_sizes_are_chosen_layer_by_layer(device):
    model = nn.Sequential(*(nn.Linear(K, 8, device=device) for K in (640, 576, 96, 48, 72, 62)))
    summary = quantize_(model, Int4WeightOnlyConfig("auto"))
    sizes = [layer.weight.block_size for layer in model if isinstance(layer.weight, Int4Tensor)]
    assert sizes == [[1, 128], [1, 64], [1, 32], [1, 16]]
    assert summary.skipped == {
        "4": "none of 128, 64, 32, 16 divides K = 72",
        "5": "none of 128, 64, 32, 16 divides K = 62",
    }
    quantize_(model, Int4WeightOnlyConfig(-1, symmetric=True))
    assert [layer.weight.block_size[1] for layer in model][4:] == [72, 62]
    with pytest.raises(ValueError, match=r"none of .* divides K = 72"):
        Int4WeightOnlyConfig("auto").quantize(torch.randn(8, 72, device=device))


def test_fake_models_are_quantised_without_values():
    with FakeTensorMode():
        for config, kind, _ in CONFIGS:
            model = Block()
            assert len(quantize_(model, config).layers) == 2
            assert type(model.up.weight) is kind
            assert model(torch.zeros(2, 3, dtype=torch.long)).shape == (2, 3, 64)


def test_progress_is_silent_off_a_terminal_and_for_short_work(model, capfd, monkeypatch):
    quantize_(model, Int8WeightOnlyConfig())
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(quantize_module, "SECONDS_BEFORE_PROGRESS", 0)
    quantize_(Block(), Int8WeightOnlyConfig())
    assert capfd.readouterr() == ("", "")  # pytest's streams are no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    quantize_(Block(), Int8WeightOnlyConfig())
    assert "quantising: 100%" in capfd.readouterr().err
    monkeypatch.setattr(quantize_module, "SECONDS_BEFORE_PROGRESS", 60)
    quantize_(Block(), Int8WeightOnlyConfig())
    assert "quantising" not in capfd.readouterr().err


def test_tqdm_is_optional(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert len(quantize_(model, Int8WeightOnlyConfig()).layers) == 2


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Int4WeightOnlyConfig(0), ValueError, "group_size must be positive, or -1 .* got 0"),
        (lambda: Int4WeightOnlyConfig(-2), ValueError, "group_size must be positive, or -1 .* got -2"),
        (lambda: Int4WeightOnlyConfig("all"), ValueError, "must be an int or 'auto', got 'all'"),
        (lambda: Int4WeightOnlyConfig(32.0), TypeError, "group_size must be an int, got a float"),
        (lambda: Int4WeightOnlyConfig(32, 1), TypeError, "symmetric must be a bool, got 1"),
        (
            lambda: Float8WeightOnlyConfig(torch.int8),
            ValueError,
            "weight_dtype must be float8_e4m3fn",
        ),
        (
            lambda: Float8DynamicActivationFloat8WeightConfig("e4m3"),
            ValueError,
            "Float8DynamicActivationFloat8WeightConfig: weight_dtype must be .* got e4m3",
        ),
    ],
)
def test_configs_check_themselves(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_bad_arguments_are_named(model):
    with pytest.raises(TypeError, match=r"quantize_: model must be an nn\.Module, got a dict"):
        quantize_({}, Int8WeightOnlyConfig())
    with pytest.raises(TypeError, match=r"quantize_: config must be one of aoext's.* got 'int4'"):
        quantize_(model, "int4")
    with pytest.raises(TypeError, match="quantize_: config must be one of aoext's"):
        quantize_(model, Int8WeightOnlyConfig)
