"""from_pretrained and save_pretrained of diffusers, with aoext as the quantiser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aoext
import checkpoint_packers as pack
from aoext.tensors import QuantizedTensor
from formats import same
from models import assert_same_state as same_bits
from models import quantized_names
from test_checkpoints import exactly

diffusers = pytest.importorskip("diffusers")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")

BF16 = torch.bfloat16
INT4 = {"scheme": "int4", "group_size": 32}
SCHEMES = [INT4, "int8", "int8_dynamic", "float8", "float8_dynamic", "int4_int8", "float8_block", "nf4"]


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def unet() -> Any:
    return diffusers.UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=8,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    ).eval()


def transformer() -> Any:
    return diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=64,
        pooled_projection_dim=64,
    ).eval()


def run(model: Any, device: torch.device | str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(1)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, BF16)

    if isinstance(model, diffusers.UNet2DConditionModel):
        inputs = {"sample": randn(1, 4, 8, 8), "encoder_hidden_states": randn(1, 5, 32)}
    else:
        inputs = {
            "hidden_states": randn(1, 4, 8, 8),
            "encoder_hidden_states": randn(1, 5, 32),
            "pooled_projections": randn(1, 64),
        }
    with torch.no_grad():
        return model(**inputs, timestep=torch.tensor([3], device=device)).sample.float().cpu()


@pytest.mark.parametrize("make", [unet, transformer])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_quantise_save_and_load_again(tmp_path, make: Callable[[], Any], scheme):
    plain = make()
    plain.save_pretrained(tmp_path / "plain")
    load = type(plain).from_pretrained
    config = aoext.AoextConfig(scheme)
    model = load(tmp_path / "plain", quantization_config=config, torch_dtype=BF16)
    # The same as quantize_ makes of the same weights.
    plain = plain.to(BF16)
    summary = aoext.quantize_(plain, config.scheme)
    assert len(summary.layers) > 20
    assert quantized_names(model) == {f"{layer.name}.weight" for layer in summary.layers}
    same_bits(model, plain)
    assert not any(p.requires_grad for p in model.parameters() if isinstance(p, QuantizedTensor))

    model.save_pretrained(tmp_path / "quantised", max_shard_size="100KB")
    files = list((tmp_path / "quantised").glob("*.safetensors"))
    assert len(files) > 1
    again = load(tmp_path / "quantised", torch_dtype=BF16)
    same_bits(model, again)
    assert torch.equal(run(again), run(model))
    for options in ({}, {"safe_serialization": False}):
        again.save_pretrained(tmp_path / str(options), **options)
        same_bits(model, load(tmp_path / str(options), torch_dtype=BF16))


def test_a_warning_says_how_much_a_config_leaves_out(tmp_path, caplog):
    transformer().save_pretrained(tmp_path)
    config = aoext.AoextConfig(aoext.Int4WeightOnlyConfig(group_size=128))
    diffusers.SD3Transformer2DModel.from_pretrained(tmp_path, quantization_config=config, torch_dtype=BF16)
    assert "layers are quantised; the other" in caplog.text
    assert "of the model's values stay unquantised" in caplog.text


def test_a_model_that_was_quantised_in_place_is_saved(tmp_path):
    model = transformer().to(BF16)
    aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=32))
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig())  # finds nothing left
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"]["scheme"] is None
    same_bits(model, type(model).from_pretrained(tmp_path, torch_dtype=BF16))


def test_layers_are_chosen_by_name_and_dequantised(tmp_path):
    transformer().save_pretrained(tmp_path)
    config = aoext.AoextConfig(
        "int8", modules_to_not_convert=["proj_out"], per_module={r"\.ff\.": INT4, "time_text_embed": None}
    )
    model = diffusers.SD3Transformer2DModel.from_pretrained(
        tmp_path, quantization_config=config, torch_dtype=BF16
    )
    names = quantized_names(model)
    assert not any("time_text_embed" in name or name.startswith("proj_out") for name in names)
    assert any(".ff." in name for name in names)
    for name in names:
        expected = aoext.Int4Tensor if ".ff." in name else aoext.Int8Tensor
        assert isinstance(model.get_parameter(name), expected), name
    wanted = {name: model.get_parameter(name).dequantize() for name in names}
    model.dequantize()
    assert not quantized_names(model)
    for name, weight in wanted.items():
        assert torch.equal(model.get_parameter(name), weight)


def pipeline(folder: Path) -> Any:
    model = diffusers.DiTTransformer2DModel(
        sample_size=4,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
    )
    vae = diffusers.AutoencoderKL(block_out_channels=(32,), latent_channels=4, norm_num_groups=8)
    made = diffusers.DiTPipeline(transformer=model, vae=vae, scheduler=diffusers.DDIMScheduler())
    made.save_pretrained(folder)
    return made


@pytest.mark.parametrize("way", ["backend", "mapping"])
def test_parts_of_a_pipeline(tmp_path, way):
    pipeline(tmp_path / "plain")
    config = diffusers.PipelineQuantizationConfig(
        **(
            {"quant_mapping": {"transformer": aoext.AoextConfig("int8")}}
            if way == "mapping"
            else {
                "quant_backend": "aoext",
                "quant_kwargs": {"scheme": "int8"},
                "components_to_quantize": "transformer",
            }
        )
    )
    load = diffusers.DiTPipeline.from_pretrained
    loaded = load(tmp_path / "plain", quantization_config=config, torch_dtype=BF16)
    assert len(quantized_names(loaded.transformer)) > 10
    assert not quantized_names(loaded.vae)
    loaded.save_pretrained(tmp_path / "quantised")
    again = load(tmp_path / "quantised", torch_dtype=BF16)
    same_bits(loaded.transformer, again.transformer)
    options = {"class_labels": [3], "num_inference_steps": 2, "output_type": "np"}
    images = [made(**options, generator=torch.Generator().manual_seed(2)).images for made in (loaded, again)]
    assert (images[0] == images[1]).all()


@pytest.mark.parametrize("make", [unet, transformer])
@pytest.mark.parametrize("level", ["leaf_level", "block_level", "stream", "stream, pinned when needed"])
def test_group_offloading(device, make, level):
    stream = level.startswith("stream")
    if stream and device.type == "cpu":
        pytest.skip("diffusers has streams for accelerators alone")
    model = make().to(BF16)
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig())
    wanted = run(model.to(device), device)
    model.to("cpu")
    bits = {name: p.clone() for name, p in model.named_parameters() if isinstance(p, QuantizedTensor)}
    options: dict[str, Any] = {"offload_type": "leaf_level" if stream else level}
    if stream:
        options.update(use_stream=True, low_cpu_mem_usage="when" in level)
    if level == "block_level":
        options["num_blocks_per_group"] = 1
    model.enable_group_offload(onload_device=device, offload_device=torch.device("cpu"), **options)
    for _ in range(3):
        assert torch.equal(run(model, device), wanted)
    for name, weight in bits.items():
        assert model.get_parameter(name).device.type == "cpu"
        assert same(model.get_parameter(name), weight), name
        assert stream is False or model.get_parameter(name).is_pinned() == (level == "stream")


def test_a_weight_with_nan_is_named(tmp_path):
    model = transformer()
    name = "transformer_blocks.1.ff.net.2.weight"
    with torch.no_grad():
        model.get_parameter(name)[3, 5] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{name}: int8_row_quantize: w must be finite"):
        type(model).from_pretrained(tmp_path, quantization_config=aoext.AoextConfig("int8"))


def test_what_cannot_be_loaded(tmp_path):
    model = transformer().to(BF16)
    model.save_pretrained(tmp_path / "plain")
    load = type(model).from_pretrained
    with pytest.raises(ValueError, match=r"keep\(\) is for models that are quantised already"):
        load(tmp_path / "plain", quantization_config=aoext.AoextConfig.keep())
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig())
    model.save_pretrained(tmp_path / "quantised")
    file = tmp_path / "quantised" / "diffusion_pytorch_model.safetensors"
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(file, "pt") as opened:
        metadata = opened.metadata()
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    del tensors["proj_out.weight.scale"]
    safetensors.torch.save_file(tensors, file, metadata)
    with pytest.raises(ValueError, match=r"lack fields beside proj_out\.weight\.qdata"):
        load(tmp_path / "quantised")


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("make", "settings", "smaller"),
    [
        (
            pack.bitsandbytes_4,
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "weight.quant_map",
        ),
        (
            pack.bitsandbytes_int8,
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            "SCB",
        ),
        (pack.nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "weight_scale_2"),
    ],
)
def test_models_that_another_library_has_quantised(tmp_path, make, settings, smaller, shards):
    expected = transformer().to(BF16)
    state = expected.state_dict()
    values: dict[str, Tensor] = {}
    for name, module in expected.named_modules():
        if isinstance(module, nn.Linear) and ".attn" in name:
            tensors, exact = make(*module.weight.shape)
            tensors[smaller] = tensors[smaller] / 128
            values[f"{name}.weight"] = exact / 128
            module.weight.data = (exact / 128).to(BF16)
            del state[f"{name}.weight"]
            state.update({f"{name}.{key}": tensor for key, tensor in tensors.items()})
    expected.save_config(tmp_path / "theirs")
    file = tmp_path / "theirs" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": settings}))
    save = pytest.importorskip("safetensors.torch").save_file
    keys = sorted(state)
    if shards == 1:
        save(state, tmp_path / "theirs" / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    else:  # the tensors of a weight lie in two files
        places = {key: f"part{index % 2}.safetensors" for index, key in enumerate(keys)}
        for place in set(places.values()):
            part = {key: state[key] for key in keys if places[key] == place}
            save(part, tmp_path / "theirs" / place, {"format": "pt"})
        index = {"metadata": {}, "weight_map": places}
        (tmp_path / "theirs" / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    load = diffusers.SD3Transformer2DModel.from_pretrained
    model = load(tmp_path / "theirs", quantization_config=aoext.AoextConfig.keep(), torch_dtype=BF16)
    assert quantized_names(model) == values.keys()
    for name, value in values.items():
        difference = exactly(model.get_parameter(name)) - value
        assert difference.abs().max() <= 1e-7 * value.abs().max()
    assert (run(model) - run(expected)).norm() <= 2e-2 * run(expected).norm()
    model.save_pretrained(tmp_path / "ours")
    same_bits(model, load(tmp_path / "ours", torch_dtype=BF16))
    with pytest.raises(ValueError, match=r"quantised by \w+ already; AoextConfig.keep\(\) runs it"):
        load(tmp_path / "theirs", quantization_config=aoext.AoextConfig("int8"))
