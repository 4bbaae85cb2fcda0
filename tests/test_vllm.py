"""Linear layers of vLLM with weights of a checkpoint of aoext, loaded as vLLM loads them.

It runs where vLLM can be imported; one that was built with VLLM_TARGET_DEVICE=empty will do, with
AOEXT_SIMULATE_XPU=0, for vLLM takes a simulated XPU for a real one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import aoext
from aoext.tensors import QuantizedTensor
from test_checkpoints import exactly

layers = pytest.importorskip("vllm.model_executor.layers.linear", reason="vLLM is not here")
integration = pytest.importorskip("aoext.integrations.vllm")

HIDDEN, HEADS, KV_HEADS, INNER = 64, 4, 2, 128
SCHEMES: dict[str, Any] = {
    "int4": {"scheme": "int4", "group_size": 32},
    "int4, float32 scales": {"scheme": "int4", "group_size": 32},
    "int8": "int8",
    "int8_dynamic": "int8_dynamic",
    "float8": "float8",
    "float8_dynamic": "float8_dynamic",
    "int4_int8": {"scheme": "int4_int8", "group_size": 32},
    "float8 by blocks": {"scheme": "float8", "granularity": [16, 32]},
    "float8 by blocks, dynamic": {"scheme": "float8_dynamic", "granularity": [[1, 32], [16, 32]]},
    "mxfp8": "mxfp8",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "nvfp4, one scale": {"scheme": "nvfp4", "use_dynamic_per_tensor_scale": False},
    "nf4": {"scheme": "nf4", "block_size": 32},
}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


@pytest.fixture(autouse=True, scope="module")
def _one_rank() -> Iterator[None]:
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(config):
        parallel_state.init_distributed_environment(1, 0, f"file://{folder}/ranks", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)
        yield
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()


class Block(nn.Module):
    """What a layer of Llama multiplies by, in its own names."""

    def __init__(self) -> None:
        super().__init__()
        head = HIDDEN // HEADS
        self.q_proj = nn.Linear(HIDDEN, HIDDEN, bias=True)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * head, bias=True)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * head, bias=True)
        self.o_proj = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, HIDDEN, bias=False)


# vLLM's layers, and the parts of each with what vLLM calls them.
MERGED: dict[str, dict[str, Any]] = {
    "qkv_proj": {"q_proj": "q", "k_proj": "k", "v_proj": "v"},
    "o_proj": {"o_proj": None},
    "gate_up_proj": {"gate_proj": 0, "up_proj": 1},
    "down_proj": {"down_proj": None},
}


def config_of(folder: Path) -> Any:
    from vllm.model_executor.layers.quantization import get_quantization_config

    config = get_quantization_config("aoext").from_config({"quant_method": "aoext"})
    config.packed_modules_mapping = {name: list(parts) for name, parts in MERGED.items() if len(parts) > 1}
    config.maybe_update_config(str(folder))
    return config


def vllm_layer(name: str, config: Any) -> Any:
    options = {"quant_config": config, "prefix": name, "params_dtype": torch.bfloat16, "return_bias": False}
    if name == "qkv_proj":
        return layers.QKVParallelLinear(HIDDEN, HIDDEN // HEADS, HEADS, KV_HEADS, bias=True, **options)
    if name == "gate_up_proj":
        return layers.MergedColumnParallelLinear(HIDDEN, [INNER, INNER], bias=False, **options)
    sizes = (INNER, HIDDEN) if name == "down_proj" else (HIDDEN, HIDDEN)
    return layers.RowParallelLinear(*sizes, bias=False, **options)


def load(layer: Any, parts: dict[str, Any], files: Path) -> None:
    """What a model's load_weights does, then what the loader does when it is over."""
    stored = pytest.importorskip("safetensors.torch").load_file(files / "model.safetensors")
    known = dict(layer.named_parameters())
    for part, shard in parts.items():
        for key, tensor in stored.items():
            if key.startswith(f"{part}."):
                parameter = known[key.removeprefix(f"{part}.")]
                shards = () if shard is None else (shard,)
                parameter.weight_loader(parameter, tensor, *shards)
    layer.quant_method.process_weights_after_loading(layer)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_merged_and_single_layers(tmp_path, scheme):
    plain = Block() if "float32" in scheme else Block().bfloat16()
    model = nn.Module.train(plain, False)
    aoext.quantize_(model, aoext.configs.schemes.as_config("test", SCHEMES[scheme]))
    aoext.save_model(model, tmp_path / "model.safetensors")
    config = config_of(tmp_path)
    for name, parts in MERGED.items():
        layer = vllm_layer(name, config)
        assert type(layer.quant_method).__name__ == "AoextLinearMethod"
        load(layer, parts, tmp_path)
        weights: list[Tensor] = [model.get_submodule(part).weight for part in parts]
        assert isinstance(layer.weight, QuantizedTensor)
        assert layer.weight.dtype is torch.bfloat16
        exact = torch.cat([exactly(weight) for weight in weights])
        # Where each part has a scale of its own for all of its weight, those of its blocks round once.
        rounds = scheme == "nvfp4" and len(parts) > 1
        difference = (exactly(layer.weight) - exact).abs().max()
        assert difference <= (2**-23 if rounds else 0) * exact.abs().max()
        assert layer.weight.stored_bytes <= (1.5 if rounds else 1.35) * sum(w.stored_bytes for w in weights)
        assert layer.weight.quantizes_input_to == weights[0].quantizes_input_to
        x = torch.randn(3, layer.weight.shape[1], dtype=torch.bfloat16)
        biases = [model.get_submodule(part).bias for part in parts]
        for part, product in zip(
            weights, layer(x).split([weight.shape[0] for weight in weights], 1), strict=True
        ):
            bias = biases.pop(0)
            wanted = F.linear(x, part.to(torch.bfloat16), None if bias is None else bias.bfloat16())
            assert torch.allclose(product, wanted, rtol=1e-2, atol=1e-2 * float(wanted.abs().max()))


def test_plain_layers_beside_quantised_ones(tmp_path):
    model = Block().bfloat16()
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig(), lambda _, name: name != "o_proj")
    aoext.save_model(model, tmp_path / "model.safetensors")
    config = config_of(tmp_path)
    assert isinstance(vllm_layer("o_proj", config).quant_method, layers.UnquantizedLinearMethod)
    assert type(vllm_layer("qkv_proj", config).quant_method).__name__ == "AoextLinearMethod"


@pytest.mark.parametrize("others", [None, aoext.Int4WeightOnlyConfig(group_size=32)])
def test_merged_layers_that_differ_are_named(tmp_path, others):
    model = Block().bfloat16()
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig(), lambda _, name: name == "k_proj")
    if others is not None:
        aoext.quantize_(model, others)
    aoext.save_model(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"qkv_proj: vLLM merges q_proj, k_proj, v_proj.* alike"):
        vllm_layer("qkv_proj", config_of(tmp_path))


def test_a_weight_whose_columns_are_permuted_is_named(tmp_path):
    model = Block().bfloat16()
    aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=32))
    weight = model.o_proj.weight
    parts = {**dict(weight.named_fields()), "k_order": torch.randperm(HIDDEN)}
    model.o_proj.weight = nn.Parameter(weight.remade(parts), requires_grad=False)
    aoext.save_model(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="o_proj: a weight with k_order does not run in vLLM yet"):
        vllm_layer("o_proj", config_of(tmp_path))


def test_quantised_embeddings_are_named(tmp_path):
    model = nn.ModuleDict({"embed_tokens": nn.Embedding(96, HIDDEN, dtype=torch.bfloat16)})
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig(), quantize_embeddings=True)
    aoext.save_model(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="embed_tokens: vLLM serves quantised weights of linear layers and"):
        config_of(tmp_path).get_quant_method(model.embed_tokens, "embed_tokens")


def test_a_checkpoint_without_quantised_weights_is_refused(tmp_path):
    aoext.save_model(Block(), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="has no weights that aoext has quantised"):
        config_of(tmp_path)


def test_blocks_that_merged_layers_would_share_are_refused(tmp_path):
    model = Block().bfloat16()
    aoext.quantize_(model, aoext.Float8WeightOnlyConfig(granularity=aoext.PerBlock([128, 128])))
    aoext.save_model(model, tmp_path / "model.safetensors")
    config = config_of(tmp_path)
    with pytest.raises(ValueError, match=r"block_size = \[128, 128\] does not divide the 64, 32, 32 rows"):
        vllm_layer("qkv_proj", config)
    layer = vllm_layer("o_proj", config)  # one layer may end within a block
    load(layer, MERGED["o_proj"], tmp_path)
    assert torch.equal(exactly(layer.weight), exactly(model.o_proj.weight))


def test_merged_layers_with_different_tables_are_refused(tmp_path):
    model = Block().bfloat16()
    aoext.quantize_(model, aoext.NF4WeightOnlyConfig(block_size=32))
    weight = model.up_proj.weight
    other = weight.remade({**dict(weight.named_fields()), "table": weight.table.flip(0)})
    model.up_proj.weight = nn.Parameter(other, requires_grad=False)
    aoext.save_model(model, tmp_path / "model.safetensors")
    layer = vllm_layer("gate_up_proj", config_of(tmp_path))
    with pytest.raises(ValueError, match="merges layers whose weights have different tables"):
        load(layer, MERGED["gate_up_proj"], tmp_path)
