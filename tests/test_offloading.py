"""Models whose weights are on several devices, in memory and on the disk, by accelerate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import aoext
from aoext.models.layers import QuantizedLinear
from aoext.tensors import QuantizedTensor
from test_transformers import IDS, llama, same_bits

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

load = transformers.AutoModelForCausalLM.from_pretrained
SCHEMES: dict[str, Any] = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=32),
    "int8": aoext.Int8WeightOnlyConfig(),
    "float8_dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(),
}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def generated(model: Any) -> torch.Tensor:
    ids = IDS.to(model.device if model.device.type != "meta" else "cpu")
    return model.generate(ids, max_new_tokens=4, do_sample=False).cpu()


def device_map(main: str, rest: str) -> dict[str, str]:
    """The first layer on one device, the second on another."""
    return {
        "model.layers.1": rest,
        **dict.fromkeys(
            ("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head"), main
        ),
    }


@pytest.mark.parametrize(
    ("scheme", "rest", "tied"),
    [
        ("int4", "disk", True),
        ("int4", "cpu", False),
        ("int8", "disk", False),
        ("float8_dynamic", "disk", True),
    ],
)
def test_offloaded_models_generate_the_same(tmp_path, device, scheme, rest, tied):
    llama(tie_word_embeddings=tied).save_pretrained(tmp_path / "plain", max_shard_size="40KB")
    config = aoext.AoextConfig(SCHEMES[scheme])
    whole = load(tmp_path / "plain", quantization_config=config, device_map=device.type)
    wanted = generated(whole)
    whole.save_pretrained(tmp_path / "ours", max_shard_size="40KB")
    for source, options in (("plain", {"quantization_config": config}), ("ours", {})):
        model = load(
            tmp_path / source,
            device_map=device_map(device.type, rest),
            offload_folder=tmp_path / f"offloaded {source}",
            **options,
        )
        assert torch.equal(generated(model), wanted), source
        assert torch.equal(generated(model), wanted), source  # the second time as well
        layer = model.model.layers[1].mlp.up_proj
        assert layer.weight.is_meta == (rest == "disk" or device.type != "cpu")
        model.save_pretrained(tmp_path / "again")
        same_bits(load(tmp_path / "again"), load(tmp_path / "ours"))


@pytest.mark.parametrize("tied", [False, True])
def test_offloaded_models_are_saved_in_every_state(tmp_path, tied):
    llama(tie_word_embeddings=tied).save_pretrained(tmp_path / "plain", max_shard_size="40KB")
    config = aoext.AoextConfig(SCHEMES["int8"], quantize_embeddings=True)
    whole = load(tmp_path / "plain", quantization_config=config)
    whole.save_pretrained(tmp_path / "ours", max_shard_size="40KB")

    def mapped(where: Any, source: str = "ours", **options: Any) -> Any:
        folder = tmp_path / "offloaded"
        return load(tmp_path / source, device_map=where, offload_folder=folder, **options)

    def by_accelerate(offload: Any, *arguments: Any, **options: Any) -> Any:
        return offload(load(tmp_path / "ours"), *arguments, **options)

    ways = {
        "a layer on disk": lambda: mapped(device_map("cpu", "disk")),
        "all but a layer on disk": lambda: mapped(
            device_map("disk", "cpu"), "plain", quantization_config=config
        ),
        "all on disk": lambda: mapped({"": "disk"}),
        "cpu_offload": lambda: by_accelerate(accelerate.cpu_offload, "cpu"),
        "disk_offload": lambda: by_accelerate(accelerate.disk_offload, tmp_path / "disk", "cpu"),
        "dispatch": lambda: by_accelerate(
            accelerate.dispatch_model, device_map("cpu", "disk"), offload_dir=tmp_path / "dispatched"
        ),
    }
    logits = whole(IDS).logits
    for way, offloaded in ways.items():
        model = offloaded()
        for state in ("before the first forward", "after it"):
            model.save_pretrained(tmp_path / "again", max_shard_size="40KB")
            same_bits(load(tmp_path / "again"), whole)
            assert torch.equal(model(IDS).logits, logits), (way, state)


def test_a_model_without_values_is_not_saved(tmp_path):
    with torch.device("meta"):
        model = llama()
    aoext.quantize_(model, SCHEMES["int8"])
    with pytest.raises(ValueError, match=r"embed_tokens\.weight is on the meta device and has no values"):
        model.save_pretrained(tmp_path)


def test_auto_knows_how_small_the_quantised_model_is(tmp_path):
    llama().save_pretrained(tmp_path / "plain")
    on_disk: Any = {}
    for name, config in (("plain", None), ("int4", aoext.AoextConfig(SCHEMES["int4"]))):
        model = load(
            tmp_path / "plain",
            quantization_config=config,
            dtype=torch.bfloat16,
            device_map="auto",
            max_memory={"cpu": 100_000},
            offload_folder=tmp_path / name,
        )
        places = getattr(model, "hf_device_map", {}).values()  # none where all is on one device
        on_disk[name] = [where for where in places if where == "disk"]
        if config is not None:
            assert torch.equal(
                generated(model), generated(load(tmp_path / "plain", quantization_config=config))
            )
    assert len(on_disk["int4"]) < len(on_disk["plain"])


def test_disk_without_a_folder_says_so(tmp_path):
    llama().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"weight is to be offloaded to disk: name an offload_folder"):
        load(tmp_path, quantization_config=aoext.AoextConfig("int8"), device_map=device_map("cpu", "disk"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_hooks_of_accelerate(tmp_path, device, scheme):
    model = llama()
    aoext.quantize_(model, SCHEMES[scheme], lambda module, name: "proj" in name)
    model.to(device)
    wanted = generated(model)
    accelerate.cpu_offload(model, device)
    assert torch.equal(generated(model), wanted)
    accelerate.hooks.remove_hook_from_submodules(model)
    accelerate.disk_offload(model, tmp_path / "disk", device)
    assert model.model.layers[0].mlp.up_proj.weight.is_meta
    assert torch.equal(generated(model), wanted)


@pytest.mark.parametrize(("scheme", "written_by"), [("int4", "save_pretrained"), ("int8", "save_model")])
def test_big_model_loading(tmp_path, device, scheme, written_by):
    model = llama()
    aoext.quantize_(model, SCHEMES[scheme], lambda module, name: "proj" in name)
    model.to(device)
    wanted = generated(model)
    folder = tmp_path / "ours"
    if written_by == "save_pretrained":
        model.save_pretrained(folder, max_shard_size="20KB")
    else:
        folder.mkdir()
        aoext.save_model(model, folder / "model.safetensors", max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    for where in ({"": device.type}, device_map(device.type, "cpu"), device_map(device.type, "disk")):
        with accelerate.init_empty_weights():
            other = llama()
        accelerate.load_checkpoint_and_dispatch(
            other, str(folder), where, offload_folder=str(tmp_path / "offloaded")
        )
        assert torch.equal(generated(other), wanted), where
        up = other.model.layers[0].mlp.up_proj
        assert isinstance(up.weight, QuantizedTensor)
        assert type(up) is QuantizedLinear
