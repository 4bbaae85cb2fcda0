"""GGUF files, the checkpoints of llama.cpp: models of transformers with aoext's weights."""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from aoext import serialization
from aoext.checkpoints import gguf as blocks
from aoext.checkpoints.experts import joined, put_together
from aoext.checkpoints.gguf_file import ARCHITECTURE, GGUFFile
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name, one_of
from aoext.integrations.gguf_config import EXPERT_SIZES, ROPE_FREQUENCIES, config_of
from aoext.integrations.transformers import AoextConfig
from aoext.serialization.container import Source
from aoext.tensors import QuantizedTensor
from aoext.tensors.rows import in_order

logger = logging.getLogger(__name__)

# Names in the file, without "blk.{i}.", those of transformers, and shapes: H is the width of the model, F of
# the layer between, Q and K of all queries and keys, D of one head, V the number of tokens.
_WHOLE = {
    "token_embd": ("model.embed_tokens", "VH"),
    "output_norm": ("model.norm", "H"),
    "output": ("lm_head", "VH"),
}
_LAYER = {
    "attn_norm": ("input_layernorm", "H"),
    "attn_q": ("self_attn.q_proj", "QH"),
    "attn_k": ("self_attn.k_proj", "KH"),
    "attn_v": ("self_attn.v_proj", "KH"),
    "attn_output": ("self_attn.o_proj", "HQ"),
    "ffn_norm": ("post_attention_layernorm", "H"),
    "ffn_gate": ("mlp.gate_proj", "FH"),
    "ffn_up": ("mlp.up_proj", "FH"),
    "ffn_down": ("mlp.down_proj", "HF"),
}
_QK_NORMS = {"attn_q_norm": ("self_attn.q_norm", "D"), "attn_k_norm": ("self_attn.k_norm", "D")}
_GEMMA_LAYER = {
    **_LAYER,
    "post_attention_norm": ("post_attention_layernorm", "H"),
    "ffn_norm": ("pre_feedforward_layernorm", "H"),
    "post_ffw_norm": ("post_feedforward_layernorm", "H"),
}
# E is the number of experts, X the width of the layer between in each.
_EXPERTS = {
    **{
        stem: place
        for stem, place in _LAYER.items()
        if not stem.startswith(("ffn_gate", "ffn_up", "ffn_down"))
    },
    "ffn_gate_inp": ("mlp.gate", "EH"),
    "ffn_gate_exps": ("mlp.experts.gate_up_proj", "EXH"),
    "ffn_up_exps": ("mlp.experts.gate_up_proj", "EXH"),
    "ffn_down_exps": ("mlp.experts.down_proj", "EHX"),
}
_QKV, _QKVO = ("attn_q", "attn_k", "attn_v"), ("attn_q", "attn_k", "attn_v", "attn_output")


class _Architecture(NamedTuple):
    model_type: str  # transformers' name
    layer: dict[str, tuple[str, str]]
    biases: tuple[str, ...]  # which may have one, all or none


_ARCHITECTURES = {
    "llama": _Architecture("llama", _LAYER, (*_QKVO, "ffn_gate", "ffn_up", "ffn_down")),
    "qwen2": _Architecture("qwen2", _LAYER, _QKV),
    "qwen3": _Architecture("qwen3", {**_LAYER, **_QK_NORMS}, _QKVO),
    "qwen3moe": _Architecture("qwen3_moe", {**_EXPERTS, **_QK_NORMS}, _QKVO),
    "gemma2": _Architecture("gemma2", _GEMMA_LAYER, _QKVO),
    "gemma3": _Architecture("gemma3_text", {**_GEMMA_LAYER, **_QK_NORMS}, _QKVO),
}
_MIXTRAL = _Architecture("mixtral", _EXPERTS, ())  # whose files say "llama"
_PLAIN = ("F32", "F16", "BF16")


def load_gguf(
    path: str | os.PathLike[str], *, dtype: torch.dtype = torch.bfloat16, quantize_embeddings: bool = True
) -> Any:
    """The model of a GGUF file, on the CPU. Weights in Q4_0, Q4_1, Q4_K, IQ4_NL, IQ4_XS and MXFP4 stay in
    4 bits, those in Q8_0, Q6_K, Q5_0 and Q3_K become int8.

    dtype: of activations, and of all that is not quantised; a warning names the weights of other quantised
        formats, which are dequantised.
    quantize_embeddings: whether the embedding stays quantised too, and with it an output layer that shares
        its weight; False dequantises it.

    Architectures: llama (Mixtral, too), qwen2, qwen3, qwen3moe, gemma2, gemma3 (text). ValueError, which
    names the file and the key or tensor, for others, for what is damaged, and for settings and tensors that
    would change results and that transformers' model has no place for.
    """
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"load_gguf: dtype must be {one_of(FLOAT_DTYPES)}, got {dtype_name(dtype)}")
    source = Source("load_gguf", Path(path))
    with closing(GGUFFile(source)) as file, source.named():
        name = file.metadata.get(ARCHITECTURE)
        if not isinstance(name, str) or name not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise source.error(f"architecture must be one of {known}, got {name!r}")
        has_experts = name == "llama" and "blk.0.ffn_gate_inp.weight" in file.tensors
        architecture = _MIXTRAL if has_experts else _ARCHITECTURES[name]
        _check_layers(file)
        config = config_of(file, architecture.model_type)
        names = _names(file, architecture, config)
        state = _read(file, names, config, dtype, quantize_embeddings)
        state |= _zero_biases(file, architecture, config, dtype)
        tensors, metadata = serialization.flattened(state)
        described = json.loads(metadata[serialization.WEIGHTS_KEY])
        config.quantization_config = {**AoextConfig.keep().to_dict(), "described": described}
        model_type = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        model, loading = model_type.from_pretrained(
            None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
        )
        for key in ("unexpected_keys", "missing_keys"):
            if loading[key]:
                raise source.error(f"{key.replace('_', ' ')}: {', '.join(sorted(loading[key]))}")
        return model.eval()


def _parts(name: str) -> tuple[int | None, str, str]:
    """The layer of a tensor, None for those of the whole model, its name in it, and "weight" or "bias"."""
    stem, _, leaf = name.rpartition(".")
    match = re.fullmatch(r"blk\.(0|[1-9][0-9]{0,5})\.(\w+)", stem)
    return (int(match[1]), match[2], leaf) if match else (None, stem, leaf)


def _check_layers(file: GGUFFile) -> None:
    """Whether the layers that tensors name are as many as the file says; before anything is made of them."""
    named = {layer for layer, _, _ in map(_parts, file.tensors) if layer is not None}
    key = f"{file.metadata[ARCHITECTURE]}.block_count"
    count = file.metadata.get(key)
    if type(count) is not int or count != len(named) or any(layer >= count for layer in named):
        raise file.source.error(
            f"{key} must be the number of layers that tensors name, {len(named)}, got {count!r}"
        )


def _names(file: GGUFFile, architecture: _Architecture, config: PreTrainedConfig) -> dict[str, str]:
    """transformers' names of tensors by the file's; ValueError where names or shapes are not the model's."""
    biases = {stem for _, stem, leaf in map(_parts, file.tensors) if leaf == "bias"}
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for stem, (name, shape) in _shaped(_WHOLE, config).items():
        if stem != "output" or not config.tie_word_embeddings:
            expected[f"{stem}.weight"] = f"{name}.weight", shape
    for stem, (name, shape) in _shaped(architecture.layer, config).items():
        leaves = {"weight": shape}
        if stem in architecture.biases and stem in biases:
            leaves["bias"] = shape[:1]
        for layer in range(config.num_hidden_layers):
            for leaf, form in leaves.items():
                whole = name if stem.endswith("_exps") else f"{name}.{leaf}"
                expected[f"blk.{layer}.{stem}.{leaf}"] = f"model.layers.{layer}.{whole}", form
    for key in file.tensors.keys() - expected.keys():
        if key == ROPE_FREQUENCIES and config.model_type in ("llama", "mixtral"):
            continue  # in the config
        raise file.source.error(f"{key} is no tensor of {file.metadata[ARCHITECTURE]} that aoext knows")
    for key, (_, shape) in expected.items():
        if key not in file.tensors:
            raise file.source.error(f"has no {key}")
        if file.tensors[key].shape != shape:
            raise file.source.error(f"{key} must be {list(shape)}, got {list(file.tensors[key].shape)}")
    return {key: name for key, (name, _) in expected.items()}


def _shaped(
    table: dict[str, tuple[str, str]], config: PreTrainedConfig
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """A table of names with shapes in numbers."""
    sizes = {"H": config.hidden_size, "F": config.intermediate_size}
    sizes |= {"D": config.head_dim, "V": config.vocab_size}
    if config.model_type in EXPERT_SIZES:
        names = EXPERT_SIZES[config.model_type]
        sizes |= {"E": getattr(config, names.experts), "X": getattr(config, names.between)}
    heads = {"Q": config.num_attention_heads, "K": config.num_key_value_heads}
    sizes |= {size: count * config.head_dim for size, count in heads.items()}
    return {stem: (name, tuple(sizes[size] for size in form)) for stem, (name, form) in table.items()}


def _read(
    file: GGUFFile,
    names: dict[str, str],
    config: PreTrainedConfig,
    dtype: torch.dtype,
    quantize_embeddings: bool,
) -> dict[str, Tensor]:
    """The model's tensors by transformers' names, in the file's order."""
    state: dict[str, Tensor] = {}
    dequantised: list[str] = []
    for key in sorted(names, key=lambda key: file.tensors[key].begin):
        if names[key] in state:  # read with the other part of it
            continue
        place = file.tensors[key]
        stays = quantize_embeddings or key != "token_embd.weight"
        parts = [key]
        if len(place.shape) == 3:
            parts = [part for part in names if names[part] == names[key]]  # gate, then up
        kinds = {file.tensors[part].kind for part in parts}
        if stays and len(kinds) == 1 and place.kind in blocks.FORMATS and len(place.shape) > 1:
            weight: Tensor = _quantized(file, parts, dtype)
        else:
            weight = torch.cat([_dequantized(file, part) for part in parts], len(place.shape) - 2)
            if stays and (len(kinds) > 1 or not kinds <= {*_PLAIN, *blocks.FORMATS}):
                dequantised.append(f"{names[key]} ({', '.join(sorted(kinds))})")
        weight = _undone(file.metadata[ARCHITECTURE], key, weight, config)
        state[names[key]] = weight if isinstance(weight, QuantizedTensor) else weight.to(dtype)
    if dequantised:
        logger.warning(
            "load_gguf: no kernels yet for the formats of %d weights, which are dequantised to %s: %s",
            len(dequantised),
            dtype,
            ", ".join(dequantised),
        )
    return state


def _quantized(file: GGUFFile, keys: list[str], dtype: torch.dtype) -> QuantizedTensor:
    """A weight; of several tensors of experts, the weight that their rows are behind each other."""
    kind = file.tensors[keys[0]].kind
    *experts, rows, columns = file.tensors[keys[0]].shape
    raw = [file.read(key) for key in keys]
    if not experts:
        return blocks.weight(keys[0], kind, raw[0], dtype)

    def of_expert(e: int) -> QuantizedTensor:
        return joined([blocks.weight(key, kind, part[e], dtype) for key, part in zip(keys, raw, strict=True)])

    return put_together(map(of_expert, range(experts[0])), [*experts, len(keys) * rows, columns])


def _dequantized(file: GGUFFile, key: str) -> Tensor:
    """A tensor in float32, of whatever format."""
    kind = gguf.GGMLQuantizationType[file.tensors[key].kind]
    try:
        return torch.from_numpy(gguf.quants.dequantize(file.read(key).numpy(), kind).copy())
    except NotImplementedError as error:
        raise file.source.error(f"{key} is in format {kind.name}, which `gguf` cannot dequantise") from error


def _undone(architecture: str, key: str, tensor: Tensor, config: PreTrainedConfig) -> Tensor:
    """A tensor without what the file's writer has done to it."""
    if architecture == "llama" and ".attn_q." in key:
        return _rows_by_halves(tensor, config.num_attention_heads)
    if architecture == "llama" and ".attn_k." in key:
        return _rows_by_halves(tensor, config.num_key_value_heads)
    return tensor - 1 if architecture.startswith("gemma") and "norm" in key else tensor


def _zero_biases(
    file: GGUFFile, architecture: _Architecture, config: PreTrainedConfig, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Biases that the model has and no layer of the file."""
    there = {stem for _, stem, leaf in map(_parts, file.tensors) if leaf == "bias"}
    wanted = {"attn": getattr(config, "attention_bias", True), "ffn": getattr(config, "mlp_bias", False)}
    return {
        f"model.layers.{layer}.{name}.bias": torch.zeros(shape[0], dtype=dtype, device="cpu")
        for stem, (name, shape) in _shaped(architecture.layer, config).items()
        if stem in architecture.biases and stem not in there and wanted[stem.partition("_")[0]]
        for layer in range(config.num_hidden_layers)
    }


def _rows_by_halves(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head from pairs (for rotations of neighbours) to halves (of distant ones)."""
    rows = torch.arange(tensor.shape[0], device=tensor.device).view(heads, -1, 2).transpose(1, 2).flatten()
    return in_order(tensor, rows) if isinstance(tensor, QuantizedTensor) else tensor[rows]
