"""Writes what lies beside it: files of every format, which later revisions must go on loading.

    PYTHONPATH=tests python tests/data/earlier/write.py

Run it where a format is new, at the revision whose files are to be kept.
"""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import nn

import aoext
from aoext.reference import randn
from aoext.tensors import QuantizedTensor
from formats import FORMATS

HERE = Path(__file__).parent
SCHEMES = [
    "int4",
    "int8",
    "int8_dynamic",
    "float8",
    "float8_dynamic",
    "float8_block",
    "int4_int8",
    "int4_float8",
]
SCHEMES += ["mxfp8", "mxfp4", "nvfp4", "nf4"]


def every_format(generator: torch.Generator) -> nn.ModuleDict:
    """A linear layer of each format, one with columns in another order, and one that is transposed."""
    weights = {name: make(randn(generator, 8, 32)) for name, make in FORMATS.items()}
    order = torch.randperm(32, generator=generator)
    for name in ("int4", "block_int8"):
        weight = weights[name]
        weights[f"{name}_ordered"] = weight.remade({**dict(weight.named_fields()), "k_order": order})
    layers = {}
    for name, weight in weights.items():
        layers[name] = nn.Linear(32, 8, bias=False)
        layers[name].weight = nn.Parameter(weight, requires_grad=False)
    layers["transposed"] = nn.Linear(8, 32, bias=False)
    layers["transposed"].weight = nn.Parameter(weights["int8"].t(), requires_grad=False)
    return nn.ModuleDict(layers)


def small_model() -> nn.Sequential:
    """Layers of aoext's classes, for a pickle of a whole model."""
    model = nn.Sequential(nn.Embedding(8, 32), nn.Linear(32, 8, bias=False))
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig(), lambda module, _: hasattr(module, "weight"))
    model.config = aoext.Float8DynamicActivationFloat8WeightConfig(granularity=aoext.PerRow())
    return model


def values_of(model: nn.Module, file: str) -> dict[str, torch.Tensor]:
    """What the quantised weights of a model stand for, by their names."""
    return {
        f"{file}.{name}": weight.dequantize().contiguous()
        for name, weight in model.named_parameters()
        if isinstance(weight, QuantizedTensor)
    }


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=16,
        max_position_embeddings=16,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def main() -> None:
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    model = every_format(generator)
    aoext.save_model(model, HERE / "model.safetensors")
    torch.save(model.state_dict(), HERE / "state.pt")
    expected = values_of(model, "formats")

    whole = small_model()
    torch.save(whole, HERE / "whole.pt")
    expected |= values_of(whole, "whole")

    plain, folder = HERE / "plain", HERE / "llama"
    llama().save_pretrained(plain)
    parts = ("q", "k", "v", "o", "gate", "up", "down")
    layers = [rf"layers\.{i}\..*{part}_proj" for i in (0, 1) for part in parts]
    per_module = dict(zip(layers, SCHEMES, strict=False))
    quantised = transformers.AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=aoext.AoextConfig("int8", per_module=per_module), dtype=torch.bfloat16
    )
    quantised.save_pretrained(folder)
    expected |= values_of(quantised, "llama")
    for file in plain.iterdir():
        file.unlink()
    plain.rmdir()
    save_file(expected, HERE / "expected.safetensors")


if __name__ == "__main__":
    main()
