"""Mixtures of experts that other libraries have quantised: keep(), and convert, give what their tensors mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import transformers

import aoext
import checkpoint_packers as pack
import moe_checkpoints
from aoext.convert import convert_checkpoint
from aoext.tensors import QuantizedTensor
from moe_models import IDS, build


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def small(stored: pack.Stored, *scales: str) -> pack.Stored:
    """Scales as weights of a model have them, not as numbers of a test of layers."""
    tensors, exact = stored
    return {k: t / 64 if k in scales else t for k, t in tensors.items()}, exact / 64


def weights(**given: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": given}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "static"}

# By name: the model, how layers are packed, and what config.json says of it.
LAYOUTS: dict[str, tuple[str, moe_checkpoints.Pack, dict[str, Any]]] = {
    "fp8": (
        "qwen3",
        lambda _, N, K: small(pack.fp8(N, K, (32, 32)), "weight_scale_inv"),
        BLOCKS,
    ),
    "fp8 in blocks of more rows": (
        "deepseek",
        lambda _, N, K: small(pack.fp8(N, K, (128, 128)), "weight_scale_inv"),
        {**BLOCKS, "weight_block_size": [128, 128]},
    ),
    "int4": (
        "mixtral",
        lambda _, N, K: small(pack.pack_quantized(N, K, 32, symmetric=False), "weight_scale"),
        weights(num_bits=4, type="int", strategy="group", group_size=32, symmetric=False),
    ),
    "int8": (
        "qwen3",
        lambda _, N, K: small(pack.int_quantized(N, K), "weight_scale"),
        weights(num_bits=8, type="int", strategy="channel"),
    ),
    "float8": (
        "qwen3",
        lambda _, N, K: small(pack.float_quantized(N, K, whole=True), "weight_scale"),
        weights(num_bits=8, type="float", strategy="tensor"),
    ),
    "gptq": ("qwen3", lambda _, N, K: small(pack.gptq(N, K, 32), "scales"), {**GPTQ, "desc_act": False}),
    "awq": ("mixtral", lambda _, N, K: small(pack.awq(N, K, 32), "scales"), AWQ),
}


def quantised(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if isinstance(p, QuantizedTensor)]


def load(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=aoext.AoextConfig.keep(), dtype=torch.float32
    ).eval()


def assert_means(model: nn.Module, meant: nn.Module) -> None:
    """The weights of the model that is meant, and its logits."""
    expected = dict(meant.named_parameters())
    for name in quantised(model):
        weight = model.get_parameter(name).dequantize()
        torch.testing.assert_close(weight, expected[name], rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        logits, reference = model(IDS).logits, meant(IDS).logits
    assert (logits - reference).norm() / reference.norm() < 1e-4


@pytest.mark.parametrize("name", LAYOUTS)
def test_experts_that_are_stored_one_by_one(name, tmp_path, generator):
    kind, packed, settings = LAYOUTS[name]
    meant = moe_checkpoints.write(tmp_path / "theirs", build(kind, generator), packed, settings)
    model = load(tmp_path / "theirs")
    experts = [path for path in quantised(model) if "experts.gate_up_proj" in path]
    assert len(experts) == (1 if kind == "deepseek" else 2)
    assert_means(model, meant)
    convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    again = load(tmp_path / "ours")
    assert quantised(again) == quantised(model)
    assert_means(again, meant)
