"""Tiny mixtures of experts of transformers as others' checkpoints have them, and what these stand for.

save_pretrained writes a plain checkpoint; of it every linear layer, and every expert, becomes a packed one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from checkpoint_packers import Stored

# The tensors of a layer [N, K] of this name, and what they stand for.
Pack = Callable[[str, int, int], Stored]

_LAYER = re.compile(r".*\.(experts\.\d+|self_attn|mlp|shared_experts)\.\w+\.weight")


def write(
    folder: Path,
    model: nn.Module,
    pack: Pack,
    settings: dict[str, Any],
    change: Callable[[dict[str, Tensor]], None] = lambda state: None,
) -> nn.Module:
    """A checkpoint of a model whose layers are packed; a model of the same kind with what they stand for.

    change: what is to become of the packed tensors
    """
    known: Any = model
    known.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    meant: dict[str, Tensor] = dict(state)
    for name in sorted(state):
        if _LAYER.fullmatch(name) and state[name].dim() == 2 and not name.endswith("gate.weight"):
            layer = name.removesuffix(".weight")
            tensors, exact = pack(layer, *state.pop(name).shape)
            meant[name] = exact.float()
            state |= {f"{layer}.{leaf}": tensor for leaf, tensor in tensors.items()}
    change(state)
    finish(folder, state, settings)
    plain = folder.with_name(folder.name + "_meant")
    known.save_pretrained(plain)
    save_file(meant, plain / "model.safetensors", {"format": "pt"})
    return type(known).from_pretrained(plain, dtype=torch.float32, experts_implementation="eager").eval()


def finish(folder: Path, state: dict[str, Tensor], settings: dict[str, Any]) -> None:
    """Writes the tensors, and what config.json says of them."""
    save_file(
        {name: t.contiguous() for name, t in state.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
