"""torchao's tensors: exchanged with aoext's, computed by its operators, and loaded from its checkpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aoext
from aoext.packing import layouts

torchao = pytest.importorskip("torchao.quantization")

from aoext.checkpoints import reader_for  # noqa: E402
from aoext.integrations import torchao as ours  # noqa: E402

N, K, GROUP = 32, 128, 32


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def int4_tensor(device: torch.device) -> Any:
    made = aoext.Int4Tensor.from_hp(torch.randn(N, K, device=device, dtype=torch.bfloat16), [1, GROUP])
    return torchao.Int4Tensor(made.qdata, made.scale, made.zero_point, [1, GROUP], made.shape)


def plain_int32_tensor(device: torch.device) -> Any:
    words = torch.randint(-(2**31), 2**31, (N, K // 8), device=device, dtype=torch.int32)
    scale = torch.rand(K // GROUP, N, device=device).half()
    zero = torch.randint(0, 16, (K // GROUP, N), device=device, dtype=torch.int8)
    return torchao.Int4PlainInt32Tensor(words, scale, zero, [1, GROUP], torch.Size((N, K)))


def tile_packed_tensor(device: torch.device) -> Any:
    made = aoext.Int4Tensor.from_hp(torch.randn(N, K, device=device, dtype=torch.bfloat16), [1, GROUP])
    packed, scale_and_zero = layouts.plain_to_tinygemm(made.qdata, made.scale, made.zero_point)
    return torchao.Int4TilePackedTo4dTensor(packed, scale_and_zero, [1, GROUP], torch.Size((N, K)))


def of_config(config: Any) -> Any:
    model = nn.Sequential(nn.Linear(K, N, dtype=torch.bfloat16))
    torchao.quantize_(model, config)
    return model[0].weight.data


def exactly(weight: Any) -> Tensor:
    """The weight in float64 of torchao's fields, which its documentation defines."""
    kind = type(weight).__name__
    if kind == "Int4PlainInt32Tensor":
        codes = torch.stack([(weight.qdata >> (4 * i)) & 15 for i in range(8)], -1).flatten(1)
        group = torch.arange(K) // GROUP
        zero, scale = weight.zero_point.double()[group].t(), weight.scale.double()[group].t()
        return (codes.cpu().double() - zero.cpu()) * scale.cpu()
    if kind == "Int4Tensor":
        low, high = weight.qdata & 15, (weight.qdata >> 4) & 15
        codes = torch.stack((low, high), -1).flatten(1).double()
        codes = torch.where(codes > 7, codes - 16, codes)
        group = torch.arange(K) // GROUP
        return (codes * weight.scale.double()[group].t() + weight.zero_point.double()[group].t()).cpu()
    return (weight.qdata.double() * weight.scale.double()).cpu()


def packed_exactly(weight: Any) -> Tensor:
    qdata, scale, zero = layouts.tinygemm_to_plain(weight.qdata, weight.scale_and_zero)
    return exactly(torchao.Int4Tensor(qdata, scale, zero, [1, GROUP], weight.shape))


def check(weight: aoext.tensors.QuantizedTensor, expected: Tensor, device: torch.device) -> None:
    exact = weight.to(torch.float32).dequantize().double().cpu()
    assert (exact - expected).abs().max() <= 1e-6 * expected.abs().max()
    x = torch.randn(3, K, dtype=weight.dtype)
    wanted = x.double() @ expected.t()
    got = nn.functional.linear(x.to(device), weight).double().cpu()
    assert (got - wanted).norm() <= 5e-3 * wanted.norm()


@pytest.mark.parametrize("make", [int4_tensor, plain_int32_tensor, tile_packed_tensor])
def test_int4_weights_convert_exactly(device, make):
    theirs = make(device)
    weight = ours.weight_to_aoext("layer", theirs)
    assert weight.dtype == theirs.dtype
    check(weight, packed_exactly(theirs) if make is tile_packed_tensor else exactly(theirs), device)
    if make is int4_tensor:  # the layouts agree
        assert weight.qdata is theirs.qdata
        back = ours.weight_to_torchao("layer", weight)
        assert type(back) is torchao.Int4Tensor
        assert back.scale is theirs.scale


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        ("Int8WeightOnlyConfig", False),
        ("Int8DynamicActivationInt8WeightConfig", True),
        ("Float8WeightOnlyConfig", False),
    ],
)
def test_models_go_there_and_back(name, dynamic):
    model = nn.Sequential(nn.Linear(K, N), nn.ReLU(), nn.Linear(N, N)).bfloat16()
    torchao.quantize_(model, getattr(torchao, name)())
    x = torch.randn(4, K, dtype=torch.bfloat16)
    theirs, weights = model(x), [exactly(model[0].weight), exactly(model[2].weight)]
    assert ours.to_aoext(model) == ["0", "2"]
    assert isinstance(model[0], aoext.models.layers.QuantizedLinear)
    assert model[0].weight.dynamic_activation == dynamic
    torch.testing.assert_close(model(x), theirs, rtol=0.1, atol=0.1)
    for layer, expected in zip((model[0], model[2]), weights, strict=True):
        assert torch.equal(layer.weight.qdata.double() * layer.weight.scale.double(), expected)
    assert ours.to_torchao(model) == ["0", "2"]
    torch.testing.assert_close(model(x), theirs, rtol=2e-2, atol=2e-2)
    assert torch.equal(exactly(model[0].weight), weights[0])


@pytest.mark.parametrize("bits", range(2, 9))
def test_integers_in_bytes_of_their_own_convert_exactly(device, bits):
    """w = (q − z)·s, in groups and in rows, with and without zeros; and back."""
    rows, groups = torchao.PerAxis(0), torchao.PerGroup(GROUP)
    for mapping, granularity in (
        (torchao.MappingType.ASYMMETRIC, groups),
        (torchao.MappingType.SYMMETRIC, rows),
    ):
        model = nn.Sequential(nn.Linear(K, N, dtype=torch.bfloat16, device=device))
        config = torchao.IntxWeightOnlyConfig(getattr(torch, f"int{bits}"), granularity, mapping)
        torchao.quantize_(model, config)
        theirs = model[0].weight
        per_k = [
            t.cpu().double().repeat_interleave(theirs.block_size[1], 1)
            for t in (theirs.zero_point, theirs.scale)
        ]
        exact = (theirs.qdata.cpu().double() - per_k[0]) * per_k[1]
        assert aoext.from_torchao(model) == ["0"]
        weight = model[0].weight
        kinds = {4: aoext.Int4Tensor, 8: aoext.tensors.BlockwiseTensor, **aoext.tensors.GROUPS_TYPES}
        assert type(weight) is (aoext.Int8Tensor if (bits, granularity) == (8, rows) else kinds[bits])
        check(weight, exact, device)
        if bits == 4 or type(weight) is aoext.Int8Tensor:  # which have types of their own there
            continue
        assert aoext.to_torchao(model) == ["0"]
        for field in ("qdata", "scale", "zero_point") if bits < 8 else ():  # zeros go into codes of 8 bits
            assert torch.equal(getattr(model[0].weight, field), getattr(theirs, field)), field
        assert torch.equal(model[0].weight.dequantize(), theirs.dequantize())
        assert model[0].weight.target_dtype is theirs.target_dtype


def test_integers_that_aoext_has_no_kernel_for_are_refused():
    def made(**changes: Any) -> Any:
        settings = {
            "target_dtype": torch.int3,
            "block_size": (1, GROUP),
            "activation_quantization": None,
            **changes,
        }
        shape = N // settings["block_size"][0], K // settings["block_size"][1]
        codes = torch.zeros(N, K, dtype=torch.int8)
        return torchao.IntxUnpackedToInt8Tensor(
            codes, torch.ones(shape), torch.zeros(shape, dtype=torch.int8), dtype=torch.float32, **settings
        )

    for changes, message in (
        (
            {"target_dtype": torch.int1},
            "target_dtype must be one of 'int2', .*, 'int8' to run on aoext, got 'int1'",
        ),
        (
            {"block_size": (2, GROUP)},
            r"block_size must be \[1, g\] with a g that divides K = 128, got \(2, 32\)",
        ),
        (
            {"activation_quantization": "int8_asym_per_token"},
            "activations quantised with zero points do not run",
        ),
    ):
        with pytest.raises(ValueError, match=rf"^layer: {message}"):
            ours.weight_to_aoext("layer", made(**changes))
    wrong = made()
    wrong.qdata[3, 4] = 4
    with pytest.raises(ValueError, match=r"^layer: qdata must lie in -4\.\.3"):
        ours.weight_to_aoext("layer", wrong)


def by_blocks(kind: str, swizzled: bool, plain: Tensor) -> Any:
    """A weight that torchao itself has quantised."""
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    if kind == "float8":
        return torchao.Float8Tensor.from_hp(plain, torch.float8_e4m3fn, torchao.PerBlock([16, 32]))
    if kind == "nvfp4":
        nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
        largest = nvfp4.per_tensor_amax_to_scale(plain.abs().max())
        return nvfp4.NVFP4Tensor.to_nvfp4(plain, per_tensor_scale=largest, is_swizzled_scales=swizzled)
    element = torch.float4_e2m1fn_x2 if kind == "mxfp4" else torch.float8_e4m3fn
    return mx.MXTensor.to_mx(plain, element, 32, is_swizzled_scales=swizzled)


@pytest.mark.parametrize(
    ("kind", "swizzled"),
    [(kind, swizzled) for kind in ("mxfp8", "mxfp4", "nvfp4") for swizzled in (False, True)]
    + [("float8", False)],
)
@pytest.mark.parametrize("rows", [32, 208])  # part of a tile of scales, and several of them
def test_weights_with_a_scale_a_block_convert_exactly(kind, swizzled, rows):
    plain = torch.randn(rows, 160, dtype=torch.bfloat16)
    theirs = by_blocks(kind, swizzled, plain)
    weight = ours.weight_to_aoext("layer", theirs)
    assert weight.dtype is torch.bfloat16
    assert weight.shape == plain.shape
    expected = theirs.dequantize().float()
    if kind == "nvfp4":  # products of three numbers, whose order shows in the last bit of float32
        exact = theirs.dequantize(torch.float32)
        assert torch.allclose(weight.float().dequantize(), exact, rtol=2.0**-22, atol=0)
    else:
        assert torch.equal(weight.dequantize().float(), expected)
    back = ours.weight_to_torchao("layer", weight)
    assert type(back) is type(theirs)
    assert torch.equal(back.dequantize().float(), expected)


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
def test_tiles_of_scales_of_another_size_are_refused(kind):
    theirs = by_blocks(kind, True, torch.randn(32, 160, dtype=torch.bfloat16))
    theirs.scale = theirs.scale.flatten()[:-16]
    with pytest.raises(ValueError, match=r"layer: scale must have .* entries in tiles"):
        ours.weight_to_aoext("layer", theirs)


def test_mx_activations_of_8_bits_are_quantised():
    mx = pytest.importorskip("torchao.prototype.mx_formats")
    wanted = {torch.float8_e4m3fn: torch.float8_e4m3fn, torch.float4_e2m1fn_x2: None}
    for element, quantizes_to in wanted.items():
        model = nn.Sequential(nn.Linear(K, N)).bfloat16()
        config = mx.MXDynamicActivationMXWeightConfig(activation_dtype=element, weight_dtype=element)
        torchao.quantize_(model, config)
        expected = model[0].weight.dequantize().double()
        assert ours.to_aoext(model) == ["0"]
        assert model[0].weight.quantizes_input_to is quantizes_to
        x = torch.randn(3, K, dtype=torch.bfloat16)
        y = nn.functional.linear(x.double(), expected, model[0].bias.double())
        assert (model(x).double() - y).norm() <= 0.05 * y.norm()


def test_ties_stay_and_nothing_changes_on_failure():
    model = nn.Sequential(nn.Linear(K, K), nn.Linear(K, K)).bfloat16()
    model[1].weight = model[0].weight
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig())
    ours.to_torchao(model)
    assert model[0].weight is model[1].weight
    model[1].weight = nn.Parameter(
        torchao.Int4Tensor(
            *(getattr(int4_tensor(torch.device("cpu")), f) for f in ("qdata", "scale", "zero_point")),
            [1, GROUP],
            torch.Size((N, K)),
            activation_dtype=torch.float8_e4m3fn,
        ),
        requires_grad=False,
    )
    before = model[0].weight
    with pytest.raises(ValueError, match="1: torchao's Int4Tensor with float8 activations does not run"):
        ours.to_aoext(model)
    assert model[0].weight is before


def test_products_of_torchaos_own_tensor(device):
    ours.enable()
    theirs = int4_tensor(device)
    x = torch.randn(2, 3, K, device=device, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn(N, device=device, dtype=torch.bfloat16)
    wanted = (x.detach().double().cpu() @ exactly(theirs).t() + bias.double().cpu()).view(2, 3, N)
    y = nn.functional.linear(x, theirs, bias)
    assert (y.double().cpu() - wanted).norm() <= 5e-3 * wanted.norm()
    y.sum().backward()
    assert x.grad is not None

    @torch.compile(fullgraph=True, backend="aot_eager")
    def product(x: Tensor) -> Tensor:
        return nn.functional.linear(x, theirs, bias)

    assert torch.equal(product(x), y)


@pytest.mark.parametrize("make", [int4_tensor, plain_int32_tensor, tile_packed_tensor])
def test_checkpoints(device, make):
    theirs = make(torch.device("cpu"))
    tensors = {f"_weight_{name}": getattr(theirs, name) for name in theirs.tensor_data_names}
    reader = reader_for({"quant_method": "torchao"})
    described = {"_type": type(theirs).__name__, "_data": {"block_size": [1, GROUP]}}
    reader.read_metadata({"a.weight": json.dumps(described), "tensor_names": '["a.weight"]'})
    weight = reader.weight("a", {key: t.to(device) for key, t in tensors.items()}, torch.bfloat16)
    check(weight, packed_exactly(theirs) if make is tile_packed_tensor else exactly(theirs), device)
    with pytest.raises(ValueError, match="b: the file's metadata does not say what its weight is"):
        reader.weight("b", tensors, torch.bfloat16)
    reader.read_metadata({"b.weight": json.dumps({"_type": "Int2Tensor"})})
    with pytest.raises(ValueError, match="b: torchao's Int2Tensor does not run on aoext"):
        reader.weight("b", tensors, torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Int8WeightOnlyConfig", {}),
        ("Float8WeightOnlyConfig", {}),
        ("IntxWeightOnlyConfig", {"weight_dtype": torch.int3, "granularity": torchao.PerGroup(GROUP)}),
    ],
)
def test_checkpoints_that_transformers_wrote(tmp_path, name, arguments):
    transformers = pytest.importorskip("transformers")
    from test_transformers import IDS, llama

    llama().save_pretrained(tmp_path / "plain")
    load = transformers.AutoModelForCausalLM.from_pretrained
    theirs = load(
        tmp_path / "plain",
        quantization_config=transformers.TorchAoConfig(getattr(torchao, name)(**arguments)),
    )
    theirs.save_pretrained(tmp_path / "torchao")
    model = load(tmp_path / "torchao", quantization_config=aoext.AoextConfig.keep())
    up, wanted = model.model.layers[0].mlp.up_proj.weight, theirs.model.layers[0].mlp.up_proj.weight
    assert torch.equal(up.dequantize(), wanted.dequantize())
    torch.testing.assert_close(model(IDS).logits, theirs(IDS).logits, rtol=0.05, atol=0.05)
