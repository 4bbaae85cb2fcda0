"""GGUF files, the checkpoints of llama.cpp: models of transformers with aoext's weights.

The package `gguf` reads the container, transformers makes the model.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from aoext import serialization
from aoext.checkpoints import gguf as blocks
from aoext.integrations.transformers import AoextConfig
from aoext.tensors import QuantizedTensor
from aoext.tensors.base import gathered
from aoext.tensors.fields import N

logger = logging.getLogger(__name__)

# Names in the file, without "blk.{i}." and behind it, and those of transformers.
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYERS = {
    **dict.fromkeys(("llama", "qwen2", "qwen3"), _LAYER),
    **dict.fromkeys(("gemma2", "gemma3"), _GEMMA_LAYER),
}
ARCHITECTURES = tuple(_LAYERS)
# Tables, no weights, and what can be computed.
_LEFT_OUT = re.compile(r"rope_freqs\.weight")


def load_gguf(path: str | os.PathLike[str], *, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The model of a GGUF file, on the CPU. Linear layers in Q4_0, Q4_1, Q4_K, IQ4_NL, IQ4_XS and MXFP4 stay
    in 4 bits, those in Q8_0, Q6_K, Q5_0 and Q3_K become int8.

    dtype: of activations, and of all that is not quantised; a warning names the weights of other quantised
    formats, which are dequantised. Architectures: llama, qwen2, qwen3, gemma2, gemma3 (text).
    ValueError for others, for experts, and for tensors that the model has no place for.
    """
    path = Path(path)
    reader = gguf.GGUFReader(path)
    field = reader.get_field("general.architecture")
    architecture = field.contents() if field is not None else None
    if architecture not in _LAYERS:
        raise ValueError(
            f"load_gguf: {path}: architecture must be one of {', '.join(ARCHITECTURES)}, got {architecture!r}"
        )
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    config = getattr(config, "text_config", config)
    if head_dim := reader.get_field(f"{architecture}.attention.key_length"):
        config.head_dim = head_dim.contents()
    state: dict[str, Tensor] = {}
    dequantised: list[str] = []
    for name, tensor in _tensors(reader, architecture):
        kind = tensor.tensor_type.name
        weight = _change(architecture, name, config)(_read(name, kind, tensor, dtype))
        state[name] = weight if isinstance(weight, QuantizedTensor) else weight.to(dtype)
        if not isinstance(weight, QuantizedTensor) and kind not in ("F32", "F16", "BF16"):
            dequantised.append(f"{name} ({kind})")
    if dequantised:
        logger.warning(
            "load_gguf: no kernels yet for the formats of %d weights, which are dequantised to %s: %s",
            len(dequantised),
            dtype,
            ", ".join(dequantised),
        )
    config.tie_word_embeddings = "lm_head.weight" not in state
    tensors, metadata = serialization.flattened(state)
    described = json.loads(metadata[serialization.WEIGHTS_KEY])
    config.quantization_config = {**AoextConfig.keep().to_dict(), "described": described}
    model_type = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model, loading = model_type.from_pretrained(
        None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
    )
    for key in ("unexpected_keys", "missing_keys"):
        if loading[key]:
            raise ValueError(f"load_gguf: {path}: {key.replace('_', ' ')}: {', '.join(sorted(loading[key]))}")
    return model.eval()


def _tensors(reader: Any, architecture: str) -> Iterator[tuple[str, Any]]:
    """The file's tensors by transformers' names."""
    layer = _LAYERS[architecture]
    for tensor in reader.tensors:
        if _LEFT_OUT.fullmatch(tensor.name):
            continue
        stem, _, leaf = tensor.name.rpartition(".")
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        known = layer.get(match[2]) if match else _WHOLE.get(stem)
        if known is None and match and match[2].endswith("_exps"):
            raise ValueError(
                f"load_gguf: {tensor.name} has the weights of experts, which do not run on aoext yet"
            )
        if known is None:
            raise ValueError(f"load_gguf: {tensor.name} is no tensor of {architecture} that aoext knows")
        yield (f"model.layers.{match[1]}.{known}.{leaf}" if match else f"{known}.{leaf}"), tensor


def _read(name: str, kind: str, tensor: Any, dtype: torch.dtype) -> Tensor:
    """A quantised weight for activations of `dtype`, or a float32 tensor."""
    if kind in blocks.FORMATS and "embed_tokens" not in name:
        return blocks.weight(name, kind, torch.from_numpy(tensor.data.copy()), dtype)
    return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())


def _change(architecture: str, name: str, config: Any) -> Callable[[Tensor], Tensor]:
    """Undoes what the file's writer has done to a tensor."""
    if architecture == "llama":
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for part, count in heads.items():
            if part in name:
                return partial(_rows_by_halves, heads=count)
    if architecture.startswith("gemma") and "norm" in name:
        return lambda tensor: tensor - 1
    return lambda tensor: tensor


def _rows_by_halves(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head from pairs (for rotations of neighbours) to halves (of distant ones)."""
    rows = torch.arange(tensor.shape[0], device=tensor.device).view(heads, -1, 2).transpose(1, 2).flatten()
    if not isinstance(tensor, QuantizedTensor):
        return tensor[rows]
    fields = {}
    for name, field in tensor.named_fields():
        dims = [axis.dim for axis in tensor.fields[name].axes]
        fields[name] = (
            field
            if N not in dims
            else gathered(field.movedim(dims.index(N), 0), rows).movedim(0, dims.index(N))
        )
    return tensor.remade(fields)
