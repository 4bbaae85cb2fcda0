"""Small models, and what tests do with them: a model with quantised and plain layers, training, files."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aoext.configs import Int4WeightOnlyConfig
from aoext.models.quantize import quantize_
from aoext.reference import randn
from aoext.tensors import QuantizedTensor
from formats import same

BF16 = torch.bfloat16


def build(device: torch.device | str = "cpu") -> nn.Sequential:
    """Layers with parameters, buffers and a layer that stays plain."""
    model = nn.Sequential(
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 32, bias=False), nn.Linear(32, 3)
    )
    return model.to(device=device, dtype=BF16).eval()


def fill(model: nn.Module, generator: torch.Generator) -> nn.Module:
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data.copy_(randn(generator, *tensor.shape).abs() + 0.1)
    return model


def quantized_model(device: torch.device | str, generator: torch.Generator) -> nn.Module:
    """Layers 0 and 2 are int4, layer 3 is plain."""
    model = fill(build(device), generator)
    quantize_(model, Int4WeightOnlyConfig(group_size=16), lambda _, name: name in ("0", "2"))
    return model


def trained_on(ids: Tensor, model: nn.Module, steps: int = 3, rate: float = 1e-2) -> Tensor:
    """A language model's logits after a few steps, which have lowered the loss."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    losses = []
    for _ in range(steps):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    return model.eval()(ids).logits


def contents(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A file's tensors by key, and its metadata."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    return load_file(path), metadata


def as_version_1(path: Path) -> None:
    """Turn a file into what save_model of format version 1 wrote."""
    tensors, metadata = contents(path)
    weights = json.loads(metadata["aoext_weights"])
    for weight in weights.values():
        del weight["qdata_dtype"]
    kept = {"aoext_format_version": "1", "aoext_weights": json.dumps(weights)}
    save_file(tensors, path, {**kept, "aoext_tied": metadata["aoext_tied"]})


def quantized_names(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters() if isinstance(p, QuantizedTensor)}


def assert_same_state(a: nn.Module, b: nn.Module) -> None:
    ours, theirs = a.state_dict(), b.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        other = theirs[name].to(tensor.device)
        if isinstance(tensor, QuantizedTensor):
            assert same(tensor, other), name
        else:
            assert tensor.dtype is other.dtype
            assert torch.equal(tensor, other), name
